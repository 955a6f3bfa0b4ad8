"""Proof of effect: whether a call that got no answer was carried out, and what a change replaced.

One mechanism for a lost answer and for a process that died. Its task proves a call, and so does the object that the
call is about, if it differs from before and reads as predicted. Absence is proven by what an object shows, or by the
list of tasks as long as the clocks agree; otherwise the outcome stays unknown.

The options that a change replaces are read with the same request before it, and again after it, so that it can be
undone exactly.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pve_schema.formats import split_list
from pve_schema.schema import Facts, Match
from quorate.operations.plan import Action, Call
from quorate.pipeline.effect import Before, Effect, Kind, Trace, expected_effect, judge, remember
from quorate.pipeline.record import Step
from quorate.problems import (
    AuthenticationFailed,
    NodeOffline,
    NotFound,
    Problem,
    TimedOut,
    Unreachable,
    UntrustedCertificate,
)
from quorate.pve import values
from quorate.pve.cluster import Cluster
from quorate.pve.stored_objects import CONTROL, Location, StoredObject, hide_secrets, read_stored
from quorate.pve.tasks import LISTING_PAUSES, TaskOutcome, Upid, gather_bounded, read_state, started_since
from quorate.pve.wire import Request, read
from quorate.state.chain import canonical

YOUNG = 10.0  # seconds after which PVE has listed every task and written every option
OLD = 86_400.0  # seconds after which PVE may have dropped a task from its lists
STEADY = 2.0  # seconds by which two measurements of the same clocks differ anyway: Date has whole seconds
DRIFT = 600.0  # seconds that the clocks of nodes may be apart, or jump, and the search for tasks still covers
READS_AT_ONCE = 8

_SIDE_EFFECT: Final = re.compile(r"boot|bootdisk|unused\d+")
"""Options that PVE itself adjusts when devices come or go."""
_SNAPSHOT: Final = re.compile(r"/nodes/[^/]+/(?:qemu|lxc)/\d+/snapshot")
_MASKED: Final = re.compile(r"\*+")
Values = dict[str, Any]
"""The options of an object."""

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


# -- undoing -----------------------------------------------------------------------------------------------------------


def touched_keys(call: Call, path_values: Mapping[str, str]) -> list[str]:
    """The options that a call sets or deletes."""
    set_ = [name for name in call.params if name not in CONTROL and name not in path_values]
    return sorted({*set_, *(name for name in split_list(str(call.params.get("delete", ""))) if name)})


def is_observable(facts: Facts, call: Call) -> bool:
    """Whether the options that it sets can be read where they are written."""
    writes = call.method == "PUT" or (call.method == "POST" and call.path.endswith("/config"))
    known = facts.find(call.method, call.path) is not None and facts.find("GET", call.path) is not None
    return writes and known and call.upload is None


def options_in(facts: Facts, call: Call, content: Any) -> Values | None:
    """The options that the call is about, as the object that it writes to has them; None if it has no options."""
    match = facts.find(call.method, call.path)
    if match is None or not isinstance(content, dict):
        return None
    now = hide_secrets(match.endpoint.template, content)  # the journal keeps what is returned here
    keys = {*touched_keys(call, match.values), *(key for key in now if _SIDE_EFFECT.fullmatch(key))}
    return {name: now.get(name) for name in sorted(keys)}


async def read_options(cluster: Cluster, call: Call) -> Values | None:
    """The options that the call is about, as they are now; None if they cannot be read."""
    facts = await cluster.facts()
    if not is_observable(facts, call):
        return None
    try:
        return options_in(facts, call, await cluster.get(call.path))
    except Problem:
        return None


async def read_all_options(cluster: Cluster, calls: Sequence[Call | Action]) -> dict[int, Values]:
    """By the number of the step."""
    options: dict[int, Values] = {}
    for number, call in enumerate(calls, 1):
        current = await read_options(cluster, call) if isinstance(call, Call) else None
        if current is not None:
            options[number] = current
    return options


def replaced_values(before: Mapping[int, Values], after: Mapping[int, Values]) -> list[dict[str, Any]]:
    """For the journal: what each step replaced. The fingerprint shows whether the journal kept it unchanged."""
    rows = []
    for number in sorted(before.keys() & after.keys()):
        keys = sorted({*before[number], *after[number]})
        both = {key: [before[number].get(key), after[number].get(key)] for key in keys}
        rows.append({"step": number, "values": both, "sha256": fingerprint(both)})
    return rows


def can_be_undone(calls: Sequence[Call | Action], rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether change_undo could restore what the journal keeps, as far as that is known when the change ends."""
    kept = {row["step"]: row for row in rows}
    changed = False
    for number, call in enumerate(calls, 1):
        if isinstance(call, Call) and takes_snapshot(call.method, call.path):
            continue
        row = kept.get(number)
        if row is None or not isinstance(call, Call) or "revert" in call.params:
            return False
        if fingerprint(row["values"]) != row["sha256"]:
            return False
        changes = {key: both for key, both in row["values"].items() if both[0] != both[1]}
        if any(why_inexact(key, *both) for key, both in changes.items()):
            return False
        changed = changed or bool(changes)
    return changed


def takes_snapshot(method: str, path: str) -> bool:
    return method == "POST" and _SNAPSHOT.fullmatch(path) is not None


def why_inexact(key: str, before: Any, after: Any) -> str | None:
    """Why an option cannot be restored exactly; None if it can."""
    for value in (before, after):
        if value is not None and not isinstance(value, (str, int, float)):
            return f"{key} has a form that cannot be written back"
        if isinstance(value, str) and _MASKED.fullmatch(value):
            return f"{key} is a secret that PVE does not show"
    if values.bus_of(key) in (*values.DISKS, "unused"):
        same = before and after and values.volume_of(str(before)) == values.volume_of(str(after))
        if not same:
            return f"{key} is a disk: it was created, attached, detached or removed"
    return None


def fingerprint(options: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(dict(options))).hexdigest()
