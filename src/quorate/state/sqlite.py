"""The state in one SQLite file, for a single server or several on one machine."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from quorate.state.schema import NEWEST, READ_VERSION, VERSION_TABLE, WRITE_VERSION, statements_since
from quorate.state.store import Row, StateUnavailable

BUSY_SECONDS = 10.0

Answer = TypeVar("Answer")


class SqliteDatabase:
    """All access happens in one worker thread: SQLite blocks, and its connection is bound to a thread."""

    def __init__(self, file: Path, worker: ThreadPoolExecutor, connection: sqlite3.Connection) -> None:
        self._file = file
        self._worker = worker
        self._connection = connection
        self._locks = NamedLocks(file.with_name(f"{file.name}-locks"))

    @classmethod
    async def open(cls, file: Path) -> SqliteDatabase:
        worker = ThreadPoolExecutor(1, thread_name_prefix="quorate-state")
        try:
            connection = await asyncio.get_running_loop().run_in_executor(
                worker, _translate_errors(file, lambda: _connect(file))
            )
        except BaseException:
            worker.shutdown(wait=False)
            raise
        return cls(file, worker, connection)

    async def execute(self, statement: str, *values: Any) -> int:
        return await self._in_worker(lambda: self._connection.execute(statement, _by_name(values)).rowcount)

    async def fetch(self, statement: str, *values: Any) -> list[Row]:
        rows = await self._in_worker(lambda: self._connection.execute(statement, _by_name(values)).fetchall())
        return [dict(row) for row in rows]

    async def hold(self, name: str) -> None:
        await self._in_worker(lambda: self._locks.hold(name))

    async def is_held(self, name: str) -> bool:
        return await self._in_worker(lambda: self._locks.is_held(name))

    async def close(self) -> None:
        await self._in_worker(self._locks.release)
        await self._in_worker(self._connection.close)
        self._worker.shutdown()

    async def _in_worker(self, work: Callable[[], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._worker, _translate_errors(self._file, work))


class NamedLocks:
    """Locks that end with the process: one file per name, locked while its holder lives."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handles: dict[str, int] = {}

    def hold(self, name: str) -> None:
        if name in self._handles:
            return
        self._folder.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
        self._handles[name] = handle

    def is_held(self, name: str) -> bool:
        """Also removes the file of a holder that is gone, because names are never reused."""
        if name in self._handles:
            return True
        try:
            handle = os.open(self._folder / name, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (self._folder / name).unlink(missing_ok=True)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def release(self) -> None:
        for name, handle in self._handles.items():
            (self._folder / name).unlink(missing_ok=True)
            os.close(handle)
        self._handles.clear()


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock the folder, not the file: closing a handle of a SQLite file would drop SQLite's own locks on it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _connect(file: Path) -> sqlite3.Connection:
    """Open the file and upgrade its tables, once, even if other processes start at the same time."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked_folder(file.parent):
        _keep_private(file)
        connection = sqlite3.connect(file, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")  # a used approval stays used after a power failure
            _upgrade(connection, str(file))
        except BaseException:
            connection.close()
            raise
    return connection


def _keep_private(file: Path) -> None:
    if not file.exists():
        os.close(os.open(file, os.O_CREAT | os.O_EXCL, 0o600))  # SQLite's side files inherit its mode
    elif file.is_file() and file.stat().st_mode & 0o077:
        file.chmod(0o600)


def _upgrade(connection: sqlite3.Connection, place: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(VERSION_TABLE)
        version = connection.execute(READ_VERSION).fetchone()["version"] or 0
        for statement in statements_since(version, place):
            connection.execute(statement)
        if version < NEWEST:
            connection.execute(WRITE_VERSION, {"1": NEWEST})
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _by_name(values: tuple[Any, ...]) -> dict[str, Any]:
    """For SQLite, `$1` is a parameter named 1."""
    return {str(number): value for number, value in enumerate(values, 1)}


def _translate_errors(file: Path, work: Callable[[], Answer]) -> Callable[[], Answer]:
    def run() -> Answer:
        try:
            return work()
        except (sqlite3.Error, OSError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise StateUnavailable(
                f"The state file {file} cannot be used",
                why=why,
                next_step="Check free disk space and the owner of the folder, or set QUORATE_STATE to another place",
            ) from None

    return run
