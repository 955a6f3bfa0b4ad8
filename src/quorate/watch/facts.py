"""Facts about a cluster: what to read and how often, and the little that the checks need of each answer."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from quorate.config.watch import WatchSettings
from quorate.problems import AgentSilent, Problem, catch_problem
from quorate.pve import values
from quorate.pve.backups import UNEXPLAINED, excluded_volumes, explain_failed_task
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource
from quorate.pve.lookup import View
from quorate.pve.tasks import gather_bounded
from quorate.runs.store import RunStore
from quorate.tools.backup_coverage import KIND, Drills, read_drills
from quorate.tools.health_findings import read_in_time
from quorate.tools.node_health import DAY
from quorate.watch.invalidation import TaskLog

_VOLATILE = ("digest", "meta", "lock", "parent", "snaptime", "vmgenid", "description")
AT_ONCE = 8
LOGS_READ = 8
"""Logs of failed backups that are read in one cycle."""
MINUTE, HOUR = 60.0, 3600.0
FRESH_SECONDS = 2 * 60.0
"""Facts that open a finding, or add to one, are at most this old."""
STALE_PERIODS = 3
"""After this many periods without an answer, an old fact no longer counts as known."""
AGENT_STARTS = 10 * MINUTE
"""How long a guest may take to start its agent."""
GUEST_FACTS = ("config", "snapshots", "agent", "firewall")
NODE_FACTS = ("time", "disks", "zfs", "lvmthin", "certificates", "updates", "subscription", "replication")


class GuestConfig(msgspec.Struct, frozen=True, gc=False):
    onboot: bool
    agent: bool
    open_cards: tuple[str, ...]
    """Network cards that the firewall does not filter."""
    fingerprint: str
    """Changes whenever a setting changes."""
    excluded: tuple[str, ...]
    """What its backups leave out."""


class BackupFile(msgspec.Struct, frozen=True, gc=False):
    vmid: int
    time: float
    size: int
    verified: str
    """ok, failed, or empty if it was never verified"""


def everything(answer: Any) -> Any:
    return answer


def no_failures(_: Any) -> int:
    """The agent answered; reset its count of missed answers."""
    return 0


def clock(answer: Mapping[str, Any]) -> float:
    return float(answer["time"])


def guest_config(config: Mapping[str, Any]) -> GuestConfig:
    kept = {name: str(value) for name, value in config.items() if name not in _VOLATILE}
    cards = {name: values.parse(kept[name]) for name in kept if name.startswith("net") and name[3:].isdecimal()}
    return GuestConfig(
        onboot=kept.get("onboot") == "1",
        agent=values.is_on(values.parse(kept.get("agent", "0"), "enabled").get("enabled", "0")),
        open_cards=tuple(sorted(name for name, card in cards.items() if not values.is_on(card.get("firewall", "0")))),
        fingerprint=hashlib.sha256(msgspec.json.encode(kept, order="sorted")).hexdigest()[:16],
        excluded=tuple(excluded_volumes(kept, is_vm="rootfs" not in kept)),
    )


def snapshots(answer: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"name": row["name"], "snaptime": row.get("snaptime")} for row in answer if row.get("name") != "current"]


def backups(answer: list[dict[str, Any]]) -> list[BackupFile]:
    return [
        BackupFile(
            int(row.get("vmid") or 0),
            float(row.get("ctime") or 0),
            int(row.get("size") or 0),
            str((row.get("verification") or {}).get("state", "")),
        )
        for row in answer
    ]


def disks(answer: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept = ("devpath", "model", "serial", "health", "wearout")
    return [{name: row.get(name) for name in kept} for row in answer if row.get("type") != "partition"]


def updates(answer: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row.get(name) for name in ("Package", "Version", "Origin")} for row in answer]


def certificates(answer: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row.get(name) for name in ("filename", "fingerprint", "notafter")} for row in answer]


def subscription(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {name: answer.get(name) for name in ("status", "nextduedate", "productname", "message")}


def privileges(answer: list[dict[str, Any]]) -> list[str]:
    return sorted(f"{row['ugid']} has {row['roleid']} on {row['path']}" for row in answer)


def flat(answer: Mapping[str, Any]) -> dict[str, str]:
    """`allowed-tags` follows the tags of guests, so it is not a setting."""
    return {str(name): _text(value) for name, value in answer.items() if name not in ("digest", "allowed-tags")}


def flat_rows(key: str, answer: list[dict[str, Any]]) -> dict[str, str]:
    """The settings of all rows in one mapping, with keys such as `nas.content`."""
    volatile = ("digest", "next-run", "type", key)
    return {
        f"{row.get(key)}.{name}": _text(value) for row in answer for name, value in row.items() if name not in volatile
    } | {str(row.get(key)): "exists" for row in answer}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()


class FactQuery(msgspec.Struct, frozen=True, gc=False):
    """One thing to read, and how often."""

    name: str
    target: str
    path: str
    period: float
    keep: Callable[[Any], Any] = everything
    params: Mapping[str, Any] = {}
    first: bool = False
    """Read before others that are due."""
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
    """`now` by PVE's clock."""
    view: View
    settings: WatchSettings
    readings: Mapping[str, FactReading]
    waiting: int
    """Facts that were never read yet."""
    backups_known: bool
    """Whether every storage that holds backups was read."""
    outdated: Collection[str]
    """Facts that something has altered since they were read."""
    unread: Collection[str]
    """Names of which some fact was never read yet."""
    tasks: TaskLog
    proved: Collection[int] = ()
    """Guests with a backup that a restore drill has proved."""
    copies: Collection[str] = ()
    """The names of the guests that restore drills restore and remove again."""
    rows: list[Resource] = field(default_factory=list)
    guests: list[Resource] = field(default_factory=list)
    """Guests on nodes that are online; only the ids of others are known."""
    every_guest: list[Resource] = field(default_factory=list)
    """Without templates and the copies of restore drills, which may stop, lack backups and disappear."""

    def __post_init__(self) -> None:
        self.rows = list(self.view.rows)
        self.every_guest = [row for row in self.view.guests if not row.template and row.name not in self.copies]
        self.guests = [row for row in self.every_guest if row.node in self.view.online]

    def value(self, source: str) -> Any:
        """The value of a fact; None if it was not read yet."""
        reading = self.readings.get(source)
        return reading.value if reading is not None and reading.is_known else None

    def readings_of(self, name: str) -> Iterator[tuple[str, FactReading]]:
        """All known readings of one name, such as those of each storage, with their sources."""
        return (
            (source, reading) for source, reading in self.readings.items() if reading.name == name and reading.is_known
        )

    def of_nodes(self, name: str) -> dict[str, Any]:
        """The value for each node where it is known."""
        pairs = ((node, self.value(f"{name} {node}")) for node in sorted(self.view.nodes))
        return {node: value for node, value in pairs if value is not None}

    def covers(self, source: str) -> bool:
        """Whether the facts of a source are current, or what they were about no longer exists."""
        if source in ("", "view"):
            return True
        name, _, target = source.partition(" ")
        if name in ("guest", "node", "storage"):
            return self._shows(name, target)
        if name == "unread":
            return self._has_read(target)
        if source == "backups":
            return self.backups_known and not any(each in self.outdated for each, _ in self.readings_of(source))
        reading = self.readings.get(source)
        if reading is not None:
            answered = name != "agent" or reading.value == 0
            return reading.is_known and reading.problem is None and source not in self.outdated and answered
        if name in GUEST_FACTS:
            return target.isdecimal() and int(target) not in self.view.by_vmid
        return name in NODE_FACTS and target not in self.view.nodes

    def _shows(self, kind: str, name: str) -> bool:
        """Whether the view shows the current state of a guest, a node or `storage@node`, or that it is gone."""
        if kind == "guest":
            row = self.view.by_vmid.get(int(name))
            return row is None or (row.node in self.view.online and not row.is_unreported)
        if kind == "node":
            return name not in self.view.nodes or name in self.view.online
        storage, _, node = name.partition("@")
        rows = [row for row in self.view.of_type("storage") if row.storage == storage and node in ("", row.node)]
        return not rows or any(row.node in self.view.online and row.status == "available" for row in rows)

    def _has_read(self, name: str) -> bool:
        """Whether all facts of this name were read; those of a node that is offline were not."""
        if name in NODE_FACTS and self.view.nodes.keys() - self.view.online:
            return False
        return name not in self.unread and not any(
            reading.problem is not None or not reading.is_known
            for reading in self.readings.values()
            if reading.name == name
        )

    def find_old_facts(self, source: str) -> list[str]:
        """Those facts of a source that are too old to open a finding."""
        oldest = self.now - FRESH_SECONDS
        if source == "backups":
            readings = self.readings_of(source)
        else:
            readings = ((each, self.readings[each]) for each in (source,) if each in self.readings)
        return [each for each, reading in readings if reading.at < oldest or each in self.outdated]


