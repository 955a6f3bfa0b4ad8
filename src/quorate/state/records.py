"""Records with a kind and an id, as JSON: runs of plans, backups, installed services."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from quorate.state.store import Store

T = TypeVar("T")


class Records(Generic[T]):
    """All records of one kind, each of them of type `T`."""

    def __init__(self, store: Store, kind: str, entry: type[T]) -> None:
        self._store = store
        self._kind = kind
        self._entry = entry

    async def find(self, name: str) -> T | None:
        rows = await self._store.fetch(
            "SELECT entry FROM quorate_records WHERE kind = $1 AND id = $2", self._kind, name
        )
        return msgspec.json.decode(rows[0]["entry"], type=self._entry) if rows else None

    async def all(self) -> dict[str, T]:
        """By id, most recently changed first."""
        rows = await self._store.fetch(
            "SELECT id, entry FROM quorate_records WHERE kind = $1 ORDER BY changed DESC, id", self._kind
        )
        return {row["id"]: msgspec.json.decode(row["entry"], type=self._entry) for row in rows}

    async def keep(self, name: str, entry: T) -> None:
        await self._store.execute(
            "INSERT INTO quorate_records (kind, id, entry, created, changed) VALUES ($1, $2, $3, $4, $4) "
            "ON CONFLICT (kind, id) DO UPDATE SET entry = excluded.entry, changed = excluded.changed",
            self._kind, name, msgspec.json.encode(entry, enc_hook=str).decode(), self._store.clock.time(),
        )  # fmt: skip

    async def keep_new(self, name: str, entry: T) -> bool:
        """Keep it unless there is one of that id; returns whether it was kept."""
        kept = await self._store.execute(
            "INSERT INTO quorate_records (kind, id, entry, created, changed) VALUES ($1, $2, $3, $4, $4) "
            "ON CONFLICT DO NOTHING",
            self._kind, name, msgspec.json.encode(entry, enc_hook=str).decode(), self._store.clock.time(),
        )  # fmt: skip
        return bool(kept)

    async def replace(self, name: str, old: T, new: T) -> bool:
        """Replace it if it is still the old one; returns whether it was replaced."""
        replaced = await self._store.execute(
            "UPDATE quorate_records SET entry = $3, changed = $4 WHERE kind = $1 AND id = $2 AND entry = $5",
            self._kind, name, msgspec.json.encode(new, enc_hook=str).decode(), self._store.clock.time(),
            msgspec.json.encode(old, enc_hook=str).decode(),
        )  # fmt: skip
        return bool(replaced)

    async def forget(self, name: str) -> None:
        await self._store.execute("DELETE FROM quorate_records WHERE kind = $1 AND id = $2", self._kind, name)

    async def keep_newest(self, count: int) -> None:
        await self._store.execute(
            "DELETE FROM quorate_records WHERE kind = $1 AND id NOT IN "
            "(SELECT id FROM quorate_records WHERE kind = $1 ORDER BY changed DESC LIMIT $2)",
            self._kind,
            count,
        )
