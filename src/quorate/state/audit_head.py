"""What the store remembers of the end of the audit trail: the newest entry's number and hash."""

from __future__ import annotations

from quorate.state.chain import Link
from quorate.state.store import Store


class AuditHead:
    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name

    async def ensure_writable(self) -> None:
        await self._store.execute("UPDATE quorate_audit_head SET seq = seq WHERE name = $1", self._name)

    async def read(self) -> Link | None:
        rows = await self._store.fetch("SELECT seq, hash FROM quorate_audit_head WHERE name = $1", self._name)
        return Link(**rows[0]) if rows else None

    async def move(self, known: Link | None, to: Link) -> None:
        """Only from what was known: a record that says something else is evidence and stays."""
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
