"""Standard input and output by lines. The event loop reads and writes what it can without waiting, threads the rest."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import io
import logging
import os
import queue
import select
import stat
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Self

import msgspec

import pve_schema
from quorate import __version__
from quorate.config import Settings
from quorate.config.files import cache_folder
from quorate.secret import Secret

_LOG = logging.getLogger(__name__)
LONGEST_LINE = 32 * 1024 * 1024
MOST_UNWRITTEN = 1024 * 1024
"""Bytes beyond which senders wait for a client that reads slowly."""
LAST_SECONDS = 5.0
"""How long a client has to read the last lines."""
_PIECE = 64 * 1024
_ROOM = 4096
"""What a pipe or socket that is ready for writing takes at once (PIPE_BUF)."""


@contextlib.asynccontextmanager
async def standard_streams() -> AsyncIterator[tuple[Lines, LineWriter]]:
    """What the client sends and reads.

    Programs that we start must not read from it or write to it: their input is empty, and their output goes to
    standard error.
    """
    nothing = os.open(os.devnull, os.O_RDWR)  # first, as it takes the place of standard error where that is closed
    own_input, own_output = os.dup(0), os.dup(1)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    writer = LineWriter(own_output)
    try:
        yield Lines(os.fdopen(own_input, "rb", buffering=0, closefd=False)), writer
    finally:
        await writer.close()
        os.dup2(own_input, 0)
        os.dup2(own_output, 1)


class Lines:
    """The lines of an unbuffered stream, read on demand.

    In place of an overlong line comes one that is not a message. If the wait for a line is canceled, the line is not
    lost: the next caller gets it.
    """

    def __init__(self, stream: BinaryIO | io.RawIOBase) -> None:
        self._stream = stream
        self._begun = bytearray()
        """The beginning of a line whose end has not arrived."""
        self._arrived: deque[str] = deque()
        self._ended = False
        self._more: asyncio.Future[None] | None = None
        """Done when more has arrived."""
        self._asked: queue.SimpleQueue[asyncio.AbstractEventLoop] | None = None
        """Wakes the thread that reads what the event loop cannot watch: files, and anything on Windows."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        if line := await self.read():
            return line
        raise StopAsyncIteration

    async def read(self) -> str:
        """The next line; empty at the end."""
        while not self._arrived and not self._ended:
            if self._more is None:
                self._more = asyncio.get_running_loop().create_future()
                self._ask(asyncio.get_running_loop())
            await asyncio.shield(self._more)
        return self._arrived.popleft() if self._arrived else ""

    def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._asked is None:
            try:
                loop.add_reader(self._stream.fileno(), self._read_ready, loop)
                return
            except (OSError, NotImplementedError):
                self._asked = queue.SimpleQueue()
                threading.Thread(target=self._serve, args=(self._asked,), daemon=True).start()
        self._asked.put(loop)

    def _read_ready(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._stream.fileno())
        self._take(self._read_piece())

    def _serve(self, asked: queue.SimpleQueue[asyncio.AbstractEventLoop]) -> None:
        piece = b"-"
        while piece:
            loop = asked.get()
            piece = self._read_piece()
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._take, piece)

    def _read_piece(self) -> bytes:
        try:
            return self._stream.read(_PIECE) or b""  # of a raw stream: what is there
        except OSError:  # the client is gone
            return b""

    def _take(self, piece: bytes) -> None:
        ended, newline, begun = piece.rpartition(b"\n")
        if newline:
            self._arrived.extend(map(_text, (self._begun + ended).split(b"\n")))
            self._begun.clear()
        elif not piece:
            self._ended = True
            self._arrived.extend([_text(self._begun)] if self._begun else [])
        self._begun += begun
        del self._begun[LONGEST_LINE:]  # one too many, because the newline counts
        if self._more is not None:
            self._more.set_result(None)
            self._more = None


def _text(line: bytes | bytearray) -> str:
    return "too long\n" if len(line) >= LONGEST_LINE else line.decode(errors="replace") + "\n"


