"""Consoles of guests and nodes: tickets, terminals and VNC."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import struct
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web
from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
from cryptography.hazmat.primitives.ciphers import Cipher, modes

from pve_simulator.guests.guest import Guest
from pve_simulator.http.refusals import ProxyFailure, Refusal
from pve_simulator.http.routing import Call
from pve_simulator.nodes.tasks import TaskContext, TaskError
from pve_simulator.world import Node, World

WIDTH, HEIGHT = 640, 400
GLYPH = 8, 16
BLOCK, STEP = 16, 24  # one colored block per letter of the guest's name

_VERSION = b"RFB 003.008\n"
_PIECE = 9973  # a prime, so that messages rarely align with protocol units

Color = tuple[int, int, int]


class Disconnected(Exception):
    """The viewer has disconnected or violated the protocol."""


class Stream:
    """A byte stream over WebSocket messages."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self._received = bytearray()

    async def read(self, count: int) -> bytes:
        while len(self._received) < count:
            self._received += await self.receive()
        data = bytes(self._received[:count])
        del self._received[:count]
        return data

    async def receive(self) -> bytes:
        """The next message."""
        message = await self._socket.receive()
        if message.type is not WSMsgType.BINARY:
            raise Disconnected
        data: bytes = message.data
        return data

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE):
            try:
                await self._socket.send_bytes(data[start : start + _PIECE])
            except ConnectionError as error:
                raise Disconnected from error


VncServer = Callable[[Stream, str, Guest], Awaitable[None]]


async def serve_vnc(stream: Stream, password: str, guest: Guest, size: tuple[int, int] = (WIDTH, HEIGHT)) -> None:
    """Serve one viewer until it leaves."""
    await stream.write(_VERSION)
    if await stream.read(len(_VERSION)) != _VERSION:
        raise Disconnected
    if not await _log_in(stream, password):
        return
    await stream.read(1)  # shared flag, ignored
    name = f"QEMU ({guest.name})".encode()
    await stream.write(struct.pack(">HH", *size) + _format(16, 8, 0) + struct.pack(">I", len(name)) + name)
    shifts = (16, 8, 0)
    while True:
        match (await stream.read(1))[0]:
            case 0:  # SetPixelFormat
                shifts = struct.unpack(">3x4x6xBBB3x", await stream.read(19))
            case 2:  # SetEncodings
                (count,) = struct.unpack(">xH", await stream.read(3))
                await stream.read(4 * count)
            case 3:  # FramebufferUpdateRequest
                await stream.read(9)
                await stream.write(picture(guest, size, shifts))
            case 4:  # KeyEvent
                await stream.read(7)
            case 5:  # PointerEvent
                await stream.read(5)
            case 6:  # ClientCutText
                (length,) = struct.unpack(">3xI", await stream.read(7))
                await stream.read(length)
            case _:
                raise Disconnected


async def _log_in(stream: Stream, password: str) -> bool:
    await stream.write(bytes([1, 2]))
    await stream.read(1)
    challenge = hashlib.sha256(password.encode()).digest()[:16]
    await stream.write(challenge)
    if await stream.read(16) == _vnc_response(challenge, password):
        await stream.write(bytes(4))
        return True
    reason = b"Authentication failed"
    await stream.write(struct.pack(">II", 1, len(reason)) + reason)
    return False


def _vnc_response(challenge: bytes, password: str) -> bytes:
    """VNC authentication: DES with the bits of each key byte reversed."""
    key = bytearray(8)
    for index, byte in enumerate(password.encode()[:8]):
        key[index] = sum(1 << (7 - bit) for bit in range(8) if byte >> bit & 1)
    encryptor = Cipher(TripleDES(bytes(key) * 3), modes.ECB()).encryptor()  # noqa: S305
    return encryptor.update(challenge)


def new_password(seed: str) -> str:
    """Eight characters from '!' on, as PVE generates them."""
    return "".join(chr((byte & 0x3F) + ord("!")) for byte in hashlib.sha256(seed.encode()).digest()[:8])


def color_of(letter: str) -> Color:
    code = ord(letter)
    return 55 + code * 7 % 200, 55 + code * 13 % 200, 55 + code * 29 % 200