class ClusterFacts:
    def __init__(self, cluster: Cluster, settings: WatchSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._readings: dict[str, FactReading] = {}
        self._of_guests: dict[tuple[str, str, int, bool], tuple[FactQuery, ...]] = {}
        """The queries of each guest, by where it is; created once, because there are thousands."""
        self._tasks = TaskLog()
        self._causes: dict[str, str] = {}
        """Why the failed backups in the task list failed, by task."""
        self._outdated: set[str] = set()
        self._drills: tuple[tuple[int, int] | None, Drills] | None = None

    async def read(self, changed: Collection[str] = ()) -> Snapshot:
        """Read what is due. `changed` are facts that Quorate has altered: they are read again, before others.

        Raises a Problem if the cluster does not answer at all.
        """
        cluster, clock = self._cluster, self._cluster.clock
        cluster.inventory.forget()
        view = await cluster.inventory.view()
        now = clock.time()
        queries = {query.source: query for query in self._queries(view)}
        held = _held_backups(view)
        for source in self._readings.keys() - queries.keys() - held:  # backups on an unavailable storage still exist
            del self._readings[source]
        await self._look_at(query for query in queries.values() if query.period == 0)
        await self._explain_failures()
        altered = {*changed, *self._tasks.note(self._value("tasks") or (), clock.time())}
        self._outdated |= {source for source in self._readings if altered & {source, source.partition(" ")[0]}}
        self._outdated &= self._readings.keys()
        dues = {source: self._due(query) for source, query in queries.items()}
        slow = [
            (source not in self._outdated, not queries[source].first, when, source)
            for source, when in dues.items()
            if when <= now
        ]
        await self._look_at(queries[row[-1]] for row in heapq.nsmallest(self._settings.requests, slow))
        self._retire(queries, clock.time())
        return await self._snapshot(view, queries)

    async def refresh(self, snapshot: Snapshot, sources: Collection[str]) -> Snapshot:
        """Read these facts again, as many as one cycle may."""
        queries = {query.source: query for query in self._queries(snapshot.view)}
        await self._look_at([queries[source] for source in sources if source in queries][: self._settings.requests])
        return await self._snapshot(snapshot.view, queries)

    async def _snapshot(self, view: View, queries: Mapping[str, FactQuery]) -> Snapshot:
        cluster, clock, held = self._cluster, self._cluster.clock, _held_backups(view)
        unread = [query.name for source, query in queries.items() if source not in self._readings]
        there = clock.time() + cluster.client.clock_skew
        known = bool(held) and all(source in self._readings and self._readings[source].is_known for source in held)
        if len(self._of_guests) > 2 * len(view.guests) + 100:  # guests that moved or are gone
            self._of_guests.clear()
        drills = await self._read_drills()
        return Snapshot(
            cluster=cluster.name,
            now=clock.time(),
            pve_time=there,
            view=view,
            settings=self._settings,
            readings=self._readings,
            waiting=len(unread),
            backups_known=known,
            outdated=frozenset(self._outdated),
            unread=frozenset(unread),
            tasks=self._tasks,
            proved=drills.proved,
            copies={copy.name for copy in drills.copies},
        )

    async def _read_drills(self) -> Drills:
        """Runs carry logs and screenshots, so they are read only when one has changed."""
        stamp = await self._cluster.attachment(RunStore).stamp(self._cluster.name, KIND)
        if self._drills is None or self._drills[0] != stamp:
            self._drills = stamp, await read_drills(self._cluster)
        return self._drills[1]

    async def _explain_failures(self) -> None:
        """Replace `job errors` of failed backups with what their logs say. Each log is read once."""
        tasks = self._value("tasks") or []
        failed = [task for task in tasks if task.get("status") == UNEXPLAINED]
        unread = [task for task in failed if task["upid"] not in self._causes][:LOGS_READ]
        explained = await gather_bounded(AT_ONCE, [partial(self._explain, task) for task in unread])
        causes = self._causes | {task["upid"]: task["status"] for task in explained}
        self._causes = {task["upid"]: causes[task["upid"]] for task in failed if task["upid"] in causes}
        for task in failed:
            task["status"] = causes.get(task["upid"], UNEXPLAINED)

    async def _explain(self, task: dict[str, Any]) -> dict[str, Any]:
        explained = await catch_problem(read_in_time(explain_failed_task(self._cluster.client, task)))
        return task if isinstance(explained, Problem) else explained

    def _due(self, query: FactQuery) -> float:
        """When to read it: after a failure in the next cycle, then after its period."""
        reading = self._readings.get(query.source)
        if query.period == 0:
            return float("inf")
        if reading is None:
            return float("-inf")
        if query.source in self._outdated:
            return reading.tried
        return reading.tried + (self._settings.every / 2 if reading.failures == 1 else query.period)

    async def _look_at(self, queries: Iterable[FactQuery]) -> None:
        await gather_bounded(AT_ONCE, [partial(self._look, query) for query in queries])

    async def _look(self, query: FactQuery) -> None:
        clock = self._cluster.clock
        reading = self._readings.setdefault(query.source, FactReading(query.name, query.target))
        begun = clock.time()
        try:
            answer = await read_in_time(self._cluster.get(query.path, **query.params))
            reading.value = query.keep(answer)
            reading.at, reading.problem, reading.failures = clock.time(), None, 0
            self._outdated.discard(query.source)
            if query.name == "time":
                reading.value = reading.value - (begun + clock.time()) / 2
        except AgentSilent:
            reading.failures += 1
            reading.value, reading.at, reading.problem = reading.failures, clock.time(), None
            self._outdated.discard(query.source)
        except Problem as problem:
            reading.problem = problem
            reading.failures += 1
        reading.tried = clock.time()

    def _retire(self, queries: Mapping[str, FactQuery], now: float) -> None:
        """What could not be read for long is unknown."""
        for source, reading in self._readings.items():
            if source not in queries:
                continue
            limit = STALE_PERIODS * max(queries[source].period, self._settings.every)
            if reading.problem is not None and reading.is_known and now - reading.at > limit:
                reading.value, reading.at = None, float("-inf")

    # -- what there is to read -------------------------------------------------------------------------------------

    def _queries(self, view: View) -> Iterator[FactQuery]:
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
            yield FactQuery("backups", target, path, 10 * MINUTE, backups, {"content": "backup"}, first=True)
        for row in view.guests:
            if row.node in view.online and not row.template:
                yield from self._of_guest(row)

    def _of_guest(self, row: Resource) -> Iterator[FactQuery]:
        where = (row.node, row.type, row.vmid, row.status == "stopped")
        usual = self._of_guests.get(where)
        if usual is None:
            base, vmid = _path(row), str(row.vmid)
            usual = self._of_guests[where] = (
                FactQuery("config", vmid, f"{base}/config", 6 * HOUR, guest_config, first=where[-1]),
                FactQuery("snapshots", vmid, f"{base}/snapshot", DAY, snapshots),
            )
        yield from usual
        if row.type == "qemu" and row.status == "running" and row.uptime > AGENT_STARTS:
            config: GuestConfig | None = self._value(usual[0].source)
            if config is not None and config.agent:
                yield FactQuery("agent", str(row.vmid), f"{_path(row)}/agent/info", 30 * MINUTE, no_failures)
        if self._settings.firewall_tags and wants_firewall(row, self._settings):
            yield FactQuery("firewall", str(row.vmid), f"{_path(row)}/firewall/options", 6 * HOUR, first=True)

    def _value(self, source: str) -> Any:
        reading = self._readings.get(source)
        return None if reading is None else reading.value


EVERY_CYCLE = (
    FactQuery("status", "", "/cluster/status", 0),
    FactQuery("tasks", "", "/cluster/tasks", 0),
    FactQuery("ha", "", "/cluster/ha/status/current", 0),
)
CLUSTER_FACTS = (
    FactQuery("jobs", "", "/cluster/backup", 10 * MINUTE, first=True),
    FactQuery("privileges", "", "/access/acl", 10 * MINUTE, privileges, first=True),
    FactQuery("settings", "datacenter", "/cluster/options", 15 * MINUTE, flat, first=True),
    FactQuery("settings", "storages", "/storage", 15 * MINUTE, partial(flat_rows, "storage"), first=True),
    FactQuery("settings", "backup jobs", "/cluster/backup", 15 * MINUTE, partial(flat_rows, "id"), first=True),
    FactQuery("settings", "HA", "/cluster/ha/resources", 15 * MINUTE, partial(flat_rows, "sid"), first=True),
    FactQuery("settings", "firewall", "/cluster/firewall/options", 15 * MINUTE, flat, first=True),
    FactQuery("replication-jobs", "", "/cluster/replication", 10 * MINUTE, first=True),
)


def _of_node(node: str, *, replicated: bool) -> Iterator[FactQuery]:
    base = f"/nodes/{node}"
    yield FactQuery("time", node, f"{base}/time", 5 * MINUTE, clock, first=True)
    yield FactQuery("lvmthin", node, f"{base}/disks/lvmthin", 15 * MINUTE, first=True)
    yield FactQuery("zfs", node, f"{base}/disks/zfs", 30 * MINUTE, first=True)
    yield FactQuery("disks", node, f"{base}/disks/list", 6 * HOUR, disks, first=True)
    yield FactQuery("updates", node, f"{base}/apt/update", 6 * HOUR, updates, first=True)
    yield FactQuery("certificates", node, f"{base}/certificates/info", 12 * HOUR, certificates, first=True)
    yield FactQuery("subscription", node, f"{base}/subscription", DAY, subscription, first=True)
    if replicated:
        yield FactQuery("replication", node, f"{base}/replication", 5 * MINUTE, first=True)


def _path(row: Resource) -> str:
    return f"/nodes/{row.node}/{row.type}/{row.vmid}"


def _held_backups(view: View) -> set[str]:
    """The facts about the backups on every storage, also on those that are not available now."""
    return {f"backups {storage}@{where}" for storage, where in _backup_places(view, only_available=False)}


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
