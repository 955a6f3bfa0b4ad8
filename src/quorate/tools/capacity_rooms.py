"""The room on nodes and storages, and how guests are distributed over it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from quorate.problems import Problem
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource
from quorate.units import size

# Storages that allocate space only as it is written to, so that they can promise more than they have.
THIN = frozenset({"lvmthin", "zfspool", "rbd", "btrfs", "dir", "nfs", "cifs", "cephfs"})


@dataclass(frozen=True, slots=True)
class Room:
    """One node that is online."""

    node: str
    cores: float
    load: float
    memory: int
    memory_used: int
    memory_given: int
    """Assigned to running guests; without ballooning and sharing, they may all use it."""
    guests_use: int
    cores_given: float

    @property
    def cores_idle(self) -> float:
        return self.cores * max(0.0, 1 - self.load)

    @property
    def memory_free(self) -> int:
        return max(0, self.memory - self.memory_used)

    @property
    def memory_ungiven(self) -> int:
        """Memory left if every running guest uses all it was given, and the node itself what it uses now.

        Below 0 the node has promised more than it has.
        """
        own = max(0, self.memory_used - self.guests_use)
        return self.memory - own - self.memory_given


def rooms_of(rows: list[Resource]) -> list[Room]:
    return [_room(row, rows) for row in rows if row.type == "node" and row.status == "online" and row.maxmem]


def _room(node: Resource, rows: list[Resource]) -> Room:
    running = [row for row in rows if row.is_guest and row.node == node.node and row.status == "running"]
    return Room(
        node=node.node,
        cores=node.maxcpu,
        load=node.cpu,
        memory=node.maxmem,
        memory_used=node.mem,
        memory_given=sum(row.maxmem for row in running),
        guests_use=sum(row.mem for row in running),
        cores_given=sum(row.maxcpu for row in running),
    )


@dataclass(slots=True)
class StorageRoom:
    """One storage as a node sees it."""

    name: str
    node: str
    thin: bool
    total: int
    free: int
    promised: int = 0
    """The full size of all volumes; 0 where that is not known or nothing can be promised twice."""
    hidden: bool = False
    """These credentials cannot see what it has promised."""

    async def read_promises(self, pve: Cluster) -> None:
        """Without Datastore.Allocate PVE omits volumes from the list, and a partial total would mislead."""
        if not self.thin:
            return
        try:
            self.hidden = not await pve.may(f"/storage/{self.name}", "Datastore.Allocate")
            volumes = [] if self.hidden else await pve.get(f"/nodes/{self.node}/storage/{self.name}/content")
        except Problem:
            self.hidden, volumes = True, []
        self.promised = sum(int(volume.get("size") or 0) for volume in volumes)

    def holds(self, disk: int) -> bool:
        """True if there is room for the disk even when everything promised is written to."""
        return self.free >= disk and self.promised + disk <= self.total

    def __str__(self) -> str:
        promised = f", {size(self.promised)} promised" if self.promised else ""
        if self.hidden:
            promised = ", how much it has promised is hidden"
        return f"{self.name}: {size(self.free)} of {size(self.total)} free{promised}"


def storages_of(rows: list[Resource], content: str) -> dict[str, list[StorageRoom]]:
    """Node -> its storages for this content. Nodes that share a storage have the same object."""
    rooms: dict[str, list[StorageRoom]] = {}
    known: dict[tuple[str, str], StorageRoom] = {}
    for row in rows:
        if row.type == "storage" and row.status == "available" and content in row.content.split(","):
            free = max(0, row.maxdisk - row.disk)
            room = StorageRoom(row.storage, row.node, row.plugintype in THIN, row.maxdisk, free)
            seen_by = "" if row.shared else row.node
            rooms.setdefault(row.node, []).append(known.setdefault((row.storage, seen_by), room))
    return rooms


@dataclass(frozen=True, slots=True)
class Placement:
    to: Counter[str]
    left: list[Resource]


def place_guests(guests: list[Resource], room: dict[str, int], others: list[Room], *, by_use: bool) -> Placement:
    """Distribute guests, largest first, each to the node with most room; a VM needs a node with at least its cores."""
    to: Counter[str] = Counter()
    left: list[Resource] = []
    cores = {other.node: other.cores for other in others}
    for row in sorted(guests, key=lambda row: (-row.maxmem, row.vmid)):
        needed = row.mem if by_use else row.maxmem
        fitting = [node for node in room if room[node] >= needed and (row.kind == "ct" or cores[node] >= row.maxcpu)]
        if not fitting:
            left.append(row)
            continue
        best = max(fitting, key=lambda node: (room[node], node))
        room[best] -= needed
        to[best] += 1
    return Placement(to, left)
