"""The state in PostgreSQL, shared by several replicas."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from quorate.state.database import Row, StateUnavailable
from quorate.state.schema import NEWEST, READ_VERSION, VERSION_TABLE, WRITE_VERSION, statements_since

CONNECTIONS = 4
ANSWER_SECONDS = 10.0
CLOSE_SECONDS = 5.0
SCHEMA_LOCK = 0x51756F72617465  # "Quorate": one replica at a time makes the tables

_HOST = r"(?:[\w.-]*|\[[\da-fA-F:]+\])(?::\d+)?"
# Only an address that is understood to the last character is shown; what is not might hold a piece of the password.
_LOCATION = re.compile(
    rf"postgres(?:ql)?://(?:[^/@?#]*@)?(?P<hosts>{_HOST}(?:,{_HOST})*)(?P<name>/[\w.-]*)?(?:\?[^@]*)?"
)


def shown(location: str) -> str:
    """The address without user, password and options."""
    found = _LOCATION.fullmatch(location)
    return f"PostgreSQL {found['hosts']}{found['name'] or ''}" if found else "PostgreSQL"


class PostgresDatabase:
    def __init__(self, place: str, pool: Any) -> None:
        self._place = place
        self._pool = pool

    @classmethod
    async def open(cls, location: str) -> PostgresDatabase:
        place = shown(location)
        try:
            import asyncpg  # type: ignore[import-untyped]
        except ImportError:
            raise StateUnavailable(
                f"The state is in {place}, but the PostgreSQL driver is not installed",
                next_step="Install it with `pip install 'quorate[postgres]'`",
            ) from None
        async with _told(place):
            try:
                pool = await asyncpg.create_pool(
                    location,
                    min_size=0,  # else the driver goes on trying, with tracebacks, while the server is away
                    max_size=CONNECTIONS,
                    timeout=ANSWER_SECONDS,
                    command_timeout=ANSWER_SECONDS,
                    server_settings={"application_name": "quorate"},
                )
                try:
                    await _upgrade(pool, place)
                except BaseException:
                    pool.terminate()
                    raise
            except ValueError:  # its words may repeat a piece of the address
                raise _unavailable(place, "The address cannot be read") from None
        return cls(place, pool)

    async def execute(self, statement: str, *values: Any) -> int:
        async with _told(self._place):
            status: str = await self._pool.execute(statement, *values)
        return int(status.rpartition(" ")[2])  # "UPDATE 1", "INSERT 0 1"

    async def fetch(self, statement: str, *values: Any) -> list[Row]:
        async with _told(self._place):
            return [dict(row) for row in await self._pool.fetch(statement, *values)]

    async def close(self) -> None:
        try:
            await asyncio.wait_for(self._pool.close(), CLOSE_SECONDS)
        except TimeoutError:
            self._pool.terminate()


async def _upgrade(pool: Any, place: str) -> None:
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", SCHEMA_LOCK)
        await connection.execute(VERSION_TABLE)
        version = await connection.fetchval(READ_VERSION) or 0
        for statement in statements_since(version, place):
            await connection.execute(statement)
        if version < NEWEST:
            await connection.execute(WRITE_VERSION, NEWEST)


@asynccontextmanager
async def _told(place: str) -> AsyncIterator[None]:
    """What the driver says, as our problem."""
    import asyncpg

    try:
        yield
    except TimeoutError:
        raise _unavailable(place, "The server did not answer in time") from None
    except OSError as error:
        raise _unavailable(place, error.strerror or str(error)) from None
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise _unavailable(place, str(error)) from None
    except asyncpg.InternalClientError:  # a connection that the server has just ended
        raise _unavailable(place, "The connection was lost") from None


def _unavailable(place: str, why: str) -> StateUnavailable:
    return StateUnavailable(
        f"The state in {place} cannot be reached",
        why=why,
        next_step="Check that the server runs and that address, user and password in QUORATE_STATE are right",
    )
