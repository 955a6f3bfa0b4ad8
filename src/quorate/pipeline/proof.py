"""Proof of effect: whether a call that got no answer was carried out.

One mechanism for a lost answer and for a process that died. Its task proves a call, and so does the object that the
call is about, if it differs from before and reads as predicted. Absence is proven by what an object shows, or by the
list of tasks as long as the clocks agree; otherwise the outcome stays unknown.

A change whose process died is resolved with it: `Resolver` sends only reads, and what it learns closes the entry of the
journal. What cannot be asked now is tried again later.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pve_schema.schema import Match
from quorate.config.clusters import HOMELAB
from quorate.operations.plan import Action, Call
from quorate.operations.registry import find_operation
from quorate.operations.undo import Values, is_observable, options_in
from quorate.pipeline.record import Step
from quorate.pipeline.sites import Sites
from quorate.problems import (
    AuthenticationFailed,
    NodeOffline,
    NotFound,
    Problem,
    TimedOut,
    Unreachable,
    UntrustedCertificate,
)
from quorate.pve.cluster import Cluster
from quorate.pve.connection import Clock
from quorate.pve.effect import Before, Effect, Kind, Trace, expected_effect, judge, remember
from quorate.pve.errors import failure_advice
from quorate.pve.stored_objects import Location, StoredObject, read_stored
from quorate.pve.tasks import LISTING_PAUSES, TaskOutcome, Upid, gather_bounded, read_state, started_since
from quorate.pve.wire import Request, read
from quorate.state.chain import plain
from quorate.state.journal import Journal, Outcome, StepState, UnfinishedChange, overall
from quorate.state.trail import seconds_of
from quorate.units import moment

YOUNG = 10.0  # seconds after which PVE has listed every task and written every option
OLD = 86_400.0  # seconds after which PVE may have dropped a task from its lists
STEADY = 2.0  # seconds by which two measurements of the same clocks differ anyway: Date has whole seconds
DRIFT = 600.0  # seconds that the clocks of nodes may be apart, or jump, and the search for tasks still covers
READS_AT_ONCE = 8
LOOK = "Look at it before you repeat the call"
LOOK_SECONDS = 30.0
LONGEST_LOOK = 600

Claimed = Callable[[], Awaitable[Container[str]]]
"""The tasks that are known to belong to other calls."""
Look = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
"""Calls a tool that reads."""


@dataclass(frozen=True, slots=True)
class SentCall:
    """A call that may have been sent: what is needed to find out, now or after a restart."""

    method: str
    path: str
    params: Mapping[str, Any]
    sent: float
    """Just before it was sent, by our clock."""
    skew: float | None
    """Seconds that the cluster's clock was ahead of this machine's then; None if nobody knows."""
    before: Before | None = None
    task_id: str | None = None
    uploads: bool = False
    accepted: bool = False
    """PVE has answered, but did not name the task."""

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any], sent: float, skew: float | None) -> SentCall:
        """From a line of the journal."""
        params, task_id = wire.get("params"), wire.get("task_id")
        return cls(
            str(wire.get("method")),
            str(wire.get("path")),
            params if isinstance(params, Mapping) else {},
            sent,
            skew,
            Before.from_dict(wire.get("before")),
            None if task_id is None else str(task_id),
            "upload" in wire,
        )


@dataclass(slots=True)
class Observation:
    """What was read before a change, by the number of the step."""

    before: dict[int, Before] = field(default_factory=dict)
    """What the effect is judged against later."""
    late: set[int] = field(default_factory=set)
    """Steps whose object an earlier step changes: it is read again when their turn comes."""
    options: dict[int, Values] = field(default_factory=dict)
    """The options that an undo would restore."""

    def attach_to(self, steps: list[Step]) -> list[Step]:
        for number, step in enumerate(steps, 1):
            step.before, step.observe_late = self.before.get(number), number in self.late
        return steps


# -- before ------------------------------------------------------------------------------------------------------------


async def observe(cluster: Cluster, steps: Sequence[Call | Action]) -> Observation:
    """Read the objects that will show the effects, each once. A call that a task proves is not read for."""
    facts = await cluster.facts()
    calls = {number: step for number, step in enumerate(steps, 1) if isinstance(step, Call)}
    undoable = {number: Location(call.path) for number, call in calls.items() if is_observable(facts, call)}
    effects: dict[int, Effect] = {}
    late: set[int] = set()
    touched: set[Location] = set()
    for number, call in calls.items():
        request = read(facts, call.method, call.path, call.params)
        effect = expected_effect(facts, request) if request else None
        if request is None or effect is None:
            continue
        if not request.match.endpoint.worker_types:
            effects[number] = effect
            late |= {number} if effect.location in touched else set()
        touched.add(effect.location)
    places = list(dict.fromkeys([*undoable.values(), *(effect.location for effect in effects.values())]))
    shown = await gather_bounded(READS_AT_ONCE, [partial(_read_quietly, cluster, place) for place in places])
    seen: dict[Location, StoredObject | None] = dict(zip(places, shown, strict=True))
    observation = Observation(late=late)
    for number, effect in effects.items():
        if stored := seen[effect.location]:
            observation.before[number] = remember(effect, stored)
    for number, place in undoable.items():
        options = options_in(facts, calls[number], stored.content) if (stored := seen[place]) else None
        if options is not None:
            observation.options[number] = options
    return observation


async def _read_quietly(cluster: Cluster, location: Location) -> StoredObject | None:
    """None if it cannot be read: then the proof has to do without."""
    try:
        return await read_stored(cluster, location)
    except Problem:
        return None


# -- after -------------------------------------------------------------------------------------------------------------


async def prove(cluster: Cluster, call: SentCall, claimed: Claimed) -> Upid | Trace:
    """Whether the call was carried out. Raises Problem if PVE cannot be asked."""
    facts = await cluster.facts()
    request = read(facts, call.method, call.path, call.params)
    if request is None:
        raise NotFound(f"PVE has no {call.method} {call.path} anymore")
    effect = expected_effect(facts, request)
    types, ids = _expected_tasks(request.match, call)
    trace: Upid | Trace = Trace.UNCLEAR
    for pause in LISTING_PAUSES:
        await cluster.clock.sleep(pause)
        tasks = await _search(cluster, request, call, types, ids, claimed) if types else _Tasks()
        if tasks.certain:
            return tasks.certain[0] if len(tasks.certain) == 1 else Trace.SEVERAL
        shown = await _look(cluster, effect, call.before)
        if shown is Trace.NONE and effect is not None and effect.kind is not Kind.CREATED:
            tasks.possible = [task for task in tasks.possible if not await _ended_well(cluster, task)]
        trace = _conclude(cluster, call, effect, shown, tasks) if types else shown
        if trace is not Trace.NONE or not _is_young(cluster, call):
            break
    return trace


def _conclude(cluster: Cluster, call: SentCall, effect: Effect | None, shown: Trace, tasks: _Tasks) -> Upid | Trace:
    """A call that starts a task, of which no task is found where it should be."""
    if shown is Trace.PRESENT:
        if len(tasks.possible) == 1 and not _is_steady(cluster, call):
            return tasks.possible[0]
        needs_before = effect is not None and effect.needs_before and call.before is None and not call.accepted
        return Trace.UNCLEAR if needs_before else Trace.PRESENT
    if tasks.possible:
        return Trace.UNCLEAR
    age = cluster.clock.time() - call.sent
    drift = _drift(cluster, call)
    listed = drift is not None and abs(drift) < DRIFT and age < OLD
    return Trace.NONE if listed else Trace.UNCLEAR


@dataclass(slots=True)
class _Tasks:
    certain: list[Upid] = field(default_factory=list)
    """The right kind, on the right target, started after the call."""
    possible: list[Upid] = field(default_factory=list)
    """Others that may belong to the call, if clocks differ or its id is not known."""


async def _search(
    cluster: Cluster,
    request: Request,
    call: SentCall,
    types: set[str],
    ids: set[str],
    claimed: Claimed,
) -> _Tasks:
    nodes = [request.match.values["node"]]
    if call.uploads:  # an upload is processed by the node that received it
        nodes = [row.node for row in await cluster.inventory.of_type("node") if row.status == "online"] or nodes
    since = call.sent + (cluster.client.clock_skew if call.skew is None else call.skew)
    listed = [task for node in nodes for task in await started_since(cluster.client, node, types, since - DRIFT)]
    others = await claimed() if listed else ()
    id_is_sure = call.task_id is not None or "vmid" in request.values
    candidates = _Tasks()
    for task in listed:
        if task.text in others or (id_is_sure and task.id not in ids):
            continue
        on_time = task.started >= int(since) - 1
        is_certain = on_time and task.id in ids and call.skew is not None
        (candidates.certain if is_certain else candidates.possible).append(task)
    return candidates


async def _ended_well(cluster: Cluster, task: Upid) -> bool:
    """A task that ended well shows its effect in the object; if nothing shows there, it belongs to an earlier call."""
    return (await read_state(cluster.client, task)).outcome is TaskOutcome.OK


def _expected_tasks(match: Match, call: SentCall) -> tuple[set[str], set[str]]:
    """The types and ids of the task that a call starts; no types if it starts none."""
    if not match.endpoint.worker_types or "node" not in match.values:
        return set(), set()
    types = {*match.endpoint.worker_types, *(f"ha{word}" for word in ("start", "stop", "migrate"))}
    if call.task_id is not None:
        return types, {call.task_id}
    vmid = call.params.get("vmid")
    named = (value for name, value in match.values.items() if name != "node")
    return types, {*named, str("" if vmid is None else vmid), ""}


async def _look(cluster: Cluster, effect: Effect | None, before: Before | None) -> Trace:
    if effect is None:
        return Trace.UNCLEAR
    try:
        return judge(effect, before, await read_stored(cluster, effect.location))
    except (NodeOffline, Unreachable, TimedOut, AuthenticationFailed, UntrustedCertificate):
        raise
    except Problem:
        return Trace.UNCLEAR


# -- clocks ------------------------------------------------------------------------------------------------------------


def _drift(cluster: Cluster, call: SentCall) -> float | None:
    """How much the cluster's clock and ours have moved against each other since; None if that is not known."""
    now = cluster.client.measured_skew
    return None if now is None or call.skew is None else now - call.skew


