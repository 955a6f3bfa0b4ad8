"""Backups: missing, old, failed, never proven, of an odd size; and tasks that keep failing."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator

import msgspec

from quorate.hints import tools
from quorate.pve.inventory import Resource
from quorate.tools.backup_coverage import covering_jobs, excluding_jobs, incomplete, missing_or_old, without_job
from quorate.tools.health_findings import Severity, names
from quorate.tools.node_health import DAY, failure_of
from quorate.units import count_of, moment, size
from quorate.watch.checks import observe, to_observation
from quorate.watch.facts import BackupFile, GuestConfig, Snapshot
from quorate.watch.finding_store import Observation
from quorate.watch.memory import FailedTask, Memory

REPEATS = 3
LEAST_HISTORY = 3
ODD_FACTOR = 2.0
ODD_BYTES = 1024**3
"""Differences below this are not worth a word."""
PROOF_DAYS = 7
"""A backup of this age that was neither verified nor restored by a drill counts as never proven."""
SOURCE = "backups"


def coverage(snapshot: Snapshot) -> Iterator[Observation]:
    jobs = snapshot.value("jobs")
    if jobs is None:
        return
    covered, guests = covering_jobs(jobs, snapshot.every_guest), snapshot.every_guest
    uncovered = [row for row in guests if row.vmid not in covered and not row.is_unreported]
    for finding in without_job(uncovered, excluding_jobs(jobs, uncovered)):
        yield to_observation(finding, "jobs")


def contents(snapshot: Snapshot) -> Iterator[Observation]:
    for row in snapshot.guests:
        config: GuestConfig | None = snapshot.value(f"config {row.vmid}")
        for finding in incomplete([(row, config.excluded)]) if config is not None and config.excluded else ():
            observation = to_observation(finding, f"config {row.vmid}")
            yield msgspec.structs.replace(observation, target=f"guest {row.vmid}")


def age(snapshot: Snapshot, memory: Memory) -> Iterator[Observation]:
    files = _files(snapshot)
    if files is None:
        return
    newest = {vmid: max(file.time for file in own) for vmid, own in files.items()}
    # A guest of today may wait for tonight's backup.
    covered = [row for row in snapshot.every_guest if str(row.vmid) not in memory.appeared]
    for finding in missing_or_old(covered, newest, snapshot.pve_time, snapshot.settings.backup_days):
        yield to_observation(finding, SOURCE)


def proof(snapshot: Snapshot) -> Iterator[Observation]:
    files = _files(snapshot) or {}
    rows = {row.vmid: row for row in snapshot.every_guest}
    unproven: list[Resource] = []
    broken: list[Resource] = []
    for vmid, own in sorted(files.items()):
        if vmid not in rows:
            continue
        if any(file.verified == "failed" for file in own):
            broken.append(rows[vmid])
        elif vmid in snapshot.proved or any(file.verified for file in own):
            continue
        elif min(file.time for file in own) < snapshot.pve_time - PROOF_DAYS * DAY:
            unproven.append(rows[vmid])
    if broken:
        whose = count_of(len(broken), "guest", "guests")
        what = f"Verification found damaged backups of {whose}: {names(map(_label, broken))}"
        next_call = tools.backup_list(guest=broken[0].vmid)
        subjects = tuple(f"guest {file.vmid}" for file in broken)
        yield observe("backup-unproven", "damaged", "critical", what, next_call, SOURCE, subjects=subjects)
    if unproven:
        whose = count_of(len(unproven), "guest", "guests")
        what = f"No backup of {whose} was ever verified, or restored by a drill: {names(map(_label, unproven))}"
        next_call = tools.run_restore_drill(guest=unproven[0].vmid, dry_run=True)
        subjects = tuple(f"guest {file.vmid}" for file in unproven)
        yield observe("backup-unproven", "", "info", what, next_call, SOURCE, subjects=subjects)


def _label(row: Resource) -> str:
    return f"{row.vmid} {row.name}"


def sizes(snapshot: Snapshot) -> Iterator[Observation]:
    rows = {row.vmid: row for row in snapshot.every_guest}
    for vmid, own in sorted((_files(snapshot) or {}).items()):
        ordered = sorted(own, key=lambda file: file.time)
        if vmid not in rows or len(ordered) <= LEAST_HISTORY:
            continue
        usual, newest = statistics.median(file.size for file in ordered[:-1]), ordered[-1].size
        grown = newest > usual * ODD_FACTOR
        if abs(newest - usual) > ODD_BYTES and (grown or newest * ODD_FACTOR < usual):
            change = "much larger" if grown else "much smaller"
            sizes = f"{size(newest)}, not {size(usual)}"
            what = f"The newest backup of {vmid} {rows[vmid].name} is {change} than usual: {sizes}"
            yield observe("backup-odd", f"guest {vmid}", "warning", what, tools.backup_list(guest=vmid), SOURCE)


def _files(snapshot: Snapshot) -> dict[int, list[BackupFile]] | None:
    """The backups of each guest on all storages; None until every storage that holds backups was read."""
    files: dict[int, list[BackupFile]] = defaultdict(list)
    if not snapshot.backups_known:
        return None
    for _, reading in snapshot.readings_of("backups"):
        for file in reading.value or ():
            files[file.vmid].append(file)
    return files


def failing(memory: Memory) -> Iterator[Observation]:
    """A failed backup at once, other tasks if they fail again and again; until one succeeds."""
    groups: dict[tuple[str, str, str], list[FailedTask]] = defaultdict(list)
    for task in memory.failures.values():
        if memory.done.get(f"{task.type} {task.id}", 0.0) < task.time:
            groups[task.node, task.type, task.id].append(task)
    for (node, kind, of), failed in sorted(groups.items()):
        newest = max(failed, key=lambda task: task.time)
        if kind == "vzdump":
            yield _failed_backup(node, of, newest)
        elif len(failed) >= REPEATS:
            rows = [
                {"upid": task.upid, "id": task.id, "starttime": task.time, "status": task.status} for task in failed
            ]
            failure = failure_of(node, kind, rows)
            target = f"{kind} {of} on {node}".replace("  ", " ")
            yield observe("task-failing", target, failure.severity, failure.what, failure.next_call, "tasks")


def _failed_backup(node: str, id: str, task: FailedTask) -> Observation:
    of = f" of guest {id}" if id else ""
    severity: Severity = "warning"
    what = f"The backup{of} on {node} failed at {moment(task.time)}: {task.status[:120]}"
    target = f"guest {id}" if id else f"node {node}"
    return observe("backup-failed", target, severity, what, tools.task_get(task=task.upid), "tasks", user=task.user)
