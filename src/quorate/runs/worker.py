"""The worker of one run: decides, begins steps, follows them to their end, and writes the log."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from quorate.operations.registry import Risk, Table, find_operation
from quorate.pipeline.caller import Caller, Exchange
from quorate.pipeline.pipeline import Invocation, Pipeline, Result
from quorate.pipeline.policy import LimitReached
from quorate.pipeline.sites import CLUSTER
from quorate.problems import (
    NodeOffline,
    NoQuorum,
    OutcomeUnknown,
    Overtaken,
    Problem,
    Refused,
    ServerFailed,
    TimedOut,
    Unreachable,
)
from quorate.pve.cluster import Cluster
from quorate.runs.bounds import AccessLost, OutsideBounds, RunApprover, present_caller
from quorate.runs.kind import Kind, Next, Step, StepResult, Work, editable, find_kind
from quorate.runs.start import is_within
from quorate.runs.store import NotOurs, Pending, Run, RunState, RunStore
from quorate.state.journal import Outcome, new_change_id
from quorate.state.limits import ChangesFrozen
from quorate.state.store import StateUnavailable
from quorate.state.tokens import Tokens
from quorate.units import duration

TRIES, POSTPONED = "tries", "postponed"
"""Key in a run's memory: for each step, how often it could not be sent and why it waits."""
MOST_TRIES = 5
_NUMBERS = re.compile(r"\d+")
STEP_SECONDS = 12 * 3600.0
"""How long a step is followed: a large disk takes hours."""
RETRY_SECONDS = 15.0
MOST_ATTEMPTS = 40
"""Consecutive failures to read before the run pauses."""
LOOK_SECONDS = 5.0
SILENT_SECONDS = 30 * 60.0
"""How long the end of a step is looked up while the cluster does not answer at all; then the run pauses."""
SILENT_ABORTING_SECONDS, ABORT_ATTEMPTS = 120.0, 8
"""The same for a run that is being aborted, which then ends; and its consecutive failures to read."""
TRANSIENT = (Unreachable, TimedOut, NodeOffline, NoQuorum, ServerFailed, StateUnavailable)
ATTEMPTS = "attempts"


def as_step_result(answer: Result) -> StepResult | None:
    data = answer.data
    facts = {"rows": data.rows, "columns": data.columns} if isinstance(data, Table) else data
    outcome = answer.outcome or Outcome.DONE
    if outcome in (Outcome.RUNNING, Outcome.UNKNOWN, Outcome.INTERRUPTED):
        return None
    error = _why(facts) if answer.failed or outcome in (Outcome.FAILED, Outcome.PARTLY) else ""
    return StepResult(outcome, error, facts, answer.pictures)


def _why(facts: Mapping[str, Any]) -> str:
    steps = facts.get("steps") or ()
    reasons = [str(step["why"]) for step in steps if isinstance(step, Mapping) and step.get("why")]
    return "; ".join(reasons) or "it failed"


def limit_retries(run: Run, key: str, result: StepResult) -> StepResult:
    """Retry a step that could not be sent, but not forever."""
    tries = run.memory.setdefault(TRIES, {})
    if not result.is_trouble:
        tries.pop(key, None)
        return result
    tries[key] = int(tries.get(key, 0)) + 1
    return replace(result, outcome=Outcome.FAILED) if tries[key] >= MOST_TRIES else result


def is_repeated(run: Run, key: str, result: StepResult) -> bool:
    """Whether the log already says why this step has to wait: a limit may last for hours."""
    postponed = run.memory.setdefault(POSTPONED, {})
    if result.was_sent:
        postponed.pop(key, None)
        return False
    why = _NUMBERS.sub("", result.error)
    repeated: bool = postponed.get(key) == why
    postponed[key] = why
    return repeated


def line_of(pending: Pending, result: StepResult) -> str:
    if code := result.data.get("exit_code"):
        return f"{pending.says}: failed with exit code {code}"
    if result.data.get("signal"):
        return f"{pending.says}: {result.failure}"
    if result.is_done:
        return f"{pending.says}: {result.outcome.value}"
    return f"{pending.says}: {result.error or result.outcome.value}"


