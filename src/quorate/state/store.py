"""Where the state lives: one SQLite file, or a PostgreSQL database that several replicas share."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from quorate.state.database import Database, Row, StateUnavailable

if TYPE_CHECKING:
    from quorate.pve.clock import Clock

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]+)://")


class Store:
    """The door to the database. It opens when first used: what only reads a cluster never pays for it."""

    def __init__(self, location: str, *, clock: Clock) -> None:
        self.clock = clock
        self.shared = location.startswith(("postgresql://", "postgres://"))
        """Whether other machines may use it too."""
        self._location = location
        self._database: Database | None = None
        self._opening = asyncio.Lock()

    @property
    def place(self) -> str:
        """Where it is, for people; never with a password."""
        if not self.shared:
            return self._location
        from quorate.state.postgres import shown

        return shown(self._location)

    async def execute(self, statement: str, *values: Any) -> int:
        """Run a statement that writes; how many rows it touched."""
        return await (await self._opened()).execute(statement, *map(_storable, values))

    async def fetch(self, statement: str, *values: Any) -> list[Row]:
        return await (await self._opened()).fetch(statement, *map(_storable, values))

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

    async def _opened(self) -> Database:
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
    """A path of a file or `postgresql://user:password@host/name`. Nothing is touched before the first use."""
    found = _SCHEME.match(location)
    if found and found["scheme"] not in ("postgresql", "postgres"):
        raise StateUnavailable(
            f"State cannot be kept in {found['scheme']}://",
            next_step="Give the path of a file, or postgresql://user:password@host/name",
        )
    return Store(location if found else str(Path(location).expanduser()), clock=clock)


def _storable(value: Any) -> Any:
    """Texts may come from strangers; halves of surrogate pairs and NUL are the ones that a database refuses."""
    if not isinstance(value, str):
        return value
    return value.encode(errors="backslashreplace").decode().replace("\0", "\\0")
