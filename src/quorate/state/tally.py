"""What limits count: destructive steps of the last hour and changes in progress, on all servers that share the state.

Each place (a cluster, or "" for all of them) has one row with a version. A change adds itself to the rows before its
intent is written, and only if the row is still the one that was judged: two servers at a limit cannot both pass.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from quorate.problems import Problem
from quorate.state.store import StateUnavailable, Store

HOUR = 3600.0
ATTEMPTS = 1000
"""Every failed attempt means that another change was counted, so this is never reached in practice."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What is used of the limits of a place."""

    destroyed: int = 0
    """Destructive steps of the last hour."""
    running: int = 0


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a change is about to use in one place."""

    place: str
    destroys: int
    """Its destructive steps; 0 if it is not destructive."""
    objection: Callable[[Usage], Problem | None]
    """Why it is refused at this usage."""


@dataclass(frozen=True, slots=True)
class Counted:
    """A change in the row of a place."""

    change: str
    owner: str
    time: float
    destroys: int


class Tally:
    def __init__(
        self,
        store: Store,
        history: Callable[[str, float], Awaitable[list[Counted]]],
        is_over: Callable[[str, str], bool],
    ) -> None:
        self._store = store
        self._history = history
        """What the journal says about a place that has no row yet."""
        self._is_over = is_over
        """Whether a change of this owner has ended in this process, even if its row could not be removed."""
        self._turn = asyncio.Lock()

    async def usage(self, place: str) -> Usage:
        _, counted = await self._read(place)
        return self._measure(counted, await self._running())

    async def reserve(self, change: str, owner: str, reservations: Sequence[Reservation]) -> None:
        """Count a change everywhere, or nowhere if a place objects."""
        done: list[str] = []
        try:
            for one in reservations:
                await self._reserve_one(change, owner, one)
                done.append(one.place)
        except BaseException:
            await self.withdraw(change, done)
            raise

    async def withdraw(self, change: str, places: Sequence[str]) -> None:
        """Nothing was sent after all."""
        for place in places:
            for _ in range(ATTEMPTS):
                version, counted = await self._read(place)
                if await self._write(place, version, [one for one in counted if one.change != change]):
                    break

    async def _reserve_one(self, change: str, owner: str, wanted: Reservation) -> None:
        async with self._turn:
            for _ in range(ATTEMPTS):
                version, counted = await self._read(wanted.place)
                running = await self._running()
                if problem := wanted.objection(self._measure(counted, running)):
                    raise problem
                now = self._store.clock.time()
                relevant = [one for one in counted if one.time > now - HOUR or (one.change, one.owner) in running]
                added = Counted(change, owner, now, wanted.destroys)
                if await self._write(wanted.place, version, [*relevant, added]):
                    return
        raise StateUnavailable(f"The state in {self._store.place} changes too quickly", next_step="Call again")

    def _measure(self, counted: Sequence[Counted], running: set[tuple[str, str]]) -> Usage:
        since = self._store.clock.time() - HOUR
        return Usage(
            sum(one.destroys for one in counted if one.time > since),
            sum((one.change, one.owner) in running for one in counted),
        )

    async def _running(self) -> set[tuple[str, str]]:
        """Changes that living processes still run. A process that took over a dead one's change does not run it."""
        rows = await self._store.fetch("SELECT id, owner FROM quorate_changes WHERE owner <> ''")
        alive = {owner for owner in {row["owner"] for row in rows} if await self._store.is_held(owner)}
        listed = {(str(row["id"]), str(row["owner"])) for row in rows if row["owner"] in alive}
        return {one for one in listed if not self._is_over(*one)}

    async def _read(self, place: str) -> tuple[int, list[Counted]]:
        for _ in range(2):
            rows = await self._store.fetch("SELECT version, entry FROM quorate_tallies WHERE place = $1", place)
            if rows:
                break
            counted = await self._history(place, self._store.clock.time() - HOUR)
            await self._store.execute(
                "INSERT INTO quorate_tallies (place, version, entry) VALUES ($1, 0, $2) ON CONFLICT DO NOTHING",
                place,
                _encode(counted),
            )
        return int(rows[0]["version"]), [Counted(*one) for one in json.loads(rows[0]["entry"])]

    async def _write(self, place: str, version: int, counted: Sequence[Counted]) -> bool:
        return bool(
            await self._store.execute(
                "UPDATE quorate_tallies SET version = version + 1, entry = $1 WHERE place = $2 AND version = $3",
                _encode(counted),
                place,
                version,
            )
        )


def _encode(counted: Sequence[Counted]) -> str:
    return json.dumps([[one.change, one.owner, one.time, one.destroys] for one in counted])
