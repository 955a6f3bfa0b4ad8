"""Who watches which cluster, since when, and when it last completed a cycle."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from quorate.hints import Advice
from quorate.state.store import Records, Store
from quorate.units import moment


class WatchStatus(msgspec.Struct, frozen=True):
    begun: float
    """The start of the time that was watched without a gap."""
    last: float
    """The end of the last cycle."""
    every: float
    requests: int = 0
    seconds: float = 0.0
    unread: int = 0
    """How many facts have never been read."""

    def is_current(self, now: float) -> bool:
        return now - self.last <= 3 * self.every + 60


class Watchers:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._records = Records(store, "watched", WatchStatus)

    async def note(
        self, cluster: str, now: float, every: float, *, requests: int = 0, seconds: float = 0.0, unread: int = 0
    ) -> None:
        """Note that a cycle has ended."""
        before = await self._records.find(cluster)
        begun = before.begun if before is not None and before.is_current(now) else now
        await self._records.keep(cluster, WatchStatus(begun, now, every, requests, seconds, unread))

    async def all(self, clusters: Collection[str] | None = None) -> dict[str, WatchStatus]:
        """The watch status of these clusters, or of all."""
        statuses = await self._records.all()
        return {name: status for name, status in statuses.items() if clusters is None or name in clusters}

    async def watched_from(self, cluster: str, since: float) -> float | None:
        """The time at or after `since` from which the cluster was watched without a gap; None if it is not watched."""
        status = await self._records.find(cluster)
        if status is None or not status.is_current(self._store.clock.time()):
            return None
        return max(status.begun, since)

    async def describe(self, now: float, clusters: Collection[str] | None = None) -> dict[str, Any]:
        """What to say next to findings: without a watch, the absence of findings means nothing."""
        statuses = await self.all(clusters)
        if not statuses:
            return {"watch": Advice("Nothing is watched: the operator can add [watch] or run `quorate watch`")}
        late = [name for name, status in statuses.items() if not status.is_current(now)]
        facts: dict[str, Any] = {"last_cycle": moment(min(status.last for status in statuses.values()))}
        if late:
            facts["not_watched"] = f"The watch of {', '.join(sorted(late))} has stopped; findings may be outdated"
        if unread := sum(status.unread for status in statuses.values()):
            facts["not_read_yet"] = f"{unread} facts, so not every problem is known"
        return facts