def _is_steady(cluster: Cluster, call: SentCall) -> bool:
    drift = _drift(cluster, call)
    return drift is not None and abs(drift) <= STEADY


def _is_young(cluster: Cluster, call: SentCall) -> bool:
    """Whether PVE may still be about to show it. After a jump of a clock, nobody knows how long ago it was."""
    return not _is_steady(cluster, call) or cluster.clock.time() - call.sent < YOUNG


# -- what a dead process left ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class StepResolution:
    """The state of one step, and how that is known."""

    state: StepState
    says: str = ""
    task: str = ""


@dataclass(slots=True)
class Resolution:
    """A change that was investigated."""

    entry: Mapping[str, Any]
    outcome: Outcome | None
    """None if that cannot be determined now."""
    says: list[str] = field(default_factory=list)


class NobodyToAsk(Exception):
    """The cluster does not answer now; it may later."""


class Resolver:
    def __init__(
        self,
        sites: Sites,
        journal: Journal,
        sanitize: Callable[[Mapping[str, Any]], dict[str, Any]],
        look: Look,
        clock: Clock,
    ) -> None:
        self._sites = sites
        self._journal = journal
        self._sanitize = sanitize
        self._look = look
        self._clock = clock

    async def resolve(self) -> list[Resolution]:
        """Close every change whose process is gone, as far as its outcome can be established now."""
        waiting = await self._journal.take_over()
        resolutions: list[Resolution] = []
        try:
            while waiting:
                resolutions.append(await self._resolve(waiting[0]))
                del waiting[0]
        finally:  # any process may take over what is left
            for unfinished in waiting:
                await self._journal.give_back(unfinished.id)
        return resolutions

    async def _resolve(self, unfinished: UnfinishedChange) -> Resolution:
        entry = unfinished.entry
        try:
            steps = await _Investigation(self._sites, self._journal, entry, self._look, self._clock).steps()
        except NobodyToAsk as problem:
            await self._journal.give_back(unfinished.id)
            return Resolution(entry, None, [str(problem)])
        outcome = overall([step.state for step in steps]) if steps else Outcome.UNKNOWN
        says = [step.says for step in steps if step.says]
        final = StepState.RUNNING not in [step.state for step in steps]
        if not final and entry.get("outcome") == outcome:
            await self._journal.give_back(unfinished.id)  # the entry says so already
            return Resolution(entry, outcome, says)
        closing = {
            "time": moment(self._clock.time()),
            "steps": [
                {"step": number, "state": step.state.value, **({"task": step.task} if step.task else {})}
                for number, step in enumerate(steps, 1)
            ],
            "tasks": [step.task for step in steps if step.task],
            "outcome": outcome.value,
            "found": says or ["The entry does not say what was planned. " + LOOK],
            "resolved": True,
        }
        await self._journal.close(unfinished.id, self._sanitize(closing), final=final)
        return Resolution(entry, outcome, says)


