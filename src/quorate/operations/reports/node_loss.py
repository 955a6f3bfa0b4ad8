"""What if a node fails: would its guests fit on the others, and could they start there at all?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

from quorate.operations.registry import Table, page
from quorate.operations.reports.findings import names
from quorate.operations.reports.room import Room
from quorate.operations.units import size
from quorate.problems import Conflict, NotFound, Problem
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.inventory import Resource
from quorate.pve.tasks import gather_bounded

READS_AT_ONCE = 8
CONFIGS_READ = 500
NODES_SHOWN = 50

COLUMNS = (
    "fails",
    "guests",
    "memory_given",
    "room",
    "to",
    "no_room_for",
    "only_from_backup",
    "start_by_hand",
    "unread",
)


@dataclass(frozen=True, slots=True)
class _Placement:
    to: Counter[str]
    left: list[Resource]


async def plan(pve: Cluster, rows: list[Resource], rooms: list[Room], fails: str) -> Table:
    nodes = sorted(row.node for row in rows if row.type == "node")
    if fails != "all" and fails not in nodes:
        try:
            await pve.inventory.node(fails)
        except NotFound as missing:
            raise NotFound(missing.what, next_step=f"The nodes are {', '.join(nodes)}; or say all") from None
    if len(nodes) == 1:
        raise Conflict("There is only one node", why="No node is left to take its guests")
    failing = nodes[:NODES_SHOWN] if fails == "all" else [fails]
    concerned = [row for row in rows if row.is_guest and row.node in failing and _counts(row, rooms)]
    stuck, unread = await _on_local_disks(pve, rows, concerned[:CONFIGS_READ])
    unread |= {row.vmid for row in concerned[CONFIGS_READ:]}
    lines = [_loss(node, [row for row in concerned if row.node == node], rooms, stuck, unread) for node in failing]
    facts: dict[str, Any] = {
        "how": "room=yes: the others have all the memory that its running guests were given; overcommitted: only what "
        "they use now. only_from_backup: their disks are gone with the node and not replicated. "
        "start_by_hand: not under HA",
    }
    if fails == "all":
        survives = all(line[3] == "yes" and not line[6] and not line[8] for line in lines)
        facts["verdict"] = "Any one node may fail" if survives else "Not every node can fail without loss"
    if len(nodes) > len(failing) > 1:
        facts["left_out"] = nodes[NODES_SHOWN:]
    table = page(COLUMNS, lines, limit=NODES_SHOWN, offset=0)
    table.facts = facts
    return table


def _counts(row: Resource, rooms: list[Room]) -> bool:
    """Running guests; of a node that is already down, it is unknown which of them ran."""
    gone = row.node not in {room.node for room in rooms}
    return not row.template and (gone or row.status == "running")


def _loss(node: str, guests: list[Resource], rooms: list[Room], stuck: dict[int, str], unread: set[int]) -> list[Any]:
    others = [room for room in rooms if room.node != node]
    safe = _place(guests, {room.node: room.memory_ungiven for room in others}, others, by_use=False)
    verdict, placement = "yes", safe
    if safe.left:
        placement = _place(guests, {room.node: room.memory_free for room in others}, others, by_use=True)
        verdict = "no" if placement.left else "overcommitted"
    if any(not row.maxmem for row in guests):
        verdict, placement = (
            "unknown: the sizes of its guests are not known while it is down",
            _Placement(Counter(), []),
        )
    return [
        node,
        len(guests),
        size(sum(row.maxmem for row in guests)),
        verdict,
        ", ".join(f"{name}: {count}" for name, count in sorted(placement.to.items())),
        names(_name(row) for row in placement.left),
        names(f"{_name(row)} ({stuck[row.vmid]})" for row in guests if row.vmid in stuck),
        names(_name(row) for row in guests if not row.hastate and row.vmid not in stuck.keys() | unread),
        names(_name(row) for row in guests if row.vmid in unread),
    ]


def _place(guests: list[Resource], room: dict[str, int], others: list[Room], *, by_use: bool) -> _Placement:
    """The largest first, each to the node with most room; a VM needs a node with at least its cores."""
    to: Counter[str] = Counter()
    left: list[Resource] = []
    cores = {each.node: each.cores for each in others}
    for row in sorted(guests, key=lambda row: (-row.maxmem, row.vmid)):
        needed = row.mem if by_use else row.maxmem
        fitting = [node for node in room if room[node] >= needed and (row.kind == "ct" or cores[node] >= row.maxcpu)]
        if not fitting:
            left.append(row)
            continue
        best = max(fitting, key=lambda node: (room[node], node))
        room[best] -= needed
        to[best] += 1
    return _Placement(to, left)


async def _on_local_disks(
    pve: Cluster, rows: list[Resource], guests: list[Resource]
) -> tuple[dict[int, str], set[int]]:
    """Guests whose disks only their node has, with the storage; and those whose configuration could not be read."""
    replicated = await _replicated_guests(pve)
    shared = {row.storage for row in rows if row.type == "storage" and row.shared}

    async def read(row: Resource) -> Any:
        try:
            return await Guest(pve, row).get("config")
        except Problem:
            return None

    configs = await gather_bounded(READS_AT_ONCE, [partial(read, row) for row in guests])
    stuck: dict[int, str] = {}
    unread: set[int] = set()
    for row, config in zip(guests, configs, strict=True):
        if config is None:
            unread.add(row.vmid)
        elif row.vmid not in replicated and (local := sorted(_storages(config) - shared)):
            stuck[row.vmid] = ", ".join(local)
    return stuck, unread


async def _replicated_guests(pve: Cluster) -> set[int]:
    """Guests with a copy of their disks on another node, a few minutes old."""
    try:
        jobs = await pve.get("/cluster/replication")
    except Problem:
        return set()
    return {int(job["guest"]) for job in jobs if not job.get("disable")}


def _storages(config: dict[str, Any]) -> set[str]:
    """The storages that hold the disks and mount points of a guest."""
    volumes = [
        values.parse(str(value), "volume").get("volume") or values.parse(str(value), "volume").get("file", "")
        for key, value in config.items()
        if values.is_disk(key, str(value))
    ]
    return {volume.partition(":")[0] if ":" in volume else "a path of the node" for volume in volumes if volume}


def _name(row: Resource) -> str:
    return f"{row.vmid} {row.name}".strip()
