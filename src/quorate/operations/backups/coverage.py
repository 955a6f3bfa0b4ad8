"""Which guests are backed up, and which are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from quorate.operations import stored_volumes
from quorate.operations.backup_proofs import last_proofs
from quorate.operations.backups.jobs import guests_of, is_enabled, read_jobs
from quorate.operations.hidden_backups import describe_hidden_backups, hidden_guests, storage_visibility
from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.stored_volumes import StoredVolume
from quorate.operations.units import duration
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource

COLUMNS = ("vmid", "name", "type", "node", "jobs", "backups", "newest", "where", "verified", "proved", "trouble")
DAY = 86400


@dataclass(frozen=True, slots=True)
class Coverage:
    """One guest, the enabled jobs that cover it, and its backups, newest first."""

    guest: Resource
    jobs: tuple[str, ...]
    backups: tuple[StoredVolume, ...]
    looked_everywhere: bool
    """Whether every storage could be read and hides no backups of it, so that what was not found is not there."""

    def trouble(self, now: float, days: float) -> str:
        said = [] if self.jobs else ["no job"]
        if not self.backups:
            said.append("no backup" if self.looked_everywhere else "no backup seen")
        elif now - self.backups[0].ctime > days * DAY:
            said.append("old backup")
        return ", ".join(said)


async def coverage(pve: Cluster) -> tuple[list[Coverage], list[str], list[str]]:
    """Every guest with its jobs and backups, the storages that could not be read, and which backups are hidden."""
    guests = sorted(await pve.inventory.guests(), key=lambda row: row.vmid)
    covered: dict[int, list[str]] = {}
    for job in await read_jobs(pve):
        for row in guests_of(job, guests) if is_enabled(job) else ():
            covered.setdefault(row.vmid, []).append(str(job["id"]))
    volumes, trouble = await stored_volumes.survey(pve, content="backup")
    held: dict[int, list[StoredVolume]] = {}
    for volume in sorted(volumes, key=lambda volume: -volume.ctime):
        held.setdefault(volume.vmid or 0, []).append(volume)
    places = await stored_volumes.places(pve, content=["backup"])
    visibility = await storage_visibility(pve, (place.storage for place in places))
    unseen = (row.vmid for row in guests if row.vmid not in held)
    hidden = await hidden_guests(pve, unseen) if visibility.by_guest else []
    rows = [
        Coverage(
            row,
            tuple(covered.get(row.vmid, ())),
            tuple(one for one in held.get(row.vmid, ()) if one.is_container == (row.kind == "ct")),
            looked_everywhere=not trouble and not visibility.hidden and row.vmid not in hidden,
        )
        for row in guests
    ]
    return rows, trouble, describe_hidden_backups(visibility.hidden, hidden)


@operation(
    risk=Risk.READ,
    search_words=(
        "guest recent check verify not backed up unprotected missing without forgotten stale last data safe copies"
        " everything covered machines"
    ),
)
async def backup_coverage(
    pve: Cluster,
    max_days: Annotated[float, Meta(gt=0)] = 7,
    all: Annotated[bool, Meta(description="Also those that are fine")] = False,
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Guests that no enabled backup job covers, or without a recent backup; and when a restore last proved one."""
    rows, trouble, hidden = await coverage(pve)
    now = pve.clock.time()
    shown = [row for row in rows if all or row.trouble(now, max_days)]
    proofs = await last_proofs(pve)
    table = page(COLUMNS, (_row(row, now, max_days, proofs) for row in shown), limit=limit, offset=offset)
    unsure = sum(not row.backups and not row.looked_everywhere for row in rows)
    table.facts = {
        "guests": len(rows),
        "without_job": sum(not row.jobs for row in rows),
        "without_backup": sum(not row.backups and row.looked_everywhere for row in rows),
        **({"no_backup_seen": unsure} if unsure else {}),
        "never_proven": sum(row.guest.vmid not in proofs for row in rows),
        "in_trouble": sum(bool(row.trouble(now, max_days)) for row in rows),
        **({"not_read": trouble} if trouble else {}),
        **({"hidden": hidden} if hidden else {}),
    }
    if trouble:
        table.note = "a backup may be on a storage that could not be read: see not_read"
    return table


def _row(row: Coverage, now: float, days: float, proofs: Mapping[int, tuple[float, str]]) -> list[Any]:
    newest = row.backups[0] if row.backups else None
    proof = proofs.get(row.guest.vmid)
    return [
        row.guest.vmid,
        row.guest.name,
        row.guest.kind,
        row.guest.node,
        ",".join(row.jobs),
        len(row.backups) or "",
        duration(max(0.0, now - newest.ctime)) if newest else "",
        newest.storage if newest else "",
        newest.verified if newest else "",
        f"{duration(max(0.0, now - proof[0]))} ago" if proof else "",
        row.trouble(now, days),
    ]
