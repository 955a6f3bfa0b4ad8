"""The VNC server inside QEMU, as far as a viewer that only looks needs it: RFB 3.8, password login, raw pixels."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Awaitable, Callable, Iterator

from aiohttp import WSMsgType, web
from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
from cryptography.hazmat.primitives.ciphers import Cipher, modes

from quorate.sim.guests import Guest

WIDTH, HEIGHT = 640, 400
BLOCK, STEP = 16, 24  # a block for each letter of the guest's name, in the letter's own colour

_VERSION = b"RFB 003.008\n"
_PIECE = 9973  # a prime: what belongs together hardly ever comes in one message

Colour = tuple[int, int, int]


class Gone(Exception):
    """The viewer has left, or said what no viewer says."""


class Stream:
    """The bytes of a WebSocket without its messages."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self._received = bytearray()

    async def read(self, count: int) -> bytes:
        while len(self._received) < count:
            message = await self._socket.receive()
            if message.type is not WSMsgType.BINARY:
                raise Gone
            self._received += message.data
        taken = bytes(self._received[:count])
        del self._received[:count]
        return taken

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE):
            try:
                await self._socket.send_bytes(data[start : start + _PIECE])
            except ConnectionError as error:
                raise Gone from error


Speak = Callable[[Stream, str, Guest], Awaitable[None]]


async def speak(stream: Stream, password: str, guest: Guest, size: tuple[int, int] = (WIDTH, HEIGHT)) -> None:
    """Serve one viewer until it leaves."""
    await stream.write(_VERSION)
    if await stream.read(len(_VERSION)) != _VERSION:
        raise Gone
    if not await _log_in(stream, password):
        return
    await stream.read(1)  # whether others may stay; they may
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
                raise Gone


async def _log_in(stream: Stream, password: str) -> bool:
    await stream.write(bytes([1, 2]))
    await stream.read(1)
    challenge = hashlib.sha256(password.encode()).digest()[:16]
    await stream.write(challenge)
    if await stream.read(16) == _proof(challenge, password):
        await stream.write(bytes(4))
        return True
    reason = b"Authentication failed"
    await stream.write(struct.pack(">II", 1, len(reason)) + reason)
    return False


def _proof(challenge: bytes, password: str) -> bytes:
    """DES, where the password's bits are read from the wrong end."""
    key = bytearray(8)
    for place, byte in enumerate(password.encode()[:8]):
        key[place] = sum(1 << (7 - bit) for bit in range(8) if byte >> bit & 1)
    encryptor = Cipher(TripleDES(bytes(key) * 3), modes.ECB()).encryptor()  # noqa: S305
    return encryptor.update(challenge)


def new_password(seed: str) -> str:
    """Eight characters from '!' on, as PVE makes them."""
    return "".join(chr((byte & 0x3F) + ord("!")) for byte in hashlib.sha256(seed.encode()).digest()[:8])


def colour_of(letter: str) -> Colour:
    code = ord(letter)
    return 55 + code * 7 % 200, 55 + code * 13 % 200, 55 + code * 29 % 200


def picture(guest: Guest, size: tuple[int, int], shifts: tuple[int, ...]) -> bytes:
    """A whole screen in one update, as two rectangles: the line of blocks, and the black rest."""
    width, height = size
    top = min(height, STEP + BLOCK)
    upper = b"".join(_line(guest.name, width, y, shifts) for y in range(top))
    lower = bytes(4 * width * (height - top))
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
        value = sum(part << shift for part, shift in zip(colour_of(letter), shifts, strict=True))
        yield bytes(4 * (STEP - BLOCK)) + value.to_bytes(4, "little") * BLOCK


def _format(red: int, green: int, blue: int) -> bytes:
    return struct.pack(">BBBBHHHBBB3x", 32, 24, 0, 1, 255, 255, 255, red, green, blue)
