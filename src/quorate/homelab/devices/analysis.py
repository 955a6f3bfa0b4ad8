"""Findings about the homelab, each with its evidence and what to do."""

from __future__ import annotations

import datetime
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from quorate.homelab.devices.device import Device, bare
from quorate.homelab.devices.sitemap import Sitemap, Tree
from quorate.homelab.devices.store import FULL_PERCENT, used_percent
from quorate.homelab.host import Host
from quorate.pve.inventory import Resource
from quorate.units import ago, count_of, size

NEARLY_FULL = 80
LITTLE_MEMORY = 10
"""Percent of memory that is still available."""
LONG_UNSEEN = 7 * 86400.0
SEVERITIES = ("critical", "warning", "notice")
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Finding:
    severity: str
    kind: str
    about: str
    evidence: str
    to_do: str


def findings(devices: Sequence[Device], map_: Sitemap, hosts: Sequence[Host], now: float) -> list[Finding]:
    """The most severe first."""
    present = [device for device in devices if device.state == "up"]
    collected = [
        *_duplicates(
            present, "address", _addresses, "Assign another address to one of them, or release it in the DHCP server"
        ),
        *_duplicates(
            present, "MAC", lambda device: device.macs, "Assign a new MAC to one of them, as a cloned machine needs"
        ),
        *_single_points(present, map_, hosts),
        *(finding for device in present for finding in _of_machine(device)),
        *_old_kernels(present),
        *(finding for device in present for finding in _old_release(device, now)),
        *(finding for device in devices for finding in _unseen(device, now)),
    ]
    return sorted(collected, key=lambda finding: (SEVERITIES.index(finding.severity), finding.kind, finding.about))


def _label(device: Device) -> str:
    return f"{device} (device {device.id})"


# -- the network -------------------------------------------------------------------------------------------------------


def _addresses(device: Device) -> Sequence[str]:
    return [bare(address) for address in device.addresses if not bare(address).startswith("127.")]


def _duplicates(
    devices: Sequence[Device], what: str, of: Callable[[Device], Sequence[str]], to_do: str
) -> Iterator[Finding]:
    holders: dict[str, list[Device]] = defaultdict(list)
    for device in devices:
        for value in set(of(device)):
            holders[value].append(device)
    for value, several in sorted(holders.items()):
        if len(several) > 1:
            names = ", ".join(map(_label, several))
            yield Finding("critical", f"duplicate {what}", value, f"{names} all have {what} {value}", to_do)


def _single_points(devices: Sequence[Device], map_: Sitemap, hosts: Sequence[Host]) -> Iterator[Finding]:
    networks = {device.id: device.facts.network for device in devices if device.facts and device.facts.network}
    by_gateway: dict[str, set[int]] = defaultdict(set)
    by_resolver: dict[str, set[int]] = defaultdict(set)
    for number, network in networks.items():
        routes = {gateway.split()[0] for gateway in network.gateways if gateway.split()}
        if len(routes) == 1:
            by_gateway[routes.pop()].add(number)
        resolvers = {server for server in network.dns if not server.startswith("127.") and server != "::1"}
        if len(resolvers) == 1:
            by_resolver[resolvers.pop()].add(number)
    names = {device.id: str(device) for device in devices}
    for gateway, users in sorted(by_gateway.items()):
        if len(users) > 1:
            yield _depends(
                "gateway",
                gateway,
                users,
                names,
                "Without it they cannot reach other networks; keep a spare or a second router",
            )
    for resolver, users in sorted(by_resolver.items()):
        if len(users) > 1:
            yield _depends(
                "DNS", resolver, users, names, "Configure a second resolver, in the DHCP server or on the hosts"
            )
    yield from _only_hypervisor(map_)
    yield from _shared_storage(devices)
    for jump in sorted({host.jump for host in hosts if host.jump}):
        through = [host.name for host in hosts if host.jump == jump]
        evidence = f"{_some(through)} can only be reached through {jump}"
        yield Finding("notice", "single jump host", jump, evidence, "Keep another access, such as a console")


def _depends(what: str, on: str, users: set[int], names: dict[int, str], to_do: str) -> Finding:
    who = _some([names[number] for number in sorted(users)])
    return Finding("notice", f"single {what}", on, f"{len(users)} devices have no other {what}: {who}", to_do)