class StepPaused(Exception):
    """The step was not done, and a person has to decide."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class Worker:
    def __init__(self, pipeline: Pipeline, store: RunStore, tokens: Tokens, id: str) -> None:
        self._pipeline = pipeline
        self._store = store
        self._tokens = tokens
        self._clock = store.clock
        self.id = id
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._unanswered: set[str] = set()
        """Steps whose end is not looked up while the run is paused, because the cluster does not answer."""
        self._waits_for = ""

    async def drive(self) -> None:
        """Work until the run ends, pauses, has to wait for its window, or belongs to another process."""
        try:
            while await self._turn():
                pass
        except NotOurs:
            pass
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        with suppress(StateUnavailable):
            await self._store.release(self.id)

    async def _turn(self) -> bool:
        """Make one decision and act on it. Returns whether there is more to do."""
        run = await self._store.get(self.id)
        kind = find_kind(run.kind)
        if kind is None:
            await self.pause(f"This version of Quorate does not know runs of kind {run.kind}")
            return False
        for key, pending in run.current.items():
            unanswered = run.state is RunState.PAUSED and key in self._unanswered
            if key not in self._tasks and not unanswered:  # a process that died had started it
                self._unanswered.discard(key)
                self._tasks[key] = asyncio.create_task(self._follow(kind, key, pending))
        if run.state is RunState.PAUSED or run.state.has_ended:
            return await self._finish_steps()
        if not await self._may_start(run):
            return await self._finish_steps()
        try:
            decided = await self._decide(kind, run, closing=self._is_closed(run))
        except TRANSIENT as problem:
            return await self._try_later(problem)
        except Problem as problem:
            await self.pause(str(problem), lost=isinstance(problem, AccessLost))
            return True
        return await self._act(kind, run, decided)

    async def _finish_steps(self) -> bool:
        """Start nothing new, but follow what was started to its end."""
        if self._tasks:
            await self._wait_for_a_step()
            return True
        return False

    async def _may_start(self, run: Run) -> bool:
        if frozen := await self._pipeline.journal.freeze.state():
            await self.pause(f"All changes were frozen {frozen}")
            return False
        if run.state is not RunState.WAITING:
            return True
        if self._is_closed(run):
            return False
        await self._set_state(RunState.WAITING, RunState.RUNNING, "Its time has come")
        return True

    def _is_closed(self, run: Run) -> bool:
        """Whether the run is outside its start time or window, so that only what must not wait may be done."""
        now = self._clock.time()
        return run.state is not RunState.ABORTING and (now < run.starts or not is_within(run.window, now))

    # -- deciding --------------------------------------------------------------------------------------------------

    async def _decide(self, kind: Kind, run: Run, *, closing: bool) -> Next:
        """Ask the kind, and save what it wants to remember."""
        mine = editable(run)
        caller = await present_caller(run, self._tokens)
        here, others = await self._view(run, caller, run.cluster), await self._views(run, caller)
        work = Work(here, mine, others, set(self._tasks), closing=closing)
        decided = await kind.next(work)
        if run.state is RunState.ABORTING and not decided.steps and not self._tasks and not decided.waits_for:
            left = await kind.list_unfinished(work)
            mine.report = {**mine.report, "left": left}
            decided = Next(ends=RunState.ABORTED, summary=f"{run.reason}; {_count(left)} left")
        waits = decided.waits_for
        news = [*work.lines, *([f"Waiting: {waits}"] if waits and waits != self._waits_for else [])]
        self._waits_for = waits
        fresh = mine.memory != run.memory or mine.report != run.report or ATTEMPTS in run.memory
        if news or fresh:
            now = self._clock.time()

            outdated = False

            def save(stored: Run) -> None:
                nonlocal outdated
                outdated = stored.memory != run.memory  # a step ended while the kind was deciding
                if outdated:
                    return
                stored.memory, stored.report = editable(mine).memory, mine.report
                stored.memory.pop(ATTEMPTS, None)
                for line in news:
                    stored.say(now, line)

            await self._store.change_ours(self.id, save)
            if outdated:
                return Next(seconds=0.0)  # decide again, with what is known now
        return decided

    async def _act(self, kind: Kind, run: Run, decided: Next) -> bool:
        if decided == Next() and not self._tasks and self._is_closed(run):
            why = f"Its window {run.window} is closed" if run.window else "Its time has not come"
            await self._set_state(RunState.RUNNING, RunState.WAITING, why)
            return True
        if decided.ends is not None and not self._tasks:
            await self._end(run, decided.ends, decided.summary)
            return False
        if decided.pause:
            await self.pause(decided.pause)
            return True
        for step in decided.steps:
            if step.key not in self._tasks:
                await self._begin(kind, step)
        if self._tasks:
            await self._wait_for_a_step()
        else:
            await self._clock.sleep(decided.seconds)
        return True

    async def _try_later(self, problem: Problem) -> bool:
        """Retry after a transient problem; after too many attempts, pause so that a person notices."""
        now, waits = self._clock.time(), str(problem)

        def note(stored: Run) -> None:
            stored.memory[ATTEMPTS] = int(stored.memory.get(ATTEMPTS, 0)) + 1
            if waits != self._waits_for:
                stored.say(now, f"Trying again: {waits}")

        run = await self._store.change_ours(self.id, note)
        self._waits_for = waits
        if run.state is RunState.ABORTING and run.memory[ATTEMPTS] >= ABORT_ATTEMPTS and not run.current:
            await self._end(run, RunState.ABORTED, f"{run.reason}; what is left is not known: {waits}")
            return False
        if run.memory[ATTEMPTS] >= MOST_ATTEMPTS:
            await self.pause(f"Given up after {MOST_ATTEMPTS} attempts: {waits}")
        else:
            await self._clock.sleep(RETRY_SECONDS)
        return True

    async def _view(self, run: Run, caller: Caller, cluster: str) -> Cluster:
        """A cluster as the run's caller may see it now."""
        site = self._pipeline.sites.find(cluster, caller)
        return (await self._pipeline.visible_view(site, self._invocation(run, caller))).api

    async def _views(self, run: Run, caller: Caller) -> Mapping[str, Cluster]:
        if not self._pipeline.sites.several:
            return {}
        return {site.name: await self._view(run, caller, site.name) for site in self._pipeline.sites.open_to(caller)}

    def _invocation(self, run: Run, caller: Caller) -> Invocation:
        operation = find_operation(run.tool)
        assert operation is not None, run.tool
        return self._pipeline.invocation(operation, Risk.READ, {}, Exchange(caller))

    # -- steps -----------------------------------------------------------------------------------------------------

    async def _begin(self, kind: Kind, step: Step) -> None:
        """Write down that the step begins, then begin it. A run that was paused in between begins nothing."""
        pending = Pending(new_change_id(), step.tool, dict(step.arguments), self._clock.time(), step.summary)
        begun = False

        def note(stored: Run) -> None:
            nonlocal begun
            begun = stored.state in (RunState.RUNNING, RunState.ABORTING) and step.key not in stored.current
            if begun:
                stored.current = {**stored.current, step.key: pending}
                if step.key not in stored.memory.get(POSTPONED, {}):
                    stored.say(pending.begun, step.summary)

        run = await self._store.change_ours(self.id, note)
        if begun:
            self._tasks[step.key] = asyncio.create_task(self._perform(kind, run, step.key, pending))

    async def _perform(self, kind: Kind, run: Run, key: str, pending: Pending) -> None:
        try:
            result = await self._run_step(run, pending)
        except StepPaused as paused:
            await self._settle_refused(run, key, paused.problem)
            return
        if result is None:
            await self._follow(kind, key, pending)
        else:
            await self._settle(kind, key, pending, result)

    async def _run_step(self, run: Run, pending: Pending) -> StepResult | None:
        """The result; None if it has to be looked up because it is still open."""
        operation, arguments = find_operation(pending.tool), dict(pending.arguments)
        if self._pipeline.sites.several and not (operation is not None and operation.about_homelab):
            arguments.setdefault(CLUSTER, run.cluster)
        usual = self._pipeline.approver
        try:
            exchange = Exchange(
                await present_caller(run, self._tokens),
                wait_seconds=STEP_SECONDS,
                change=pending.change,
                approver=RunApprover(usual.approvals, usual.passphrase, usual.settings, run=run),
            )
            answer = await self._pipeline.run(pending.tool, arguments, exchange)
        except (OutsideBounds, ChangesFrozen) as problem:
            raise StepPaused(problem) from None
        except LimitReached as problem:
            await self._clock.sleep(RETRY_SECONDS)
            return StepResult(Outcome.NOT_DONE, str(problem))
        except Refused as problem:
            raise StepPaused(problem) from None
        except (*TRANSIENT, Overtaken) as problem:
            ended = await self._look_up(pending)
            if ended is None:
                return None
            if ended.outcome not in (Outcome.FAILED, Outcome.NOT_DONE):
                return ended
            await self._clock.sleep(RETRY_SECONDS)
            return StepResult(Outcome.NOT_DONE, str(problem), is_trouble=True)
        except OutcomeUnknown:
            return None
        except Problem as problem:
            return StepResult(Outcome.FAILED, str(problem), problem.facts)
        return as_step_result(answer)

    async def _follow(self, kind: Kind, key: str, pending: Pending) -> None:
        ended = await self._look_up(pending)
        if ended is None:
            self._unanswered.add(key)
        else:
            await self._settle(kind, key, pending, ended)

    async def _look_up(self, pending: Pending) -> StepResult | None:
        """How a step ended that this process did not see end. Waits until that is certain.

        None if the cluster has not answered for so long that the run has paused.
        """
        heard = self._clock.monotonic()
        while True:
            run = await self._store.get(self.id)
            if (silence := await self._find_silence(run)) is None:
                heard = self._clock.monotonic()
            silent = self._clock.monotonic() - heard
            if silence is not None and silent >= (SILENT_ABORTING_SECONDS if run.aborting else SILENT_SECONDS):
                why = f"Its cluster has not answered for {duration(silent)}: {silence.what}"
                if run.aborting:
                    return StepResult(Outcome.UNKNOWN, f"{why}. It is not known how this step ended")
                await self.pause(why)
                return None
            try:
                await self._pipeline.resolve_unfinished()
                entry = await self._pipeline.journal.entry(pending.change, pending.begun)
            except Problem:
                await self._clock.sleep(LOOK_SECONDS)
                continue
            if entry is None:
                return StepResult(Outcome.NOT_DONE)
            if entry.get("final"):
                break
            await self._clock.sleep(LOOK_SECONDS)
        outcome = Outcome(entry["outcome"])
        explanation = "; ".join(str(line) for line in entry.get("found") or [] if line) or str(entry.get("error") or "")
        good = outcome in (Outcome.DONE, Outcome.WARNINGS, Outcome.NOTHING)
        return StepResult(outcome, "" if good else explanation or outcome.value)

    async def _find_silence(self, run: Run) -> Problem | None:
        """Why the cluster of the run does not answer; None if it does."""
        site = next((site for site in self._pipeline.sites if run.is_of(site.name, site.backend.endpoints)), None)
        if site is None:
            return None
        try:
            await site.cluster.get("/version")
        except (Unreachable, TimedOut) as problem:
            return problem
        except Problem:
            return None
        return None

    async def _settle(self, kind: Kind, key: str, pending: Pending, result: StepResult) -> None:
        now = self._clock.time()

        def note(stored: Run) -> None:
            stored.current = {name: step for name, step in stored.current.items() if name != key}
            ended = limit_retries(stored, key, result)
            kind.settle(stored, key, pending, ended)
            if (ended.was_sent or ended.error) and not is_repeated(stored, key, ended):
                stored.say(now, line_of(pending, ended))

        await self._store.change_ours(self.id, note)

    async def _settle_refused(self, run: Run, key: str, problem: Problem) -> None:
        """Nothing was done; the run pauses, and its kind decides again when it is resumed.

        If it was aborted since the step began, nobody needs to decide anything: it continues to clean up.
        """
        outside = problem.outside if isinstance(problem, OutsideBounds) else []
        now = self._clock.time()

        def note(stored: Run) -> None:
            stored.current = {name: step for name, step in stored.current.items() if name != key}
            if stored.state is RunState.ABORTING and not run.aborting:
                stored.say(now, f"Not done: {problem}")
                return
            if not stored.state.has_ended:
                stored.state, stored.reason = RunState.PAUSED, str(problem)
                stored.orphaned = stored.orphaned or isinstance(problem, AccessLost)
                stored.request = [*stored.request, *(bound for bound in outside if bound not in stored.request)]
            stored.say(now, f"Paused: {problem}")

        await self._store.change_ours(self.id, note)

    async def _wait_for_a_step(self) -> None:
        finished, _ = await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        self._tasks = {key: task for key, task in self._tasks.items() if task not in finished}
        for task in finished:
            task.result()

    # -- states ----------------------------------------------------------------------------------------------------

    async def pause(self, reason: str, *, lost: bool = False) -> None:
        now = self._clock.time()

        def note(stored: Run) -> None:
            if not stored.state.has_ended and stored.state is not RunState.PAUSED:
                stored.state, stored.reason, stored.orphaned = RunState.PAUSED, reason, lost
                stored.say(now, f"Paused: {reason}")

        await self._store.change_ours(self.id, note)

    async def _set_state(self, before: RunState, after: RunState, says: str) -> None:
        now = self._clock.time()

        def note(stored: Run) -> None:
            if stored.state is before:
                stored.state = after
                stored.say(now, says)

        await self._store.change_ours(self.id, note)

    async def _end(self, run: Run, state: RunState, summary: str) -> None:
        now = self._clock.time()

        def note(stored: Run) -> None:
            if stored.state is run.state and not stored.current:  # not paused or aborted in between
                stored.state, stored.reason, stored.ended = state, summary, now
                stored.say(now, f"{state.value.capitalize()}: {summary}")

        await self._store.change_ours(self.id, note)


def _count(left: list[str]) -> str:
    return {0: "nothing is", 1: "1 thing is"}.get(len(left), f"{len(left)} things are")
