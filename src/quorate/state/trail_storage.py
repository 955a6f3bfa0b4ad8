"""Where the audit trail is kept: in a file of JSON lines, or in a table that several replicas share.

Both keep the head of the chain, its newest link, in the store, which shows if the end of the trail was cut off.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from quorate.state.chain import TORN, UNKNOWN, Link, first_link, link_entry, link_of, parse_line
from quorate.state.store import StateUnavailable, Store

ROOM_FOR_ENTRIES = 256 * 1024
_BLOCK = 64 * 1024
_BATCH_LINES = 500
_TABLE_NAME = "audit"
_FAR = 2**62
"""Beyond every record number."""


def open_storage(store: Store, file: Path) -> TrailStorage:
    """The file, or the store if replicas share it. Nothing is opened before the first use."""
    return TrailTable(store) if store.shared else TrailFile(file, store)


class TrailStorage(Protocol):
    """Where the records are kept. Methods raise OSError or StateUnavailable."""

    place: str
    """How people know it."""
    name: str
    """How the store knows it."""

    async def ensure_writable(self) -> None: ...

    async def append(self, entry: Mapping[str, Any]) -> None:
        """Write the entry as the next record of the chain."""

    async def read_all(self) -> tuple[AsyncIterator[bytes], Link | None]:
        """All current lines, oldest first, and the head that belongs to them."""

    def newest_first(self) -> AsyncIterator[bytes]:
        """The lines, newest first."""


class _Head:
    """The end of the audit trail as recorded in the store: number and hash of the newest record."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name

    async def ensure_writable(self) -> None:
        await self._store.execute("UPDATE quorate_audit_head SET seq = seq WHERE name = $1", self._name)

    async def read(self) -> Link | None:
        rows = await self._store.fetch("SELECT seq, hash FROM quorate_audit_head WHERE name = $1", self._name)
        return Link(**rows[0]) if rows else None

    async def move(self, known: Link | None, to: Link) -> None:
        """Move the head, but only from the known one: any other head is evidence of tampering and stays."""
        if known is None:
            await self._store.execute(
                "INSERT INTO quorate_audit_head (name, seq, hash) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
                self._name,
                to.seq,
                to.hash,
            )
            return
        await self._store.execute(
            "UPDATE quorate_audit_head SET seq = $1, hash = $2 WHERE name = $3 AND seq = $4 AND hash = $5",
            to.seq,
            to.hash,
            self._name,
            known.seq,
            known.hash,
        )


class TrailFile:
    """A file of JSON lines, for the processes of one machine, which write it under a common lock."""

    def __init__(self, file: Path, store: Store) -> None:
        self.place = str(file)
        self._file = file
        self.name = str(file.absolute())
        self._head = _Head(store, self.name)
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

    async def read_all(self) -> tuple[AsyncIterator[bytes], Link | None]:
        if not self._file.exists():
            return _read_in_batches(_no_lines()), await self._head.read()
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
            fcntl.flock(handle, fcntl.LOCK_EX)  # until it is closed, even by a crash
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
    """Write the next record, complete or not at all: under the lock, what a full disk cut short can be undone."""
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
    """The link of the newest record, and where its line ends."""
    for line, end in _lines_backwards(handle, size):
        if link := link_of(parse_line(line)):
            return link, end
    return Link(0, ""), 0


def _holds(handle: int, size: int, head: Link) -> bool:
    """Whether the file has the record that the store knows as the newest; after a crash, newer ones may follow it."""
    for line, _ in _lines_backwards(handle, size):
        link = link_of(parse_line(line))
        if link is not None and link.seq <= head.seq:
            return link == head
    return False


def _digest(handle: int, begin: int, end: int, rest: bytes) -> hashlib._Hash:
    """The digest of a part of the file, followed by `rest`."""
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


def _no_lines() -> Generator[bytes]:
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


class TrailTable:
    """A table in PostgreSQL, for several replicas.

    One statement writes a record and moves the head; it changes nothing if another replica was faster.
    """

    def __init__(self, store: Store) -> None:
        self.place = store.place
        self.name = _TABLE_NAME
        self._store = store
        self._head = _Head(store, _TABLE_NAME)
        self._appending = asyncio.Lock()

    async def ensure_writable(self) -> None:
        await self._head.ensure_writable()

    async def append(self, entry: Mapping[str, Any]) -> None:
        async with self._appending:  # only replicas compete, not the calls of one
            while not await self._append_after(await self._last(), entry):
                pass  # another replica appended first; try after its record

    async def read_all(self) -> tuple[AsyncIterator[bytes], Link | None]:
        [row] = await self._store.fetch(
            """SELECT (SELECT max(seq) FROM quorate_audit) AS newest,
                (SELECT seq FROM quorate_audit_head WHERE name = $1) AS seq,
                (SELECT hash FROM quorate_audit_head WHERE name = $1) AS hash""",
            _TABLE_NAME,
        )
        head = None if row["seq"] is None else Link(row["seq"], row["hash"])
        return self._lines(row["newest"] or 0), head

    async def newest_first(self) -> AsyncIterator[bytes]:
        before = _FAR
        while rows := await self._store.fetch(
            "SELECT seq, entry FROM quorate_audit WHERE seq < $1 ORDER BY seq DESC LIMIT $2", before, _BATCH_LINES
        ):
            for row in rows:
                yield row["entry"].encode()
            before = rows[-1]["seq"]

    async def _last(self) -> Link:
        head = await self._head.read()
        if head is None:
            await self._head.move(None, first_link())
        return head or first_link()

    async def _append_after(self, last: Link, entry: Mapping[str, Any]) -> bool:
        line, link = link_entry(entry, last)
        return bool(
            await self._store.execute(
                """WITH moved AS (
                    UPDATE quorate_audit_head SET seq = $1, hash = $2
                    WHERE name = $3 AND seq = $4 AND hash = $5 RETURNING seq
                ) INSERT INTO quorate_audit (seq, entry) SELECT seq, $6 FROM moved""",
                link.seq,
                link.hash,
                _TABLE_NAME,
                last.seq,
                last.hash,
                line.decode(),
            )
        )

    async def _lines(self, newest: int) -> AsyncIterator[bytes]:
        after = -_FAR
        while rows := await self._store.fetch(
            "SELECT seq, entry FROM quorate_audit WHERE seq > $1 AND seq <= $2 ORDER BY seq LIMIT $3",
            after,
            newest,
            _BATCH_LINES,
        ):
            for row in rows:
                yield row["entry"].encode()
            after = rows[-1]["seq"]
