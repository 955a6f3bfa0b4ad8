"""The audit trail in a file of JSON lines, for the processes of one machine."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from quorate.state.chain import TORN, UNKNOWN, Link, first_link, link_entry, link_of, parse_line
from quorate.state.file_lock import lock_file
from quorate.state.store import StateUnavailable, Store
from quorate.state.trail import AuditHead

ROOM_FOR_ENTRIES = 256 * 1024
_BLOCK = 64 * 1024
_BATCH_LINES = 500


class TrailFile:
    """Written under a lock that all processes share; the head in the store shows if the end was cut off."""

    def __init__(self, file: Path, store: Store) -> None:
        self.place = str(file)
        self._file = file
        self.name = str(file.absolute())
        self._head = AuditHead(store, self.name)
        self._appending = asyncio.Lock()

    async def ensure_writable(self) -> None:
        await asyncio.to_thread(self._ensure_room)
        await self._head.ensure_writable()

    async def append(self, entry: Mapping[str, Any]) -> None:
        async with self._appending, self._lock() as handle:
            head = await self._known_head()
            written = await asyncio.to_thread(_append, handle, entry, head)
            with suppress(StateUnavailable):  # the record is written; the next one updates the head
                await self._head.move(head, written)

    async def whole(self) -> tuple[AsyncIterator[bytes], Link | None]:
        """All lines, oldest first, and the head that belongs to them."""
        if not self._file.exists():
            return _read_in_batches(_nothing()), await self._head.read()
        async with self._lock() as handle:
            head, size = await self._head.read(), os.fstat(handle).st_size
        return _read_in_batches(_lines(self._file, size)), head

    def newest_first(self) -> AsyncIterator[bytes]:
        return _read_in_batches(self._backwards())

    async def _known_head(self) -> Link | None:
        try:
            return await self._head.read()
        except StateUnavailable:
            return None

    def _ensure_room(self) -> None:
        handle = self._open()
        try:
            room = os.fstatvfs(handle)
        finally:
            os.close(handle)
        if room.f_bavail * room.f_frsize < ROOM_FOR_ENTRIES:
            raise OSError("The disk is full")

    def _open(self) -> int:
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(self._file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @asynccontextmanager
    async def _lock(self) -> AsyncIterator[int]:
        opening = asyncio.ensure_future(asyncio.to_thread(self._open_locked))
        try:
            handle = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)  # the thread gets the lock anyway, and must not keep it
            raise
        try:
            yield handle
        finally:
            os.close(handle)

    def _open_locked(self) -> int:
        handle = self._open()
        try:
            lock_file(handle)
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _backwards(self) -> Generator[bytes]:
        with suppress(FileNotFoundError), self._file.open("rb") as file:
            for line, _ in _lines_backwards(file.fileno(), file.seek(0, os.SEEK_END)):
                yield line


def _close_opened(opening: asyncio.Future[int]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        os.close(opening.result())


def _append(handle: int, entry: Mapping[str, Any], head: Link | None) -> Link:
    """One write, complete or not at all: under the lock, a write cut short by a full disk can be undone."""
    size = os.fstat(handle).st_size
    unfinished = b"\n" if size and os.pread(handle, 1, size - 1) != b"\n" else b""
    after, end = _last_link(handle, size)
    if unfinished and 0 < end < size:
        entry = {**entry, TORN: _digest(handle, end, size, unfinished).hexdigest()}
    if head is not None and not _holds(handle, size, head):
        after = head  # the end was cut off: continuing after it keeps the gap visible
    elif head is not None and head.seq < after.seq:
        entry = {**entry, UNKNOWN: after.seq - head.seq}
    elif not after.seq:
        after = first_link(_digest(handle, 0, size, unfinished))
    line, link = link_entry(entry, after)
    _write(handle, unfinished + line, size)
    return link


def _write(handle: int, data: bytes, size: int) -> None:
    try:
        if os.write(handle, data) != len(data):
            raise OSError("The disk is full")
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, size)
        raise


def _last_link(handle: int, size: int) -> tuple[Link, int]:
    """The newest record of the chain and where its line ends."""
    for line, end in _lines_backwards(handle, size):
        if link := link_of(parse_line(line)):
            return link, end
    return Link(0, ""), 0


def _holds(handle: int, size: int, head: Link) -> bool:
    """Whether the record that the store knows is in place: at the end, or before newer ones left by a crash."""
    for line, _ in _lines_backwards(handle, size):
        link = link_of(parse_line(line))
        if link is not None and link.seq <= head.seq:
            return link == head
    return False


def _digest(handle: int, begin: int, end: int, rest: bytes) -> hashlib._Hash:
    digest = hashlib.sha256()
    while begin < end:
        block = os.pread(handle, min(_BLOCK, end - begin), begin)
        digest.update(block)
        begin += len(block)
    digest.update(rest)
    return digest


def _lines(file: Path, size: int) -> Generator[bytes]:
    with file.open("rb") as opened:
        while opened.tell() < size:
            yield opened.readline()


def _lines_backwards(handle: int, size: int) -> Generator[tuple[bytes, int]]:
    """The lines before `size`, last one first, each with the offset of its end."""
    rest, start, end = b"", size, size
    while start > 0:
        length = min(_BLOCK, start)
        start -= length
        rest = os.pread(handle, length, start) + rest
        while (cut := rest.rfind(b"\n", 0, -1)) >= 0:
            yield rest[cut + 1 :], end
            end -= len(rest) - cut - 1
            rest = rest[: cut + 1]
    if rest:
        yield rest, end


def _nothing() -> Generator[bytes]:
    yield from ()


async def _read_in_batches(lines: Generator[bytes]) -> AsyncIterator[bytes]:
    """Read in a thread, in batches: a long trail neither blocks the server nor fills its memory."""
    try:
        while batch := await asyncio.to_thread(lambda: list(islice(lines, _BATCH_LINES))):
            for line in batch:
                yield line
    finally:
        with suppress(ValueError):  # a canceled reader leaves a thread in it, which closes it when it is done
            lines.close()
