"""The status daemon of a node (pvestatd): its reports and the load it measures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from pve_simulator.cluster.sdn import Sdn
from pve_simulator.guests.guest import Guest, Kind

_FULL_CIRCLE = 2 * math.pi
_DAY = 86400.0
# The share of activity that follows the time of day, and the busiest hour (UTC).
_DAILY_SWING = 0.3
_BUSIEST = 15.0 / 24.0


def spread(seed: int, salt: int) -> float:
    """A number in 0..1, fixed for a seed and a salt."""
    mixed = (seed * 2654435761 + salt * 40503 + 12345) & 0xFFFFFFFF
    mixed ^= mixed >> 15
    mixed = (mixed * 2246822519) & 0xFFFFFFFF
    mixed ^= mixed >> 13
    return mixed / 0xFFFFFFFF


def wave(seed: int, now: float, period: float) -> float:
    """A smooth value in 0..1 over time: a slow wave with a faster one on top."""
    phase = (seed % 977) * 0.7919
    slow = math.sin(now / period * _FULL_CIRCLE + phase)
    fast = math.sin(now / (period * 0.137) * _FULL_CIRCLE + phase * 3)
    return 0.5 + 0.35 * slow + 0.15 * fast


@lru_cache(maxsize=256)
def daylight(now: float) -> float:
    """How busy the hour is: 1 on average, more in the afternoon, less at night."""
    return 1.0 + _DAILY_SWING * math.cos((now / _DAY - _BUSIEST) * _FULL_CIRCLE)


@lru_cache(maxsize=100_000)
def _daylight_sum(now: float) -> float:
    """The integral of `daylight` beyond its average."""
    return _DAILY_SWING * _DAY / _FULL_CIRCLE * math.sin((now / _DAY - _BUSIEST) * _FULL_CIRCLE)


class Profile(NamedTuple):
    """The typical load of one guest, and its I/O rates in bytes per second."""

    cpu: float
    memory: float
    netin: float
    netout: float
    diskread: float
    diskwrite: float
    disk: float


@lru_cache(maxsize=100_000)
def profile(seed: int) -> Profile:
    """The profile of the guest with this seed: most are idle, some busy."""

    def rate(salt: int, typical: float) -> float:
        return typical * (0.2 + 1.8 * spread(seed, salt) ** 2)

    return Profile(
        cpu=0.01 + 0.55 * spread(seed, 1) ** 3,
        memory=0.25 + 0.5 * spread(seed, 2),
        netin=rate(11, 24_000.0),
        netout=rate(12, 15_000.0),
        diskread=rate(13, 9_000.0),
        diskwrite=rate(14, 21_000.0),
        disk=0.15 + 0.6 * spread(seed, 21),
    )


def cpu_load(seed: int, now: float) -> float:
    """The CPU usage of a guest, as a share."""
    return profile(seed).cpu * (0.35 + 0.65 * wave(seed, now, 3600.0)) * daylight(now)


def memory_share(seed: int, now: float) -> float:
    """The memory usage of a guest, as a share."""
    return profile(seed).memory + 0.08 * math.sin(now / 7200.0 * _FULL_CIRCLE + seed)


def counted_seconds(age: float, since: float = 0.0) -> float:
    """The seconds of average rate that a counter has accumulated `age` seconds after `since`.

    The rate varies but never falls below 0.
    """
    # the slope of the fast wave is at most 0.4, that of the daily one 0.3
    day = _daylight_sum(since + age) - _daylight_sum(since)
    return max(0.0, age + day + 0.4 * 600.0 / _FULL_CIRCLE * math.sin(age / 600.0 * _FULL_CIRCLE))


if TYPE_CHECKING:
    from pve_simulator.world import World

REPORT_SECONDS = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class GuestReport:
    """The report of a guest. Reports go by vmid: a guest that reuses a vmid has its predecessor's at first."""

    vmid: int
    kind: Kind
    node: str
    name: str
    status: str
    template: bool
    running: bool
    paused: bool
    process_began: float
    cpus: int
    memory: int
    disk_size: int
    made_from: tuple[Guest, int, bool, bool, str]
    """The state it was made from; the report is valid as long as it is."""


@dataclass(frozen=True, slots=True)
class StorageReport:
    used: int
    total: int


class StatusDaemon:
    """The daemons of all nodes. They report at the same times: at the start and every ten seconds."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.first = world.clock.now()
        """The time of one report; all others are whole cycles away."""
        self.guests: dict[int, GuestReport] = {}
        self.storages: dict[tuple[str, str], StorageReport] = {}
        """By node and storage."""
        self.zones: frozenset[str] = frozenset()
        self.reported_at = self.first
        self.report()

    async def run(self) -> None:
        while True:
            await self._world.clock.sleep(REPORT_SECONDS - (self._world.clock.now() - self.first) % REPORT_SECONDS)
            self.report()

    def report(self) -> None:
        """Report the current state to the cluster."""
        world = self._world
        self.reported_at = world.clock.now()
        dead = {node.name for node in world.nodes.values() if node.died_at is not None}
        last = {vmid: report for vmid, report in self.guests.items() if report.node in dead}
        self.guests = {
            guest.vmid: (last.get(guest.vmid) if guest.node in dead else None) or self._report_guest(guest)
            for guest in world.guests.values()
        }
        kept = {place: report for place, report in self.storages.items() if place[0] in dead}
        self.storages = kept | {
            (node.name, storage.id): StorageReport(storage.space(node.name).used, storage.space(node.name).total)
            for storage in world.storages.values()
            if not storage.disabled
            for node in world.nodes.values()
            if node.online and storage.on_node(node.name) and storage.space(node.name).total > 0
        }
        self.zones = frozenset(world.part(Sdn).running("zones"))

    def forget(self, node: str) -> None:
        """Drop what a node reported before it lost its power."""
        self.guests = {vmid: report for vmid, report in self.guests.items() if report.node != node}
        self.storages = {place: report for place, report in self.storages.items() if place[0] != node}

    def _report_guest(self, guest: Guest) -> GuestReport:
        state = (guest, guest.revision, guest.running, guest.paused, guest.node)
        known = self.guests.get(guest.vmid)
        if known is not None and known.made_from == state:
            return known
        return GuestReport(
            vmid=guest.vmid,
            kind=guest.kind,
            node=guest.node,
            name=guest.name,
            status=guest.status,
            template=guest.template,
            running=guest.running,
            paused=guest.paused,
            process_began=guest.process_began,
            cpus=self._world.guest_cpus(guest),
            memory=guest.memory,
            disk_size=guest.disk_size,
            made_from=state,
        )
