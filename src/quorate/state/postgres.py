"""The state in PostgreSQL, shared by several replicas."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from quorate.state.schema import NEWEST, READ_VERSION, VERSION_TABLE, WRITE_VERSION, statements_since
from quorate.state.store import Row, StateUnavailable

CONNECTIONS = 4
ANSWER_SECONDS = 10.0
CLOSE_SECONDS = 5.0
SCHEMA_LOCK = 0x51756F72617465  # "Quorate": one replica at a time creates the tables

_HOST = r"(?:[\w.-]*|\[[\da-fA-F:]+\])(?::\d+)?"
# Shown only if every character is understood; otherwise it might contain a part of the password.
_LOCATION = re.compile(
    rf"postgres(?:ql)?://(?:[^/@?#]*@)?(?P<hosts>{_HOST}(?:,{_HOST})*)(?P<name>/[\w.-]*)?(?:\?[^@]*)?"
)


def safe_address(location: str) -> str:
    """The address without user, password and options."""
    parts = _LOCATION.fullmatch(location)
    return f"PostgreSQL {parts['hosts']}{parts['name'] or ''}" if parts else "PostgreSQL"


class PostgresDatabase:
    def __init__(self, place: str, pool: Any, location: str) -> None:
        self._place = place
        self._pool = pool
        self._location = location
        self._holder: Any = None
        """The connection that holds our locks. PostgreSQL releases them when it ends, and it ends with this process."""
        self._names: set[str] = set()
        self._holding = asyncio.Lock()

    @classmethod
    async def open(cls, location: str) -> PostgresDatabase:
        place = safe_address(location)
        try:
            import asyncpg  # type: ignore[import-untyped]
        except ImportError:
            raise StateUnavailable(
                f"The state is in {place}, but the PostgreSQL driver is not installed",
                next_step="Install it with `pip install 'quorate[postgres]'`",
            ) from None
        async with _translate_errors(place):
            try:
                pool = await asyncpg.create_pool(
                    location,
                    min_size=0,  # otherwise the driver keeps retrying, with tracebacks, while the server is down
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
            except ValueError:  # its text may repeat a part of the address
                raise _unavailable(place, "The address cannot be read") from None
        return cls(place, pool, location)

    async def execute(self, statement: str, *values: Any) -> int:
        async with _translate_errors(self._place):
            status: str = await self._pool.execute(statement, *values)
        return int(status.rpartition(" ")[2])  # "UPDATE 1", "INSERT 0 1"

    async def fetch(self, statement: str, *values: Any) -> list[Row]:
        async with _translate_errors(self._place):
            return [dict(row) for row in await self._pool.fetch(statement, *values)]

    async def hold(self, name: str) -> None:
        import asyncpg

        async with self._holding, _translate_errors(self._place):
            if self._holder is None or self._holder.is_closed():
                self._holder = await asyncpg.connect(
                    self._location,
                    timeout=ANSWER_SECONDS,
                    command_timeout=ANSWER_SECONDS,
                    server_settings={"application_name": "quorate", "tcp_keepalives_idle": "30"},
                )
                self._names.clear()
            if name not in self._names:
                await self._holder.execute("SELECT pg_advisory_lock($1)", _key(name))
                self._names.add(name)

    async def is_held(self, name: str) -> bool:
        locks = await self.fetch(
            """SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                AND (classid::bigint << 32) | objid::bigint = $1""",
            _key(name),
        )
        return bool(locks)

    async def close(self) -> None:
        if self._holder is not None:
            await self._release(self._holder)
        try:
            await asyncio.wait_for(self._pool.close(), CLOSE_SECONDS)
        except TimeoutError:
            self._pool.terminate()

    async def _release(self, holder: Any) -> None:
        """Release the locks now, because the server may notice a lost connection late and delay other replicas."""
        with contextlib.suppress(Exception):  # whatever is wrong, the end of the connection releases everything
            await asyncio.wait_for(holder.execute("SELECT pg_advisory_unlock_all()"), CLOSE_SECONDS)
        holder.terminate()


async def _upgrade(pool: Any, place: str) -> None:
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", SCHEMA_LOCK)
        await connection.execute(VERSION_TABLE)
        version = await connection.fetchval(READ_VERSION) or 0
        for statement in statements_since(version, place):
            await connection.execute(statement)
        if version < NEWEST:
            await connection.execute(WRITE_VERSION, NEWEST)


def _key(name: str) -> int:
    """The number of the lock; `new_owner` makes names that are hexadecimal numbers."""
    return int(name, 16)


@asynccontextmanager
async def _translate_errors(place: str) -> AsyncIterator[None]:
    """Raise StateUnavailable instead of the driver's errors."""
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
        next_step="Check that the server runs, and the address, user and password in QUORATE_STATE",
    )
