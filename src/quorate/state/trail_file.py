"""The audit trail in a file of JSON lines, for the processes of one machine."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from quorate.state.audit_head import AuditHead
from quorate.state.chain import TORN, UNKNOWN, Link, first_link, link_of, linked, parsed
from quorate.state.database import StateUnavailable
from quorate.state.locking import lock_file
from quorate.state.store import Store

ROOM_FOR_ENTRIES = 256 * 1024
_BLOCK = 64 * 1024
_BATCH_LINES = 500


class TrailFile:
    """Written under a lock that all processes share; the head record in the store tells if the end was cut off."""

    def __init__(self, file: Path, store: Store) -> None:
        self.place = str(file)
        self._file = file
        self._head = AuditHead(store, str(file.absolute()))
        self._appending = asyncio.Lock()

    async def ensure_writable(self) -> None:
        await asyncio.to_thread(self._ensure_room)
        await self._head.ensure_writable()

    async def append(self, entry: Mapping[str, Any]) -> None:
        async with self._appending:
            handle = await asyncio.to_thread(self._open_locked)
            try:
                head = await self._known_head()
                written = await asyncio.to_thread(_append, handle, entry, head)
                with suppress(StateUnavailable):  # the entry is written; the next one brings the head up to date
                    await self._head.move(head, written)
            finally:
                os.close(handle)

    async def whole(self) -> tuple[AsyncIterator[bytes], Link | None]:
        """All lines, oldest first, and the head record that belongs to them."""
        if not self._file.exists():
            return _batched(_nothing()), await self._head.read()
        handle = await asyncio.to_thread(self._open_locked)
        try:
            head, size = await self._head.read(), os.fstat(handle).st_size
        finally:
            os.close(handle)
        return _batched(_lines(self._file, size)), head

    def newest_first(self) -> AsyncIterator[bytes]:
        return _batched(self._backwards())

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

    def _open_locked(self) -> int:
        handle = self._open()
        lock_file(handle)
        return handle

    def _backwards(self) -> Generator[bytes]:
        with suppress(FileNotFoundError), self._file.open("rb") as file:
            for line, _ in _lines_backwards(file.fileno(), file.seek(0, os.SEEK_END)):
                yield line


def _append(handle: int, entry: Mapping[str, Any], head: Link | None) -> Link:
    """One write, to the disk or not at all: the lock is held, so what a full disk has cut short can be taken back."""
    size = os.fstat(handle).st_size
    unfinished = b"\n" if size and os.pread(handle, 1, size - 1) != b"\n" else b""
    after, end = _last_link(handle, size)
    if unfinished and 0 < end < size:
        entry = {**entry, TORN: _digest(handle, end, size, unfinished).hexdigest()}
    if head is not None and not _holds(handle, size, head):
        after = head  # the end was cut off: going on after it keeps the gap in sight
    elif head is not None and head.seq < after.seq:
        entry = {**entry, UNKNOWN: after.seq - head.seq}
    elif not after.seq:
        after = first_link(_digest(handle, 0, size, unfinished))
    line, link = linked(entry, after)
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
    """The newest entry of the chain and where its line ends."""
    for line, end in _lines_backwards(handle, size):
        if link := link_of(parsed(line)):
            return link, end
    return Link(0, ""), 0


def _holds(handle: int, size: int, head: Link) -> bool:
    """Whether the entry that the store knows is where it was: at the end, or a crash has left newer ones behind it."""
    for line, _ in _lines_backwards(handle, size):
        link = link_of(parsed(line))
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
    """The lines before `size`, the last one first, each with the place where it ends."""
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


async def _batched(lines: Generator[bytes]) -> AsyncIterator[bytes]:
    """Read in a thread, a batch at a time: a long trail neither blocks the server nor fills its memory."""
    try:
        while batch := await asyncio.to_thread(lambda: list(islice(lines, _BATCH_LINES))):
            for line in batch:
                yield line
    finally:
        lines.close()