class LineWriter:
    """Writes lines in their order. Nobody waits for a line to be written, unless the client reads too slowly."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._room = select.poll() if hasattr(select, "poll") else None
        if self._room:
            self._room.register(descriptor, select.POLLOUT)
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        """Read by the thread that writes what there is no room for yet."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sent = self._written = 0
        """Bytes so far. While they differ, only the thread changes the second."""
        self._waiting = 0
        """How many callers wait for the thread."""
        self._moved = asyncio.Event()
        self.broken = False
        """Whether the client stopped reading; further lines are dropped."""

    def write(self, line: bytes) -> None:
        idle = self._sent == self._written
        self._sent += len(line)
        if idle and self._room:
            rest = self._write_what_fits(line, self._room)
            self._written += len(line) - len(rest)
            line = rest
        if line:
            self._hand_over(line)

    async def drain(self) -> None:
        """Wait while too much is unwritten."""
        if self._sent - self._written > MOST_UNWRITTEN:
            await self._wait_for(self._sent - MOST_UNWRITTEN)

    async def close(self) -> None:
        """Wait until everything is written."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                await self._wait_for(self._sent)

    async def _wait_for(self, bytes_written: int) -> None:
        self._waiting += 1  # before the look at `_written`: the thread looks here after it has changed that
        try:
            self._moved.clear()
            while self._written < bytes_written:
                await self._moved.wait()
                self._moved.clear()
        finally:
            self._waiting -= 1

    def _write_what_fits(self, data: bytes, room: select.poll) -> bytes:
        """Write what the client has room for, and return the rest."""
        while data and room.poll(0):
            written = self._write(data[:_ROOM])
            data = data[written:]
        return data

    def _write(self, data: bytes) -> int:
        try:
            return len(data) if self.broken else os.write(self._descriptor, data)
        except OSError:
            self.broken = True
            return len(data)

    def _hand_over(self, line: bytes) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            threading.Thread(target=self._serve, args=(self._loop,), daemon=True).start()
        self._lines.put(line)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            data = self._lines.get()
            while data:
                written = self._write(data)
                data = data[written:]
                self._written += written
            if self._waiting:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self._moved.set)


INITIALIZE, INITIALIZED = "initialize", "notifications/initialized"
CACHED = frozenset(
    {INITIALIZE, "server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list"}
)
VERSION_IN_META = "io.modelcontextprotocol/protocolVersion"
"""In the `_meta` of every request since 2026-07-28, which has no `initialize`."""
MOST_ANSWERS = 48
MOST_FILES = 16
MOST_BYTES = 8 * 1024 * 1024


class Questions:
    """The requests of one session in their order, each with the digest under which its answer is cached."""

    def __init__(self) -> None:
        self._opening: str | None = None
        """The digest of `initialize`; it determines the version of all answers that follow."""
        self._initialized = False
        self._modern = False

    def digest(self, method: str, params: Any) -> str | None:
        """None if the answer must come from the server."""
        if method == INITIALIZED:
            self._initialized = self._opening is not None
        if method not in CACHED:
            return None
        modern = isinstance(params, dict) and VERSION_IN_META in (params.get("_meta") or {})
        digest = hashlib.sha256(_encode([None if modern else self._opening, method, params])).hexdigest()
        if method == INITIALIZE:
            if modern or self._modern or self._opening is not None:
                return None
            self._opening = digest
            return digest
        self._modern = self._modern or (modern and self._opening is None)
        return digest if (self._modern if modern else self._initialized) else None


class _File(msgspec.Struct):
    key: str
    answers: dict[str, msgspec.Raw]


class HandshakeCache:
    def __init__(self, folder: Path, key: str) -> None:
        self._key = key
        self._file = folder / f"{key[:32]}.json"
        self._answers: dict[str, msgspec.Raw] = _load(self._file, key)

    @classmethod
    def of(cls, settings: Settings, *, demo: bool = False) -> HandshakeCache | None:
        """The cache for a server with these settings. None where the owner of a file cannot be determined."""
        if not hasattr(os, "geteuid"):
            return None
        return cls(cache_folder() / "handshakes", _key(settings, demo))

    def __bool__(self) -> bool:
        return bool(self._answers)

    def find(self, digest: str | None) -> bytes | None:
        answer = None if digest is None else self._answers.get(digest)
        return None if answer is None else bytes(answer)

    def record(self, digest: str, result: bytes) -> None:
        """Keep what the server has answered."""
        if self.find(digest) == result:
            return
        if digest in self._answers:
            _LOG.warning("a cached list was outdated and is replaced; reconnect the client to see it")
        self._answers = {**self._answers, digest: msgspec.Raw(result)}
        for oldest in list(self._answers)[:-MOST_ANSWERS]:
            del self._answers[oldest]
        with contextlib.suppress(OSError):  # the next start is slower, that is all
            self._save()

    def _save(self) -> None:
        folder = self._file.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_private(folder.lstat(), stat.S_ISDIR):
            return
        draft = folder / f"{self._file.name}.{os.getpid()}"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(msgspec.json.encode(_File(self._key, self._answers)))
        draft.replace(self._file)
        for stale in sorted(folder.iterdir(), key=lambda file: file.lstat().st_mtime_ns)[:-MOST_FILES]:
            stale.unlink()


def _load(file: Path, key: str) -> dict[str, msgspec.Raw]:
    try:
        if not _is_private(file.parent.lstat(), stat.S_ISDIR):
            return {}
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
            if not _is_private(os.fstat(opened.fileno()), stat.S_ISREG):
                return {}
            stored = msgspec.json.decode(opened.read(MOST_BYTES), type=_File)
    except (OSError, msgspec.DecodeError):
        return {}
    return stored.answers if stored.key == key else {}


def _is_private(status: os.stat_result, kind: Any) -> bool:
    return bool(kind(status.st_mode)) and status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077


def _key(settings: Settings, demo: bool) -> str:
    """A digest of everything that answers depend on, without the state's address, which may contain a password."""
    known = [__version__, sys.version, _stamps(), demo, replace(settings, state="")]
    return hashlib.sha256(_encode(known)).hexdigest()


