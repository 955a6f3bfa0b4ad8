"""Evacuating a node, and moving its guests back later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import NAMED, Advice, see, tools
from quorate.operations.ha_moves import MOVING, has_open_request, read_states
from quorate.operations.plan import Plan, Target
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster, OtherCluster
from quorate.pve.lookup import Resource
from quorate.pve.placement import UNMANAGED
from quorate.runs.control import RunRef
from quorate.runs.kind import FAILURES, Next, Step, StepResult, Work, declare, fail, finish, remember_failure
from quorate.runs.start import At, Outline, Window, run_here, start_plan
from quorate.runs.steps import (
    bound_of,
    calls_of,
    facts_of,
    move_step,
    moved_vmid,
    moving_memory,
    place,
    place_all,
    rows_of,
)
from quorate.runs.store import Pending, Run
from quorate.units import count_of

EVACUATE, RETURN = "evacuate", "return"
MOVED = "moved"
ACCEPTED = "accepted"
"""In a run's memory: for each guest, where PVE was asked to move it and when. The HA manager may still do it later."""
LATEST_SECONDS = 3600.0
"""How long after a request its guest is still waited for, if the cluster has no quorum or the HA manager is at it."""

Parallel = Annotated[int, Meta(ge=1, le=8, description="Guests moved at a time")]


@operation(
    toolset="runs",
    risk=Risk.CHANGE,
    plans_later=True,
    search_words="evacuate drain empty node maintenance move all guests away offload",
    example="node=pve3",
    shown_by=("run_list",),
)
async def run_evacuate(
    pve: Cluster,
    node: str,
    to: Annotated[list[str], Meta(description="Only to these nodes")] | None = None,
    parallel: Parallel = 2,
    stopped: Annotated[bool, Meta(description="Also guests that are stopped")] = False,
    with_local_disks: Annotated[bool, Meta(description="Copy local disks of running VMs, too")] = False,
    at: At | None = None,
    window: Window | None = None,
) -> Plan:
    """Start a run that moves each guest of a node to the best other node. run_return moves them back later."""
    await pve.inventory.online_node(node)
    targets = [(await pve.inventory.online_node(name)).node for name in to or ()] or await _others(pve, node)
    if node in targets:
        raise BadArgument(f"{node} is the node to be emptied", next_step=Advice("Leave it out of `{to}`", to=NAMED))
    here = await pve.inventory.fresh_guests(node)
    rows = [row for row in here if _concerned(row, stopped=stopped)]
    placed = await place_all(pve, rows, targets, with_local_disks=with_local_disks)
    movable = [placement for placement in placed if placement.node]
    if not movable:
        why = next((placement.reason for placement in placed), "")
        raise Conflict(
            f"No guest of {node} can be moved" if placed else f"There is nothing to move on {node}",
            why=why or None,
            next_step=None if placed else Advice("Choose {stopped} for guests that are stopped", stopped=True),
        )
    moving = [placement.row for placement in movable]
    guests = ", ".join(f"{row.kind} {row.vmid} {row.name}" for row in _sorted_by_vmid(moving))
    outline = Outline(
        EVACUATE,
        "run_evacuate",
        f"Evacuate {node}: {len(movable)} of {len(placed)} guests",
        f"move {guests} from {node} to any of {', '.join(targets)}, {parallel} at a time"
        + (", with local disks" if with_local_disks else ""),
        {
            "node": node,
            "stay": sorted({row.vmid for row in here} - {row.vmid for row in moving}),
            "guests": _guests_in_scope(moving, targets),
            "parallel": parallel,
            "stopped": stopped,
            "with_local_disks": with_local_disks,
        },
        lambda _: [bound_of(row, targets, with_local_disks=with_local_disks) for row in moving],
        Target("node", node, node=node),
        facts={**facts_of(placed), "at_a_time": parallel},
        warnings=tuple(str(warning) for placement in movable if placement.plan for warning in placement.plan.warnings),
        needs=calls_of(movable),
    )
    return start_plan(pve, outline, at, window)


