"""Which guests could not be brought back, and which carry snapshots that have grown old."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from quorate.operations.reports.findings import Finding, counted, names, patient, time_there, unchecked
from quorate.operations.reports.node_health import DAY
from quorate.operations.units import duration
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.errors import Problem
from quorate.pve.inventory import Resource
from quorate.pve.tasks import gather_bounded

READS_AT_ONCE = 8
REFUSALS_ASKED = 20
GUESTS_READ = 500
"""How many guests are asked for their snapshots: each is a request of its own."""


async def backups(pve: Cluster, rows: list[Resource], days: int) -> list[Finding]:
    guests = sorted((row for row in rows if row.is_guest and not row.template), key=lambda row: row.vmid)
    if not guests:
        return []
    found = await _without_job(pve, guests)
    seen = await _look(pve, rows)
    found += seen.trouble
    if seen.trouble and not seen.places:
        return found
    unseen = [row for row in guests if row.vmid not in seen.newest]
    hidden = [] if seen.everything else await _hidden(pve, unseen)
    if hidden:
        what = f"Backups of {counted(len(hidden), 'guest', 'guests')} are not shown to us: that needs VM.Backup on /vms"
        found.append(Finding("unchecked", "backups", what, "permission_audit"))
    as_far = " (as far as could be looked)" if seen.trouble else ""
    if without := [row for row in unseen if row not in hidden]:
        what = f"{counted(len(without), 'guest has', 'guests have')} no backup{as_far}: {names(map(_name, without))}"
        found.append(Finding("warning", "backups", what, f"backup_create guest={without[0].vmid}"))
    now = time_there(pve)
    ages = {row.vmid: now - seen.newest[row.vmid] for row in guests if row.vmid in seen.newest}
    if old := [row for row in guests if ages.get(row.vmid, 0) > days * DAY]:
        told = names(f"{_name(row)} ({duration(ages[row.vmid])})" for row in old)
        what = f"The newest backup of {counted(len(old), 'guest', 'guests')} is older than {days} days{as_far}: {told}"
        found.append(Finding("warning", "backups", what, f"backup_list guest={old[0].vmid}"))
    return found


async def _hidden(pve: Cluster, guests: list[Resource]) -> list[Resource]:
    """Guests whose backups PVE leaves out of its lists for us; every refusal costs a request, so not all are asked."""
    hidden: list[Resource] = []
    for row in guests:
        if len(hidden) >= REFUSALS_ASKED or not await pve.may(f"/vms/{row.vmid}", "VM.Backup"):
            hidden.append(row)
    return hidden


async def _without_job(pve: Cluster, guests: list[Resource]) -> list[Finding]:
    next_call = "backup_coverage"
    try:
        listed = await pve.get("/cluster/backup-info/not-backed-up")
    except Problem as problem:
        return [unchecked("backups", problem, next_call, " which guests no backup job covers")]
    known = {row.vmid: row for row in guests}
    bare = [known[int(row["vmid"])] for row in listed if int(row["vmid"]) in known]
    if not bare:
        return []
    what = f"No backup job covers {counted(len(bare), 'guest', 'guests')}: {names(map(_name, bare))}"
    return [Finding("warning", "backups", what, next_call)]


@dataclass(slots=True)
class _Seen:
    """What the storages that we may read hold."""

    newest: dict[int, float] = field(default_factory=dict)
    places: int = 0
    everything: bool = True
    """Whether PVE shows us all backups there, not only those of guests that we may back up."""
    trouble: list[Finding] = field(default_factory=list)


async def _look(pve: Cluster, rows: list[Resource]) -> _Seen:
    places: dict[tuple[str, str], Resource] = {}
    for row in rows:
        if row.type == "storage" and row.status == "available" and "backup" in row.content.split(","):
            places.setdefault((row.storage, "" if row.shared else row.node), row)
    seen = _Seen()
    readable = [row for row in places.values() if await _may_see(pve, row.storage, seen)]
    answers = await gather_bounded(READS_AT_ONCE, [partial(_read_backups, pve, row) for row in readable])
    for row, answer in zip(readable, answers, strict=True):
        if isinstance(answer, Problem):
            where = f" at storage {row.storage} on {row.node}"
            seen.trouble.append(unchecked("backups", answer, f"node_get node={row.node}", where))
            continue
        seen.places += 1
        for volume in answer:
            vmid = int(volume.get("vmid") or 0)
            seen.newest[vmid] = max(seen.newest.get(vmid, 0.0), float(volume.get("ctime") or 0))
    return seen


async def _may_see(pve: Cluster, storage: str, seen: _Seen) -> bool:
    path = f"/storage/{storage}"
    if await pve.may(path, "Datastore.Allocate"):
        return True
    seen.everything = False
    if await pve.may(path, "Datastore.AllocateSpace"):
        return True
    what = f"Backups on {storage} are not shown to us: that needs Datastore.AllocateSpace on {path}"
    seen.trouble.append(Finding("unchecked", "backups", what, "permission_audit"))
    return False


async def _read_backups(pve: Cluster, row: Resource) -> Any:
    try:
        return await patient(pve.get(f"/nodes/{row.node}/storage/{row.storage}/content", content="backup"))
    except Problem as problem:
        return problem


async def old_snapshots(pve: Cluster, rows: list[Resource], days: int) -> list[Finding]:
    online = {row.node for row in rows if row.type == "node" and row.status == "online"}
    guests = sorted((row for row in rows if row.is_guest and row.node in online), key=lambda row: row.vmid)

    async def read(row: Resource) -> Any:
        try:
            return await patient(Guest(pve, row).get("snapshot"))
        except Problem as problem:
            return problem

    asked = guests[:GUESTS_READ]
    answers = await gather_bounded(READS_AT_ONCE, [partial(read, row) for row in asked])
    now = time_there(pve)
    found: list[Finding] = []
    failed: list[tuple[Resource, Problem]] = []
    for row, answer in zip(asked, answers, strict=True):
        if isinstance(answer, Problem):
            failed.append((row, answer))
            continue
        found += _old(row, answer, now, days)
    if failed:
        row, problem = failed[0]
        where = f" at the snapshots of {counted(len(failed), 'guest', 'guests')}"
        found.append(unchecked("snapshots", problem, f"snapshot_list guest={row.vmid}", where))
    if len(guests) > len(asked):
        what = f"Snapshots of {len(guests) - len(asked)} guests were not looked at; there are too many"
        found.append(Finding("unchecked", "snapshots", what, "guest_list"))
    return found


def _old(row: Resource, snapshots: list[dict[str, Any]], now: float, days: int) -> list[Finding]:
    old = [
        (now - float(each["snaptime"]), str(each["name"]))
        for each in snapshots
        if each.get("name") != "current" and each.get("snaptime") and now - float(each["snaptime"]) >= days * DAY
    ]
    if not old:
        return []
    told = names(f"{name} ({duration(age)})" for age, name in sorted(old, reverse=True))
    what = f"{_name(row)} has {counted(len(old), 'snapshot', 'snapshots')} of {days} days or more: {told}"
    return [Finding("info", "snapshots", what, f"snapshot_list guest={row.vmid}")]


def _name(row: Resource) -> str:
    return f"{row.vmid} {row.name}".strip()
