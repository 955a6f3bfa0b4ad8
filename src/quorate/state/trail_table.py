"""The audit trail in PostgreSQL, for several replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from quorate.state.chain import Link, first_link, link_entry
from quorate.state.store import Store
from quorate.state.trail import AuditHead

_NAME = "audit"
_PAGE = 500
_FAR = 2**62


class TrailTable:
    """One statement writes a record and moves the head; it fails if another replica was faster."""

    def __init__(self, store: Store) -> None:
        self.place = store.place
        self.name = _NAME
        self._store = store
        self._head = AuditHead(store, _NAME)
        self._appending = asyncio.Lock()

    async def ensure_writable(self) -> None:
        await self._head.ensure_writable()

    async def append(self, entry: Mapping[str, Any]) -> None:
        async with self._appending:  # only replicas compete, not the calls of one
            while not await self._append_after(await self._last(), entry):
                pass  # another replica appended first; try after its record

    async def whole(self) -> tuple[AsyncIterator[bytes], Link | None]:
        """All current rows in order, and the head, consistent with each other."""
        rows = await self._store.fetch(
            """SELECT (SELECT max(seq) FROM quorate_audit) AS newest,
                (SELECT seq FROM quorate_audit_head WHERE name = $1) AS seq,
                (SELECT hash FROM quorate_audit_head WHERE name = $1) AS hash""",
            _NAME,
        )
        found = rows[0]
        head = None if found["seq"] is None else Link(found["seq"], found["hash"])
        return self._lines(found["newest"] or 0), head

    async def newest_first(self) -> AsyncIterator[bytes]:
        before = _FAR
        while rows := await self._store.fetch(
            "SELECT seq, entry FROM quorate_audit WHERE seq < $1 ORDER BY seq DESC LIMIT $2", before, _PAGE
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
                _NAME,
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
            _PAGE,
        ):
            for row in rows:
                yield row["entry"].encode()
            after = rows[-1]["seq"]