class _Investigation:
    """The investigation of one entry."""

    def __init__(self, sites: Sites, journal: Journal, entry: Mapping[str, Any], look: Look, clock: Clock) -> None:
        known = entry.get("endpoints") or {}
        self._clusters = {
            site.name: site.cluster
            for site in sites
            if site.name not in known or not set(known[site.name]).isdisjoint(site.backend.endpoints)
        }
        self._journal = journal
        self._entry = entry
        self._look = look
        self._clock = clock
        self._answers = {str(answer.get("step")): answer for answer in entry.get("answers", ())}
        self._known = {str(step.get("step")): step for step in entry.get("steps", ())}
        """What an earlier outcome that was not final says about the steps."""
        self._contested: set[tuple[str, str]] = set()
        self._begun = seconds_of(str(entry.get("time"))) or clock.time()
        skew = entry.get("skew")
        self._skew: Mapping[str, float] = skew if isinstance(skew, Mapping) else {}

    async def steps(self) -> list[StepResolution]:
        wire = self._entry.get("wire")
        if not isinstance(wire, list):
            return []
        numbered = [(str(number), step) for number, step in enumerate(wire, 1)]
        if not self._entry.get("independent"):
            return await self._resolve_sequence(numbered, self._begun)
        lanes = [partial(self._resolve_sequence, lane, self._begun) for lane in self._lanes(numbered)]
        resolved = await gather_bounded(READS_AT_ONCE, lanes)
        return [step for lane in resolved for step in lane]

    def _lanes(self, numbered: list[tuple[str, Any]]) -> list[list[tuple[str, Any]]]:
        """The steps that ran in order, by target; those before them, and all of a plan without sequences, alone."""
        sizes = [int(size) for size in self._entry.get("sequences", ())]
        if sum(sizes) > len(numbered):  # the entry was cut short
            sizes = []
        left = iter(numbered)
        return [
            *([step] for step in itertools.islice(left, len(numbered) - sum(sizes))),
            *(list(itertools.islice(left, size)) for size in sizes),
        ]

    async def _resolve_sequence(self, numbered: list[tuple[str, Any]], since: float) -> list[StepResolution]:
        """A step was started only if the one before it was answered and done."""
        resolved: list[StepResolution] = []
        for number, wire in numbered:
            if resolved and not (resolved[-1].state.is_done and self._was_answered(numbered[len(resolved) - 1][0])):
                resolved.append(StepResolution(StepState.NOT_TRIED))
                continue
            resolved.append(await self._step(number, wire, since))
            since = seconds_of(str(self._answers.get(number, {}).get("time"))) or since
        return resolved

    def _was_answered(self, number: str) -> bool:
        parts = (answered for answered in self._answers if answered.startswith(f"{number}."))
        return number in self._answers or number in self._known or any(parts)

    async def _step(self, number: str, wire: Any, since: float) -> StepResolution:
        recorded = {**self._answers.get(number, {}), **self._known.get(number, {})}
        state = StepState(recorded.get("state", StepState.SENT))
        if not isinstance(wire, Mapping):
            return StepResolution(StepState.UNKNOWN, f"Step {number}: the entry was cut short. {LOOK}")
        if task := str(recorded.get("task", "")):
            return await self._task(number, wire, task)
        if recorded and not state.is_open:
            return StepResolution(state, str(recorded.get("error", "")))
        if "action" in wire:
            return await self._action(number, wire, since)
        return await self._unanswered_call(number, wire, since)

    async def _unanswered_call(self, number: str, wire: Mapping[str, Any], since: float) -> StepResolution:
        """A call without an answer: it was not sent, or the process died before the answer arrived."""
        cluster = self._cluster(number, wire)
        what = f"Step {number} ({wire.get('method')} {wire.get('path')})"
        try:
            skew = self._skew.get(str(wire.get("cluster")))
            trace = await prove(cluster, SentCall.from_wire(wire, since, skew), self._claimed_tasks)
            if isinstance(trace, Upid) and (wire.get("method"), wire.get("path")) in self._contested:
                raise NobodyToAsk(f"{what}: its task may belong to a change that is still running; try again later")
        except NotFound as problem:
            return StepResolution(StepState.UNKNOWN, f"{what}: {problem.what} {LOOK}")
        except Problem as problem:
            raise NobodyToAsk(f"{what}: {problem}") from None
        match trace:
            case Upid():
                return await self._task(number, wire, trace.text)
            case Trace.PRESENT:
                return StepResolution(StepState.DONE, f"{what}: its effect is visible")
            case Trace.NONE:
                return StepResolution(StepState.NOT_TRIED, f"{what}: it was not done, PVE shows no trace of it")
            case Trace.SEVERAL:
                return StepResolution(StepState.UNKNOWN, f"{what}: several tasks match. {LOOK}")
            case _:
                return StepResolution(StepState.UNKNOWN, f"{what}: nothing shows whether it was done. {LOOK}")

    async def _task(self, number: str, wire: Mapping[str, Any], text: str) -> StepResolution:
        cluster = self._cluster(number, wire)
        try:
            state = await read_state(cluster.client, Upid.parse(text))
        except NotFound:
            return StepResolution(StepState.UNKNOWN, f"Step {number}: PVE has forgotten its task. {LOOK}", text)
        except Problem as problem:
            raise NobodyToAsk(f"Step {number}, task {text}: {problem}") from None
        ended = StepState.DONE if state.outcome is TaskOutcome.OK else StepState(state.outcome)
        says = {
            StepState.DONE: "its task has succeeded",
            StepState.RUNNING: "its task is still running",
            StepState.WARNINGS: f"its task has ended with {state.exit}",
        }.get(ended, f"its task failed: {state.exit} {failure_advice(state.exit or '') or ''}".rstrip())
        return StepResolution(ended, f"Step {number}: {says}", text)

    async def _action(self, number: str, wire: Mapping[str, Any], since: float) -> StepResolution:
        """Several writes to PVE as one step, or something on a host that PVE does not know about."""
        if wire.get("cluster") != HOMELAB:
            self._cluster(number, wire)
        what = f"Step {number} ({wire.get('target') or wire.get('action')})"
        calls = wire.get("calls")
        if not isinstance(calls, list) or not calls or not await self._is_known_to_pve(number, wire, calls):
            now = await self._current_state(wire)
            return StepResolution(
                StepState.UNKNOWN, f"{what}: it may have been started; its end is unknown. {now}{LOOK}"
            )
        parts = await self._resolve_sequence(
            [(f"{number}.{place}", call) for place, call in enumerate(calls, 1)], since
        )
        done = sum(part.state.is_done for part in parts)
        tasks = [part.task for part in parts if part.task]
        state = overall([part.state for part in parts])
        says = "; ".join(
            [f"{what}: {done} of {len(parts)} calls are done", *(part.says for part in parts if part.says)]
        )
        states = {
            Outcome.DONE: StepState.DONE,
            Outcome.WARNINGS: StepState.WARNINGS,
            Outcome.NOT_DONE: StepState.NOT_TRIED,
            Outcome.RUNNING: StepState.RUNNING,
            Outcome.UNKNOWN: StepState.UNKNOWN,
        }
        return StepResolution(states.get(state, StepState.FAILED), says, tasks[-1] if tasks else "")

    async def _current_state(self, wire: Mapping[str, Any]) -> str:
        """The current state of the host or guest, if a tool can show it; of several hosts, that of this step."""
        arguments = self._entry.get("arguments")
        operation = find_operation(str(self._entry.get("tool")))
        if operation is None or not operation.shown_by or not isinstance(arguments, Mapping):
            return ""
        tool, *names = operation.shown_by
        if self._entry.get("independent") and "host" in names:
            arguments = {**arguments, "host": _host_of(wire)}
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                shown = await self._look(
                    tool, {name: arguments[name] for name in names if arguments.get(name) is not None}
                )
        except (Problem, TimeoutError) as problem:
            return f"{tool} cannot tell: {problem or 'no answer'} "
        return f"{tool} shows: {str(plain(shown))[:LONGEST_LOOK]}. "

    async def _is_known_to_pve(self, number: str, wire: Mapping[str, Any], calls: list[Any]) -> bool:
        """Whether all its calls leave a trace, so that a missing one means something."""
        cluster = self._clusters.get(str(wire.get("cluster")))
        if cluster is None:
            return False
        try:
            facts = await cluster.facts()
        except Problem as problem:
            raise NobodyToAsk(f"Step {number}: {problem}") from None
        matches = [facts.find(str(call.get("method")), str(call.get("path"))) for call in calls]
        return all(match is not None and "/agent/" not in match.endpoint.template for match in matches)

    def _cluster(self, number: str, wire: Mapping[str, Any]) -> Cluster:
        """The cluster of a step. One that this server does not have may be that of another on the same state."""
        name = str(wire.get("cluster"))
        if name in self._clusters:
            return self._clusters[name]
        raise NobodyToAsk(f"Step {number}: the cluster {name}, at its recorded address, is not configured. {LOOK}")

    async def _claimed_tasks(self) -> set[str]:
        """Tasks since this change began that are known to belong to a step."""
        self._contested = await self._journal.unanswered_calls(self._begun)  # first: an answer may arrive in between
        return await self._journal.tasks_since(self._begun)


def _host_of(wire: Mapping[str, Any]) -> str:
    """The host of a step, as callers name it: nas, or CLUSTER/102 for what belongs to a cluster."""
    _, key, *_ = (*str(wire.get("target")).split(" "), "")
    return key if wire.get("cluster") == HOMELAB else f"{wire.get('cluster')}/{key}"
