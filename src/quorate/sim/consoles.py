"""Consoles as far as the API goes: a ticket, a port, and a task that waits for somebody to connect.

What would follow, a VNC or terminal connection, is not served; the task ends as it does when nobody comes.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from typing import Any

from quorate.sim.refusals import ProxyFailure, Refusal, failure
from quorate.sim.routing import Call
from quorate.sim.tasks import TaskContext, TaskError
from quorate.sim.world import Node, World

_FIRST_PORT = 5900
_PORTS = 100
_WAIT_SECONDS = 10.0
_TICKET_SECONDS = 40.0


@dataclass(frozen=True, slots=True)
class _Ticket:
    path: str
    port: int
    until: float


class Consoles:
    """The tickets that are still good."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tickets: dict[str, _Ticket] = {}
        self._next = 0

    def port(self) -> int:
        """A free port of the range that PVE uses for consoles."""
        port = _FIRST_PORT + self._next % _PORTS
        self._next += 1
        return port

    def issue(self, path: str, port: int) -> str:
        now = self._world.clock.now()
        seal = hashlib.sha256(f"{self._world.seed} {path} {port} {now}".encode()).digest()
        ticket = f"PVEVNC:{int(now):08X}::{base64.b64encode(seal * 8).decode()}"
        self._tickets[ticket] = _Ticket(path, port, now + _TICKET_SECONDS)
        return ticket

    def check(self, ticket: str, path: str, port: int) -> None:
        """Refuse a ticket that was not issued for this console, or is too old."""
        known = self._tickets.get(ticket)
        if known is None or (known.path, known.port) != (path, port) or known.until < self._world.clock.now():
            raise Refusal(401, "permission denied - invalid PVEVNC ticket\n")


def node_of(call: Call) -> Node:
    """The node of a path that PVE does not forward by itself."""
    world = call.world
    name = call.local_node.name if call.node == "localhost" else call.node
    node = world.nodes.get(name)
    if node is None:
        raise failure(
            f"hostname lookup '{name}' failed - failed to get address info for: {name}: Name or service not known"
        )
    if not node.online:
        raise ProxyFailure(595, "No route to host")
    call.values["node"] = name
    return node


def open_console(call: Call, kind: str, target: str, path: str) -> dict[str, Any]:
    """Begin to wait for a client: what every console answers."""
    consoles = call.world.part(Consoles)
    port = consoles.port()

    async def work(context: TaskContext) -> None:
        context.log(f"starting {kind} {call.values.get('vmid', '')}".rstrip())
        await context.sleep(_WAIT_SECONDS)
        raise TaskError("connection timed out")

    return {
        "user": call.authid,
        "ticket": consoles.issue(path, port),
        "port": str(port),
        "upid": call.start_task(kind, target, work),
    }


def spice_file(call: Call, title: str, port: int) -> dict[str, Any]:
    """What a SPICE viewer takes as its connection file."""
    proxy = call.params.get("proxy") or call.local_node.ip
    secret = hashlib.sha256(f"{title} {call.world.clock.now()}".encode()).hexdigest()
    return {
        "type": "spice",
        "title": title,
        "host": f"pvespiceproxy:{int(call.world.clock.now()):08X}:{title}:{secret[:40]}",
        "proxy": f"http://{proxy}:3128",
        "tls-port": port,
        "password": secret[:32],
        "host-subject": f"OU=PVE Cluster Node,O=Proxmox Virtual Environment,CN={call.node}",
        "secure-attention": "Ctrl+Alt+Ins",
        "toggle-fullscreen": "Shift+F11",
        "release-cursor": "Ctrl+Alt+R",
        "delete-this-file": 1,
    }
