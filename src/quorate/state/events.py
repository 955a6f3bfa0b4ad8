"""What happened to guests and tasks, as the watch noticed it: the memory behind `changes_since`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from quorate.state.store import Store

KEPT_SECONDS = 90 * 86400.0


@dataclass(frozen=True, slots=True)
class Event:
    cluster: str
    time: float
    kind: str
    """created, gone, moved, changed, started, stopped, task-failed"""
    target: str
    says: str

    def id(self, before: float) -> str:
        """An id that depends only on the event and the time of the cycle before it, so that it is recorded once."""
        text = "\0".join((self.cluster, self.kind, self.target, self.says, repr(before)))
        return hashlib.sha256(text.encode()).hexdigest()[:32]


class Events:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def record(self, events: Iterable[Event], *, before: float) -> None:
        """`before` is the time of the cycle that these are compared with."""
        for one in events:
            await self._store.execute(
                "INSERT INTO quorate_events (id, cluster, time, kind, target, says) VALUES ($1, $2, $3, $4, $5, $6) "
                "ON CONFLICT DO NOTHING",
                one.id(before), one.cluster, one.time, one.kind, one.target, one.says,
            )  # fmt: skip

    async def since(self, time: float, limit: int) -> list[Event]:
        """Newest first."""
        rows = await self._store.fetch(
            "SELECT cluster, time, kind, target, says FROM quorate_events WHERE time >= $1 "
            "ORDER BY time DESC, id LIMIT $2",
            time,
            limit,
        )
        return [Event(**row) for row in rows]

    async def forget_old(self) -> None:
        await self._store.execute("DELETE FROM quorate_events WHERE time < $1", self._store.clock.time() - KEPT_SECONDS)
