"""Evacuating a node, and moving its guests back later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from quorate.hints import NAMED, RUN_LIST, Advice, see
from quorate.operations.plan import Plan, Target
from quorate.operations.registry import Risk, operation
from quorate.operations.runs import moves
from quorate.operations.runs.control import RunRef
from quorate.operations.runs.kind import FAILURES, Next, Step, StepResult, Work, declare, fail, finish, remember_failure
from quorate.operations.runs.start import At, Outline, Window, run_here, start_plan
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster, OtherCluster
from quorate.pve.lookup import Resource
from quorate.state.runs import Pending, Run

EVACUATE, RETURN = "evacuate", "return"
MOVED = "moved"

Parallel = Annotated[int, Meta(ge=1, le=8, description="Guests moved at a time")]


@operation(
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
    targets = [(await pve.inventory.online_node(one)).node for one in to or ()] or await _others(pve, node)
    if node in targets:
        raise BadArgument(f"{node} is the node to be emptied", next_step=Advice("Leave it out of `{to}`", to=NAMED))
    here = await pve.inventory.fresh_guests(node)
    rows = [row for row in here if _concerned(row, stopped=stopped)]
    placed = await moves.place_all(pve, rows, targets, with_local_disks=with_local_disks)
    movable = [one for one in placed if one.node]
    if not movable:
        why = next((one.reason for one in placed), "")
        raise Conflict(
            f"No guest of {node} can be moved" if placed else f"There is nothing to move on {node}",
            why=why or None,
            next_step=None if placed else Advice("Choose {stopped} for guests that are stopped", stopped=True),
        )
    guests = ", ".join(f"{one.row.kind} {one.row.vmid} {one.row.name}" for one in sorted_by_vmid(movable))
    outline = Outline(
        EVACUATE,
        "run_evacuate",
        f"Evacuate {node}: {len(movable)} of {len(placed)} guests",
        f"move {guests} from {node} to any of {', '.join(targets)}, {parallel} at a time"
        + (", with local disks" if with_local_disks else ""),
        {
            "node": node,
            "stay": [row.vmid for row in here if row.vmid not in {one.row.vmid for one in movable}],
            "guests": {str(one.row.vmid): {"from": node, "to": targets, "name": one.row.name} for one in movable},
            "parallel": parallel,
            "stopped": stopped,
            "with_local_disks": with_local_disks,
        },
        lambda _: [moves.bound_of(one.row, targets, with_local_disks=with_local_disks) for one in movable],
        Target("node", node, node=node),
        facts={**moves.facts_of(placed), "at_a_time": parallel},
        warnings=tuple(str(warning) for one in movable if one.plan for warning in one.plan.warnings),
        needs=moves.calls_of(movable),
    )
    return start_plan(pve, outline, at, window)


@operation(
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
        raise BadArgument(f"The run {earlier.id} is not an evacuation", next_step=see("See the runs", RUN_LIST))
    if not earlier.state.has_ended:
        raise Conflict(f"The run {earlier.id} has not ended ({earlier.state.value})")
    origin = str(earlier.scope["node"])
    await pve.inventory.online_node(origin)
    moved: dict[str, str] = earlier.memory.get(MOVED, {})
    rows = await moves.rows_of(pve, map(int, moved))
    away = [row for row in rows.values() if row.node == moved[str(row.vmid)]]
    placed = await moves.place_all(pve, away, [origin], with_local_disks=bool(earlier.scope["with_local_disks"]))
    movable = [one for one in placed if one.node]
    if not movable:
        raise Conflict(
            f"No guest of the run {earlier.id} can be moved back",
            why=next((one.reason for one in placed), "None of them is still where that run moved it"),
        )
    local = bool(earlier.scope["with_local_disks"])
    guests = ", ".join(
        f"{one.row.kind} {one.row.vmid} {one.row.name} from {one.row.node}" for one in sorted_by_vmid(movable)
    )
    outline = Outline(
        RETURN,
        "run_return",
        f"Return {len(movable)} guests to {origin}",
        f"move {guests} to {origin}, {parallel} at a time",
        {
            "node": "",
            "stay": [],
            "guests": {
                str(one.row.vmid): {"from": one.row.node, "to": [origin], "name": one.row.name} for one in movable
            },
            "parallel": parallel,
            "stopped": True,
            "with_local_disks": local,
        },
        lambda _: [moves.bound_of(one.row, [origin], with_local_disks=local) for one in movable],
        Target("node", origin, node=origin),
        facts={**moves.facts_of(placed), "at_a_time": parallel},
        needs=moves.calls_of(movable),
    )
    return start_plan(pve, outline, at, window)


def sorted_by_vmid(placed: list[moves.Placement]) -> list[moves.Placement]:
    return sorted(placed, key=lambda one: one.row.vmid)


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
        coming = moves.moving_memory(work.run, rows)
        for row in todo:
            key = f"move-{row.vmid}"
            if key in work.busy or key in failures:
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
        if waits:
            return Next(waits_for="; ".join(waits))
        return self._end(work)

    async def _todo(self, work: Work) -> list[Resource]:
        """The guests that are still where they have to leave; others are counted as moved."""
        guests = work.scope["guests"]
        rows = await moves.rows_of(work.pve, map(int, guests))
        moved = work.memory.setdefault(MOVED, {})
        failures = work.memory.setdefault(FAILURES, {})
        todo = []
        for vmid, row in rows.items():
            key = f"move-{vmid}"
            if row.node != guests[str(vmid)]["from"]:
                if row.node in guests[str(vmid)]["to"] and str(vmid) not in moved:
                    moved[str(vmid)] = row.node
                failures.pop(key, None)
            elif str(vmid) in moved and key not in work.busy:
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
            {node for one in scope["guests"].values() for node in one["to"]}
        )
        local = bool(scope["with_local_disks"])
        placed = await moves.place(work.pve, row, to, coming, with_local_disks=local)
        if placed.node:
            return moves.move_step(row, placed.node, with_local_disks=local)
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
        if result.is_done:
            run.memory.setdefault(MOVED, {})[str(moves.moved_vmid(key))] = str(step.arguments["node"])
        else:
            remember_failure(run, key, result)

    async def list_unfinished(self, work: Work) -> list[str]:
        return [f"{row.kind} {row.vmid} {row.name} is still on {row.node}" for row in await self._todo(work)]


declare(Evacuation(EVACUATE), Evacuation(RETURN))
