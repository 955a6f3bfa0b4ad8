"""Which function answers which endpoint, and what it gets."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from pve_simulator.pbs.refusals import Refusal, forbidden

if TYPE_CHECKING:
    from pve_simulator.pbs.datastores import Datastore, Group
    from pve_simulator.pbs.server import BackupServer
    from pve_simulator.pbs.tasks import Task

_MODULES = ("access", "config", "datastore", "files", "jobs", "nodes", "remotes", "status")


@dataclass(frozen=True, slots=True)
class Payload:
    """Data with what the server puts next to it, such as a digest or a total."""

    data: Any
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Raw:
    """A body that is not JSON."""

    body: bytes
    content_type: str = "application/octet-stream"


@dataclass(slots=True)
class Call:
    """One request to an endpoint, after the declared checks."""

    server: BackupServer
    auth_id: str
    params: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.params[name]

    @property
    def namespace(self) -> str:
        return str(self.params.get("ns", ""))

    def datastore(self, *, write: bool = False) -> Datastore:
        store = self.server.datastore(str(self.params["store"]))
        store.refuse_maintenance(write=write)
        return store

    def path(self, namespace: str | None = None) -> str:
        """The ACL path of the datastore and namespace."""
        parts = ["datastore", str(self.params["store"]), self.namespace if namespace is None else namespace]
        return "/" + "/".join(part for part in parts if part)

    def holds(self, *privileges: str, path: str | None = None) -> bool:
        """Whether the caller has one of these privileges."""
        return bool(self.server.access.privileges(self.auth_id, path or self.path()) & set(privileges))

    def require(self, full: str, own: str = "") -> bool:
        """Refuse a caller with neither; true if only their own groups are within reach."""
        if self.holds(full):
            return False
        if own and self.holds(own):
            return True
        raise forbidden(f"{'|'.join(filter(None, (full, own)))} on {self.path()}")

    def refuse_foreign(self, group: Group, *, only_own: bool) -> None:
        if only_own and not owns(self.auth_id, group.owner):
            raise Refusal(f"backup owner check failed ({self.auth_id} != {group.owner})")

    def start_task(
        self, kind: str, worker_id: str, work: Callable[[Task], Awaitable[None] | None], seconds: float = 0.05
    ) -> str:
        return self.server.tasks.start(kind, worker_id, self.auth_id, work, seconds).upid


Handler = Callable[[Call], Any]
_Function = TypeVar("_Function", bound=Handler)
_ROUTES: dict[tuple[str, str], Handler] = {}


def route(method: str, *templates: str) -> Callable[[_Function], _Function]:
    """Declare the function of these endpoints."""

    def declare(function: _Function) -> _Function:
        for template in templates:
            _ROUTES[method, template] = function
        return function

    return declare


@cache
def all_routes() -> Mapping[tuple[str, str], Handler]:
    for module in _MODULES:
        importlib.import_module(f"pve_simulator.pbs.routes.{module}")
    return _ROUTES


def owns(auth_id: str, owner: str) -> bool:
    """A user owns what its tokens own; a token owns only its own groups."""
    return auth_id == owner or ("!" not in auth_id and owner.partition("!")[0] == auth_id)


def only(row: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: row[name] for name in names if name in row}