def _only_hypervisor(map_: Sitemap) -> Iterator[Finding]:
    """A hypervisor whose guests have no other node."""
    carriers = [spot for _, _, spot in map_.everything() if spot.role == "hypervisor"]
    for spot in carriers:
        running = [guest.name for guest in spot.guests if guest.state == "up"]
        cluster = spot.place.partition("/")[0]
        others = [
            other for other in carriers if cluster and other is not spot and other.place.startswith(f"{cluster}/")
        ]
        if running and not any(other.state == "up" for other in others):
            evidence = f"{len(running)} running guests have no other node: {_some(running)}"
            yield Finding(
                "warning", "single hypervisor", spot.name, evidence, "Keep backups elsewhere, or add a second node"
            )


def _shared_storage(devices: Sequence[Device]) -> Iterator[Finding]:
    users: dict[str, set[str]] = defaultdict(set)
    for device in devices:
        for filesystem in (device.facts.filesystems or ()) if device.facts else ():
            if re.match(r"nfs|cifs|smb", filesystem.type or "") and (server := _server(filesystem.device)):
                users[server].add(str(device))
    for server, names in sorted(users.items()):
        if len(names) > 1:
            evidence = f"{len(names)} devices mount its file systems: {_some(sorted(names))}"
            yield Finding(
                "notice", "single storage", server, evidence, "Know what depends on it, and back it up elsewhere"
            )


def _server(source: str) -> str:
    """The server in nas:/srv, //nas/share and user@nas:/x."""
    if source.startswith("//"):
        return source[2:].partition("/")[0].rpartition("@")[2]
    return source.partition(":/")[0].rpartition("@")[2] if ":/" in source else ""


# -- single machines ---------------------------------------------------------------------------------------------------


def _of_machine(device: Device) -> Iterator[Finding]:
    facts = device.facts
    if facts is None:
        return
    for filesystem in facts.filesystems or ():
        used = used_percent(filesystem)
        if used is not None and used >= NEARLY_FULL:
            severity = "critical" if used >= 95 else "warning" if used >= FULL_PERCENT else "notice"
            evidence = f"{filesystem.mount} is {used}% full, {size(filesystem.available or 0)} left"
            yield Finding(severity, "nearly full disk", _label(device), evidence, "Free up space, or enlarge it")
    memory = facts.memory
    if (
        memory
        and memory.total
        and memory.available is not None
        and memory.available * 100 < LITTLE_MEMORY * memory.total
    ):
        evidence = f"{size(memory.available)} of {size(memory.total)} available"
        yield Finding("warning", "little memory", _label(device), evidence, "Stop or move something, or add memory")
    if facts.services and facts.services.failed:
        failed = _some(facts.services.failed)
        to_do = f"Run `systemctl status {facts.services.failed[0]}` there"
        yield Finding(
            "warning", "failed services", _label(device), f"{len(facts.services.failed)} failed: {failed}", to_do
        )


def _old_kernels(devices: Sequence[Device]) -> Iterator[Finding]:
    """Kernels older than that of another device with the same release."""
    groups: dict[tuple[str, ...], list[tuple[tuple[int, ...], Device]]] = defaultdict(list)
    for device in devices:
        system = device.facts.system if device.facts else None
        if system and system.kernel and system.id and device.kind != "ct" and (number := _version(system.kernel)):
            groups[system.id, system.version or "", system.architecture or ""].append((number, device))
    for (name, version, _), members in sorted(groups.items()):
        newest, model = max(members, key=lambda member: (member[0], -member[1].id))
        for number, device in members:
            if number < newest:
                release = f"{name} {version}".strip()
                evidence = f"It runs {_kernel(device)}; {model} with the same {release} runs {_kernel(model)}"
                yield Finding(
                    "notice", "old kernel", _label(device), evidence, "Update it and boot into the new kernel"
                )


def _kernel(device: Device) -> str:
    return (device.facts.system.kernel or "") if device.facts and device.facts.system else ""


def _version(kernel: str) -> tuple[int, ...]:
    """6.1.0-18-amd64 -> (6, 1, 0, 18)"""
    leading = re.match(r"\d+(?:[.-]\d+)*", kernel)
    return tuple(int(part) for part in re.split(r"[.-]", leading[0])) if leading else ()


def _old_release(device: Device, now: float) -> Iterator[Finding]:
    system = device.facts.system if device.facts else None
    end = end_of_life(system.id, system.version) if system else None
    if system and end and end < datetime.datetime.fromtimestamp(now, datetime.UTC).date():
        evidence = f"{system.name or system.id} has had no security updates since {end}"
        yield Finding(
            "warning", "release out of support", _label(device), evidence, "Upgrade it to a supported release"
        )


