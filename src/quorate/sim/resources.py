"""Rows of /cluster/resources, made cheap: what a guest's row is made of is kept until it would differ.

Numbers in these rows are as old as the status daemon's latest look (up to 10 s), as in PVE; what a person does to
a guest shows at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from quorate.sim import metrics, status
from quorate.sim.guests import Guest
from quorate.sim.storages import Storage
from quorate.sim.world import Node, World

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class _Kept:
    """What was worked out for one guest, and from what."""

    key: tuple[Any, ...] = ()
    fixed: bytes = b""  # an encoded object without its closing brace
    cpus: int = 0
    sampled: float = -1.0
    moving: dict[str, Any] = field(default_factory=dict)
    row: msgspec.Raw = field(default_factory=msgspec.Raw)


class ResourceRows:
    """The rows of one world. What a row is made of is kept as long as it holds."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._kept: dict[int, _Kept] = {}
        self._nodes: tuple[float, dict[str, dict[str, Any]]] = (-1.0, {})

    def guests(self, guests: Iterable[Guest]) -> list[msgspec.Raw]:
        """These guests, encoded; one that its node has not reported yet has nothing but its identity."""
        now = self._world.clock.now()
        return [self._up_to_date(guest, now).row for guest in guests]

    def node(self, node: Node, *, numbers: bool) -> dict[str, Any]:
        """One node; the numbers are for those who may audit it."""
        row: dict[str, Any] = {
            "id": f"node/{node.name}",
            "type": "node",
            "node": node.name,
            "status": "online" if node.online else "offline",
            "level": "",
        }
        if not node.online:
            return row
        row["cgroup-mode"] = 2
        return row | self._node_numbers()[node.name] if numbers else row

    def _up_to_date(self, guest: Guest, now: float) -> _Kept:
        world = self._world
        kept = self._kept.get(guest.vmid)
        if kept is None:
            kept = self._kept[guest.vmid] = _Kept()
        known = now >= guest.visible_at and world.nodes[guest.node].online
        pool = world.access.pool_of(guest.vmid)
        ha = world.ha.get(guest.sid) if world.ha else None
        key = (guest, guest.revision, guest.running, guest.node, known, pool, None if ha is None else ha.shown_state)
        sampled = metrics.sample_time(now) if guest.running else 0.0
        if kept.key == key and kept.sampled == sampled:
            return kept
        if kept.key != key:
            kept.key, kept.cpus = key, world.guest_cpus(guest)
            fixed = _fixed_part(world, guest, known=known, pool=pool, hastate=key[-1])
            kept.fixed = _encode(fixed)[:-1]
        kept.sampled = sampled
        # a guest that started after the latest look has been running for no time yet
        kept.moving = status.load(world, guest, max(sampled, guest.started_at))
        kept.moving["memhost"] = status.host_memory(guest, kept.moving["mem"])
        kept.row = msgspec.Raw(kept.fixed + b"," + _encode(kept.moving)[1:] if known else kept.fixed + b"}")
        return kept

    def _node_numbers(self) -> dict[str, dict[str, Any]]:
        """The numbers of all nodes at the latest look, from one walk over the guests."""
        world, now = self._world, self._world.clock.now()
        sampled = metrics.sample_time(now)
        if self._nodes[0] != sampled:
            cpu, memory = dict.fromkeys(world.nodes, 0.0), dict.fromkeys(world.nodes, 0)
            for guest in world.guests.values():
                if guest.running:
                    kept = self._up_to_date(guest, now)
                    cpu[guest.node] += kept.moving["cpu"] * kept.cpus
                    memory[guest.node] += kept.moving["mem"]
            numbers = {
                node.name: status.node_numbers(node, sampled, busy_cpus=cpu[node.name], memory=memory[node.name])
                for node in world.nodes.values()
            }
            self._nodes = (sampled, numbers)
        return self._nodes[1]


def _fixed_part(world: World, guest: Guest, *, known: bool, pool: str | None, hastate: str | None) -> dict[str, Any]:
    """All of a row that time alone does not change."""
    row = _identity(guest, known=known)
    row |= {name: guest.config[name] for name in ("tags", "lock") if name in guest.config}
    if pool is not None:
        row["pool"] = pool
    if hastate is not None:
        row["hastate"] = hastate
    return row | _sizes(world, guest) if known else row


def _identity(guest: Guest, *, known: bool) -> dict[str, Any]:
    return {
        "id": f"{guest.kind}/{guest.vmid}",
        "type": guest.kind,
        "vmid": guest.vmid,
        "node": guest.node,
        "status": guest.status if known else "unknown",
    }


def _sizes(world: World, guest: Guest) -> dict[str, Any]:
    return {
        "name": guest.name,
        "template": int(guest.template),
        "maxcpu": world.guest_cpus(guest),
        "maxmem": guest.memory,
        "maxdisk": guest.disk_size,
        "disk": status.disk_used(world, guest),
    }


def storage_row(storage: Storage, node: Node) -> dict[str, Any]:
    """One storage on one node."""
    row: dict[str, Any] = {
        "id": f"storage/{node.name}/{storage.id}",
        "type": "storage",
        "storage": storage.id,
        "node": node.name,
        "plugintype": storage.type,
        "content": ",".join(storage.content),
        "shared": int(storage.shared),
    }
    if not node.online:
        return row | {"status": "unknown"}
    place = storage.place(node.name)
    return row | {"status": "available", "disk": place.used, "maxdisk": place.total}


def rows_of(world: World) -> ResourceRows:
    """The rows of a world, the same object for all who ask."""
    return world.part(ResourceRows)
