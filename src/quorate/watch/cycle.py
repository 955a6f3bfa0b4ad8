"""One cycle over one cluster: read facts, judge them, remember, and bring the findings up to date."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

import msgspec

from quorate.config.watch import WatchSettings
from quorate.hints import CLUSTER_STATUS, PERMISSION_AUDIT
from quorate.operations.reports.findings import Finding, unchecked_finding
from quorate.operations.reports.node_health import DAY
from quorate.problems import PermissionMissing, Problem
from quorate.pve.cluster import Cluster
from quorate.state.events import Events
from quorate.state.findings import CycleChanges, Findings, Observation
from quorate.state.findings import Finding as Known
from quorate.state.records import Records
from quorate.state.store import Store
from quorate.state.trail import AuditTrail
from quorate.watch.checks import backups, guests, nodes, settings, storages, to_observation
from quorate.watch.facts import ClusterFacts, FactReading, Snapshot
from quorate.watch.inventory import Inventory, differences, take_inventory
from quorate.watch.memory import Memory
from quorate.watch.own_changes import changed_sources

CONFIRMED = {"guest-down": 2, "storage-away": 2, "cluster-unreachable": 2}
"""Kinds that must be seen this often in a row: a reboot, a move or a busy node passes."""
FACT_NAMES = {
    "time": "the clocks",
    "lvmthin": "thin pools",
    "zfs": "ZFS pools",
    "uncovered": "which guests no backup job covers",
    "replication-jobs": "replication jobs",
    "config": "settings of guests",
    "ha": "the HA state",
    "status": "the state of the cluster",
}


Covers = Callable[[str], bool]


class ClusterWatch:
    def __init__(
        self, cluster: Cluster, settings: WatchSettings, store: Store, trail: AuditTrail | None = None
    ) -> None:
        self._cluster = cluster
        self._trail = trail
        self._looked_at: float | None = None
        self._settings = settings
        self._findings = Findings(store)
        self._events = Events(store)
        self._facts = ClusterFacts(cluster, settings)
        self._memories = Records(store, "watch memory", Memory)
        self._inventories = Records(store, "watch inventory", Inventory)
        self._memory: Memory | None = None
        self._saved = b""
        self._inventory: Inventory | None = None
        self._uptimes: dict[int, int] = {}
        self._in_a_row: Counter[str] = Counter()
        self.snapshot: Snapshot | None = None
        """Of the last cycle."""

    @property
    def name(self) -> str:
        return self._cluster.name

    async def run(self) -> CycleChanges:
        try:
            now = await self._facts.read()
        except Problem as problem:
            return await self.note_unreachable(problem.what)
        self.snapshot = now
        memory = await self._load()
        known = await self._findings.open(self.name)
        accepted = {one.seen_as.key for one in known if one.state == "acknowledged" and one.kind in settings.ACCEPTABLE}
        memory.update(now, self._uptimes)
        await self._note_own_changes(memory, now)
        await self._record_changes(now, memory)
        found = [*self._judge(now, memory, accepted), *_unknown(now)]
        result = await self._observe(found, lambda source: source == "reach" or now.covers(source), known)
        await self._save(memory)
        return result

    async def note_unreachable(self, why: str) -> CycleChanges:
        """Nothing else is known now, so nothing else is resolved."""
        what = f"The cluster {self.name} does not answer: {why}"
        finding = Finding("critical", "cluster", what, CLUSTER_STATUS, "cluster-unreachable")
        known = await self._findings.open(self.name)
        return await self._observe([to_observation(finding, "reach")], lambda source: source == "reach", known)

    def _judge(self, now: Snapshot, memory: Memory, accepted: set[str]) -> Iterator[Observation]:
        yield from nodes.presence(now, memory)
        yield from nodes.quorum(now)
        yield from nodes.high_availability(now)
        yield from nodes.clocks(now)
        yield from nodes.disks(now)
        yield from nodes.pools(now)
        yield from nodes.certificates(now)
        yield from nodes.subscriptions(now)
        yield from nodes.updates(now)
        yield from nodes.replication(now)
        yield from guests.down(now)
        yield from guests.crashing(now, memory)
        yield from guests.agents(now)
        yield from guests.snapshots(now)
        yield from guests.firewalls(now)
        yield from storages.full(now)
        yield from storages.filling(now, memory)
        yield from storages.away(now)
        yield from storages.ceph(now)
        yield from backups.coverage(now)
        yield from backups.age(now, memory)
        yield from backups.proof(now)
        yield from backups.sizes(now)
        yield from backups.failing(memory)
        yield from settings.privileges(now, memory, accepted)
        yield from settings.drift(now, memory, accepted)

    async def _observe(self, found: list[Observation], covers: Covers, known: list[Known]) -> CycleChanges:
        wanted = [one for one in found if not any(fnmatchcase(one.kind, each) for each in self._settings.ignore)]
        keys = {one.key for one in wanted}
        self._in_a_row = Counter({key: self._in_a_row[key] + 1 for key in keys})
        before = {one.seen_as.key for one in known}
        sure = [one for one in wanted if one.key in before or self._in_a_row[one.key] >= CONFIRMED.get(one.kind, 1)]
        return await self._findings.observe(self.name, sure, covers, known)

    # -- what is remembered ----------------------------------------------------------------------------------------

    async def _load(self) -> Memory:
        if self._memory is None:
            self._memory = await self._memories.find(self.name) or Memory()
            self._inventory = await self._inventories.find(self.name)
        return self._memory

    async def _save(self, memory: Memory) -> None:
        text = msgspec.json.encode(memory, enc_hook=str)
        if text != self._saved:
            await self._memories.keep(self.name, memory)
            self._saved = text

    async def _note_own_changes(self, memory: Memory, now: Snapshot) -> None:
        """The trail is read back to the last cycle."""
        memory.appeared = {vmid: time for vmid, time in memory.appeared.items() if time > now.now - DAY}
        if self._trail is not None:
            since = self._looked_at if self._looked_at is not None else now.now - DAY
            memory.ours |= dict.fromkeys(await changed_sources(self._trail, self.name, since), now.now)
        self._looked_at = now.now

    async def _record_changes(self, now: Snapshot, memory: Memory) -> None:
        """Events first, then the inventory: if we die in between, the same events are recorded under the same ids."""
        before, after = self._inventory, take_inventory(now, self._inventory, memory)
        if before is not None:
            new = after.guests.keys() - before.guests.keys()
            memory.appeared |= dict.fromkeys(map(str, new), now.now)
            changes = list(differences(self.name, before, after, memory))
            await self._events.record(changes, before=before.at)
        if before is None or before.guests != after.guests or before.failed != after.failed:
            await self._inventories.keep(self.name, after)
            self._inventory = after


def _unknown(now: Snapshot) -> Iterator[Observation]:
    """What could not be read, one finding for each sort of fact."""
    failed: dict[str, list[tuple[str, FactReading]]] = {}
    for source, looked in now.readings.items():
        if looked.problem is not None and looked.failures > 1:
            name, _, target = source.partition(" ")
            failed.setdefault(name, []).append((target, looked))
    for name, some in sorted(failed.items()):
        problem = some[0][1].problem
        assert problem is not None
        where = f" at {FACT_NAMES.get(name, name)}"
        if targets := [target for target, _ in some if target]:
            where += f" of {', '.join(targets[:8])}" + (f" and {len(targets) - 8} more" if len(targets) > 8 else "")
        next_call = PERMISSION_AUDIT if isinstance(problem, PermissionMissing) else CLUSTER_STATUS
        finding = unchecked_finding("watch", problem, next_call, where)
        about = Finding(finding.severity, finding.area, finding.what, next_call, "unchecked", name)
        yield to_observation(about, "")
