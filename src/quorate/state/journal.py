"""The journal: intent, steps and outcome of every change, as chained records of the audit trail.

The intent is on disk before the first request is sent, every answer is added as it arrives, and the outcome comes last.
All records of a change carry its id, so views can fold them into one entry. A change without an outcome is either still
running, or its process died. A table in the store lists such changes with their owners: names that processes lock for
as long as they live. Any process may take over the changes of an owner that is gone and find out how they ended.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from quorate.problems import Problem
from quorate.state.approvals import Approvals
from quorate.state.chain import CHANGE, INTENT, OUTCOME, PHASE, PLAN, STEP
from quorate.state.limits import Counted, Freeze, Reservation, Tally
from quorate.state.store import StateUnavailable, Store, new_owner
from quorate.state.trail import UNFINISHED, AuditTrail, AuditUnwritable, Folding, seconds_of

NOBODY = ""
SLACK = 60.0
"""Seconds by which clocks of replicas may differ."""


class Outcome(StrEnum):
    """How a change ended."""

    DONE = "done"
    WARNINGS = "done with warnings"
    STARTED = "started"
    """A run was started, which does the work later."""
    PARTLY = "partly done"
    NOT_DONE = "not done"
    """Nothing was sent, or PVE shows no trace of it."""
    FAILED = "failed"
    COMMAND_FAILED = "command failed"
    """The command ran and ended with an error, or was stopped at its time limit."""
    RUNNING = "running"
    UNKNOWN = "unknown"
    """It was sent, or may have been, and its result cannot be determined."""
    INTERRUPTED = "interrupted"
    """The caller disconnected. The steps show what was sent by then; the result is looked up later."""
    UNFINISHED = UNFINISHED
    """Begun, and no outcome is written: the process still works on it, or it died."""
    REFUSED = "refused"
    ASKED = "asked"
    DRY_RUN = "dry run"
    NOTHING = "nothing to do"
    TERMINAL_OPENED = "terminal opened"
    TERMINAL_CLOSED = "terminal closed"


class StepState(StrEnum):
    """The state of one call or action."""

    NOT_TRIED = "not tried"
    SENT = "sent"
    """Sent, or answered with a task that was not followed to its end."""
    RUNNING = "running"
    DONE = "done"
    WARNINGS = "warnings"
    STARTED = "started"
    """A run was started."""
    FAILED = "failed"
    COMMAND_FAILED = "command failed"
    UNKNOWN = "unknown"

    @property
    def is_done(self) -> bool:
        return self in (StepState.DONE, StepState.WARNINGS, StepState.STARTED)

    @property
    def is_open(self) -> bool:
        """Whether PVE may know more about it later."""
        return self in (StepState.SENT, StepState.RUNNING, StepState.UNKNOWN)


def overall(states: Sequence[StepState]) -> Outcome:
    """The outcome of a change whose steps ended in these states."""
    distinct = set(states)
    if distinct <= {StepState.DONE}:
        return Outcome.DONE
    if distinct <= {StepState.DONE, StepState.WARNINGS}:
        return Outcome.WARNINGS
    if distinct <= {StepState.DONE, StepState.WARNINGS, StepState.STARTED}:
        return Outcome.STARTED
    if distinct == {StepState.NOT_TRIED}:
        return Outcome.NOT_DONE
    if distinct <= {StepState.COMMAND_FAILED, StepState.NOT_TRIED}:
        return Outcome.COMMAND_FAILED
    if distinct & {StepState.UNKNOWN, StepState.SENT}:
        return Outcome.UNKNOWN
    if StepState.RUNNING in distinct and StepState.FAILED not in distinct:
        return Outcome.RUNNING
    if any(state.is_done for state in distinct) or StepState.RUNNING in distinct:
        return Outcome.PARTLY
    return Outcome.FAILED


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
        self._owner = new_owner()
        self._owed: dict[str, tuple[dict[str, Any], bool]] = {}
        """Outcomes that could not be written when they were known."""
        self.running: set[str] = set()
        """Changes that this process runs itself, without those that it took over."""

    async def ensure_writable(self) -> None:
        await self.trail.ensure_writable()

    async def record(self, entry: Mapping[str, Any], change: str = "") -> None:
        """Write one record about what changed nothing: a dry run, a refusal.

        `change` is the id under which it has used an approval.
        """
        await self.trail.record(entry)
        if change:
            await self._show_outcome(change, entry)

    def change(self, id: str | None = None) -> Change:
        """A new change. A run chooses its id itself, so that it can look for the entry later."""
        return Change(self, id or new_change_id())

    async def entry(self, change: str, since: float = 0.0) -> dict[str, Any] | None:
        """The entry of a change that began after `since`; None if its intent was never written."""
        folding = Folding()
        async for record in self._newest_since(since):
            entry = folding.fold_back(record)
            if entry is not None and entry.get(CHANGE) == change:
                return entry
        return None

    async def entries_since(self, since: float) -> list[dict[str, Any]]:
        """The entries of changes that began after `since`, newest first."""
        entries = []
        folding = Folding()
        async for record in self._newest_since(since):
            entry = folding.fold_back(record)
            if entry is not None and (seconds_of(entry.get("time")) or since) >= since:
                entries.append(entry)
        return entries

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
        claimed = [row["id"] for row in rows if row["owner"] in gone and await self._claim(row["id"], row["owner"])]
        return await self._entries_of(claimed)

    async def tasks_since(self, time: float) -> set[str]:
        """The tasks that changes have started since then, as far as their answers are recorded."""
        tasks: set[str] = set()
        async for record in self._newest_since(time):
            tasks.update(str(task) for task in (record.get("task"), *_as_list(record.get("tasks"))) if task)
        return tasks

    async def unanswered_calls(self, since: float) -> set[tuple[str, str]]:
        """Method and path of the calls that living processes may have sent but whose answers are not recorded yet.

        The task of such a call must not be taken for that of a process that died.
        """
        rows = await self._store.fetch("SELECT id, owner FROM quorate_changes WHERE trail = $1", self.trail.name)
        others = {row["owner"] for row in rows} - {NOBODY, self._owner}
        alive = {owner for owner in others if await self._store.is_held(owner)}
        living = {row["id"] for row in rows if row["owner"] in alive} | self.running
        calls: set[tuple[str, str]] = set()
        folding = Folding()
        async for record in self._newest_since(since):
            if not living:
                break
            entry = folding.fold_back(record)
            if entry is not None and entry.get(CHANGE) in living:
                living.discard(entry[CHANGE])
                calls |= set(_unanswered_calls(entry))
        return calls

    async def give_back(self, change: str) -> None:
        """Give the change back: it cannot be closed now, and any process may try again later."""
        await self._store.execute(
            "UPDATE quorate_changes SET owner = $1 WHERE id = $2 AND owner = $3", NOBODY, change, self._owner
        )

    async def close(self, change: str, entry: Mapping[str, Any], *, final: bool) -> None:
        """Write the outcome. One that is not final is looked up again later."""
        record = {CHANGE: change, PHASE: OUTCOME, "final": final, **entry}
        try:
            await self.trail.record(record)
        except AuditUnwritable:
            self._owed[change] = (record, final)
            raise
        await self._show_outcome(change, record)
        await self._forget(change, final)

    async def settle_debts(self) -> None:
        """Write the outcomes that could not be written before. Raises AuditUnwritable if they still cannot."""
        for change, (record, final) in list(self._owed.items()):
            await self.trail.record(record)
            self._owed.pop(change, None)
            await self._show_outcome(change, record)
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
                await self.tally.withdraw(change, [reservation.place for reservation in reserved])
            if isinstance(error, Problem) and not isinstance(error, StateUnavailable):
                raise
            raise self.trail.unwritable("so nothing is changed", error) from None

    def _is_over(self, change: str, owner: str) -> bool:
        return owner == self._owner and change not in self.running

    async def _destroyed_since(self, place: str, since: float) -> list[Counted]:
        """The destructive steps that the trail shows for a place where nothing was counted yet."""
        counted: list[Counted] = []
        async for record in self._newest_since(since):
            begun = seconds_of(record.get("time"))
            if record.get(PHASE) == INTENT and record.get("risk") == "destroy" and begun is not None:
                steps = [step for step in _as_list(record.get("wire")) if place in ("", step.get("cluster"))]
                counted += [Counted(str(record.get(CHANGE)), NOBODY, begun, len(steps))] if steps else []
        return counted[::-1]

    async def _newest_since(self, time: float) -> AsyncIterator[dict[str, Any]]:
        """The records since then, newest first. Clocks of replicas differ, so a few older ones may be among them."""
        async for record in self.trail.newest_first():
            written = seconds_of(record.get("time"))
            if written is not None and written < time - SLACK:
                break
            yield record

    async def still_ours(self) -> None:
        """Raises StateUnavailable if other processes might consider this one dead."""
        await self._store.hold(self._owner)

    async def _claim(self, change: str, owner: str) -> bool:
        return bool(
            await self._store.execute(
                "UPDATE quorate_changes SET owner = $1 WHERE id = $2 AND owner = $3", self._owner, change, owner
            )
        )

    async def _show_outcome(self, change: str, record: Mapping[str, Any]) -> None:
        """Show it with the approval. If the store is unavailable, it is shown when the change is forgotten."""
        with suppress(StateUnavailable):
            await self._approvals.record_outcome(change, str(record.get("outcome", "")))

    async def _forget(self, change: str, final: bool) -> None:
        """Remove its row, or let any process look it up again if its outcome is not final.

        If the store is unavailable, the row stays until a process notices that the change is closed.
        """
        with suppress(StateUnavailable):
            if final:
                await self._store.execute("DELETE FROM quorate_changes WHERE id = $1", change)
            else:
                await self.give_back(change)

    async def _entries_of(self, changes: Iterable[str]) -> list[UnfinishedChange]:
        """The entries of these changes, oldest first, without those that are closed already."""
        missing = set(changes)
        unfinished: list[UnfinishedChange] = []
        folding = Folding()
        async for record in self.trail.newest_first():
            if not missing:
                break
            entry = folding.fold_back(record)
            if entry is None or entry.get(CHANGE) not in missing:
                continue
            missing.discard(entry[CHANGE])
            if entry.get("final", False):
                await self._show_outcome(entry[CHANGE], entry)
                await self._forget(entry[CHANGE], final=True)
            else:
                unfinished.append(UnfinishedChange(entry[CHANGE], entry))
        for change in missing:  # its process died before the intent was written, so nothing was sent
            await self._show_outcome(change, {"outcome": Outcome.NOT_DONE.value})
            await self._forget(change, final=True)
        return unfinished[::-1]


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
        """Record a plan that replaces the first one."""
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
        """Called before every request. Raises AuditUnwritable if it could not be recorded or seemed abandoned."""
        self.ensure_writable()
        try:
            await self.journal.still_ours()
        except StateUnavailable as error:
            raise self.journal.trail.unwritable("so this step was not started", error) from None

    async def _append(self, entry: Mapping[str, Any]) -> None:
        try:
            await self._in_turn(self._append_record({CHANGE: self.id, **entry}))
        except AuditUnwritable as problem:
            self.broken = problem

    async def _in_turn(self, work: Coroutine[Any, Any, None]) -> None:
        async def write() -> None:
            async with self._turn:
                await work

        await self.journal.trail.writes.run(write())

    async def _append_record(self, record: Mapping[str, Any]) -> None:
        try:
            await self.journal.trail.append(record)
        except (OSError, StateUnavailable) as error:
            raise self.journal.trail.unwritable("so nothing more is sent", error) from None


def _unanswered_calls(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    answered = {str(answer.get("step")) for answer in _as_list(entry.get("answers"))}
    for number, step in enumerate(_as_list(entry.get("wire")), 1):
        if str(number) not in answered and isinstance(step, Mapping):
            for call in (step, *_as_list(step.get("calls"))):
                yield str(call.get("method")), str(call.get("path"))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
