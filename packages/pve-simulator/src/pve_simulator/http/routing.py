"""Endpoints: a function with `@route`, which receives one `Call`.

    @route("POST /nodes/{node}/qemu/{vmid}/status/start")
    def start(call: Call) -> str:
        guest = call.guest()
        return call.start_guest_task("start", work)

The server has already authenticated the caller, checked the declared permission and the parameters, and found the
node. The function's result becomes `data`; it refuses with `pve_simulator.http.refusals`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

from aiohttp import web

from pve_schema.schema import Endpoint
from pve_simulator.access.directory import ROOT
from pve_simulator.access.tickets import Authentication
from pve_simulator.guests.guest import Guest, Kind, task_type
from pve_simulator.http.permission_check import require_privileges
from pve_simulator.http.refusals import bad_parameters, existing, failure
from pve_simulator.nodes.tasks import Work
from pve_simulator.world import Node, World

QEMU, LXC = "/nodes/{node}/qemu/{vmid}", "/nodes/{node}/lxc/{vmid}"
GUEST = "/nodes/{node}/{kind}/{vmid}"  # both of them: `route` makes two of a path with a kind in it


@dataclass(slots=True)
class Payload:
    """Data with something in addition, such as the `total` of a list."""

    data: Any
    total: int | None = None
    changes: str | None = None

    @classmethod
    def of_lines(cls, lines: list[str], params: Mapping[str, Any]) -> Self:
        """Numbered log lines from `start` up to `limit`; 0 means all."""
        start, limit = int(params.get("start", 0)), int(params.get("limit", 50)) or len(lines)
        rows = [{"n": number, "t": text} for number, text in enumerate(lines, 1)]
        return cls(rows[start : start + limit], total=len(lines))


@dataclass(slots=True)
class Text:
    """Plain text for a file, instead of JSON."""

    text: str
    filename: str


@dataclass(slots=True)
class Binary:
    """The bytes of a file, instead of JSON."""

    content: bytes
    filename: str


@dataclass(slots=True)
class Call:
    """One API call that has passed all checks of the server."""

    world: World
    endpoint: Endpoint
    user: str | None  # user@realm or user@realm!token; None only where no login is needed
    params: dict[str, Any]  # all parameters, those of the path included: int, float, bool, str or list
    values: dict[str, str]  # the parameters of the path, as text
    local_node: Node  # the answering node
    authentication: Authentication
    request: web.BaseRequest  # for endpoints that read the body themselves
    undefined: tuple[str, ...] = ()  # parameters without a value: null in JSON, without `=` in a form

    @property
    def node(self) -> str:
        """The node named in the path."""
        return self.values["node"]

    @property
    def vmid(self) -> int:
        return int(self.values["vmid"])

    @property
    def authid(self) -> str:
        """The caller, where a login is required."""
        assert self.user is not None
        return self.user

    @property
    def is_root(self) -> bool:
        """root@pam itself; its tokens are not root."""
        return self.user == ROOT

    @property
    def kind(self) -> Kind:
        """qemu or lxc, from the path."""
        return "lxc" if "/lxc" in self.endpoint.template else "qemu"

    def guest(self) -> Guest:
        """The guest of the path, or PVE's refusal if it is not on this node."""
        return self.world.guest(self.node, self.kind, self.vmid)

    def located_vm(self) -> Guest:
        """The VM of the path, with the refusal of methods that look for its file on this node."""
        missing = f"unable to find configuration file for VM {self.vmid} on node '{self.node}'"
        return existing(self.find_guest(), missing)

    def find_guest(self) -> Guest | None:
        return self.world.find_guest(self.node, self.kind, self.vmid)

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
        """Start a task on the node of the path, on behalf of the caller."""
        return self.world.tasks.start(self.node, kind, target, self.authid, work)

    async def wait_for(self, upid: str, seconds: int, complaint: str = "") -> str | None:
        """Nothing if the task ends well in time, its error if it fails, else its UPID."""
        task, clock = existing(self.world.tasks.find(upid), upid), self.world.clock
        until = clock.now() + seconds
        while task.running and clock.now() < until:
            await clock.sleep(0.25)
        if task.went_wrong:
            raise failure(f"{complaint}{task.exitstatus}")
        return upid if task.running else None

    def start_local_task(self, kind: str, target: str, work: Work) -> str:
        """Start a task on the answering node."""
        return self.world.tasks.start(self.local_node.name, kind, target, self.authid, work)

    def start_guest_task(self, action: str, work: Work) -> str:
        """Start a task of the guest in the path, such as qmstart or vzstart."""
        return self.start_task(task_type(self.kind, action), str(self.vmid), work)


Handler = Callable[[Call], Any | Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Route:
    """An implemented endpoint."""

    handler: Handler
    needs_quorum: bool
    reads_body: bool


_routes: dict[tuple[str, str], Route] = {}


def route(*specs: str, needs_quorum: bool | None = None, reads_body: bool = False) -> Callable[[Handler], Handler]:
    """Register a function for one or more `METHOD /path/{template}`; `{kind}` covers qemu and lxc.

    Every change needs a quorate cluster unless `needs_quorum` is False; with `reads_body` the function reads the
    request's body itself, as an upload does.
    """

    def register(handler: Handler) -> Handler:
        for spec in dict.fromkeys(
            template_spec.replace("{kind}", kind) for template_spec in specs for kind in ("qemu", "lxc")
        ):
            method, _, template = spec.partition(" ")
            if (method, template) in _routes:
                raise ValueError(f"{spec} is already implemented")
            quorum = method != "GET" if needs_quorum is None else needs_quorum
            _routes[method, template] = Route(handler, quorum, reads_body)
        return handler

    return register


@cache
def all_routes() -> Mapping[tuple[str, str], Route]:
    """Every implemented endpoint; the first call imports the modules of `pve_simulator.routes`."""
    package = importlib.import_module("pve_simulator.routes")
    for module in pkgutil.walk_packages(package.__path__, "pve_simulator.routes."):
        importlib.import_module(module.name)
    return _routes