@operation(
    toolset="runs",
    risk=Risk.CHANGE,
    plans_later=True,
    search_words="take guests back home after evacuation maintenance return node",
    shown_by=("run_list",),
)
async def run_return(
    pve: Cluster,
    run: RunRef,
    other_cluster: OtherCluster,
    parallel: Parallel = 2,
    at: At | None = None,
    window: Window | None = None,
) -> Plan:
    """Start a run that moves the guests of an earlier evacuation back."""
    earlier = await run_here(pve, run, other_cluster)
    if earlier.kind != EVACUATE:
        raise BadArgument(f"The run {earlier.id} is not an evacuation", next_step=see("See the runs", tools.run_list))
    if not earlier.state.has_ended:
        raise Conflict(f"The run {earlier.id} has not ended ({earlier.state.value})")
    origin = str(earlier.scope["node"])
    await pve.inventory.online_node(origin)
    accepted = {vmid: str(node) for vmid, (node, _) in earlier.memory.get(ACCEPTED, {}).items()}
    moved: dict[str, str] = accepted | earlier.memory.get(MOVED, {})
    rows = await rows_of(pve, map(int, moved))
    away = [row for row in rows.values() if row.node == moved[str(row.vmid)]]
    placed = await place_all(pve, away, [origin], with_local_disks=bool(earlier.scope["with_local_disks"]))
    movable = [placement for placement in placed if placement.node]
    if not movable:
        raise Conflict(
            f"No guest of the run {earlier.id} can be moved back",
            why=next((placement.reason for placement in placed), "None of them is still where that run moved it"),
        )
    local = bool(earlier.scope["with_local_disks"])
    moving = [placement.row for placement in movable]
    guests = ", ".join(f"{row.kind} {row.vmid} {row.name} from {row.node}" for row in _sorted_by_vmid(moving))
    outline = Outline(
        RETURN,
        "run_return",
        f"Return {count_of(len(movable), 'guest')} to {origin}",
        f"move {guests} to {origin}, {parallel} at a time",
        {
            "node": "",
            "stay": [],
            "guests": _guests_in_scope(moving, [origin]),
            "parallel": parallel,
            "stopped": True,
            "with_local_disks": local,
        },
        lambda _: [bound_of(row, [origin], with_local_disks=local) for row in moving],
        Target("node", origin, node=origin),
        facts={**facts_of(placed), "at_a_time": parallel},
        needs=calls_of(movable),
    )
    return start_plan(pve, outline, at, window)


def _sorted_by_vmid(rows: list[Resource]) -> list[Resource]:
    return sorted(rows, key=lambda row: row.vmid)


def _guests_in_scope(rows: list[Resource], to: list[str]) -> dict[str, Any]:
    return {str(row.vmid): {"from": row.node, "to": to, "name": row.name} for row in rows}


def _concerned(row: Resource, *, stopped: bool) -> bool:
    return not row.template and (stopped or row.status != "stopped")


async def _others(pve: Cluster, node: str) -> list[str]:
    rows = await pve.inventory.of_type("node")
    return sorted(row.node for row in rows if row.status == "online" and row.node != node)