def _stamps() -> list[Any]:
    """Versions of all packages, and the files of those in this repository, which may be edited in place."""
    sdk = importlib.util.find_spec("mcp")
    site = Path(sdk.origin).parents[1] if sdk and sdk.origin else None
    installed = sorted(name for name in os.listdir(site) if name.endswith(".dist-info")) if site else []
    ours = []
    for package in (Path(__file__).parents[1], Path(pve_schema.__file__).parent):
        for folder, below, files in os.walk(package):
            below[:] = [name for name in below if name not in ("__pycache__", "data")]
            for name in files:
                status = os.stat(os.path.join(folder, name))
                ours.append((folder, name, status.st_mtime_ns, status.st_size))
    return [str(site), installed, sorted(ours)]


def _encode(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=_plain, order="deterministic")


def _plain(value: Any) -> Any:
    """What JSON lacks: paths and networks as text. Secrets and functions change no answer and are left out."""
    return None if isinstance(value, Secret) or callable(value) else str(value)


PATIENCE = 0.25
"""How long to wait for a silent client; then the server is imported while the client thinks."""
LAST_QUESTION = "tools/list"
"""What most clients wait for; the import starts when they have it, so that it does not compete with the answer."""


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    jsonrpc: str
    method: str
    id: int | str | msgspec.UnsetType = msgspec.UNSET
    params: dict[str, msgspec.Raw] | msgspec.UnsetType | None = msgspec.UNSET


@dataclass(slots=True)
class Opening:
    """A conversation that the server takes over: what was read so far, then the rest."""

    lines: Lines
    writer: LineWriter
    cache: HandshakeCache | None = None
    read: list[str] = field(default_factory=list)
    mark: str = field(default_factory=lambda: f"{os.urandom(8).hex()}:")
    """Prefix of the ids of messages whose answers the client already has."""
    ended: bool = False
    """Whether the client has left and nothing is unanswered."""

    async def __aiter__(self) -> AsyncIterator[str]:
        while self.read:
            yield self.read.pop(0)
        async for line in self.lines:
            yield line

    def is_answered(self, id: object) -> bool:
        return isinstance(id, str) and id.startswith(self.mark)


async def open_conversation(
    lines: Lines, writer: LineWriter, cache: HandshakeCache | None, load: Callable[[], None]
) -> Opening:
    """Answer what the cache knows until the server is loaded, or until a message needs it."""
    opening = Opening(lines, writer, cache)
    if cache:
        await _CachedHandshake(opening, cache, load).run()
    return opening


class _CachedHandshake:
    def __init__(self, opening: Opening, cache: HandshakeCache, load: Callable[[], None]) -> None:
        self._opening = opening
        self._cache = cache
        self._load = load
        self._questions = Questions()
        self._loading: asyncio.Future[None] | None = None

    async def run(self) -> None:
        while self._loading is None or not self._loading.done():
            line = await self._next_line()
            if line is None:
                continue
            if not line and self._loading is None:
                self._opening.ended = True
                return
            if not line or not self._answer(line):
                break
        await self._start_loading()

    async def _next_line(self) -> str | None:
        """None if the import has to begin or has ended first."""
        reading = asyncio.ensure_future(self._opening.lines.read())
        waiting: list[asyncio.Future[Any]] = [reading] if self._loading is None else [reading, self._loading]
        await asyncio.wait(waiting, timeout=PATIENCE if self._loading is None else None, return_when="FIRST_COMPLETED")
        if reading.done():
            return reading.result()
        reading.cancel()
        self._start_loading()
        return None

    def _start_loading(self) -> asyncio.Future[None]:
        if self._loading is None:
            self._loading = asyncio.ensure_future(asyncio.to_thread(self._load))
        return self._loading

    def _answer(self, line: str) -> bool:
        """Whether the conversation can continue without the server."""
        try:
            message = msgspec.json.decode(line, type=_Message)
            params = msgspec.json.decode(line)["params"] if message.params else message.params
        except (msgspec.DecodeError, RecursionError):
            self._opening.read.append(line)
            return False
        params = None if params is msgspec.UNSET else params
        answer = self._cache.find(self._questions.digest(message.method, params))
        if message.id is msgspec.UNSET or answer is None or message.jsonrpc != "2.0":
            self._opening.read.append(line)
            return message.id is msgspec.UNSET and message.jsonrpc == "2.0"  # a notification has no answer
        self._opening.writer.write(
            b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (msgspec.json.encode(message.id), answer)
        )
        message.id = f"{self._opening.mark}{len(self._opening.read)}"
        self._opening.read.append(msgspec.json.encode(message).decode() + "\n")
        if message.method == LAST_QUESTION:
            self._start_loading()
        return True
