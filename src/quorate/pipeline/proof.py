"""Proof of effect: whether a call that got no answer was carried out.

One mechanism for a lost answer and for a process that died. Its task proves a call, and so does the object that the
call is about, if it differs from before and reads as predicted. Absence is proven by what an object shows, or by the
list of tasks as long as the clocks agree; otherwise the outcome stays unknown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pve_schema.schema import Match
from quorate.operations.plan import Action, Call
from quorate.operations.undoable import Values, is_observable, options_in
from quorate.pipeline.effect import Before, Effect, Kind, Trace, expected_effect, judge, remember
from quorate.pipeline.step import Step
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
from quorate.pve.stored_objects import Location, StoredObject, read_stored
from quorate.pve.tasks import LISTING_PAUSES, TaskOutcome, Upid, gather_bounded, read_state, started_since
from quorate.pve.wire import Request, read

YOUNG = 10.0  # seconds after which PVE has listed every task and written every option
OLD = 86_400.0  # seconds after which PVE may have dropped a task from its lists
STEADY = 2.0  # seconds by which two measurements of the same clocks differ anyway: Date has whole seconds
DRIFT = 600.0  # seconds that the clocks of nodes may be apart, or jump, and the search for tasks still covers
READS_AT_ONCE = 8

Claimed = Callable[[], Awaitable[Container[str]]]
"""The tasks that are known to belong to other calls."""


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
    """For the proof."""
    late: set[int] = field(default_factory=set)
    """Steps whose object an earlier step changes: it is read again when their turn comes."""
    options: dict[int, Values] = field(default_factory=dict)
    """For undoing it."""

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
    found = Observation(late=late)
    for number, effect in effects.items():
        if stored := seen[effect.location]:
            found.before[number] = remember(effect, stored)
    for number, place in undoable.items():
        options = options_in(facts, calls[number], stored.content) if (stored := seen[place]) else None
        if options is not None:
            found.options[number] = options
    return found


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
    """Of this kind, on this target, started after the call."""
    possible: list[Upid] = field(default_factory=list)
    """Others that it could be, if clocks differ or its id is not known."""


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
    found = _Tasks()
    for task in listed:
        if task.text in others or (id_is_sure and task.id not in ids):
            continue
        on_time = task.started >= int(since) - 1
        (found.certain if on_time and task.id in ids and call.skew is not None else found.possible).append(task)
    return found


async def _ended_well(cluster: Cluster, task: Upid) -> bool:
    """Then the object would show what it did, so it belongs to an earlier call."""
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