def _unseen(device: Device, now: float) -> Iterator[Finding]:
    age = now - device.last_seen
    if device.state not in ("stopped", "retired") and age > LONG_UNSEEN:
        evidence = f"It was last seen {ago(age)}" + (f" at {device.address}" if device.address else "")
        yield Finding("notice", "not seen for long", _label(device), evidence, "Turn it on, or scan the network for it")


def _some(names: Sequence[str], limit: int = 5) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


# ID of /etc/os-release -> version -> last day. Only what a homelab is likely to run.
_ENDS: dict[str, dict[str, str]] = {
    "debian": {"9": "2022-06-30", "10": "2024-06-30", "11": "2026-08-31", "12": "2028-06-30", "13": "2030-06-30"},
    "ubuntu": {
        "16.04": "2021-04-30", "18.04": "2023-05-31", "20.04": "2025-05-31", "22.04": "2027-04-30",
        "23.04": "2024-01-25", "23.10": "2024-07-11", "24.04": "2029-04-30", "24.10": "2025-07-10",
        "25.04": "2026-01-15",
    },
    "alpine": {
        "3.16": "2024-05-23", "3.17": "2024-11-22", "3.18": "2025-05-09", "3.19": "2025-11-01", "3.20": "2026-04-01",
        "3.21": "2026-11-01", "3.22": "2027-05-01",
    },
    "fedora": {"38": "2024-05-21", "39": "2024-11-26", "40": "2025-05-13", "41": "2025-12-15"},
    "centos": {"7": "2024-06-30", "8": "2021-12-31"},
    "rocky": {"8": "2029-05-31", "9": "2032-05-31"},
    "almalinux": {"8": "2029-03-01", "9": "2032-05-31"},
    "freebsd": {"12": "2023-12-31", "13": "2026-04-30", "14": "2028-11-30"},
}  # fmt: skip


def end_of_life(system: str | None, version: str | None) -> datetime.date | None:
    """The last day of a release, if known: for 12.5 that of 12, for 3.19.1 that of 3.19."""
    known = _ENDS.get((system or "").lower(), {})
    parts = re.split(r"[.-]", version or "")
    for length in range(len(parts), 0, -1):
        if end := known.get(".".join(parts[:length])):
            return datetime.date.fromisoformat(end)
    return None


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
    return [room for device in devices if device.state == "up" and (room := _room(device))]


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


def rank_rooms(candidates: Sequence[Room], need: Need) -> list[Room]:
    """The best first; those where it does not fit come last, with what is missing."""
    for room in candidates:
        _judge(room, need)
    return sorted(candidates, key=lambda room: (bool(room.objections), -room.score, room.name))


def _room(device: Device) -> Room | None:
    facts = device.facts
    if facts is None or facts.memory is None or facts.memory.available is None:
        return None
    disks = [
        filesystem
        for filesystem in facts.filesystems or ()
        if filesystem.available is not None and not (filesystem.type or "").startswith(_NETWORK_TYPES)
    ]
    widest = max(disks, key=lambda filesystem: filesystem.available or 0, default=None)
    return Room(
        device.name,
        device.kind,
        facts.memory.available,
        facts.memory.total or facts.memory.available,
        widest.available if widest else None,
        widest.mount if widest else "",
        ((facts.cpu.threads or facts.cpu.cores) if facts.cpu else None) or 1,
        facts.uptime.load[-1] if facts.uptime and facts.uptime.load else 0.0,
        frozenset(container.engine for container in facts.containers or ()),
        bool(facts.disks) and all(disk.rotational for disk in facts.disks or ()),
    )


def _judge(room: Room, need: Need) -> None:
    free_cores = max(0.0, room.cores - room.load)
    room.reasons = [
        f"{size(room.memory)} of {size(room.memory_total)} memory free",
        f"{size(room.disk or 0)} free on {room.mount}",
        f"{free_cores:.1f} of {count_of(room.cores, 'core')} idle",
    ]
    room.objections = [
        *([f"needs {size(need.memory)} memory, {size(room.memory)} free"] if room.memory < need.memory else []),
        *_too_small(room.disk, need.disk),
        *([f"needs {count_of(need.cores, 'core')}, has {room.cores}"] if room.cores < need.cores else []),
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


def _too_small(disk: int | None, needed: int) -> list[str]:
    if disk is None:
        return ["its free disk space is unknown"]
    return [f"needs {size(needed)} disk, {size(disk)} free"] if disk < needed else []


def _share(free: float, needed: float) -> float:
    """How many times it fits, up to four."""
    return min(4.0, free / needed) if needed else 4.0
