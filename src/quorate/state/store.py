"""Where the state lives: one SQLite file, or a PostgreSQL database that several replicas share."""

from __future__ import annotations

import asyncio
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from quorate.problems import Problem, ProblemCode

if TYPE_CHECKING:
    from quorate.pve.clock import Clock

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]+)://")

Row = dict[str, Any]


class StateUnavailable(Problem):
    """The state can be neither read nor written now."""

    code = ProblemCode.STATE


class Database(Protocol):
    """SQL is written once, with `$1`, `$2` for the values, which both databases accept.

    There is no `transaction`: every atomic step is one statement, and the number of changed rows says whether it
    happened. That holds between threads, processes and replicas, and a canceled caller leaves nothing half done.
    """

    async def execute(self, statement: str, *values: Any) -> int:
        """Run a statement that writes, and return the number of rows it changed."""

    async def fetch(self, statement: str, *values: Any) -> list[Row]: ...

    async def hold(self, name: str) -> None:
        """Hold the lock of this name until the process ends, however it ends; take it again if it was lost."""

    async def is_held(self, name: str) -> bool:
        """Whether a living process holds it, this one included."""

    async def close(self) -> None: ...


class Store:
    """Access to the database, which is opened on first use, so that plain reads never pay for it."""

    def __init__(self, location: str, *, clock: Clock) -> None:
        self.clock = clock
        self.shared = location.startswith(("postgresql://", "postgres://"))
        """Whether other machines may use it as well."""
        self._location = location
        self._database: Database | None = None
        self._opening = asyncio.Lock()

    @property
    def place(self) -> str:
        """The location, without the password."""
        if not self.shared:
            return self._location
        from quorate.state.postgres import safe_address

        return safe_address(self._location)

    @property
    def exists(self) -> bool:
        """Whether there is anything to read; a file is created on first use."""
        try:
            return self.shared or Path(self._location).exists()
        except OSError:  # such as a folder of another user: opening it says why
            return True

    async def execute(self, statement: str, *values: Any) -> int:
        """Run a statement that writes, and return the number of rows it changed."""
        return await (await self._open_once()).execute(statement, *map(_storable, values))

    async def fetch(self, statement: str, *values: Any) -> list[Row]:
        return await (await self._open_once()).fetch(statement, *map(_storable, values))

    async def hold(self, name: str) -> None:
        """Hold the lock of this name until the process ends, however it ends."""
        await (await self._open_once()).hold(name)

    async def is_held(self, name: str) -> bool:
        """Whether a living process holds it."""
        return await (await self._open_once()).is_held(name)

    async def ready(self) -> None:
        """Raises StateUnavailable if the database does not answer."""
        await self.fetch("SELECT 1")

    async def close(self) -> None:
        async with self._opening:
            database, self._database = self._database, None
            if database is not None:
                await database.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _open_once(self) -> Database:
        if self._database is None:
            async with self._opening:
                if self._database is None:
                    self._database = await self._open()
        return self._database

    async def _open(self) -> Database:
        if self.shared:
            from quorate.state.postgres import PostgresDatabase

            return await PostgresDatabase.open(self._location)
        from quorate.state.sqlite import SqliteDatabase

        return await SqliteDatabase.open(Path(self._location))


def open_store(location: str, *, clock: Clock) -> Store:
    """The path of a file or `postgresql://user:password@host/name`. Nothing is opened before the first use."""
    found = _SCHEME.match(location)
    if found and found["scheme"] not in ("postgresql", "postgres"):
        raise StateUnavailable(
            f"State cannot be kept in {found['scheme']}://",
            next_step="Give the path of a file, or postgresql://user:password@host/name",
        )
    return Store(location if found else str(Path(location).expanduser()), clock=clock)


async def shared_key(store: Store, name: str) -> bytes:
    """A key that all replicas share, created by the first to ask.

    It seals what a client carries between two requests: the name of a question, not a privilege. The owner of the
    database could answer approvals in it as well, so the key gives nothing more away.
    """
    await store.execute(
        "INSERT INTO quorate_keys (name, key) VALUES ($1, $2) ON CONFLICT DO NOTHING", name, secrets.token_hex(32)
    )
    rows = await store.fetch("SELECT key FROM quorate_keys WHERE name = $1", name)
    return bytes.fromhex(rows[0]["key"])


def _storable(value: Any) -> Any:
    """Escape what a database refuses in texts: lone surrogates and NUL."""
    if not isinstance(value, str):
        return value
    return value.encode(errors="backslashreplace").decode().replace("\0", "\\0")
