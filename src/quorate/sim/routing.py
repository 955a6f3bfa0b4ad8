"""How endpoints are written: a function with `@route`, which receives one `Call`.

    @route("POST /nodes/{node}/qemu/{vmid}/status/start")
    def start(call: Call) -> str:
        guest = call.guest("qemu")
        return call.start_task("qmstart", str(guest.vmid), work)

The front has already authenticated the caller, checked the declared permission and the parameters, and found the
node. What the function returns becomes `data`; it refuses with `quorate.sim.refusals`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from aiohttp import web

from quorate.pve.schema import Endpoint
from quorate.sim.access import ROOT
from quorate.sim.guests import Guest, Kind
from quorate.sim.permission_check import require_privileges
from quorate.sim.refusals import bad_parameters
from quorate.sim.tasks import Work
from quorate.sim.tickets import Authentication
from quorate.sim.world import Node, World


@dataclass(slots=True)
class Answer:
    """Data with something beside it, such as the `total` of a list."""

    data: Any
    total: int | None = None
    changes: str | None = None


@dataclass(slots=True)
class Call:
    """One API call that has passed all checks of the front."""

    world: World
    endpoint: Endpoint
    user: str | None  # user@realm or user@realm!token; None only where no login is needed
    params: dict[str, Any]  # all parameters, those of the path included: int, float, bool, str or list
    values: dict[str, str]  # the parameters of the path, as text
    local_node: Node  # the node whose address the client talked to
    authentication: Authentication
    request: web.BaseRequest  # for endpoints that read the body themselves

    @property
    def node(self) -> str:
        """The node named in the path."""
        return self.values["node"]

    @property
    def vmid(self) -> int:
        return int(self.values["vmid"])

    @property
    def authid(self) -> str:
        """The caller, where there has to be one."""
        assert self.user is not None
        return self.user

    @property
    def is_root(self) -> bool:
        """root@pam itself; its tokens are not root."""
        return self.user == ROOT

    def guest(self, kind: Kind) -> Guest:
        """The guest of the path, or PVE's complaint that it is not on this node."""
        return self.world.guest(self.node, kind, self.vmid)

    def find_guest(self, kind: Kind) -> Guest | None:
        return self.world.find_guest(self.node, kind, self.vmid)

    def allowed(self, path: str, *privileges: str) -> bool:
        """Whether the caller has any of the privileges on the path."""
        return self.world.access.allowed(self.authid, path, *privileges)

    def require(self, path: str, *privileges: str, any_of: bool = False) -> None:
        """Refuse with 403 unless the caller has the privileges on the path."""
        if not self.is_root:
            require_privileges(self.world.access, self.authid, path, privileges, any_of=any_of)

    def root_only(self, *names: str) -> None:
        """Refuse parameters that only root@pam may use."""
        for name in names:
            if name in self.params and not self.is_root:
                raise bad_parameters({name: "Only root may use this option."})

    def start_task(self, kind: str, target: str, work: Work) -> str:
        """Begin a task on the node of the path, on behalf of the caller."""
        return self.world.tasks.start(self.node, kind, target, self.authid, work)


Handler = Callable[[Call], Any | Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Route:
    """What is known about an implemented endpoint."""

    handler: Handler
    needs_quorum: bool
    reads_body: bool


_routes: dict[tuple[str, str], Route] = {}


def route(*specs: str, needs_quorum: bool | None = None, reads_body: bool = False) -> Callable[[Handler], Handler]:
    """Register a function for one or more `METHOD /path/{template}`.

    Every change needs a quorate cluster unless `needs_quorum` says otherwise; with `reads_body` the function reads
    the request's body itself, as an upload does.
    """

    def register(handler: Handler) -> Handler:
        for spec in specs:
            method, _, template = spec.partition(" ")
            if (method, template) in _routes:
                raise ValueError(f"{spec} is already implemented")
            quorum = method != "GET" if needs_quorum is None else needs_quorum
            _routes[method, template] = Route(handler, quorum, reads_body)
        return handler

    return register


@cache
def all_routes() -> Mapping[tuple[str, str], Route]:
    """Every implemented endpoint; the first call imports all modules of `quorate.sim.api`."""
    package = importlib.import_module("quorate.sim.api")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return _routes
