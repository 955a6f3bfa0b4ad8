"""Where something new fits best, by measurement; the numbers come with the suggestion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from quorate.homelab.devices.device import Device
from quorate.homelab.devices.sitemap import Tree
from quorate.pve.inventory import Resource

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Need:
    kind: str
    memory: int
    disk: int
    cores: int
    about: str


NEEDS = {
    "docker": Need("docker", GIB, 10 * GIB, 1, "a container on a host that has Docker or Podman"),
    "database": Need("database", 4 * GIB, 20 * GIB, 2, "a database: memory first, then a solid-state disk"),
    "backup": Need("backup", GIB // 2, 200 * GIB, 1, "a place for backups: free disk space above all"),
    "monitoring": Need("monitoring", GIB, 20 * GIB, 1, "monitoring of the others, best on a host of its own"),
    "vm": Need("vm", 2 * GIB, 32 * GIB, 2, "a virtual machine on a Proxmox VE node"),
    "service": Need("service", GIB, 10 * GIB, 1, "any small service"),
}
_NETWORK_TYPES = ("nfs", "cifs", "smb", "fuse.sshfs", "9p")


@dataclass
class Room:
    """The free resources of a machine."""

    name: str
    kind: str
    memory: int
    memory_total: int
    disk: int | None
    mount: str
    cores: int
    load: float
    """Cores in use."""
    engines: frozenset[str] = frozenset()
    turning: bool = False
    """Its disks are hard disks."""
    objections: list[str] = field(default_factory=list)
    score: float = 0.0
    reasons: list[str] = field(default_factory=list)


def rooms(devices: Iterable[Device]) -> list[Room]:
    """Free resources of every machine that is up and has facts."""
    return [room for one in devices if one.state == "up" and (room := _room(one))]


def node_rooms(clusters: Iterable[Tree]) -> list[Room]:
    """Free resources of the nodes, as their clusters report them."""
    return [
        _node_room(tree, row) for tree in clusters for row in tree.rows if row.type == "node" and row.status == "online"
    ]


def _node_room(tree: Tree, node: Resource) -> Room:
    """Its disk is the guest storage with the most free space."""
    storages = [
        row for row in tree.rows if row.type == "storage" and row.node == node.node and row.status == "available"
    ]
    free = {
        row.storage: row.maxdisk - row.disk for row in storages if {"images", "rootdir"} & {*row.content.split(",")}
    }
    storage = max(free, key=lambda name: free[name], default="")
    return Room(
        f"{tree.cluster.name}/{node.node}", "node", max(0, node.maxmem - node.mem), node.maxmem,
        free.get(storage), f"storage {storage}" if storage else "", int(node.maxcpu), node.cpu * node.maxcpu,
    )  # fmt: skip


def rank_rooms(found: Sequence[Room], need: Need) -> list[Room]:
    """The best first; those where it does not fit come last, with what is missing."""
    for room in found:
        _judge(room, need)
    return sorted(found, key=lambda room: (bool(room.objections), -room.score, room.name))


def _room(device: Device) -> Room | None:
    facts = device.facts
    if facts is None or facts.memory is None or facts.memory.available is None:
        return None
    disks = [
        one
        for one in facts.filesystems or ()
        if one.available is not None and not (one.type or "").startswith(_NETWORK_TYPES)
    ]
    widest = max(disks, key=lambda one: one.available or 0, default=None)
    return Room(
        device.name,
        device.kind,
        facts.memory.available,
        facts.memory.total or facts.memory.available,
        widest.available if widest else None,
        widest.mount if widest else "",
        ((facts.cpu.threads or facts.cpu.cores) if facts.cpu else None) or 1,
        facts.uptime.load[-1] if facts.uptime and facts.uptime.load else 0.0,
        frozenset(one.engine for one in facts.containers or ()),
        bool(facts.disks) and all(one.rotational for one in facts.disks or ()),
    )


def _judge(room: Room, need: Need) -> None:
    free_cores = max(0.0, room.cores - room.load)
    room.reasons = [
        f"{_gib(room.memory)} of {_gib(room.memory_total)} memory free",
        f"{_gib(room.disk or 0)} free on {room.mount}",
        f"{free_cores:.1f} of {room.cores} cores idle",
    ]
    room.objections = [
        *([f"needs {_gib(need.memory)} memory, {_gib(room.memory)} free"] if room.memory < need.memory else []),
        *_too_small(room.disk, need.disk),
        *([f"needs {need.cores} cores, has {room.cores}"] if room.cores < need.cores else []),
    ]
    shares = [_share(room.memory, need.memory), _share(room.disk or 0, need.disk), _share(free_cores, need.cores)]
    room.score = min(shares) + sum(shares) / 10  # the scarcest resource decides, the others break ties
    if need.kind == "docker":
        room.reasons.append(
            f"runs {', '.join(sorted(room.engines))}" if room.engines else "no container engine was seen"
        )
        room.score += 2 if room.engines & {"docker", "podman"} else 0
    if need.kind == "database" and room.turning:
        room.reasons.append("its hard disks slow a database down")
        room.score /= 2
    if need.kind == "backup":
        room.score = (room.disk or 0) / GIB
    if room.kind == "node" and need.kind != "vm":
        room.reasons.append("it is a node: a guest on it is a better place")
        room.score /= 4


def _too_small(disk: int | None, wanted: int) -> list[str]:
    if disk is None:
        return ["its free disk space is unknown"]
    return [f"needs {_gib(wanted)} disk, {_gib(disk)} free"] if disk < wanted else []


def _share(free: float, wanted: float) -> float:
    """How many times it fits, up to four."""
    return min(4.0, free / wanted) if wanted else 4.0


def _gib(count: float) -> str:
    return f"{count / GIB:.1f} GiB"
