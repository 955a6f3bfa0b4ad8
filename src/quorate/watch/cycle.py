"""A cycle over one cluster: read its facts, judge them, and bring the findings and events up to date."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

import msgspec

from quorate.config.watch import WatchSettings
from quorate.hints import tools
from quorate.problems import PermissionMissing, Problem
from quorate.pve.cluster import Cluster
from quorate.state.store import Records, Store
from quorate.state.trail import AuditTrail
from quorate.tools.health_findings import unchecked_finding
from quorate.tools.node_health import DAY
from quorate.watch.checks import backups, guests, nodes, observe, settings, storages
from quorate.watch.facts import ClusterFacts, FactReading, Snapshot
from quorate.watch.finding_store import CycleChanges, Events, Findings, Observation, news_of
from quorate.watch.finding_store import Finding as Known
from quorate.watch.invalidation import changed_sources
from quorate.watch.memory import Inventory, Memory, differences, take_inventory

CONFIRMED = {"guest-down": 2, "storage-away": 2, "cluster-unreachable": 2}
"""Kinds that must be seen this often in a row: a reboot, a move or a busy node passes."""
FACT_NAMES = {
    "time": "the clocks",
    "lvmthin": "thin pools",
    "zfs": "ZFS pools",
    "jobs": "backup jobs",
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
        self._uptimes: dict[int, tuple[str, int]] = {}
        """Node and uptime of each running guest at the last look."""
        self._in_a_row: Counter[str] = Counter()
        self.snapshot: Snapshot | None = None
        """The facts of the last cycle."""

    @property
    def name(self) -> str:
        return self._cluster.name

    async def run(self) -> CycleChanges:
        memory = await self._load()
        changed = await self._note_own_changes(memory)
        try:
            snapshot = await self._facts.read(changed)
        except Problem as problem:
            return await self.note_unreachable(problem.what)
        self.snapshot = snapshot
        known = await self._findings.open(self.name)
        accepted = {
            finding.seen_as.key
            for finding in known
            if finding.state == "acknowledged" and finding.kind in settings.ACCEPTABLE
        }
        memory.update(snapshot, self._uptimes)
        await self._record_changes(snapshot, memory)
        observations, snapshot = await self._decide_on_fresh_facts(snapshot, memory, accepted, known)
        result = await self._observe(observations, lambda source: source == "reach" or snapshot.covers(source), known)
        await self._save(memory)
        return result

    async def _decide_on_fresh_facts(
        self, snapshot: Snapshot, memory: Memory, accepted: set[str], known: list[Known]
    ) -> tuple[list[Observation], Snapshot]:
        """What is wrong, where facts that would open a finding, or add to one, are read again if they are old."""
        open_findings = {finding.seen_as.key: finding for finding in known}

        def is_news(observation: Observation) -> bool:
            old = open_findings.get(observation.key)
            return old is None or news_of(old, observation, snapshot.now) in ("worse", "more")

        observations = self._judge(snapshot, memory, accepted)
        news = [observation for observation in observations if is_news(observation)]
        if old_facts := sorted({fact for each in news for fact in snapshot.find_old_facts(each.source)}):
            await self._note_own_changes(memory)  # made since this cycle began
            snapshot = self.snapshot = await self._facts.refresh(snapshot, old_facts)
            observations = self._judge(snapshot, memory, accepted)
        return [
            observation
            for observation in observations
            if not (is_news(observation) and snapshot.find_old_facts(observation.source))
        ], snapshot

    def forget(self) -> None:
        """Read what is remembered from the store again."""
        self._memory = None
        self._uptimes.clear()

    async def note_unreachable(self, why: str) -> CycleChanges:
        """Nothing else is known now, so nothing else is resolved."""
        what = f"The cluster {self.name} does not answer: {why}"
        unreachable = observe("cluster-unreachable", "", "critical", what, tools.cluster_status, "reach")
        known = await self._findings.open(self.name)
        return await self._observe([unreachable], lambda source: source == "reach", known)

    def _judge(self, snapshot: Snapshot, memory: Memory, accepted: set[str]) -> list[Observation]:
        return [*self._check(snapshot, memory, accepted), *_unknown(snapshot)]

    def _check(self, snapshot: Snapshot, memory: Memory, accepted: set[str]) -> Iterator[Observation]:
        yield from nodes.presence(snapshot, memory)
        yield from nodes.quorum(snapshot)
        yield from nodes.high_availability(snapshot)
        yield from nodes.clocks(snapshot)
        yield from nodes.disks(snapshot)
        yield from nodes.pools(snapshot)
        yield from nodes.certificates(snapshot)
        yield from nodes.subscriptions(snapshot)
        yield from nodes.updates(snapshot)
        yield from nodes.replication(snapshot)
        yield from guests.down(snapshot)
        yield from guests.crashing(snapshot, memory)
        yield from guests.agents(snapshot)
        yield from guests.snapshots(snapshot)
        yield from guests.firewalls(snapshot)
        yield from storages.full(snapshot)
        yield from storages.filling(snapshot, memory)
        yield from storages.away(snapshot)
        yield from storages.ceph(snapshot)
        yield from backups.coverage(snapshot)
        yield from backups.contents(snapshot)
        yield from backups.age(snapshot, memory)
        yield from backups.proof(snapshot)
        yield from backups.sizes(snapshot)
        yield from backups.failing(memory)
        yield from settings.privileges(snapshot, memory, accepted)
        yield from settings.drift(snapshot, memory, accepted)

    async def _observe(self, observations: list[Observation], covers: Covers, known: list[Known]) -> CycleChanges:
        concerned = [
            observation
            for observation in observations
            if not any(fnmatchcase(observation.kind, each) for each in self._settings.ignore)
        ]
        keys = {observation.key for observation in concerned}
        self._in_a_row = Counter({key: self._in_a_row[key] + 1 for key in keys})
        before = {finding.seen_as.key for finding in known}
        sure = [
            observation
            for observation in concerned
            if observation.key in before or self._in_a_row[observation.key] >= CONFIRMED.get(observation.kind, 1)
        ]
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

    async def _note_own_changes(self, memory: Memory) -> set[str]:
        """The facts that Quorate has altered: the trail is read back to the last time."""
        now, changed = self._cluster.clock.time(), set[str]()
        if self._trail is not None:
            since = self._looked_at if self._looked_at is not None else now - DAY
            changed = await changed_sources(self._trail, self.name, since)
            memory.ours |= dict.fromkeys(filter(settings.may_drift, changed), now)
        self._looked_at = now
        return changed

    async def _record_changes(self, snapshot: Snapshot, memory: Memory) -> None:
        """Events first, then the inventory: if we die in between, the same events are recorded under the same ids."""
        memory.appeared = {vmid: time for vmid, time in memory.appeared.items() if time > snapshot.now - DAY}
        before, after = self._inventory, take_inventory(snapshot, self._inventory, memory)
        if before is not None:
            unknown = snapshot.view.by_vmid.keys() - before.guests.keys()
            new = {vmid for vmid, record in after.guests.items() if record.since == snapshot.now}
            memory.appeared |= dict.fromkeys(map(str, unknown | new), snapshot.now)
            changes = list(differences(self.name, before, after, memory))
            await self._events.record(changes, before=before.at)
        if before is None or before.guests != after.guests or before.failed != after.failed:
            await self._inventories.keep(self.name, after)
            self._inventory = after


def _unknown(snapshot: Snapshot) -> Iterator[Observation]:
    """One finding for each kind of fact that could not be read."""
    failed: dict[str, list[tuple[str, FactReading]]] = {}
    for source, reading in snapshot.readings.items():
        if reading.problem is not None and reading.failures > 1:
            name, _, target = source.partition(" ")
            failed.setdefault(name, []).append((target, reading))
    for name, readings in sorted(failed.items()):
        problem = readings[0][1].problem
        assert problem is not None
        where = f" at {FACT_NAMES.get(name, name)}"
        if targets := [target for target, _ in readings if target]:
            where += f" of {', '.join(targets[:8])}" + (f" and {len(targets) - 8} more" if len(targets) > 8 else "")
        next_call = tools.permission_audit if isinstance(problem, PermissionMissing) else tools.cluster_status
        finding = unchecked_finding("watch", problem, next_call, where)
        yield observe("unchecked", name, finding.severity, finding.what, next_call, f"unread {name}")
