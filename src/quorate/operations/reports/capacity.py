"""Capacity: where a guest of some size would fit, and whether the cluster could lose a node."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.reports import node_loss
from quorate.operations.reports.room import Room, StorageRoom, rooms_of, storages_of
from quorate.operations.units import parse_size, percent, size
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource
from quorate.pve.tasks import gather_bounded

READS_AT_ONCE = 8
NODES_SHOWN = 50

COLUMNS = ("node", "fits", "memory_used", "memory_given", "cores_given", "cpu", "storage", "why")
# From best to worst.
VERDICTS = ("yes", "overcommitted", "no")


@operation(
    risk=Risk.READ,
    search_words=(
        "cope losing node survive run more vms size hold enough room fit another new guest place which node has "
        "most free memory dies fails goes down everything rest spare headroom"
    ),
)
async def capacity_plan(
    pve: Cluster,
    cores: Annotated[int, Meta(ge=1)] | None = None,
    memory: Annotated[int | str, Meta(description="MiB, or such as 8G")] | None = None,
    disk: Annotated[int | str, Meta(description="GiB, or such as 100G")] | None = None,
    content: Annotated[Literal["images", "rootdir"], Meta(description="images: VM, rootdir: container")] = "images",
    fails: Annotated[str, Meta(description="What if this node fails; all: each in turn")] | None = None,
) -> Table:
    """Where a guest of this size would fit, or with `fails` whether the guests of a node fit on the others.

    Without arguments: the room on every node. Memory counts as used now and as assigned to running guests.
    """
    rows = await pve.inventory.rows()
    rooms = rooms_of(rows)
    if not rooms:
        raise Conflict(
            "No node reports how much room it has",
            why="They are offline, or these credentials lack Sys.Audit on /nodes",
        )
    if fails is not None:
        if (cores, memory, disk) != (None, None, None):
            raise BadArgument(
                "fails cannot be combined with cores, memory and disk", next_step="Ask for them separately"
            )
        return await node_loss.plan(pve, rows, rooms, fails)
    wanted_memory = parse_size(memory, unit="M") if memory is not None else 0
    wanted_disk = parse_size(disk, unit="G") if disk is not None else 0
    request = _Size(cores or 0, wanted_memory, wanted_disk, content)
    places = storages_of(rows, content) if request.disk else {}
    once = list({id(place): place for here in places.values() for place in here}.values())
    await gather_bounded(READS_AT_ONCE, [partial(place.read_promises, pve) for place in once])
    fits = [_fit(room, places.get(room.node, []), request) for room in rooms]
    fits.sort(key=lambda fit: (VERDICTS.index(fit.verdict), fit.share))
    table = page(COLUMNS, [fit.row for fit in fits[:NODES_SHOWN]], limit=NODES_SHOWN, offset=0)
    table.facts = _facts(rows, rooms, fits, request)
    return table


@dataclass(frozen=True, slots=True)
class _Size:
    cores: int
    memory: int
    disk: int
    content: str

    def __str__(self) -> str:
        parts = (
            f"{self.cores} cores" if self.cores else "",
            f"{size(self.memory)} of memory" if self.memory else "",
            f"{size(self.disk)} for {self.content}" if self.disk else "",
        )
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class _Fit:
    """One node as it would be with the guest on it."""

    room: Room
    storage: StorageRoom | None
    request: _Size
    verdict: str
    why: list[str]

    @property
    def share(self) -> float:
        return (self.room.memory_given + self.request.memory) / self.room.memory

    @property
    def row(self) -> list[Any]:
        room, given = self.room, self.room.cores_given + self.request.cores
        return [
            room.node,
            self.verdict,
            f"{size(room.memory_used + self.request.memory)}/{size(room.memory)}",
            f"{size(room.memory_given + self.request.memory)} {percent(self.share)}",
            f"{given:g} of {room.cores:g} ({given / room.cores:.1f}:1)",
            percent(room.load),
            str(self.storage) if self.storage else "",
            "; ".join(self.why),
        ]


def _fit(room: Room, storages: list[StorageRoom], request: _Size) -> _Fit:
    """`no`: it would fail or starve the node at once; `overcommitted`: fine only while guests use less than that."""
    impossible: list[str] = []
    risky: list[str] = []
    if request.cores > room.cores and request.content == "images":
        impossible.append(f"PVE starts no VM with more cores than the node's {room.cores:g}")
    if request.memory > room.memory_free:
        impossible.append(f"only {size(room.memory_free)} of memory are free now")
    elif request.memory > room.memory_ungiven:
        risky.append(f"guests could then claim {size(request.memory - room.memory_ungiven)} more memory than is left")
    best = max(storages, key=lambda each: (each.holds(request.disk), each.free), default=None)
    if request.disk and (best is None or best.free < request.disk):
        listed = ", ".join(f"{each.name} {size(each.free)}" for each in storages) or "it has none for this content"
        impossible.append(f"no storage has {size(request.disk)} free ({listed})")
    elif best is not None and not best.holds(request.disk):
        promised = size(best.promised + request.disk)
        risky.append(f"{best.name} would have promised {promised} of {size(best.total)}")
    verdict = "no" if impossible else "overcommitted" if risky else "yes"
    return _Fit(room, best, request, verdict, impossible + risky)


def _facts(rows: list[Resource], rooms: list[Room], fits: list[_Fit], request: _Size) -> dict[str, Any]:
    facts: dict[str, Any] = {"with": str(request) or "nothing new: the nodes as they are"}
    facts["best"] = fits[0].room.node if fits[0].verdict != "no" else "none"
    silent = sorted({row.node for row in rows if row.type == "node"} - {room.node for room in rooms})
    if silent:
        facts["not_counted"] = [
            f"{node} (offline, or its numbers are hidden from these credentials)" for node in silent
        ]
    if len(fits) > NODES_SHOWN:
        facts["left_out"] = f"{len(fits) - NODES_SHOWN} nodes that fit less well"
    facts["how"] = (
        "yes: fits even if every running guest uses all it was given; overcommitted: fits as long as they do not. "
        "Stopped guests are not counted; CPU is shared, so cores may be given several times"
    )
    return facts
