"""Backups: missing, old, failed, never proven, of an odd size; and tasks that keep failing."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator

from quorate.hints import BACKUP_LIST, RUN_RESTORE_DRILL, TASK_GET
from quorate.operations.reports.backup_health import missing_or_old, without_job
from quorate.operations.reports.findings import Finding, Severity, count_of, names
from quorate.operations.reports.node_health import DAY, failure_of
from quorate.operations.units import moment, size
from quorate.pve.inventory import Resource
from quorate.state.findings import Observation
from quorate.watch.checks import to_observation
from quorate.watch.facts import Snapshot
from quorate.watch.memory import FailedTask, Memory
from quorate.watch.reductions import BackupFile

REPEATS = 3
LEAST_HISTORY = 3
ODD_FACTOR = 2.0
ODD_BYTES = 1024**3
"""Differences below this are not worth a word."""
PROOF_DAYS = 7
"""A backup of this age that was neither verified nor restored by a drill counts as never proven."""
SOURCE = "backups"


def coverage(now: Snapshot) -> Iterator[Observation]:
    listed = now.value("uncovered")
    for finding in without_job(now.every_guest, listed) if listed else ():
        yield to_observation(finding, "uncovered")


def age(now: Snapshot, memory: Memory) -> Iterator[Observation]:
    files = _files(now)
    if files is None:
        return
    newest = {vmid: max(one.time for one in some) for vmid, some in files.items()}
    # A guest of today may wait for tonight's backup.
    covered = [row for row in now.every_guest if str(row.vmid) not in memory.appeared]
    for finding in missing_or_old(covered, newest, now.pve_time, now.settings.backup_days):
        yield to_observation(finding, SOURCE)


def proof(now: Snapshot) -> Iterator[Observation]:
    files = _files(now) or {}
    rows = {row.vmid: row for row in now.every_guest}
    unproven: list[Resource] = []
    broken: list[Resource] = []
    for vmid, some in sorted(files.items()):
        if vmid not in rows:
            continue
        if any(one.verified == "failed" for one in some):
            broken.append(rows[vmid])
        elif vmid in now.proved or any(one.verified for one in some):
            continue
        elif min(one.time for one in some) < now.pve_time - PROOF_DAYS * DAY:
            unproven.append(rows[vmid])
    if broken:
        whose = count_of(len(broken), "guest", "guests")
        what = f"Verification found damaged backups of {whose}: {names(map(_label, broken))}"
        next_call = BACKUP_LIST(guest=broken[0].vmid)
        subjects = tuple(f"guest {one.vmid}" for one in broken)
        yield to_observation(
            Finding("critical", "backups", what, next_call, "backup-unproven", "damaged", subjects), SOURCE
        )
    if unproven:
        whose = count_of(len(unproven), "guest", "guests")
        what = f"No backup of {whose} was ever verified, or restored by a drill: {names(map(_label, unproven))}"
        next_call = RUN_RESTORE_DRILL(guest=unproven[0].vmid, dry_run=True)
        subjects = tuple(f"guest {one.vmid}" for one in unproven)
        yield to_observation(Finding("info", "backups", what, next_call, "backup-unproven", "", subjects), SOURCE)


def _label(row: Resource) -> str:
    return f"{row.vmid} {row.name}"


def sizes(now: Snapshot) -> Iterator[Observation]:
    rows = {row.vmid: row for row in now.every_guest}
    for vmid, some in sorted((_files(now) or {}).items()):
        ordered = sorted(some, key=lambda one: one.time)
        if vmid not in rows or len(ordered) <= LEAST_HISTORY:
            continue
        usual, newest = statistics.median(one.size for one in ordered[:-1]), ordered[-1].size
        grown = newest > usual * ODD_FACTOR
        if abs(newest - usual) > ODD_BYTES and (grown or newest * ODD_FACTOR < usual):
            change = "much larger" if grown else "much smaller"
            sizes = f"{size(newest)}, not {size(usual)}"
            what = f"The newest backup of {vmid} {rows[vmid].name} is {change} than usual: {sizes}"
            found = Finding("warning", "backups", what, BACKUP_LIST(guest=vmid), "backup-odd", f"guest {vmid}")
            yield to_observation(found, SOURCE)


def _files(now: Snapshot) -> dict[int, list[BackupFile]] | None:
    """By guest, over all storages; None while a storage that holds backups was not read, since it might have them."""
    found: dict[int, list[BackupFile]] = defaultdict(list)
    if not now.backups_known:
        return None
    for _, looked in now.readings_of("backups"):
        for one in looked.value or ():
            found[one.vmid].append(one)
    return found


def failing(memory: Memory) -> Iterator[Observation]:
    """A failed backup at once, other tasks if they fail again and again; until one succeeds."""
    groups: dict[tuple[str, str, str], list[FailedTask]] = defaultdict(list)
    for one in memory.failures.values():
        if memory.done.get(f"{one.type} {one.id}", 0.0) < one.time:
            groups[one.node, one.type, one.id].append(one)
    for (node, task, of), failed in sorted(groups.items()):
        newest = max(failed, key=lambda one: one.time)
        if task == "vzdump":
            yield _failed_backup(node, of, newest)
        elif len(failed) >= REPEATS:
            rows = [{"upid": one.upid, "id": one.id, "starttime": one.time, "status": one.status} for one in failed]
            finding = failure_of(node, task, rows)
            target = f"{task} {of} on {node}".replace("  ", " ")
            about = Finding(finding.severity, "tasks", finding.what, finding.next_call, "task-failing", target)
            yield to_observation(about, "tasks")


def _failed_backup(node: str, id: str, task: FailedTask) -> Observation:
    of = f" of guest {id}" if id else ""
    severity: Severity = "warning"
    what = f"The backup{of} on {node} failed at {moment(task.time)}: {task.status[:120]}"
    target = f"guest {id}" if id else f"node {node}"
    return to_observation(
        Finding(severity, "backups", what, TASK_GET(task=task.upid), "backup-failed", target), "tasks", user=task.user
    )
