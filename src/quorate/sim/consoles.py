"""Consoles: a ticket, a port, and a task that waits for somebody to connect.

The screens of VMs are served over VNC. Terminals and shells are not: nobody gets through to them, and their tasks end
as they do when nobody comes.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from quorate.sim import vnc
from quorate.sim.guests import Guest
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


@dataclass(slots=True)
class Line:
    """An open port, behind which a guest's screen can be seen with the password."""

    guest: Guest
    password: str
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, context: TaskContext) -> None:
        """Until somebody came and left again; nobody is waited for for long."""
        waits = [asyncio.ensure_future(one) for one in (context.sleep(_WAIT_SECONDS), self.connected.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
        if not self.connected.is_set():
            raise TaskError("connection timed out")
        if not self.guest.running:
            raise TaskError("Failed to run vncproxy.")
        await self.closed.wait()


class Consoles:
    """The tickets that are still good, and the ports behind which somebody waits."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tickets: dict[str, _Ticket] = {}
        self._next = 0
        self.lines: dict[tuple[str, int], Line] = {}
        """By the node whose port it is, which is not always that of the guest."""
        self.speak: vnc.Speak = vnc.speak
        """What is said to whoever connects."""

    async def join(self, request: web.BaseRequest, node: str, port: int) -> web.StreamResponse:
        """Connect a WebSocket with a port of the node that it came to."""
        line = self.lines.pop((node, port), None)
        if line is None:  # PVE finds nobody at the port after it has accepted, and can only hang up
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)
        socket = web.WebSocketResponse(protocols=("binary",), timeout=1.0)
        await socket.prepare(request)
        line.connected.set()
        try:
            if line.guest.running:
                await self.speak(vnc.Stream(socket), line.password, line.guest)
        except vnc.Gone:
            pass
        finally:
            line.closed.set()
            await socket.close()
        return socket

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


def open_console(
    call: Call, kind: str, target: str, path: str, *, screen_of: Guest | None = None, generate_password: bool = False
) -> dict[str, Any]:
    """Begin to wait for a client: what every console answers."""
    consoles = call.world.part(Consoles)
    port = consoles.port()
    # Most of these calls are not forwarded: port and task are on the node that was asked.
    node = call.local_node.name if call.endpoint.proxyto is None else call.node
    ticket = consoles.issue(path, port)
    password = vnc.new_password(ticket) if generate_password else ticket
    line = Line(screen_of, password) if screen_of else None
    if line is not None:
        consoles.lines[node, port] = line

    async def work(context: TaskContext) -> None:
        context.log(f"starting {kind} {call.values.get('vmid', '')}".rstrip())
        if line is None:
            await context.sleep(_WAIT_SECONDS)
            raise TaskError("connection timed out")
        try:
            await line.wait(context)
        finally:
            if consoles.lines.get((node, port)) is line:
                del consoles.lines[node, port]

    return {
        "user": call.authid,
        "ticket": ticket,
        "port": str(port),
        "upid": call.world.tasks.start(node, kind, target, call.authid, work),
        **({"password": password} if generate_password else {}),
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
