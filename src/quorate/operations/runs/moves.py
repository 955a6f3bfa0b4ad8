"""Moving several guests: where each can go, and the steps that take them there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quorate.hints import ArgumentHint
from quorate.operations.plan import Call, Failure, Plan
from quorate.operations.provision.guest_migrate import LINKED_CLONES, LocalDisks, guest_migrate
from quorate.operations.runs.kind import Step
from quorate.operations.units import size
from quorate.problems import BadArgument, Conflict, NotFound, ParameterRejected, Problem
from quorate.pve.cluster import Cluster
from quorate.pve.lookup import Resource
from quorate.state.runs import Bound, Run, literal

NO_NODE = "no other node is online"
_MOVE = "move-"
_OBJECTIONS = (BadArgument, Conflict, NotFound, ParameterRejected)
"""Problems that rule out one target. Any other, such as no answer, means that nothing can be decided now."""


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
    found = Placement(row)
    free = await _free_memory(pve, nodes, coming)
    for node in sorted(free, key=lambda name: (-free[name], name)):
        if row.status == "running" and row.maxmem > free[node]:
            found.why_not[node] = f"{node} has {size(max(0, free[node]))} of memory free, it needs {size(row.maxmem)}"
            continue
        try:
            running_vm = row.type == "qemu" and row.status == "running"
            plan = await guest_migrate(pve, row.vmid, node, with_local_disks=with_local_disks and running_vm)
        except _OBJECTIONS as problem:
            found.why_not[node] = as_failure(problem)
            if isinstance(problem, LocalDisks):
                found.why_not[node] = (
                    f"{as_failure(problem).removesuffix('.')}; {ArgumentHint('with_local_disks', True)} copies it"
                )
            continue
        if linked := plan.facts.get(LINKED_CLONES):
            found.why_not[node] = f"{', '.join(linked)} is a linked clone, and what it builds on stays behind"
            continue
        found.node, found.plan = node, plan
        return found
    return found


async def _free_memory(pve: Cluster, nodes: Collection[str], coming: Mapping[str, int]) -> dict[str, int]:
    rows = [row for row in await pve.inventory.of_type("node") if row.node in nodes and row.status == "online"]
    return {row.node: row.maxmem - row.mem - coming.get(row.node, 0) for row in rows}


async def place_all(
    pve: Cluster, rows: Iterable[Resource], nodes: Collection[str], *, with_local_disks: bool
) -> list[Placement]:
    """Place guests, largest first, each on top of those placed before."""
    coming: dict[str, int] = {}
    found = []
    for row in sorted(rows, key=lambda one: (-one.maxmem, one.vmid)):
        placed = await place(pve, row, nodes, coming, with_local_disks=with_local_disks)
        if placed.node and row.status == "running":
            coming[placed.node] = coming.get(placed.node, 0) + row.maxmem
        found.append(placed)
    return found


def describe(placed: Placement) -> str:
    row, facts = placed.row, placed.plan.facts if placed.plan else {}
    disks = f", copies {', '.join(facts['copied_disks'])}" if facts.get("copied_disks") else ""
    return f"{row.kind} {row.vmid} {row.name} to {placed.node} ({facts.get('mode', '')}{disks})"


def calls_of(placements: Sequence[Placement]) -> tuple[Call, ...]:
    return tuple(one for placed in placements if placed.plan for one in placed.plan.calls if isinstance(one, Call))


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
    found: dict[int, Resource] = {}
    for vmid in vmids:
        try:
            found[vmid] = await pve.inventory.fresh_guest(vmid)
        except NotFound:
            continue
    return found


def as_failure(problem: Problem) -> str:
    return f"{problem.what} {problem.why or ''}".strip()


def facts_of(placements: Sequence[Placement]) -> dict[str, Any]:
    stuck = [with_its_name(one) for one in placements if not one.node]
    moves = [describe(one) for one in placements if one.node]
    return {"moves": moves, **({"cannot_move": stuck} if stuck else {})}


def with_its_name(stuck: Placement) -> str:
    return str(Failure.about(f"{stuck.row.kind} {stuck.row.vmid} {stuck.row.name}", stuck.reason))
