"""The facts of one cluster: what PVE publishes about the whole cluster every cycle, and the rest in rotation.

The number of requests of a cycle does not depend on the size of the cluster: some for all of it, and at most a fixed
number for facts of single nodes, storages and guests. What was read longest ago comes first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from quorate.config.watch import WatchSettings
from quorate.operations.backup_proofs import KIND, last_proofs
from quorate.operations.reports.findings import read_in_time
from quorate.operations.reports.node_health import DAY
from quorate.problems import AgentSilent, Problem
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource
from quorate.pve.lookup import View
from quorate.pve.tasks import gather_bounded
from quorate.state.runs import RunStore
from quorate.watch import reductions

AT_ONCE = 8
MINUTE, HOUR = 60.0, 3600.0
STALE_PERIODS = 3
"""After this many periods without an answer, an old fact no longer counts as known."""
AGENT_STARTS = 10 * MINUTE
"""How long a guest may take to start its agent."""


class FactQuery(msgspec.Struct, frozen=True, gc=False):
    """One thing to read, and how often."""

    name: str
    target: str
    path: str
    period: float
    keep: Callable[[Any], Any] = reductions.everything
    params: Mapping[str, Any] = {}
    first: bool = False
    """Whether it goes before others."""
    source: str = ""
    """Name and target; thousands of these are compared in every cycle."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "source", f"{self.name} {self.target}".strip())


@dataclass(slots=True)
class FactReading:
    """The last answer, when it came, and what went wrong since."""

    name: str
    target: str
    value: Any = None
    at: float = float("-inf")
    tried: float = float("-inf")
    problem: Problem | None = None
    failures: int = 0

    @property
    def is_known(self) -> bool:
        return self.at > float("-inf")


@dataclass(slots=True)
class Snapshot:
    """All known facts about a cluster at one time."""

    cluster: str
    now: float
    pve_time: float
    """The same time by PVE's clock."""
    view: View
    settings: WatchSettings
    readings: Mapping[str, FactReading]
    waiting: int
    """Facts that were never read yet."""
    backups_known: bool
    """Whether every storage that holds backups was read."""
    proved: Collection[int] = ()
    """Guests with a backup that a restore drill has proved."""
    rows: list[Resource] = field(default_factory=list)
    guests: list[Resource] = field(default_factory=list)
    """Those on nodes that are online: of the others only their ids are known."""
    every_guest: list[Resource] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = list(self.view.rows)
        self.every_guest = [row for row in self.view.guests if not row.template]
        self.guests = [row for row in self.every_guest if row.node in self.view.online]

    def value(self, source: str) -> Any:
        """None if it was not read yet."""
        found = self.readings.get(source)
        return found.value if found is not None and found.is_known else None

    def readings_of(self, name: str) -> Iterator[tuple[str, FactReading]]:
        """By source, all that is known under one name: of each storage, of each kind of settings."""
        return ((source, one) for source, one in self.readings.items() if one.name == name and one.is_known)

    def of_nodes(self, name: str) -> dict[str, Any]:
        """Node -> value, of the nodes where it is known."""
        found = ((node, self.value(f"{name} {node}")) for node in sorted(self.view.nodes))
        return {node: value for node, value in found if value is not None}

    def covers(self, source: str) -> bool:
        """Whether its facts are current, or what they were about no longer exists."""
        if source in ("", "view"):
            return True
        if source == "backups":
            return self.backups_known
        found = self.readings.get(source)
        if found is not None:
            return found.is_known and found.problem is None
        name, _, target = source.partition(" ")
        if name in ("config", "snapshots", "agent", "firewall"):
            return target.isdecimal() and int(target) not in self.view.by_vmid
        return name in NODE_FACTS and target not in self.view.nodes


