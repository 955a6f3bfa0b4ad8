"""Which guests could not be brought back, and which carry snapshots that have grown old."""

from __future__ import annotations

from functools import partial
from typing import Any

from quorate.operations.findings import Finding, counted, names, time_there, unchecked
from quorate.operations.node_health import DAY
from quorate.operations.units import duration
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.errors import Problem
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
    newest, blind = await _newest_backups(pve, rows)
    found += blind
    hidden = [row for row in guests if row.vmid not in newest and not await pve.may(f"/vms/{row.vmid}", "VM.Backup")]
    if hidden and not newest:
        what = "Backups are not shown to us: that needs VM.Backup on the guests and Datastore.AllocateSpace on storages"
        return [*found, Finding("unchecked", "backups", what, "permission_audit")]
    without = [row for row in guests if row.vmid not in newest and row not in hidden]
    as_far = " (as far as could be looked)" if blind or hidden else ""
    if without:
        what = f"{counted(len(without), 'guest has', 'guests have')} no backup{as_far}: {names(map(_name, without))}"
        found.append(Finding("warning", "backups", what, f"backup_create guest={without[0].vmid}"))
    now = time_there(pve)
    old = [row for row in guests if row.vmid in newest and now - newest[row.vmid] > days * DAY]
    if old:
        told = names(f"{_name(row)} ({duration(now - newest[row.vmid])})" for row in old)
        what = f"The newest backup of {counted(len(old), 'guest', 'guests')} is older than {days} days{as_far}: {told}"
        found.append(Finding("warning", "backups", what, f"backup_list guest={old[0].vmid}"))
    return found


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


async def _newest_backups(pve: Cluster, rows: list[Resource]) -> tuple[dict[int, float], list[Finding]]:
    """The time of every guest's newest backup, and which storages could not be read."""
    places: dict[tuple[str, str], Resource] = {}
    for row in rows:
        if row.type == "storage" and row.status == "available" and "backup" in row.content.split(","):
            places.setdefault((row.storage, "" if row.shared else row.node), row)

    async def read(row: Resource) -> Any:
        try:
            return await pve.get(f"/nodes/{row.node}/storage/{row.storage}/content", content="backup")
        except Problem as problem:
            return problem

    answers = await gather_bounded(READS_AT_ONCE, [partial(read, row) for row in places.values()])
    newest: dict[int, float] = {}
    blind: list[Finding] = []
    for row, answer in zip(places.values(), answers, strict=True):
        if isinstance(answer, Problem):
            blind.append(
                unchecked("backups", answer, f"node_get node={row.node}", f" at storage {row.storage} on {row.node}")
            )
            continue
        for volume in answer:
            vmid = int(volume.get("vmid") or 0)
            newest[vmid] = max(newest.get(vmid, 0.0), float(volume.get("ctime") or 0))
    return newest, blind


async def old_snapshots(pve: Cluster, rows: list[Resource], days: int) -> list[Finding]:
    online = {row.node for row in rows if row.type == "node" and row.status == "online"}
    guests = sorted((row for row in rows if row.is_guest and row.node in online), key=lambda row: row.vmid)

    async def read(row: Resource) -> Any:
        try:
            return await Guest(pve, row).get("snapshot")
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
        found.append(Finding("unchecked", "snapshots", what, "snapshot_list"))
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
