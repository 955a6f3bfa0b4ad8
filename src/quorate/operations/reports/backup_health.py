"""Guests without usable backups, and guests with old snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from quorate.hints import (
    BACKUP_COVERAGE,
    BACKUP_CREATE,
    BACKUP_LIST,
    GUEST_LIST,
    NODE_GET,
    PERMISSION_AUDIT,
    SNAPSHOT_LIST,
)
from quorate.operations.hidden_backups import describe_hidden_backups, hidden_guests, storage_visibility
from quorate.operations.reports.findings import Finding, count_of, explained_finding, names, pve_time, read_in_time
from quorate.operations.reports.node_health import DAY
from quorate.operations.units import duration
from quorate.problems import Problem
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.inventory import Resource
from quorate.pve.tasks import gather_bounded

READS_AT_ONCE = 8
GUESTS_READ = 500
"""How many guests are asked for their snapshots: each is a request of its own."""


async def backups(pve: Cluster, rows: list[Resource], days: int) -> list[Finding]:
    guests = sorted((row for row in rows if row.is_guest and not row.template), key=lambda row: row.vmid)
    if not guests:
        return []
    found = await _without_job(pve, guests)
    seen = await _survey_backups(pve, rows)
    found += seen.trouble
    if seen.trouble and not seen.places:
        return found
    unseen = [row for row in guests if row.vmid not in seen.newest]
    hidden = await hidden_guests(pve, (row.vmid for row in unseen)) if seen.by_guest else []
    found += _hidden_findings(describe_hidden_backups(guests=hidden))
    as_far = " (as far as could be checked)" if seen.trouble else ""
    visible = [row for row in guests if row.vmid not in hidden]
    return found + missing_or_old(visible, seen.newest, pve_time(pve), days, as_far)


def missing_or_old(
    guests: list[Resource], newest: Mapping[int, float], now: float, days: int, as_far: str = ""
) -> list[Finding]:
    """By the time of the newest backup of each guest that has one."""
    found = []
    if without := [row for row in guests if row.vmid not in newest]:
        what = f"{count_of(len(without), 'guest has', 'guests have')} no backup{as_far}: {names(map(_name, without))}"
        next_call = BACKUP_CREATE(guest=without[0].vmid)
        found.append(Finding("warning", "backups", what, next_call, "backup-missing", subjects=_subjects(without)))
    ages = {row.vmid: now - newest[row.vmid] for row in guests if row.vmid in newest}
    if old := [row for row in guests if ages.get(row.vmid, 0) > days * DAY]:
        listed = names(f"{_name(row)} ({duration(ages[row.vmid])})" for row in old)
        what = (
            f"The newest backup of {count_of(len(old), 'guest', 'guests')} is older than {days} days{as_far}: {listed}"
        )
        next_call = BACKUP_LIST(guest=old[0].vmid)
        found.append(Finding("warning", "backups", what, next_call, "backup-old", subjects=_subjects(old)))
    return found


def _subjects(rows: list[Resource]) -> tuple[str, ...]:
    return tuple(f"guest {row.vmid}" for row in rows)


def _hidden_findings(said: list[str]) -> list[Finding]:
    return [Finding("unchecked", "backups", what, PERMISSION_AUDIT) for what in said]


async def _without_job(pve: Cluster, guests: list[Resource]) -> list[Finding]:
    next_call = BACKUP_COVERAGE
    try:
        listed = await pve.get("/cluster/backup-info/not-backed-up")
    except Problem as problem:
        return [await explained_finding(pve, "backups", problem, next_call, " which guests no backup job covers")]
    return without_job(guests, listed)


def without_job(guests: list[Resource], listed: list[dict[str, Any]]) -> list[Finding]:
    """From `/cluster/backup-info/not-backed-up`."""
    known = {row.vmid: row for row in guests}
    bare = [known[int(row["vmid"])] for row in listed if int(row["vmid"]) in known]
    if not bare:
        return []
    what = f"No backup job covers {count_of(len(bare), 'guest', 'guests')}: {names(map(_name, bare))}"
    return [Finding("warning", "backups", what, BACKUP_COVERAGE, "backup-uncovered", subjects=_subjects(bare))]


@dataclass(slots=True)
class _BackupSurvey:
    """Backups on the storages that these credentials may read."""

    newest: dict[int, float] = field(default_factory=dict)
    places: int = 0
    by_guest: bool = False
    """Whether PVE shows, on some storage, only backups of guests that these credentials may back up."""
    trouble: list[Finding] = field(default_factory=list)


async def _survey_backups(pve: Cluster, rows: list[Resource]) -> _BackupSurvey:
    places: dict[tuple[str, str], Resource] = {}
    for row in rows:
        if row.type == "storage" and row.status == "available" and "backup" in row.content.split(","):
            places.setdefault((row.storage, "" if row.shared else row.node), row)
    visibility = await storage_visibility(pve, (row.storage for row in places.values()))
    seen = _BackupSurvey(
        by_guest=visibility.by_guest, trouble=_hidden_findings(describe_hidden_backups(visibility.hidden))
    )
    readable = [row for row in places.values() if row.storage not in visibility.hidden]
    answers = await gather_bounded(READS_AT_ONCE, [partial(_read_backups, pve, row) for row in readable])
    for row, answer in zip(readable, answers, strict=True):
        if isinstance(answer, Problem):
            where = f" at storage {row.storage} on {row.node}"
            seen.trouble.append(await explained_finding(pve, "backups", answer, NODE_GET(node=row.node), where))
            continue
        seen.places += 1
        for volume in answer:
            vmid = int(volume.get("vmid") or 0)
            seen.newest[vmid] = max(seen.newest.get(vmid, 0.0), float(volume.get("ctime") or 0))
    return seen


async def _read_backups(pve: Cluster, row: Resource) -> Any:
    try:
        return await read_in_time(pve.get(f"/nodes/{row.node}/storage/{row.storage}/content", content="backup"))
    except Problem as problem:
        return problem


async def old_snapshots(pve: Cluster, rows: list[Resource], days: int) -> list[Finding]:
    online = {row.node for row in rows if row.type == "node" and row.status == "online"}
    guests = sorted((row for row in rows if row.is_guest and row.node in online), key=lambda row: row.vmid)

    async def read(row: Resource) -> Any:
        try:
            return await read_in_time(Guest(pve, row).get("snapshot"))
        except Problem as problem:
            return problem

    asked = guests[:GUESTS_READ]
    answers = await gather_bounded(READS_AT_ONCE, [partial(read, row) for row in asked])
    now = pve_time(pve)
    found: list[Finding] = []
    failed: list[tuple[Resource, Problem]] = []
    for row, answer in zip(asked, answers, strict=True):
        if isinstance(answer, Problem):
            failed.append((row, answer))
            continue
        found += old_snapshots_of(row, answer, now, days)
    if failed:
        row, problem = failed[0]
        where = f" at the snapshots of {count_of(len(failed), 'guest', 'guests')}"
        found.append(await explained_finding(pve, "snapshots", problem, SNAPSHOT_LIST(guest=row.vmid), where))
    if len(guests) > len(asked):
        what = f"Snapshots of {len(guests) - len(asked)} guests were not checked; there are too many"
        found.append(Finding("unchecked", "snapshots", what, GUEST_LIST))
    return found


def old_snapshots_of(row: Resource, snapshots: list[dict[str, Any]], now: float, days: int) -> list[Finding]:
    old = [
        (now - float(each["snaptime"]), str(each["name"]))
        for each in snapshots
        if each.get("name") != "current" and each.get("snaptime") and now - float(each["snaptime"]) >= days * DAY
    ]
    if not old:
        return []
    listed = names(f"{name} ({duration(age)})" for age, name in sorted(old, reverse=True))
    what = f"{_name(row)} has {count_of(len(old), 'snapshot', 'snapshots')} of {days} days or more: {listed}"
    return [Finding("info", "snapshots", what, SNAPSHOT_LIST(guest=row.vmid), "snapshot-old", f"guest {row.vmid}")]


def _name(row: Resource) -> str:
    return f"{row.vmid} {row.name}".strip()
