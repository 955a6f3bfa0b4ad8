"""Steps that several kinds of runs take: moving guests, stopping and starting them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from quorate.hints import ArgumentHint
from quorate.operations.plan import Call, Failure, Plan
from quorate.problems import BadArgument, Conflict, NotFound, ParameterRejected, Problem
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.lookup import Resource
from quorate.runs.kind import Next, Step, StepResult, Work
from quorate.runs.store import Bound, Run, literal
from quorate.tools.guest_migrate import LINKED_CLONES, LocalDisks, guest_migrate
from quorate.units import size

NO_NODE = "no other node is online"
_MOVE = "move-"
_OBJECTIONS = (BadArgument, Conflict, NotFound, ParameterRejected)
"""Problems that rule out one target. Any other, such as no answer, means that nothing can be decided now."""
START_TRIES = 3
FAILED_STARTS = "failed_starts"
"""In the memory of an aborted run: how often each guest could not be started."""


@dataclass(slots=True)
class Placement:
    """A target for one guest, or why there is none."""

    row: Resource
    node: str = ""
    plan: Plan | None = None
    why_not: dict[str, str] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        return "; ".join(dict.fromkeys(why.removesuffix(".") for why in self.why_not.values())) or NO_NODE


async def place(
    pve: Cluster,
    row: Resource,
    nodes: Collection[str],
    coming: Mapping[str, int],
    *,
    with_local_disks: bool = False,
) -> Placement:
    """The best node: one that the guest can go to, with most memory left. `coming`: memory promised to others."""
    placement = Placement(row)
    free = await _free_memory(pve, nodes, coming)
    for node in sorted(free, key=lambda name: (-free[name], name)):
        if row.status == "running" and row.maxmem > free[node]:
            placement.why_not[node] = (
                f"{node} has {size(max(0, free[node]))} of memory free, it needs {size(row.maxmem)}"
            )
            continue
        try:
            running_vm = row.type == "qemu" and row.status == "running"
            plan = await guest_migrate(pve, row.vmid, node, with_local_disks=with_local_disks and running_vm)
        except _OBJECTIONS as problem:
            placement.why_not[node] = as_failure(problem)
            if isinstance(problem, LocalDisks):
                placement.why_not[node] = (
                    f"{as_failure(problem).removesuffix('.')}; {ArgumentHint('with_local_disks', True)} copies it"
                )
            continue
        if linked := plan.facts.get(LINKED_CLONES):
            placement.why_not[node] = f"{', '.join(linked)} is a linked clone, and what it builds on stays behind"
            continue
        placement.node, placement.plan = node, plan
        return placement
    return placement


async def _free_memory(pve: Cluster, nodes: Collection[str], coming: Mapping[str, int]) -> dict[str, int]:
    rows = [row for row in await pve.inventory.of_type("node") if row.node in nodes and row.status == "online"]
    return {row.node: row.maxmem - row.mem - coming.get(row.node, 0) for row in rows}


async def place_all(
    pve: Cluster, rows: Iterable[Resource], nodes: Collection[str], *, with_local_disks: bool
) -> list[Placement]:
    """Place guests, largest first, each on top of those placed before."""
    coming: dict[str, int] = {}
    placements = []
    for row in sorted(rows, key=lambda row: (-row.maxmem, row.vmid)):
        placed = await place(pve, row, nodes, coming, with_local_disks=with_local_disks)
        if placed.node and row.status == "running":
            coming[placed.node] = coming.get(placed.node, 0) + row.maxmem
        placements.append(placed)
    return placements


def describe(placed: Placement) -> str:
    row, facts = placed.row, placed.plan.facts if placed.plan else {}
    disks = f", copies {', '.join(facts['copied_disks'])}" if facts.get("copied_disks") else ""
    return f"{row.kind} {row.vmid} {row.name} to {placed.node} ({facts.get('mode', '')}{disks})"


def calls_of(placements: Sequence[Placement]) -> tuple[Call, ...]:
    return tuple(call for placed in placements if placed.plan for call in placed.plan.calls if isinstance(call, Call))


def bound_of(row: Resource, to: Collection[str], *, with_local_disks: bool) -> Bound:
    """The arguments with its name, because another guest that gets the id in the meantime was not approved."""
    is_vm = row.type == "qemu"
    return Bound(
        "POST",
        f"/nodes/*/{row.type}/{row.vmid}/migrate",
        {
            "target": sorted(to),
            **({"online": ["1"]} if is_vm else {"restart": ["1"]}),
            **({"with-local-disks": ["1"]} if with_local_disks and is_vm else {}),
        },
        target=literal(row.name),
    )


def move_step(row: Resource, node: str, *, with_local_disks: bool) -> Step:
    local = {"with_local_disks": True} if with_local_disks and row.type == "qemu" and row.status == "running" else {}
    return Step(
        f"{_MOVE}{row.vmid}",
        "guest_migrate",
        {"guest": row.vmid, "node": node, **local},
        f"Migrate {row.kind} {row.vmid} {row.name} from {row.node} to {node}",
    )


def moving_memory(run: Run, rows: Mapping[int, Resource]) -> dict[str, int]:
    """Memory that guests on their way will need, by target."""
    coming: dict[str, int] = {}
    for key, step in run.current.items():
        row = rows.get(int(key.removeprefix(_MOVE))) if key.startswith(_MOVE) else None
        if row is not None and row.status == "running":
            node = str(step.arguments["node"])
            coming[node] = coming.get(node, 0) + row.maxmem
    return coming


def moved_vmid(key: str) -> int:
    return int(key.removeprefix(_MOVE))


async def rows_of(pve: Cluster, vmids: Iterable[int]) -> dict[int, Resource]:
    """These guests as their nodes see them now; those that are gone are missing."""
    pve.inventory.forget()
    rows: dict[int, Resource] = {}
    for vmid in vmids:
        try:
            rows[vmid] = await pve.inventory.fresh_guest(vmid)
        except NotFound:
            continue
    return rows


async def find_guest(pve: Cluster, vmid: int, name: str | None = None) -> Guest | None:
    """The guest where it is now; None if its node has none with this vmid, or it has another name than `name`."""
    pve.inventory.forget()
    try:
        row = await pve.inventory.fresh_guest(vmid)
        return await pve.guest(vmid) if name in (None, row.name) else None
    except NotFound:
        return None


def as_failure(problem: Problem) -> str:
    return f"{problem.what} {problem.why or ''}".strip()


def facts_of(placements: Sequence[Placement]) -> dict[str, Any]:
    stuck = [with_its_name(placed) for placed in placements if not placed.node]
    moves = [describe(placed) for placed in placements if placed.node]
    return {"moves": moves, **({"cannot_move": stuck} if stuck else {})}


def with_its_name(stuck: Placement) -> str:
    return str(Failure.about(f"{stuck.row.kind} {stuck.row.vmid} {stuck.row.name}", stuck.reason))


def power_step(row: Resource, action: Literal["shutdown", "start"]) -> Step:
    summary = f"{'Shut down' if action == 'shutdown' else 'Start'} {row.kind} {row.vmid} {row.name}"
    return Step(f"{action}-{row.vmid}", "guest_power", {"guest": row.vmid, "action": action}, summary)


async def start_again(work: Work, vmids: Iterable[int]) -> Next | None:
    """Steps that start what an aborted run had stopped; None if there is nothing more that it could do."""
    rows = await rows_of(work.pve, vmids)
    failed = work.memory.get(FAILED_STARTS, {})
    steps = tuple(
        power_step(row, "start")
        for row in rows.values()
        if row.status == "stopped" and not row.lock and failed.get(str(row.vmid), 0) < START_TRIES
    )
    return Next(steps) if steps else None


def count_failed_start(run: Run, vmid: int, result: StepResult) -> None:
    if run.aborting and result.was_sent and not result.is_done:
        failed = run.memory.setdefault(FAILED_STARTS, {})
        failed[str(vmid)] = int(failed.get(str(vmid), 0)) + 1


async def find_stopped(work: Work, vmids: Iterable[int]) -> list[Resource]:
    return [row for row in (await rows_of(work.pve, vmids)).values() if row.status == "stopped"]