def picture(guest: Guest, size: tuple[int, int], shifts: tuple[int, ...]) -> bytes:
    """A whole screen in one update, as two rectangles: the line of blocks, and a text console below."""
    width, height = size
    top = min(height, STEP + BLOCK)
    upper = b"".join(_line(guest.name, width, y, shifts) for y in range(top))
    lower = _console(screen_text(guest), width, height - top)
    rectangle = struct.Struct(">HHHHi")
    return (
        struct.pack(">BxH", 0, 2)
        + rectangle.pack(0, 0, width, top, 0)
        + upper
        + rectangle.pack(0, top, width, height - top, 0)
        + lower
    )


def _line(name: str, width: int, y: int, shifts: tuple[int, ...]) -> bytes:
    if not STEP <= y < STEP + BLOCK:
        return bytes(4 * width)
    return b"".join(_blocks(name, width, shifts))[: 4 * width].ljust(4 * width, b"\0")


def _blocks(name: str, width: int, shifts: tuple[int, ...]) -> Iterator[bytes]:
    for letter in name[: width // STEP]:
        value = sum(part << shift for part, shift in zip(color_of(letter), shifts, strict=True))
        yield bytes(4 * (STEP - BLOCK)) + value.to_bytes(4, "little") * BLOCK


_BOOT_SECONDS = 8.0
_FIRMWARE = [
    "SeaBIOS (version rel-1.17.0-0-gb52ca86e094d-prebuilt.qemu.org)",
    "Booting from Hard Disk...",
    "Boot failed: not a bootable disk",
    "",
    "No bootable device.",
]


def screen_text(guest: Guest) -> list[str]:
    """The guest's login screen, which repeats its prompt after each Enter; the firmware's if nothing boots."""
    system = guest.system
    if not system.id:
        return _FIRMWARE
    if system.id == "mswindows":
        return [f"{system.name} {system.version}", "", "Press Ctrl+Alt+Delete to unlock."]
    prompts = [f"{guest.name} login:"] * min(guest.enters, 15)
    return [f"{system.name} {system.version} {guest.name} tty1", "", *prompts, f"{guest.name} login: _"]


async def serve_terminal(stream: Stream, login: str, serial: str, guest: Guest, now: Callable[[], float]) -> None:
    """Serve a serial port until the viewer leaves. What the guest printed before is gone."""
    line = bytearray()
    while not line.endswith(b"\n"):
        line += await stream.read(1)
    if line.decode("utf-8", "replace").rstrip("\n") != login:
        raise Disconnected
    await stream.write(b"OK")
    if str(guest.config.get(serial, "")) != "socket":
        await stream.write(b"unable to find a serial interface\r\n")
        return
    await stream.write(f"starting serial terminal on interface {serial} (press Ctrl+O to exit)\r\n".encode())
    while True:
        keys = await _read_keys(stream)
        is_up = guest.system.id and not guest.paused and now() - guest.started_at >= _BOOT_SECONDS
        if b"\r" in keys and is_up and guest.system.id != "mswindows":
            issue = f"{guest.system.name} {guest.system.version} {guest.name} ttyS{serial[-1]}"
            await stream.write(f"\r\n{issue}\r\n\r\n{guest.name} login: ".encode())


async def _read_keys(stream: Stream) -> bytes:
    """The next keys that are pressed: 0:LENGTH:KEYS. A resize (1:COLUMNS:ROWS:) and a ping (2) press none."""
    match await stream.read(1):
        case b"0":
            await stream.read(1)
            return await stream.read(await _read_number(stream))
        case b"1":
            await stream.read(1)
            await _read_number(stream)
            await _read_number(stream)
            return b""
        case b"2":
            return b""
        case _:
            raise Disconnected


async def _read_number(stream: Stream) -> int:
    digits = b""
    while (character := await stream.read(1)) != b":":
        digits += character
        if not digits.isdigit() or len(digits) > 6:
            raise Disconnected
    return int(digits or b"0")


def _console(lines: list[str], width: int, height: int) -> bytes:
    """Rows of pixels in light gray on black, which is the same in every pixel format."""
    rows = []
    for y in range(height):
        number, row = divmod(y - GLYPH[1], GLYPH[1])
        line = lines[number] if 0 <= number < len(lines) else ""
        bits = "".join(f"{_glyph_row(letter, row):08b}" for letter in f" {line}")
        pixels = b"".join(b"\xc0\xc0\xc0\0" if bit == "1" else bytes(4) for bit in bits[:width])
        rows.append(pixels.ljust(4 * width, b"\0"))
    return b"".join(rows)


def _glyph_row(letter: str, row: int) -> int:
    index = ord(letter) - 32
    return _font()[index * GLYPH[1] + row] if 0 <= index < 95 else 0


@cache
def _font() -> bytes:
    """Printable ASCII, 16 rows of 8 pixels each, drawn from DejaVu Sans Mono."""
    return Path(__file__).with_name("console_font.bin").read_bytes()


def _format(red: int, green: int, blue: int) -> bytes:
    return struct.pack(">BBBBHHHBBB3x", 32, 24, 0, 1, 255, 255, 255, red, green, blue)


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
class VncPort:
    """An open port for a guest's screen, or for one of its serial ports."""

    guest: Guest
    password: str
    serial: str = ""
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, context: TaskContext) -> None:
        """Wait until a client has connected and left, for a limited time."""
        waits = [asyncio.ensure_future(each) for each in (context.sleep(_WAIT_SECONDS), self.connected.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        if not self.connected.is_set():
            raise TaskError("connection timed out")
        if not self.guest.running:
            raise TaskError("Failed to run vncproxy.")
        await self.closed.wait()


class Consoles:
    """Valid tickets and open console ports."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tickets: dict[str, _Ticket] = {}
        self._next = 0
        self.vnc_ports: dict[tuple[str, int], VncPort] = {}
        """By the node of the port, which is not always the guest's."""
        self.serve_vnc: VncServer = serve_vnc
        """The greeting for a client."""

    async def join(self, request: web.BaseRequest, node: str, port: int) -> web.StreamResponse:
        """Connect a WebSocket to a port of the answering node."""
        vnc_port = self.vnc_ports.pop((node, port), None)
        if vnc_port is None:  # PVE accepts first and can then only close the connection
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)
        socket = web.WebSocketResponse(protocols=("binary",), timeout=1.0)
        await socket.prepare(request)
        vnc_port.connected.set()
        try:
            if vnc_port.guest.running and vnc_port.serial:
                now = self._world.clock.now
                await serve_terminal(Stream(socket), vnc_port.password, vnc_port.serial, vnc_port.guest, now)
            elif vnc_port.guest.running and vnc_port.guest.machine is not None:
                await vnc_port.guest.machine.show(vnc_port.password, Stream(socket))
            elif vnc_port.guest.running:
                await self.serve_vnc(Stream(socket), vnc_port.password, vnc_port.guest)
        except Disconnected:
            pass
        finally:
            vnc_port.closed.set()
            await socket.close()
        return socket

    def port(self) -> int:
        """A free port in PVE's console range."""
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
        """Refuse a ticket for another console, or an expired one."""
        known = self._tickets.get(ticket)
        if known is None or (known.path, known.port) != (path, port) or known.until < self._world.clock.now():
            raise Refusal(401, "permission denied - invalid PVEVNC ticket\n")


def node_of(call: Call) -> Node:
    """The node of a path that PVE does not forward."""
    world = call.world
    name = call.local_node.name if call.node == "localhost" else call.node
    node = world.node(name)
    if not node.online:
        raise ProxyFailure(595, "No route to host")
    call.values["node"] = name
    return node


def open_console(
    call: Call,
    kind: str,
    target: str,
    path: str,
    *,
    screen_of: Guest | None = None,
    serial: str = "",
    generate_password: bool = False,
) -> dict[str, Any]:
    """Open a console port and return the answer that all consoles share."""
    consoles = call.world.part(Consoles)
    port = consoles.port()
    # Most of these calls are not proxied: port and task are on the answering node.
    node = call.local_node.name if call.endpoint.proxyto is None else call.node
    ticket = consoles.issue(path, port)
    password = f"{call.authid}:{ticket}" if serial else new_password(ticket) if generate_password else ticket
    vnc_port = VncPort(screen_of, password, serial) if screen_of else None
    if vnc_port is not None:
        consoles.vnc_ports[node, port] = vnc_port

    async def work(context: TaskContext) -> None:
        context.log(f"starting {kind} {call.values.get('vmid', '')}".rstrip())
        if vnc_port is None:
            await context.sleep(_WAIT_SECONDS)
            raise TaskError("connection timed out")
        try:
            await vnc_port.wait(context)
        finally:
            if consoles.vnc_ports.get((node, port)) is vnc_port:
                del consoles.vnc_ports[node, port]

    return {
        "user": call.authid,
        "ticket": ticket,
        "port": str(port),
        "upid": call.world.tasks.start(node, kind, target, call.authid, work),
        **({"password": password} if generate_password else {}),
    }


def spice_file(call: Call, title: str, port: int) -> dict[str, Any]:
    """The connection file for a SPICE viewer."""
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
