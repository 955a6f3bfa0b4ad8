"""The screens and terminals of guests, as PVE's console proxies show them."""

from __future__ import annotations

import asyncio
import re
import struct
import zlib
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import aiohttp
from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
from cryptography.hazmat.primitives.ciphers import Cipher, modes

from quorate.hints import Advice, tools
from quorate.problems import AuthenticationFailed, Problem, ServerFailed, TimedOut
from quorate.pve.errors import connection_failure

if TYPE_CHECKING:
    from quorate.pve.client import PveClient

PIXEL = 4
"""Bytes of a pixel: red, green, blue, and one unused."""
_CHANNELS = 3
_PNG = b"\x89PNG\r\n\x1a\n"
_RGB_8_BIT = bytes([8, 2, 0, 0, 0])


class Picture:
    """A screen of this size, empty at first."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self.missing = width * height
        """Pixels that have not arrived yet."""
        self._pixels = bytearray(width * height * PIXEL)
        self._known = bytearray(width * height)

    def put(self, x: int, y: int, row: bytes) -> None:
        """Set part of one line, which must be inside the screen."""
        start = y * self.width + x
        end = start + len(row) // PIXEL
        self.missing -= self._known.count(0, start, end)
        self._known[start:end] = b"\x01" * (end - start)
        self._pixels[start * PIXEL : end * PIXEL] = row

    @property
    def plain(self) -> bool:
        """Whether the screen has only one color."""
        whole = memoryview(self._pixels)
        return all(len(set(whole[channel::PIXEL].tobytes())) == 1 for channel in range(_CHANNELS))

    def png(self, factor: int = 1) -> bytes:
        """Encode as PNG, each side `factor` (at most 16) times smaller."""
        width, height = self.width // factor, self.height // factor
        lines = bytearray()
        for y in range(height):
            lines += b"\0"  # no filter: most screens are text and flat colors
            lines += self._line(y, width) if factor == 1 else self._shrunk_line(y, width, factor)
        head = struct.pack(">II", width, height) + _RGB_8_BIT
        return _PNG + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(lines, 9)) + _chunk(b"IEND", b"")

    @classmethod
    def from_png(cls, png: bytes) -> Picture:
        """The picture that `png()` encoded."""
        width, height = struct.unpack(">II", png[16:24])
        (length,) = struct.unpack(">I", png[33:37])
        lines, step = zlib.decompress(png[41 : 41 + length]), 1 + width * _CHANNELS
        picture = cls(width, height)
        for y in range(height):
            line, row = lines[y * step + 1 : (y + 1) * step], bytearray(width * PIXEL)
            for channel in range(_CHANNELS):
                row[channel::PIXEL] = line[channel::_CHANNELS]
            picture.put(0, y, bytes(row))
        return picture

    def text_lines(self) -> list[list[int]]:
        """What looks like lines of text, from top to bottom, as the shapes of their letters.

        That is rows of small shapes of several kinds, each row and each letter surrounded by the color that most of
        the screen has. Photographs and large logos have none.
        """
        if not self._pixels:
            return []
        marks, width = self._marks(), self.width
        rows = [marks[y * width : (y + 1) * width] for y in range(self.height)]
        bands = [rows[start:end] for start, end in _stretches([1 in row for row in rows])]
        lines = [_letters(band) for band in bands if _LEAST_HEIGHT <= len(band) <= _LARGEST_HEIGHT]
        return [letters for letters in lines if len(letters) >= _FEWEST_LETTERS and len(set(letters)) >= _FEWEST_SHAPES]

    def _marks(self) -> bytes:
        """A byte for each pixel: 0 where it has the color that most of the screen has, else 1."""
        colors = Counter(bytes(self._pixels[at : at + _CHANNELS]) for at in range(0, len(self._pixels), PIXEL * 7))
        marks = 0
        for channel, level in enumerate(colors.most_common(1)[0][0]):
            differs = bytes(abs(value - level) > _NOISE for value in range(256))
            marks |= int.from_bytes(bytes(self._pixels[channel::PIXEL]).translate(differs), "big")
        return marks.to_bytes(self.width * self.height, "big")

    def _line(self, y: int, width: int) -> bytearray:
        source = self._source(y)
        line = bytearray(width * _CHANNELS)
        for channel in range(_CHANNELS):
            line[channel::_CHANNELS] = source[channel::PIXEL]
        return line

    def _shrunk_line(self, y: int, width: int, factor: int) -> bytearray:
        """One line of averages over squares of `factor` pixels a side.

        All pixels of a line are added up at once, as one long integer with four bytes for each of them. Averages need
        less than that: the sum times 65536 / factor², rounded up, has the average in its third byte.
        """
        area = range(factor)
        share = -(-65536 // factor**2)
        sources = [self._source(y * factor + dy) for dy in area]
        line = bytearray(width * _CHANNELS)
        for channel in range(_CHANNELS):
            starts = [channel + dx * PIXEL for dx in area]
            total = sum(_spread(source[at :: PIXEL * factor][:width]) for source in sources for at in starts)
            line[channel::_CHANNELS] = (total * share).to_bytes(width * 4, "little")[2::4]
        return line

    def _source(self, y: int) -> bytes:
        return bytes(self._pixels[y * self.width * PIXEL : (y + 1) * self.width * PIXEL])


def _spread(values: bytes) -> int:
    """One integer with four bytes for each value."""
    apart = bytearray(len(values) * 4)
    apart[0::4] = values
    return int.from_bytes(apart, "little")


_NOISE = 24
_LEAST_HEIGHT, _LARGEST_HEIGHT = 5, 40
_FEWEST_LETTERS, _FEWEST_SHAPES = 6, 4
_SAME_LINE = 2
"""Letters in which two pictures of one line may differ: a blinking cursor, a spinner."""


def _letters(band: Sequence[bytes]) -> list[int]:
    """The shapes in a row of letters, each without the empty rows above and below it."""
    whole = 0
    for row in band:
        whole |= int.from_bytes(row, "big")
    shapes = []
    for start, end in _stretches([bool(mark) for mark in whole.to_bytes(len(band[0]), "big")]):
        if end - start > _LARGEST_HEIGHT:
            return []  # a line, a frame or a picture
        shape = [row[start:end] for row in band]
        inked = _stretches([1 in row for row in shape])
        shapes.append(zlib.crc32(b"\n".join(shape[inked[0][0] : inked[-1][1]])))
    return shapes


def _stretches(marks: Sequence[bool]) -> list[tuple[int, int]]:
    """Start and end of each unbroken run of true values."""
    ends = [at for at, (before, mark) in enumerate(pairwise([False, *marks, False])) if before != mark]
    return list(zip(ends[::2], ends[1::2], strict=True))


def count_new_lines(before: Iterable[Sequence[int]], after: Iterable[Sequence[int]]) -> int:
    """Lines of text that the second picture has and the first has not, wherever they are."""
    left = [Counter(line) for line in before]
    count = 0
    for line in map(Counter, after):
        same = next((old for old in left if ((old - line) + (line - old)).total() <= _SAME_LINE), None)
        if same is None:
            count += 1
        else:
            left.remove(same)
    return count


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


SECONDS = 15.0
LARGEST_SIDE = 4096
MOST_BYTES = 2 * LARGEST_SIDE**2 * PIXEL
MOST_MESSAGES = 200
MOST_RESIZES = 20
LONGEST_TEXT = 65536
AGAIN = Advice("Try again; if it persists, see the vncproxy task", tools.task_list)

_VERSION = re.compile(rb"RFB 003\.(\d{3})\n")
_OUR_VERSION = b"RFB 003.008\n"
_VNC_AUTHENTICATION = 2
_SHARED = b"\x01"  # other viewers of this console stay connected
_RAW, _DESKTOP_SIZE = 0, -223
# 32 bits a pixel, 24 of them used; little-endian, true color, 255 for each; red in the first byte, then green, blue.
_PIXEL_FORMAT = struct.pack(">BBBBHHHBBB3x", 32, 24, 0, 1, 255, 255, 255, 0, 8, 16)
_SET_PIXEL_FORMAT, _SET_ENCODINGS, _ASK = 0, 2, 3
_UPDATE, _COLORS, _BELL, _CUT_TEXT = range(4)

Reading = Generator[int, bytes, None]
"""Yields the number of bytes that it needs next, and receives them."""


async def look(client: PveClient, path: str) -> Picture:
    """The current screen of the VM at this API path."""
    try:
        async with asyncio.timeout(SECONDS):
            return await _look(client, path)
    except TimeoutError:
        raise TimedOut(f"The console did not send a complete picture within {SECONDS:g} s", next_step=AGAIN) from None


async def _look(client: PveClient, path: str) -> Picture:
    password, socket = await client.open_console(path)
    rfb = RfbClient(password)
    try:
        while rfb.picture is None:
            message = await socket.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                raise ServerFailed("The console was closed before its picture was complete", next_step=AGAIN)
            if answer := rfb.feed(message.data):
                await socket.send_bytes(answer)
    except (aiohttp.ClientError, OSError) as error:
        raise ServerFailed(
            "The connection to the console broke", why=connection_failure(error), next_step=AGAIN
        ) from None
    finally:
        await socket.close()
    return rfb.picture


PROMPT_SECONDS = 5.0
"""How long a terminal may take to answer Enter."""
_ENTER = b"0:1:\r"
_LONGEST_OUTPUT = 65536
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[@-~]|[()][A-Z0-9]|\][^\x07\x1b]*(?:\x07|\x1b\\\\)|[=>78])")
_PROMPT = re.compile(r"([^\r\n]*\blogin:|[\w.-]+@[\w.-]+[^\r\n]{0,200}[#$]) ?\Z")


async def find_prompt(client: PveClient, path: str, serial: str) -> str:
    """Press Enter in a serial terminal of the VM; the prompt of a login or a shell that answers, or nothing."""
    login, socket = await client.open_terminal(path, serial)
    output = bytearray()
    try:
        async with asyncio.timeout(PROMPT_SECONDS):
            await socket.send_bytes(login.encode())
            while len(output) < _LONGEST_OUTPUT:
                message = await socket.receive()
                if message.type not in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
                    return ""
                if not output:  # what comes first is that the login was accepted
                    await socket.send_bytes(_ENTER)
                output += message.data if isinstance(message.data, bytes) else message.data.encode()
                if prompt := _PROMPT.search(_ESCAPE.sub("", output.decode("utf-8", "replace"))):
                    return prompt[1].strip()
    except (aiohttp.ClientError, OSError):  # a timeout, too
        return ""
    finally:
        await socket.close()
    return ""


class RfbClient:
    """Requests one complete picture from a VNC server."""

    def __init__(self, password: str) -> None:
        self.picture: Picture | None = None
        """The complete screen, once it has arrived."""
        self._screen = Picture(0, 0)
        self._resizes = 0
        self._bytes = 0
        self._received = bytearray()
        self._answer = bytearray()
        self._conversation = self._converse(password)
        self._wanted = next(self._conversation)

    def feed(self, data: bytes) -> bytes:
        """Process what the server sent; return what to send to it."""
        self._received += data
        self._bytes += len(data)
        if self._bytes > MOST_BYTES:
            raise _not_vnc(f"It sent more than {MOST_BYTES >> 20} MiB")
        while self.picture is None and len(self._received) >= self._wanted:
            piece = bytes(self._received[: self._wanted])
            del self._received[: self._wanted]
            try:
                self._wanted = self._conversation.send(piece)
            except StopIteration:
                self.picture = self._screen
        answer = bytes(self._answer)
        self._answer.clear()
        return answer

    def _converse(self, password: str) -> Reading:
        yield from self._agree_on_version()
        yield from self._log_in(password)
        yield from self._begin()
        for _ in range(MOST_MESSAGES):
            yield from self._message()
            if not self._screen.missing:
                return
        raise _not_vnc(f"{MOST_MESSAGES} messages did not make a whole picture")

    # -- the handshake ---------------------------------------------------------------------------------------------

    def _agree_on_version(self) -> Reading:
        greeting = yield len(_OUR_VERSION)
        version = _VERSION.fullmatch(greeting)
        if version is None or int(version[1]) < 8:
            raise _not_vnc(f"It started with {greeting!r} instead of {_OUR_VERSION!r}")
        self._answer += _OUR_VERSION

    def _log_in(self, password: str) -> Reading:
        count = (yield 1)[0]
        if count == 0:
            raise _authentication_failure((yield from self._reason()))
        offered = yield count
        if _VNC_AUTHENTICATION not in offered:
            raise _not_vnc(f"It offers only the security types {', '.join(map(str, offered))}")
        self._answer.append(_VNC_AUTHENTICATION)
        challenge = yield 16
        self._answer += response_to(challenge, password)
        if (yield 4) != bytes(4):
            raise _authentication_failure((yield from self._reason()))

    def _reason(self) -> Generator[int, bytes, str]:
        (length,) = struct.unpack(">I", (yield 4))
        return (yield _check_length(length)).decode("utf-8", "replace")

    def _begin(self) -> Reading:
        self._answer += _SHARED
        width, height, name_length = struct.unpack(">HH16xI", (yield 24))
        self._resize(width, height)
        yield _check_length(name_length)
        self._answer += struct.pack(">B3x", _SET_PIXEL_FORMAT) + _PIXEL_FORMAT
        self._answer += struct.pack(">BxHii", _SET_ENCODINGS, 2, _RAW, _DESKTOP_SIZE)
        self._ask()

    # -- the picture -----------------------------------------------------------------------------------------------

    def _message(self) -> Reading:
        kind = (yield 1)[0]
        if kind == _UPDATE:
            yield from self._update()
        elif kind == _COLORS:
            (count,) = struct.unpack(">3xH", (yield 5))
            yield count * 6
        elif kind == _CUT_TEXT:
            (length,) = struct.unpack(">3xI", (yield 7))
            yield _check_length(length)
        elif kind != _BELL:
            raise _not_vnc(f"It sent a message of unknown type {kind}")

    def _update(self) -> Reading:
        (count,) = struct.unpack(">xH", (yield 3))
        for _ in range(count):
            x, y, width, height, encoding = struct.unpack(">HHHHi", (yield 12))
            if encoding == _DESKTOP_SIZE:
                self._resize(width, height)
            elif encoding == _RAW:
                yield from self._rectangle(x, y, width, height)
            else:
                raise _not_vnc(f"It sent a rectangle in encoding {encoding}, which was not requested")
        if self._screen.missing:
            self._ask()

    def _rectangle(self, x: int, y: int, width: int, height: int) -> Reading:
        if x + width > self._screen.width or y + height > self._screen.height:
            size = f"{self._screen.width}x{self._screen.height}"
            raise _not_vnc(f"It sent {width}x{height} pixels at {x},{y} of a screen of {size}")
        for line in range(height if width else 0):
            self._screen.put(x, y + line, (yield width * PIXEL))

    def _resize(self, width: int, height: int) -> None:
        self._resizes += 1
        if not (0 < width <= LARGEST_SIDE and 0 < height <= LARGEST_SIDE) or self._resizes > MOST_RESIZES:
            raise ServerFailed(
                f"The screen claims to be {width}x{height}",
                why=f"The limit is {LARGEST_SIDE}x{LARGEST_SIDE}",
                next_step="Choose a smaller resolution inside the guest",
            )
        self._screen = Picture(width, height)

    def _ask(self) -> None:
        """Request the whole screen, including what has not changed."""
        self._answer += struct.pack(">BBHHHH", _ASK, 0, 0, 0, self._screen.width, self._screen.height)


def response_to(challenge: bytes, password: str) -> bytes:
    """VNC's challenge response: DES with the first eight bytes of the password, the bits of each reversed."""
    key = bytes(int(f"{byte:08b}"[::-1], 2) for byte in password.encode("latin-1", "replace")[:8].ljust(8, b"\0"))
    # Three times the same key makes it plain DES. Only this protocol needs it, inside TLS and with a one-time password.
    encryptor = Cipher(TripleDES(key * 3), modes.ECB()).encryptor()  # noqa: S305
    return encryptor.update(challenge) + encryptor.finalize()


def _check_length(length: int) -> int:
    if length > LONGEST_TEXT:
        raise _not_vnc(f"It announced a text of {length} bytes")
    return length


def _not_vnc(why: str) -> Problem:
    return ServerFailed("The console violates the VNC protocol", why=why, next_step=AGAIN)


def _authentication_failure(reason: str) -> Problem:
    return AuthenticationFailed(
        "The console did not accept the password that PVE generated for it", why=f"It said: {reason}", next_step=AGAIN
    )
