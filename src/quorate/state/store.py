"""Where the state lives: one SQLite file, or a PostgreSQL database that several replicas share.

Next to the access to its tables, this module has what several of them need: ids, JSON records and leases.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import msgspec

from quorate.problems import Problem, ProblemCode

if TYPE_CHECKING:
    from quorate.pve.connection import Clock

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]+)://")
_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"  # none that look alike when read aloud or typed

Row = dict[str, Any]
T = TypeVar("T")


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
    address = _SCHEME.match(location)
    if address and address["scheme"] not in ("postgresql", "postgres"):
        raise StateUnavailable(
            f"State cannot be kept in {address['scheme']}://",
            next_step="Give the path of a file, or postgresql://user:password@host/name",
        )
    return Store(location if address else str(Path(location).expanduser()), clock=clock)


async def shared_key(store: Store, name: str) -> bytes:
    """The key of this name, which all replicas share; the first one that asks for it creates it.

    It seals what a client carries between two requests: the name of a question, not a privilege. The owner of the
    database could answer approvals in it as well, so the key gives nothing more away.
    """
    await store.execute(
        "INSERT INTO quorate_keys (name, key) VALUES ($1, $2) ON CONFLICT DO NOTHING", name, secrets.token_hex(32)
    )
    rows = await store.fetch("SELECT key FROM quorate_keys WHERE name = $1", name)
    return bytes.fromhex(rows[0]["key"])


def new_id(*groups: int) -> str:
    """A random id that people read and type: `new_id(5, 5)` looks like k7m2q-9xqdh, with five random bits a letter."""
    return "-".join("".join(secrets.choice(_LETTERS) for _ in range(length)) for length in groups)


def normalize_id(text: str) -> str:
    """The id as it was issued, from what someone typed."""
    return text.strip().lower()


def new_owner() -> str:
    """A name under which a process holds locks; PostgreSQL numbers its locks, so it is a hexadecimal number."""
    return f"{secrets.randbits(62):016x}"


def placeholders(values: Collection[object], first: int) -> str:
    """The list for `IN`, such as `$4, $5`, if these values follow others in a statement."""
    return ", ".join(f"${number}" for number in range(first, first + len(values)))


def _storable(value: Any) -> Any:
    """Escape what a database refuses in texts: lone surrogates and NUL."""
    if not isinstance(value, str):
        return value
    return value.encode(errors="backslashreplace").decode().replace("\0", "\\0")


class Records(Generic[T]):
    """JSON documents of type `T` that are found by kind and id only, such as backups and installed services."""

    def __init__(self, store: Store, kind: str, entry: type[T]) -> None:
        self._store = store
        self._kind = kind
        self._entry = entry

    async def find(self, id: str) -> T | None:
        rows = await self._store.fetch("SELECT entry FROM quorate_records WHERE kind = $1 AND id = $2", self._kind, id)
        return msgspec.json.decode(rows[0]["entry"], type=self._entry) if rows else None

    async def all(self) -> dict[str, T]:
        """By id, most recently changed first."""
        rows = await self._store.fetch(
            "SELECT id, entry FROM quorate_records WHERE kind = $1 ORDER BY changed DESC, id", self._kind
        )
        return {row["id"]: msgspec.json.decode(row["entry"], type=self._entry) for row in rows}

    async def keep(self, id: str, entry: T) -> None:
        await self._insert(id, entry, "(kind, id) DO UPDATE SET entry = excluded.entry, changed = excluded.changed")

    async def keep_new(self, id: str, entry: T) -> bool:
        """Keep it unless that id is in use; returns whether it was kept."""
        return await self._insert(id, entry, "DO NOTHING")

    async def replace(self, id: str, old: T, new: T) -> bool:
        """Replace it if it is still the old one; returns whether it was replaced."""
        replaced = await self._store.execute(
            "UPDATE quorate_records SET entry = $3, changed = $4 WHERE kind = $1 AND id = $2 AND entry = $5",
            self._kind,
            id,
            _encode(new),
            self._store.clock.time(),
            _encode(old),
        )
        return bool(replaced)

    async def forget(self, id: str) -> None:
        await self._store.execute("DELETE FROM quorate_records WHERE kind = $1 AND id = $2", self._kind, id)

    async def keep_newest(self, count: int) -> None:
        """Forget all but the most recently changed ones."""
        await self._store.execute(
            "DELETE FROM quorate_records WHERE kind = $1 AND id NOT IN "
            "(SELECT id FROM quorate_records WHERE kind = $1 ORDER BY changed DESC LIMIT $2)",
            self._kind,
            count,
        )

    async def _insert(self, id: str, entry: T, on_conflict: str) -> bool:
        inserted = await self._store.execute(
            "INSERT INTO quorate_records (kind, id, entry, created, changed) VALUES ($1, $2, $3, $4, $4) "  # noqa: S608
            f"ON CONFLICT {on_conflict}",
            self._kind,
            id,
            _encode(entry),
            self._store.clock.time(),
        )
        return bool(inserted)


def _encode(entry: object) -> str:
    return msgspec.json.encode(entry, enc_hook=str).decode()


class Holder(msgspec.Struct, frozen=True):
    owner: str
    until: float


class Lease:
    """A job that one process at a time does, among all that share a store.

    The holder renews the lease. Another process takes over at once if the holder's process ends, and after `seconds`
    if it only hangs.
    """

    def __init__(self, store: Store, name: str, seconds: float, owner: str = "") -> None:
        self._store = store
        self._name = name
        self._seconds = seconds
        self._records = Records(store, "lease", Holder)
        self.owner = owner or new_owner()

    async def take(self) -> bool:
        """Take or renew the lease; False if another process holds it."""
        now = self._store.clock.time()
        ours = Holder(self.owner, now + self._seconds)
        await self._store.hold(self.owner)
        if await self._records.keep_new(self._name, ours):
            return True
        holder = await self._records.find(self._name)
        if holder is None:
            return False  # it was released just now: the next attempt gets it
        if holder.owner == self.owner and holder.until - now > self._seconds / 2:
            return True
        if holder.owner != self.owner and holder.until > now and await self._store.is_held(holder.owner):
            return False
        return await self._records.replace(self._name, holder, ours)

    async def release(self) -> None:
        holder = await self._records.find(self._name)
        if holder is not None and holder.owner == self.owner:
            await self._records.forget(self._name)