@dataclass(frozen=True, slots=True)
class Evacuation:
    """A guest has to move as long as it is where the scope says it comes from."""

    name: str

    async def next(self, work: Work) -> Next:
        if work.aborting:
            self._report(work)
            return Next()
        if work.closing:
            return Next()
        todo = await self._todo(work)
        failures = work.memory.get(FAILURES, {})
        room = int(work.scope["parallel"]) - len(work.busy)
        steps: list[Step] = []
        waits: list[str] = []
        rows = {row.vmid: row for row in todo}
        coming = moving_memory(work.run, rows)
        for row in todo:
            key = f"move-{row.vmid}"
            if key in work.busy:
                continue
            if await _may_move_yet(work, row):
                waits.append(f"the HA manager moves {row.kind} {row.vmid} {row.name}")
                continue
            if key in failures:
                continue
            if row.lock:
                waits.append(f"{row.kind} {row.vmid} {row.name} is locked ({row.lock})")
                continue
            if len(steps) >= room:
                break
            step = await self._step(work, row, coming)
            if step is not None:
                steps.append(step)
                if row.status == "running":
                    node = str(step.arguments["node"])
                    coming[node] = coming.get(node, 0) + row.maxmem
        if steps or work.busy:
            return Next(tuple(steps))
        if waits := waits or await self._find_unsettled(work):
            return Next(waits_for="; ".join(waits))
        return self._end(work)

    async def _find_unsettled(self, work: Work) -> list[str]:
        """Guests that have arrived but that the HA manager still has to start."""
        rows = await rows_of(work.pve, map(int, work.memory.get(MOVED, {})))
        managed = [row for row in rows.values() if row.hastate not in UNMANAGED]
        states = await read_states(work.pve) if managed else {}
        return [
            f"the HA manager starts {row.kind} {row.vmid} {row.name} on {row.node}"
            for row in managed
            if states.get(f"{row.kind}:{row.vmid}") in (*MOVING, "starting")
        ]

    async def _todo(self, work: Work) -> list[Resource]:
        """The guests that are still where they have to leave; others are counted as moved."""
        guests = work.scope["guests"]
        rows = await rows_of(work.pve, map(int, guests))
        moved = work.memory.setdefault(MOVED, {})
        failures = work.memory.setdefault(FAILURES, {})
        todo = []
        for vmid, row in rows.items():
            key = f"move-{vmid}"
            if row.node != guests[str(vmid)]["from"]:
                if row.node in guests[str(vmid)]["to"] and str(vmid) not in moved:
                    moved[str(vmid)] = row.node
                failures.pop(key, None)
            elif str(vmid) in moved and key not in work.busy and not await _may_move_yet(work, row):
                failures.setdefault(key, f"it was moved to {moved[str(vmid)]} and came back, by HA or by someone else")
            else:
                todo.append(row)
        return todo if work.aborting else [*todo, *await self._arrived_since(work)]

    async def _arrived_since(self, work: Work) -> list[Resource]:
        """Guests that were not part of the approval. Moving them is outside the bounds, so the run pauses and asks."""
        scope = work.scope
        if not scope["node"]:
            return []
        asked = {*map(int, scope["guests"]), *scope["stay"]}
        here = await work.pve.inventory.fresh_guests(scope["node"])
        return [row for row in here if row.vmid not in asked and _concerned(row, stopped=False)]

    async def _step(self, work: Work, row: Resource, coming: dict[str, int]) -> Step | None:
        scope = work.scope
        to = scope["guests"].get(str(row.vmid), {}).get("to") or sorted(
            {node for guest in scope["guests"].values() for node in guest["to"]}
        )
        local = bool(scope["with_local_disks"])
        placed = await place(work.pve, row, to, coming, with_local_disks=local)
        if placed.node:
            return move_step(row, placed.node, with_local_disks=local)
        work.memory.setdefault(FAILURES, {})[f"move-{row.vmid}"] = placed.reason
        work.say(f"{row.kind} {row.vmid} {row.name} cannot be moved: {placed.reason}")
        return None

    def _end(self, work: Work) -> Next:
        self._report(work)
        failures, moved = work.memory.get(FAILURES, {}), len(work.memory.get(MOVED, {}))
        if failures:
            return fail(f"{moved} guests moved, {len(failures)} not")
        return finish(f"{moved} guests moved")

    def _report(self, work: Work) -> None:
        failures: dict[str, str] = work.memory.get(FAILURES, {})
        guests = work.scope["guests"]
        work.run.report = {
            "moved": {f"{vmid} {guests.get(vmid, {}).get('name', '')}".strip(): node
                      for vmid, node in work.memory.get(MOVED, {}).items()},
            **({"not_moved": {key.removeprefix("move-"): why for key, why in failures.items()}} if failures else {}),
        }  # fmt: skip

    def settle(self, run: Run, key: str, step: Pending, result: StepResult) -> None:
        if result.was_sent:
            run.memory.setdefault(ACCEPTED, {})[str(moved_vmid(key))] = [str(step.arguments["node"]), step.begun]
        if result.is_done:
            run.memory.setdefault(MOVED, {})[str(moved_vmid(key))] = str(step.arguments["node"])
        else:
            remember_failure(run, key, result)

    async def list_unfinished(self, work: Work) -> list[str]:
        return [f"{row.kind} {row.vmid} {row.name} is still on {row.node}" for row in await self._todo(work)]


async def _may_move_yet(work: Work, row: Resource) -> bool:
    """Whether the HA manager may still carry out what PVE has accepted: a request outlives the loss of the quorum."""
    accepted = work.memory.get(ACCEPTED, {}).get(str(row.vmid))
    if accepted is None or row.hastate in UNMANAGED:
        return False
    now, begun = work.pve.clock.time(), float(accepted[1])
    if now - begun >= LATEST_SECONDS:
        return False
    return await has_open_request(work.pve, f"{row.kind}:{row.vmid}", begun)


declare(Evacuation(EVACUATE), Evacuation(RETURN))
