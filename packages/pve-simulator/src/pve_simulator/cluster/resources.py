"""Rows of /cluster/resources, cached per guest until one of their sources changes.

A row has two sources, as in PVE. Data of the cluster file system is current: which guests exist on which node, their
pool, tags, lock and HA state; which storages exist, with their content types. Name, status, sizes and load come from
the latest report of the status daemon, up to ten seconds old; without a report, the status is "unknown". The last
report of a node without power stays for three minutes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pve_simulator.guests import status
from pve_simulator.guests.guest import Guest
from pve_simulator.nodes.power_loss import still_reported
from pve_simulator.nodes.status_daemon import GuestReport, StatusDaemon
from pve_simulator.storage.storages import Storage
from pve_simulator.world import Node, World

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class _CachedRow:
    """The row of one guest, and the key of its sources."""

    key: tuple[Any, ...] = ()
    fixed: bytes = b""  # an encoded object without its closing brace
    sampled: float = -1.0
    row: msgspec.Raw = field(default_factory=msgspec.Raw)


class ResourceRows:
    """The cached rows of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._daemon = world.part(StatusDaemon)
        self._cache: dict[int, _CachedRow] = {}
        self._nodes: tuple[float, dict[str, dict[str, Any]]] = (-1.0, {})
        self._loads: tuple[float, dict[int, dict[str, Any]]] = (-1.0, {})

    def guests(self, guests: Iterable[Guest]) -> list[msgspec.Raw]:
        """These guests, encoded; one that its node has not reported yet has only its identity."""
        return [self._refresh(guest).row for guest in guests]

    def node(self, node: Node, *, numbers: bool) -> dict[str, Any]:
        """One node; callers who may audit it also see the numbers."""
        row: dict[str, Any] = {
            "id": f"node/{node.name}",
            "type": "node",
            "node": node.name,
            "status": "online" if node.online else "offline",
            "level": "",
        }
        if not node.online:
            if node.died_at is not None and numbers:
                row |= {"maxcpu": node.cpus, "maxmem": node.memory, "cgroup-mode": 2}
            return row
        row["cgroup-mode"] = 2
        return row | self._node_numbers()[node.name] if numbers else row

    def storage(self, storage: Storage, node: Node) -> dict[str, Any]:
        """One storage on one node."""
        row: dict[str, Any] = {
            "id": f"storage/{node.name}/{storage.id}", "type": "storage", "storage": storage.id, "node": node.name,
            "plugintype": storage.type, "content": ",".join(storage.content), "shared": int(storage.shared),
        }  # fmt: skip
        report = self._daemon.storages.get((node.name, storage.id)) if self._is_reported(node) else None
        if report is None:
            return row | {"status": "unknown"}
        return row | {"status": "available", "disk": report.used, "maxdisk": report.total}

    def _refresh(self, guest: Guest) -> _CachedRow:
        world = self._world
        cached = self._cache.get(guest.vmid)
        if cached is None:
            cached = self._cache[guest.vmid] = _CachedRow()
        report = self._daemon.guests.get(guest.vmid) if self._is_reported(world.nodes[guest.node]) else None
        pool = world.access.pool_of(guest.vmid)
        ha = world.ha.get(guest.sid) if world.ha else None
        key = (guest, guest.revision, guest.node, report, pool, None if ha is None else ha.shown_state)
        sampled = self._daemon.reported_at if report is not None and report.running else 0.0
        if cached.key == key and cached.sampled == sampled:
            return cached
        if cached.key != key:
            cached.key = key
            cached.fixed = _encode(_fixed_part(world, guest, report, pool=pool, hastate=key[-1]))[:-1]
        cached.sampled = sampled
        numbers = b"" if report is None else b"," + _encode(self._load(report))[1:-1]
        cached.row = msgspec.Raw(cached.fixed + numbers + b"}")
        return cached

    def _is_reported(self, node: Node) -> bool:
        return still_reported(node, self._world.clock.now())

    def _load(self, report: GuestReport) -> dict[str, Any]:
        """The load of a guest at the latest report."""
        if self._loads[0] != self._daemon.reported_at:
            self._loads = (self._daemon.reported_at, {})
        load = self._loads[1].get(report.vmid)
        if load is None:
            died_at = self._world.nodes[report.node].died_at
            load = status.load(self._world, report, self._daemon.reported_at if died_at is None else died_at)
            load["memhost"] = status.host_memory(report, load["mem"])
            self._loads[1][report.vmid] = load
        return load

    def _node_numbers(self) -> dict[str, dict[str, Any]]:
        """The load of all nodes at the latest report, summed over the guests."""
        world, sampled = self._world, self._daemon.reported_at
        if self._nodes[0] != sampled:
            cpu, memory = dict.fromkeys(world.nodes, 0.0), dict.fromkeys(world.nodes, 0)
            for report in self._daemon.guests.values():
                if report.running:
                    moving = self._load(report)
                    cpu[report.node] += moving["cpu"] * report.cpus
                    memory[report.node] += moving["mem"]
            numbers = {
                node.name: status.node_numbers(node, sampled, busy_cpus=cpu[node.name], memory=memory[node.name])
                for node in world.nodes.values()
            }
            self._nodes = (sampled, numbers)
        return self._nodes[1]


def _fixed_part(
    world: World, guest: Guest, report: GuestReport | None, *, pool: str | None, hastate: str | None
) -> dict[str, Any]:
    """The part of a row without load."""
    row: dict[str, Any] = {
        "id": f"{guest.kind}/{guest.vmid}",
        "type": guest.kind,
        "vmid": guest.vmid,
        "node": guest.node,
        "status": "unknown" if report is None else report.status,
    }
    row |= {name: guest.config[name] for name in ("tags", "lock") if name in guest.config}
    if pool is not None:
        row["pool"] = pool
    if hastate is not None:
        row["hastate"] = hastate
    return row if report is None else row | _sizes(world, report)


def _sizes(world: World, report: GuestReport) -> dict[str, Any]:
    return {
        "name": report.name,
        "template": int(report.template),
        "maxcpu": report.cpus,
        "maxmem": report.memory,
        "maxdisk": report.disk_size,
        "disk": status.disk_usage(world, report),
    }


def rows_of(world: World) -> ResourceRows:
    """The shared rows of a world."""
    return world.part(ResourceRows)