class ClusterFacts:
    def __init__(self, cluster: Cluster, settings: WatchSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._looked: dict[str, FactReading] = {}
        self._of_guests: dict[tuple[str, str, int, bool], tuple[FactQuery, ...]] = {}
        """What is read of a guest, by where it is; made once, because there are thousands."""
        self._proved: tuple[tuple[int, int] | None, dict[int, tuple[float, str]]] | None = None

    async def read(self) -> Snapshot:
        """Raises a Problem if the cluster does not answer at all."""
        cluster, clock = self._cluster, self._cluster.clock
        cluster.inventory.forget()
        view = await cluster.inventory.view()
        now = clock.time()
        looks = {look.source: look for look in self._looks(view)}
        held = {f"backups {storage}@{where}" for storage, where in _backup_places(view, only_available=False)}
        for source in self._looked.keys() - looks.keys() - held:  # backups on an unavailable storage still exist
            del self._looked[source]
        due = [look for look in looks.values() if look.period == 0]
        slow = [(not look.first, when, source) for source, look in looks.items() if (when := self._due(look)) <= now]
        due += [looks[source] for _, _, source in heapq.nsmallest(self._settings.requests, slow)]
        await gather_bounded(AT_ONCE, [partial(self._look, look) for look in due])
        self._retire(looks, clock.time())
        waiting = sum(source not in self._looked for source in looks)
        there = clock.time() + cluster.client.clock_skew
        known = bool(held) and all(source in self._looked and self._looked[source].is_known for source in held)
        if len(self._of_guests) > 2 * len(view.guests) + 100:  # guests that moved or are gone
            self._of_guests.clear()
        proved = await self._proofs()
        return Snapshot(cluster.name, clock.time(), there, view, self._settings, self._looked, waiting, known, proved)

    async def _proofs(self) -> dict[int, tuple[float, str]]:
        """Runs carry logs and screenshots, so they are read only when one has changed."""
        stamp = await self._cluster.attachment(RunStore).stamp(self._cluster.name, KIND)
        if self._proved is None or self._proved[0] != stamp:
            self._proved = stamp, await last_proofs(self._cluster)
        return self._proved[1]

    def _due(self, look: FactQuery) -> float:
        """A failed look is repeated in the next cycle, then after its period."""
        found = self._looked.get(look.source)
        if look.period == 0:
            return float("inf")
        if found is None:
            return float("-inf")
        return found.tried + (self._settings.every / 2 if found.failures == 1 else look.period)

    async def _look(self, look: FactQuery) -> None:
        clock = self._cluster.clock
        found = self._looked.setdefault(look.source, FactReading(look.name, look.target))
        begun = clock.time()
        try:
            answer = await read_in_time(self._cluster.get(look.path, **look.params))
            found.value = look.keep(answer)
            found.at, found.problem, found.failures = clock.time(), None, 0
            if look.name == "time":
                found.value = found.value - (begun + clock.time()) / 2
        except AgentSilent:
            found.failures += 1
            found.value, found.at, found.problem = found.failures, clock.time(), None
        except Problem as problem:
            found.problem = problem
            found.failures += 1
        found.tried = clock.time()

    def _retire(self, looks: Mapping[str, FactQuery], now: float) -> None:
        """What could not be read for long is unknown."""
        for source, found in self._looked.items():
            if source not in looks:
                continue
            limit = STALE_PERIODS * max(looks[source].period, self._settings.every)
            if found.problem is not None and found.is_known and now - found.at > limit:
                found.value, found.at = None, float("-inf")

    # -- what there is to read -------------------------------------------------------------------------------------

    def _looks(self, view: View) -> Iterator[FactQuery]:
        yield from EVERY_CYCLE
        yield from CLUSTER_FACTS
        if any(row.plugintype in ("rbd", "cephfs") for row in view.of_type("storage")):
            yield FactQuery("ceph", "", "/cluster/ceph/status", 5 * MINUTE, first=True)
        replicated = bool(self._value("replication-jobs"))
        for node in sorted(view.online):
            yield from _of_node(node, replicated=replicated)
        for (storage, where), row in _backup_places(view).items():
            path = f"/nodes/{row.node}/storage/{storage}/content"
            target = f"{storage}@{where}"
            yield FactQuery("backups", target, path, HOUR, reductions.backups, {"content": "backup"}, first=True)
        for row in view.guests:
            if row.node in view.online and not row.template:
                yield from self._of_guest(row)

    def _of_guest(self, row: Resource) -> Iterator[FactQuery]:
        where = (row.node, row.type, row.vmid, row.status == "stopped")
        usual = self._of_guests.get(where)
        if usual is None:
            base, vmid = _path(row), str(row.vmid)
            usual = self._of_guests[where] = (
                FactQuery("config", vmid, f"{base}/config", 6 * HOUR, reductions.guest_config, first=where[-1]),
                FactQuery("snapshots", vmid, f"{base}/snapshot", DAY, reductions.snapshots),
            )
        yield from usual
        if row.type == "qemu" and row.status == "running" and row.uptime > AGENT_STARTS:
            config: reductions.GuestConfig | None = self._value(usual[0].source)
            if config is not None and config.agent:
                yield FactQuery("agent", str(row.vmid), f"{_path(row)}/agent/info", 30 * MINUTE, reductions.no_failures)
        if self._settings.firewall_tags and wants_firewall(row, self._settings):
            yield FactQuery("firewall", str(row.vmid), f"{_path(row)}/firewall/options", 6 * HOUR, first=True)

    def _value(self, source: str) -> Any:
        found = self._looked.get(source)
        return None if found is None else found.value


EVERY_CYCLE = (
    FactQuery("status", "", "/cluster/status", 0),
    FactQuery("tasks", "", "/cluster/tasks", 0),
    FactQuery("ha", "", "/cluster/ha/status/current", 0),
)
CLUSTER_FACTS = (
    FactQuery("uncovered", "", "/cluster/backup-info/not-backed-up", 10 * MINUTE, first=True),
    FactQuery("privileges", "", "/access/acl", 10 * MINUTE, reductions.privileges, first=True),
    FactQuery("settings", "datacenter", "/cluster/options", 15 * MINUTE, reductions.flat, first=True),
    FactQuery("settings", "storages", "/storage", 15 * MINUTE, partial(reductions.flat_rows, "storage"), first=True),
    FactQuery(
        "settings", "backup jobs", "/cluster/backup", 15 * MINUTE, partial(reductions.flat_rows, "id"), first=True
    ),
    FactQuery("settings", "HA", "/cluster/ha/resources", 15 * MINUTE, partial(reductions.flat_rows, "sid"), first=True),
    FactQuery("settings", "firewall", "/cluster/firewall/options", 15 * MINUTE, reductions.flat, first=True),
    FactQuery("replication-jobs", "", "/cluster/replication", 10 * MINUTE, first=True),
)
NODE_FACTS = ("time", "disks", "zfs", "lvmthin", "certificates", "updates", "subscription", "replication")


def _of_node(node: str, *, replicated: bool) -> Iterator[FactQuery]:
    base = f"/nodes/{node}"
    yield FactQuery("time", node, f"{base}/time", 5 * MINUTE, reductions.clock, first=True)
    yield FactQuery("lvmthin", node, f"{base}/disks/lvmthin", 15 * MINUTE, first=True)
    yield FactQuery("zfs", node, f"{base}/disks/zfs", 30 * MINUTE, first=True)
    yield FactQuery("disks", node, f"{base}/disks/list", 6 * HOUR, reductions.disks, first=True)
    yield FactQuery("updates", node, f"{base}/apt/update", 6 * HOUR, reductions.updates, first=True)
    yield FactQuery("certificates", node, f"{base}/certificates/info", 12 * HOUR, reductions.certificates, first=True)
    yield FactQuery("subscription", node, f"{base}/subscription", DAY, reductions.subscription, first=True)
    if replicated:
        yield FactQuery("replication", node, f"{base}/replication", 5 * MINUTE, first=True)


def _path(row: Resource) -> str:
    return f"/nodes/{row.node}/{row.type}/{row.vmid}"


def _backup_places(view: View, *, only_available: bool = True) -> dict[tuple[str, str], Resource]:
    """Storage and node (empty if shared) -> a row through which it can be read."""
    places: dict[tuple[str, str], Resource] = {}
    for row in view.of_type("storage"):
        available = row.status == "available" and row.node in view.online
        if row.holds("backup") and (available or not only_available):
            places.setdefault((row.storage, "" if row.shared else row.node), row)
    return places


def wants_firewall(row: Resource, settings: WatchSettings) -> bool:
    return "*" in settings.firewall_tags or bool(set(row.tag_list) & set(settings.firewall_tags))
