"""What stops changes on all servers that share the state: the freeze, and the counts that limits refer to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from quorate.problems import Problem, Refused
from quorate.state.store import Records, StateUnavailable, Store
from quorate.state.trail import AuditTrail
from quorate.units import moment

LONGEST_REASON = 500
HOUR = 3600.0
ATTEMPTS = 1000
"""Every failed attempt means that another change was counted, so this is never reached in practice."""
_CHANGES = "changes"


class FreezeState(msgspec.Struct, frozen=True):
    """Who froze all changes, when and why."""

    by: str
    at: float
    reason: str = ""

    def __str__(self) -> str:
        return f"by {self.by} at {moment(self.at)}" + (f": {self.reason}" if self.reason else "")


class ChangesFrozen(Refused):
    """All changes are refused."""


class Freeze:
    """While it lasts, no replica starts a change, and a running plan stops before its next step.

    It is in the store and is read before every step, so it takes effect everywhere at once. If the store cannot be
    read, nothing is changed.
    """

    def __init__(self, store: Store) -> None:
        self._clock = store.clock
        self._store = store
        self._records = Records(store, "freeze", FreezeState)

    @property
    def may_hold(self) -> bool:
        """Whether a store exists; reading the status does not create one."""
        return self._store.exists

    async def state(self) -> FreezeState | None:
        """None if changes are allowed. Raises StateUnavailable if that cannot be read."""
        return await self._records.find(_CHANGES)

    async def require_none(self) -> None:
        frozen = await self.state()
        if frozen is not None:
            raise ChangesFrozen(
                "All changes are frozen",
                why=f"They were frozen {frozen}",
                next_step="Reads and dry runs still work. Only the operator can lift the freeze: `quorate unfreeze`",
                facts={"rule": "freeze"},
            )

    async def set(self, by: str, reason: str, trail: AuditTrail) -> tuple[FreezeState, bool]:
        """Freeze, and return the freeze in force and whether it is new. It takes effect before it is recorded."""
        ours = FreezeState(by, self._clock.time(), " ".join(reason.split())[:LONGEST_REASON])
        if not await self._records.keep_new(_CHANGES, ours):
            return await self.state() or ours, False
        await trail.record(_freeze_entry("freeze", by, self._clock.time(), {"reason": ours.reason}))
        return ours, True

    async def lift(self, by: str, trail: AuditTrail) -> FreezeState | None:
        """Lift the freeze and return it. It stays in effect until that is recorded."""
        frozen = await self.state()
        if frozen is not None:
            await trail.record(_freeze_entry("unfreeze", by, self._clock.time(), {"frozen": str(frozen)}))
            await self._records.forget(_CHANGES)
        return frozen


def _freeze_entry(tool: str, by: str, now: float, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """An entry for the audit trail, like that of a change."""
    return {
        "time": moment(now),
        "caller": {"client": by, "transport": "operator"},
        "cluster": "",
        "tool": tool,
        "risk": "change",
        "arguments": {name: value for name, value in arguments.items() if value},
        "decision": "allowed",
        "dry_run": False,
        "plan": "Freeze all changes" if tool == "freeze" else "Allow changes again",
        "outcome": "done",
        "error": "",
    }


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
    """A change as the row of a place lists it."""

    change: str
    owner: str
    time: float
    destroys: int

    @property
    def key(self) -> tuple[str, str]:
        return self.change, self.owner


class Tally:
    """Each place (a cluster, or "" for all of them) has one row with a version.

    A change adds itself to the rows before its intent is written, and only if the row is still the one that was judged:
    two servers at a limit cannot both pass.
    """

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
        reserved: list[str] = []
        try:
            for reservation in reservations:
                await self._reserve_place(change, owner, reservation)
                reserved.append(reservation.place)
        except BaseException:
            await self.withdraw(change, reserved)
            raise

    async def withdraw(self, change: str, places: Sequence[str]) -> None:
        """Count the change no longer, because nothing was sent."""
        for place in places:
            for _ in range(ATTEMPTS):
                version, counted = await self._read(place)
                if await self._write(place, version, [other for other in counted if other.change != change]):
                    break

    async def _reserve_place(self, change: str, owner: str, reservation: Reservation) -> None:
        async with self._turn:
            for _ in range(ATTEMPTS):
                version, counted = await self._read(reservation.place)
                running = await self._running()
                if problem := reservation.objection(self._measure(counted, running)):
                    raise problem
                now = self._store.clock.time()
                relevant = [other for other in counted if other.time > now - HOUR or other.key in running]
                added = Counted(change, owner, now, reservation.destroys)
                if await self._write(reservation.place, version, [*relevant, added]):
                    return
        raise StateUnavailable(f"The state in {self._store.place} changes too quickly", next_step="Call again")

    def _measure(self, counted: Sequence[Counted], running: set[tuple[str, str]]) -> Usage:
        since = self._store.clock.time() - HOUR
        return Usage(
            sum(change.destroys for change in counted if change.time > since),
            sum(change.key in running for change in counted),
        )

    async def _running(self) -> set[tuple[str, str]]:
        """Changes that living processes still run. A process that took over a dead one's change does not run it."""
        rows = await self._store.fetch("SELECT id, owner FROM quorate_changes WHERE owner <> ''")
        alive = {owner for owner in {row["owner"] for row in rows} if await self._store.is_held(owner)}
        listed = {(str(row["id"]), str(row["owner"])) for row in rows if row["owner"] in alive}
        return {(change, owner) for change, owner in listed if not self._is_over(change, owner)}

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
        return int(rows[0]["version"]), [Counted(*fields) for fields in json.loads(rows[0]["entry"])]

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
    return json.dumps([[change.change, change.owner, change.time, change.destroys] for change in counted])
