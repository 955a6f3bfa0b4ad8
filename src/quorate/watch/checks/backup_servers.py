"""Proxmox Backup Servers: do they answer, have they room, are backups verified, do jobs and garbage collection run?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from quorate.config.watch import WatchSettings
from quorate.hints import tools
from quorate.homelab.homelab import Homelab
from quorate.pbs import BackupServers
from quorate.pbs.server import Backup, BackupServer
from quorate.problems import Problem, TimedOut, Unreachable
from quorate.pve.cluster import Cluster
from quorate.pve.tasks import gather_bounded
from quorate.tools.backup_storages import EncryptedBackup, lost_keys, read_backup_storages, unpruned_storages
from quorate.tools.health_findings import Finding, Severity
from quorate.tools.pbs import DAY, ServerState, last_collection, read_server
from quorate.tools.pbs_jobs import list_jobs
from quorate.units import count_of, duration
from quorate.watch.checks import observe, to_observation
from quorate.watch.finding_store import Observation

AT_ONCE = 4
PERIOD = 10 * 60.0
LOOK_SECONDS = 60.0
MISSED = 2
"""Cycles in a row without an answer before that is a finding."""
CRITICAL_PERCENT = 95
UNVERIFIED_DAYS = 30
FIRST_DAYS = 7
"""Days that a new backup has until its first verification."""
GC_DAYS = 14
LATE_SECONDS = 3600.0
NAMED = 8


@dataclass(slots=True)
class WatchedServer:
    """What was last read of one server."""

    at: float = float("-inf")
    missed: int = 0
    problem: str = ""
    """Why it could not be read."""
    answers: bool = True
    status: ServerState | None = None
    jobs: Sequence[tuple[str, Mapping[str, Any]]] = ()
    stores: frozenset[str] = frozenset()
    backups: Sequence[Backup] = ()
    storages: dict[str, list[Finding]] = field(default_factory=dict)
    """What is wrong with the storages on this server, by cluster: as it was last, where one does not answer."""
    not_read: Mapping[str, str] = field(default_factory=dict)
    """Why the backups of a datastore or namespace could not be read, by its place."""

    def has_read(self, place: str) -> bool:
        """Whether the backups of a place, with its namespaces, could be read."""
        return not any(place == each or place.startswith(f"{each}/") for each in self.not_read)


@dataclass(slots=True)
class BackupServerFacts:
    homelab: Homelab
    states: dict[str, WatchedServer] = field(default_factory=dict)

    async def read(self) -> None:
        """Read each server every ten minutes, and one that failed in every cycle."""
        now = self.homelab.clock.time()
        servers = {server.name: server for server in self.homelab.backup_servers}
        self.states = {name: self.states.get(name, WatchedServer()) for name in servers}
        due = [name for name, state in self.states.items() if state.problem or now - state.at >= PERIOD]
        await gather_bounded(AT_ONCE, [partial(self._read, servers[name], self.states[name]) for name in due])

    async def _read(self, server: BackupServer, state: WatchedServer) -> None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                status, (jobs, stores), found = await asyncio.gather(
                    read_server(server), list_jobs(server), server.find_backups()
                )
        except (Problem, TimeoutError) as problem:
            state.missed += 1
            state.answers = not isinstance(problem, (Unreachable, TimedOut, TimeoutError))
            state.problem = problem.what if isinstance(problem, Problem) else f"no answer within {LOOK_SECONDS:g} s"
            return
        state.at, state.missed, state.problem, state.answers = self.homelab.clock.time(), 0, "", True
        state.status, state.jobs, state.stores, state.backups = status, jobs, frozenset(stores), found.backups
        state.not_read = {place: problem.what for place, problem in found.not_read.items()}
        for cluster in self.homelab.every_cluster:
            with suppress(Problem, TimeoutError):  # a cluster that does not answer is a finding of its own
                async with asyncio.timeout(LOOK_SECONDS):
                    state.storages[cluster.name] = await _check_storages(cluster, server, state.backups)


def judge(states: Mapping[str, WatchedServer], settings: WatchSettings, now: float) -> Iterator[Observation]:
    for name, state in sorted(states.items()):
        source, show = f"pbs {name}", tools.pbs_status(server=name)
        if state.problem:
            if not state.answers and state.missed >= MISSED:
                what = f"Backup server {name} does not answer: {state.problem}"
                yield observe("pbs-unreachable", source, "critical", what, show, "")
            elif state.missed >= MISSED:
                what = f"Could not read backup server {name}: {state.problem}"
                yield observe("unchecked", source, "unchecked", what, show, source)
        if state.status is None:
            continue
        yield from _judge_space(name, state.status, settings, now)
        yield from _judge_collections(name, state.status, now)
        for place, why in sorted(state.not_read.items()):
            what = f"Could not read the backups in {place}: {why}"
            yield observe("unchecked", f"pbs {place}", "unchecked", what, show, source)
        yield from _judge_backups(state.backups, settings, now)
        yield from _judge_jobs(name, state, now)
        for cluster, findings in sorted(state.storages.items()):
            for finding in findings:
                what = f"{finding.what} (cluster {cluster})" if len(state.storages) > 1 else finding.what
                yield to_observation(replace(finding, what=what), source)


async def _check_storages(cluster: Cluster, server: BackupServer, backups: Sequence[Backup]) -> list[Finding]:
    """Which backups of its guests a cluster cannot read here, and which of its storages never remove any."""
    servers = cluster.attachment(BackupServers)
    storages = [row for row in await read_backup_storages(cluster) if servers.find(row) is server]
    showing: dict[tuple[str, str], set[str]] = {}
    for row in storages:
        place = (str(row.get("datastore") or ""), str(row.get("namespace") or ""))
        showing.setdefault(place, set()).add(str(row["storage"]))
    guests = {row.vmid for row in await cluster.inventory.guests()} if storages else set()
    encrypted = [
        EncryptedBackup(backup.group.vmid, frozenset(names), backup.key)
        for backup in backups
        if backup.crypt_mode == "encrypt"
        and backup.group.vmid in guests
        and (names := showing.get((backup.place.store, backup.place.namespace)))
    ]
    stores = {f"storage {row['storage']}": f"pbs {server.name}/{row.get('datastore')}" for row in storages}
    findings = [*lost_keys(storages, encrypted), *await unpruned_storages(cluster, storages, server)]
    return [
        replace(each, target=f"{stores[each.target]}:{cluster.name} {each.target}") for each in findings if each.target
    ]


def covers(states: Mapping[str, WatchedServer], source: str) -> bool:
    """Whether a server, or a datastore or namespace of it, was read after its last failure, or is not configured."""
    place = source.removeprefix("pbs ")
    state = states.get(place.partition("/")[0])
    return state is None or (not state.problem and state.status is not None and state.has_read(place))


def _judge_space(name: str, status: ServerState, settings: WatchSettings, now: float) -> Iterator[Observation]:
    source = f"pbs {name}"
    for store in status.stores:
        place = f"{name}/{store['store']}"
        usage, show = status.usage.get(str(store["store"]), {}), tools.pbs_status(server=name)
        if error := usage.get("error"):
            what = f"Datastore {place} is not available: {error}"
            yield observe("storage-away", f"pbs {place}", "warning", what, show, source)
        total, used = int(usage.get("total") or 0), int(usage.get("used") or 0)
        share = round(100 * used / total) if total else 0
        if share >= settings.storage_percent:
            severity: Severity = "critical" if share >= CRITICAL_PERCENT else "warning"
            what = f"Datastore {place} is {share}% full"
            yield observe("storage-full", f"pbs {place}", severity, what, show, source)
        full_at = usage.get("estimated-full-date")
        if full_at and now < full_at <= now + settings.storage_days * DAY:
            what = f"Datastore {place} will be full in {duration(full_at - now)}"
            yield observe("storage-filling", f"pbs {place}", "warning", what, show, source)


def _judge_collections(name: str, status: ServerState, now: float) -> Iterator[Observation]:
    for store, gc in sorted(status.gc.items()):
        if gc.get("error"):
            continue  # its space or its backups cannot be read either, which is a finding
        place, next_call = f"{name}/{store}", tools.pbs_gc(datastore=store, server=name)
        state, last = str(gc.get("last-run-state") or "OK"), gc.get("last-run-endtime") or last_collection(gc)
        what = ""
        if state != "OK" and not state.startswith("WARNINGS"):
            what = f"Garbage collection of {place} failed: {state}"
        elif gc.get("still-bad"):
            what = f"Garbage collection of {place} found {count_of(int(gc['still-bad']), 'bad chunk')}"
        elif last is not None and now - last > GC_DAYS * DAY:
            what = f"The garbage of {place} was last collected {duration(now - last)} ago"
        elif last is None and not gc.get("schedule"):
            what = f"The garbage of {place} was never collected, and no schedule does it"
        if what:
            yield observe("pbs-gc-late", f"pbs {place}", "warning", what, next_call, f"pbs {name}")


def _judge_backups(backups: Sequence[Backup], settings: WatchSettings, now: float) -> Iterator[Observation]:
    for place in sorted({str(backup.place) for backup in backups}):
        source = f"pbs {place}"
        here = [backup for backup in backups if str(backup.place) == place]
        newest: dict[str, Backup] = {}
        for backup in here:  # newest first
            newest.setdefault(backup.group.name, backup)
        arguments = {
            "server": here[0].place.server,
            "datastore": here[0].place.store,
            "namespace": here[0].place.namespace,
        }
        if damaged := [backup for backup in here if backup.verified == "failed"]:
            what = f"{count_of(len(damaged), 'backup')} in {place} failed verification: {_name_guests(damaged)}"
            call = tools.pbs_backup_list(only="failed", **arguments)
            subjects = _subjects(damaged)
            yield observe("backup-damaged", f"pbs {place}", "critical", what, call, source, subjects=subjects)
        unproven = [group for group in newest if _is_unproven([each for each in here if each.group.name == group], now)]
        if unproven:
            affected = [newest[group] for group in unproven]
            what = f"No backup of {_name_guests(affected)} in {place} was verified within {UNVERIFIED_DAYS} days"
            call = tools.pbs_verify(again_after=UNVERIFIED_DAYS, **arguments)
            subjects = _subjects(affected)
            yield observe("backup-unproven", f"pbs {place}", "warning", what, call, source, subjects=subjects)
        old = [
            backup
            for backup in newest.values()
            if backup.group.type == "host" and now - backup.time > settings.backup_days * DAY
        ]
        if old:  # the clusters' own checks are about guests
            what = f"The newest backup of {_name_guests(old)} in {place} is older than {settings.backup_days} days"
            call = tools.pbs_backup_list(only="stale", days=settings.backup_days, **arguments)
            yield observe("backup-old", f"pbs {place}", "warning", what, call, source, subjects=_subjects(old))


def _is_unproven(group: Sequence[Backup], now: float) -> bool:
    """Whether none of a group was verified lately, although there was time to."""
    finished = [backup for backup in group if not backup.running]
    if not finished or now - min(backup.time for backup in finished) < FIRST_DAYS * DAY:
        return False
    times = [backup.verified_at or 0 for backup in finished if backup.verified == "ok"]
    return not times or now - max(times) > UNVERIFIED_DAYS * DAY


def _judge_jobs(name: str, state: WatchedServer, now: float) -> Iterator[Observation]:
    for kind, job in state.jobs:
        if kind == "gc" or job.get("disable"):
            continue
        due, ended = job.get("next-run"), str(job.get("last-run-state") or "OK")
        label = f"The {kind} job {job['id']} of {name}"
        what = ""
        if job["store"] not in state.stores:
            what = f"{label} is for the datastore {job['store']}, which does not exist"
        elif ended != "OK" and not ended.startswith("WARNINGS"):
            what = f"{label} failed: {ended}"
        elif due and now - due > LATE_SECONDS:
            what = f"{label} is {duration(now - due)} late"
        if what:
            call = tools.pbs_job_list(server=name, kind=kind)
            yield observe(
                "pbs-job-failing", f"pbs {name}/{job['store']}:{job['id']}", "warning", what, call, f"pbs {name}"
            )


def _name_guests(backups: Sequence[Backup]) -> str:
    names = list(dict.fromkeys(_subject(backup) for backup in backups))
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _subjects(backups: Sequence[Backup]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_subject(backup) for backup in backups))


def _subject(backup: Backup) -> str:
    return f"guest {backup.group.vmid}" if backup.group.vmid is not None else f"host {backup.group.id}"
