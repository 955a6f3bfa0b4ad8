"""The journal: intent, steps and outcome of every change, as chained records of the audit trail.

The intent is on disk before the first request is sent, every answer is added as it arrives, and the outcome comes last.
All records of a change carry its id, so views can fold them into one entry. A change without an outcome is either still
running, or its process died. A table in the store lists such changes with their owners: names that processes lock for
as long as they live. Any process may take over the changes of an owner that is gone and find out how they ended.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from quorate.problems import Problem
from quorate.state.approvals import Approvals
from quorate.state.entries import CHANGE, INTENT, OUTCOME, PHASE, PLAN, STEP, Folding
from quorate.state.freeze import Freeze
from quorate.state.outcomes import Outcome
from quorate.state.store import StateUnavailable, Store
from quorate.state.tally import Counted, Reservation, Tally
from quorate.state.trail import AuditTrail, AuditUnwritable, seconds_of

NOBODY = ""
SLACK = 60.0  # seconds by which clocks of replicas may differ


def new_change_id() -> str:
    return secrets.token_hex(8)


@dataclass(slots=True)
class UnfinishedChange:
    """A change that was taken over, and its entry so far."""

    id: str
    entry: dict[str, Any]


class Journal:
    def __init__(self, trail: AuditTrail, store: Store) -> None:
        self.trail = trail
        self.freeze = Freeze(store)
        self.tally = Tally(store, self._destroyed_since, self._is_over)
        self._store = store
        self._approvals = Approvals(store)
        self._owner = f"{secrets.randbits(62):016x}"
        self._owed: dict[str, tuple[dict[str, Any], bool]] = {}
        """Outcomes that could not be written when they were known."""
        self.running: set[str] = set()
        """Changes that this process runs itself, without those that it took over."""

    async def ensure_writable(self) -> None:
        await self.trail.ensure_writable()

    async def record(self, entry: Mapping[str, Any], change: str = "") -> None:
        """One record for what changes nothing: a dry run, a refusal. `change`: under which it used an approval."""
        await self.trail.record(entry)
        if change:
            await self._show_outcome(change, entry)

    def change(self, id: str | None = None) -> Change:
        """A change that is about to begin. A run chooses the id itself, so that it can look for the entry later."""
        return Change(self, id or new_change_id())

    async def entry(self, change: str, since: float = 0.0) -> dict[str, Any] | None:
        """The entry of a change that began after `since`; None if its intent was never written."""
        folding = Folding()
        async for line in self.trail.newest_first():
            if (seconds_of(line.get("time")) or since) < since - SLACK:
                break
            entry = folding.fold_back(line)
            if entry is not None and entry.get(CHANGE) == change:
                return entry
        return None

    async def take_over(self) -> list[UnfinishedChange]:
        """Take over the changes whose owners are gone."""
        await self.settle_debts()
        if not self._store.exists:  # and looking for changes does not create it
            return []
        rows = await self._store.fetch(
            "SELECT id, owner FROM quorate_changes WHERE trail = $1 AND owner <> $2 ORDER BY begun",
            self.trail.name,
            self._owner,
        )
        owners = {row["owner"] for row in rows}
        gone = {owner for owner in owners if owner == NOBODY or not await self._store.is_held(owner)}
        if not gone:
            return []
        await self._store.hold(self._owner)
        taken = [row["id"] for row in rows if row["owner"] in gone and await self._claim(row["id"], row["owner"])]
        return await self._entries_of(taken)

    async def tasks_since(self, time: float) -> set[str]:
        """The tasks that changes have started since then, as far as their answers are recorded."""
        found: set[str] = set()
        async for line in self.trail.newest_first():
            if (seconds_of(line.get("time")) or time) < time - SLACK:
                break
            found.update(str(one) for one in (line.get("task"), *_as_list(line.get("tasks"))) if one)
        return found

    async def unanswered_calls(self, since: float) -> set[tuple[str, str]]:
        """Method and path of the calls that living processes may have sent but whose answers are not recorded yet.

        The task of such a call must not be taken for that of a process that died.
        """
        rows = await self._store.fetch("SELECT id, owner FROM quorate_changes WHERE trail = $1", self.trail.name)
        others = {row["owner"] for row in rows} - {NOBODY, self._owner}
        alive = {owner for owner in others if await self._store.is_held(owner)}
        living = {row["id"] for row in rows if row["owner"] in alive} | self.running
        found: set[tuple[str, str]] = set()
        folding = Folding()
        async for line in self.trail.newest_first():
            if not living or (seconds_of(line.get("time")) or since) < since - SLACK:
                break
            entry = folding.fold_back(line)
            if entry is not None and entry.get(CHANGE) in living:
                living.discard(entry[CHANGE])
                found |= set(_unanswered_calls(entry))
        return found

    async def give_back(self, change: str) -> None:
        """Give the change back: it cannot be closed now, and any process may try again later."""
        await self._store.execute(
            "UPDATE quorate_changes SET owner = $1 WHERE id = $2 AND owner = $3", NOBODY, change, self._owner
        )

    async def close(self, change: str, entry: Mapping[str, Any], *, final: bool) -> None:
        """Write the outcome. One that is not final is looked up again later."""
        line = {CHANGE: change, PHASE: OUTCOME, "final": final, **entry}
        try:
            await self.trail.record(line)
        except AuditUnwritable:
            self._owed[change] = (line, final)
            raise
        await self._show_outcome(change, line)
        await self._forget(change, final)

    async def settle_debts(self) -> None:
        """Write the outcomes that could not be written before. Raises AuditUnwritable if they still cannot."""
        for change, (line, final) in list(self._owed.items()):
            await self.trail.record(line)
            self._owed.pop(change, None)
            await self._show_outcome(change, line)
            await self._forget(change, final)

    async def finish(self) -> None:
        """Before the process ends: finish the writes in progress, and retry the failed ones."""
        await self.trail.writes.finish()
        with suppress(AuditUnwritable, StateUnavailable):
            await self.settle_debts()
        await self.trail.close()

    async def begin(self, change: str, entry: Mapping[str, Any], reservations: Sequence[Reservation] = ()) -> None:
        """Count the change where limits apply, then write its intent. Raises the Problem of a limit that it exceeds."""
        reserved: Sequence[Reservation] = ()
        try:
            await self.settle_debts()
            await self._store.hold(self._owner)
            await self._store.execute(
                "INSERT INTO quorate_changes (id, trail, owner, begun) VALUES ($1, $2, $3, $4)",
                change,
                self.trail.name,
                self._owner,
                self._store.clock.time(),
            )
            await self.tally.reserve(change, self._owner, reservations)
            reserved = reservations
            await self.trail.append({CHANGE: change, PHASE: INTENT, **entry})
        except (OSError, Problem) as error:
            with suppress(StateUnavailable):
                await self._forget(change, final=True)
                await self.tally.withdraw(change, [one.place for one in reserved])
            if isinstance(error, Problem) and not isinstance(error, StateUnavailable):
                raise
            raise self.trail.unwritable("so nothing is changed", error) from None

    def _is_over(self, change: str, owner: str) -> bool:
        return owner == self._owner and change not in self.running

    async def _destroyed_since(self, place: str, since: float) -> list[Counted]:
        """The destructive steps that the trail shows for a place, where nothing was counted yet."""
        counted: list[Counted] = []
        async for line in self.trail.newest_first():
            begun = seconds_of(line.get("time"))
            if begun is not None and begun < since - SLACK:
                break
            if line.get(PHASE) == INTENT and line.get("risk") == "destroy" and begun is not None:
                steps = [one for one in _as_list(line.get("wire")) if place in ("", one.get("cluster"))]
                counted += [Counted(str(line.get(CHANGE)), NOBODY, begun, len(steps))] if steps else []
        return counted[::-1]

    async def still_ours(self) -> None:
        """Raises StateUnavailable if other processes might take us for dead."""
        await self._store.hold(self._owner)

    async def _claim(self, change: str, owner: str) -> bool:
        return bool(
            await self._store.execute(
                "UPDATE quorate_changes SET owner = $1 WHERE id = $2 AND owner = $3", self._owner, change, owner
            )
        )

    async def _show_outcome(self, change: str, line: Mapping[str, Any]) -> None:
        """Show it with the approval. If the store is unavailable, it is shown when the change is forgotten."""
        with suppress(StateUnavailable):
            await self._approvals.record_outcome(change, str(line.get("outcome", "")))

    async def _forget(self, change: str, final: bool) -> None:
        """If the store is unavailable, the row stays until someone finds that the change is closed."""
        with suppress(StateUnavailable):
            if final:
                await self._store.execute("DELETE FROM quorate_changes WHERE id = $1", change)
            else:
                await self.give_back(change)

    async def _entries_of(self, changes: Iterable[str]) -> list[UnfinishedChange]:
        wanted = set(changes)
        found: list[UnfinishedChange] = []
        folding = Folding()
        async for line in self.trail.newest_first():
            if not wanted:
                break
            entry = folding.fold_back(line)
            if entry is None or entry.get(CHANGE) not in wanted:
                continue
            wanted.discard(entry[CHANGE])
            if entry.get("final", False):
                await self._show_outcome(entry[CHANGE], entry)
                await self._forget(entry[CHANGE], final=True)
            else:
                found.append(UnfinishedChange(entry[CHANGE], entry))
        for change in wanted:  # its process died before the intent was written, so nothing was sent
            await self._show_outcome(change, {"outcome": Outcome.NOT_DONE.value})
            await self._forget(change, final=True)
        return found[::-1]


@dataclass(slots=True)
class Change:
    """One change, from its intent to its outcome."""

    journal: Journal
    id: str
    begun: bool = False
    broken: AuditUnwritable | None = None
    """Why its records can no longer be written; then nothing more is sent."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Keeps the records in order, even if the call is canceled during a write."""

    async def begin(self, entry: Mapping[str, Any], reservations: Sequence[Reservation] = ()) -> None:
        """Returns once the intent is on disk. Raises a Problem if it is not; then nothing may be sent."""
        self.begun = True
        self.journal.running.add(self.id)
        try:
            await self._in_turn(self.journal.begin(self.id, entry, reservations))
        except Problem:
            self.begun = False
            self.journal.running.discard(self.id)
            raise

    async def replan(self, entry: Mapping[str, Any]) -> None:
        """Another plan replaces the first."""
        await self._append({PHASE: PLAN, **entry})
        self.ensure_writable()

    async def record_answer(self, entry: Mapping[str, Any]) -> None:
        """Record an answer. It cannot be undone, so a failure to write it stops only the next step."""
        await self._append({PHASE: STEP, **entry})

    async def close(self, entry: Mapping[str, Any], *, final: bool) -> None:
        self.journal.running.discard(self.id)
        await self._in_turn(self.journal.close(self.id, entry, final=final))

    def ensure_writable(self) -> None:
        if self.broken is not None:
            raise self.broken

    async def ensure_ours(self) -> None:
        """Called before every request: what cannot be recorded, or looks like a dead process's, is not sent."""
        self.ensure_writable()
        try:
            await self.journal.still_ours()
        except StateUnavailable as error:
            raise self.journal.trail.unwritable("so this step was not started", error) from None

    async def _append(self, entry: Mapping[str, Any]) -> None:
        try:
            await self._in_turn(self._append_line({CHANGE: self.id, **entry}))
        except AuditUnwritable as problem:
            self.broken = problem

    async def _in_turn(self, work: Coroutine[Any, Any, None]) -> None:
        async def write() -> None:
            async with self._turn:
                await work

        await self.journal.trail.writes.run(write())

    async def _append_line(self, line: Mapping[str, Any]) -> None:
        try:
            await self.journal.trail.append(line)
        except (OSError, StateUnavailable) as error:
            raise self.journal.trail.unwritable("so nothing more is sent", error) from None


def _unanswered_calls(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    answered = {str(one.get("step")) for one in _as_list(entry.get("answers"))}
    for number, step in enumerate(_as_list(entry.get("wire")), 1):
        if str(number) not in answered and isinstance(step, Mapping):
            for call in (step, *_as_list(step.get("calls"))):
                yield str(call.get("method")), str(call.get("path"))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
