"""Deleting guests with their disks."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import Advice, either, tools
from quorate.operations.plan import Call, Plan, guest_call
from quorate.operations.preconditions import AttachedVolume, data_volumes, refuse_locked, replication_jobs
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.problems import Problem
from quorate.pve.cluster import Cluster, Guest
from quorate.tools.guest_power import power_call, state_of


@operation(
    toolset="provision",
    risk=Risk.DESTROY,
    search_words="wipe gone completely scrap delete remove destroy vm container guest decommission",
    example="guest=test-vm dry_run=true",
)
async def guest_delete(
    pve: Cluster,
    guest: GuestRef,
    stop: Annotated[bool, Meta(description="Cut its power first if it runs")] = False,
    purge: Annotated[bool, Meta(description="Also from backup jobs, HA and replication")] = False,
    destroy_unreferenced_disks: Annotated[
        bool, Meta(description="Also disks with its vmid that it does not use")
    ] = False,
) -> Plan:
    """Delete a guest with its disks and snapshots. Its backups stay."""
    target = await pve.guest(guest)
    status, config = await asyncio.gather(target.get("status/current"), target.get("config"))
    refuse_locked(target, status, *(["suspended"] if target.is_vm else []))
    _refuse_protected(target, config)
    await _refuse_referenced(pve, target, status, purge=purge)
    await _refuse_used_template(pve, target, data_volumes(config))
    summary = f"Delete {target} on {target.row.node} with its disks"
    # Both are always sent: PVE's default for unreferenced disks has changed between versions.
    params: dict[str, Any] = {"purge": int(purge), "destroy-unreferenced-disks": int(destroy_unreferenced_disks)}
    delete = guest_call(target, "DELETE", "", summary, **params)
    return Plan(
        summary,
        (*await _stop_calls(target, stop=stop), delete),
        warnings=() if purge else (_KEPT_BY_JOBS,),
        next_step="Its backups stay on their storage",
    )


_KEPT_BY_JOBS = Advice("Backup jobs that name it keep its id").then(
    Advice("{purge} removes it from them", purge=True), "; "
)


async def _stop_calls(guest: Guest, *, stop: bool) -> list[Call]:
    """The power cut that must complete first, if the guest runs and that is requested."""
    state = await state_of(guest)
    if guest.row.template or state in ("stopped", "hibernated"):
        return []
    if not stop:
        guest.cluster.obstruct(
            f"{guest} is {state}, and only a stopped guest can be deleted",
            next_step=either(
                Advice("Shut it down first", tools.guest_power(guest=guest.vmid, action="shutdown")),
                Advice("give {stop} to cut its power", stop=True),
            ),
        )
        return []
    call = power_call(guest, "stop", state, {})
    return [] if call is None else [call]


def _refuse_protected(guest: Guest, config: dict[str, Any]) -> None:
    if config.get("protection"):
        guest.cluster.obstruct(
            f"{guest} is protected against deletion",
            why="Its option protection is on",
            next_step="This call does not change that. If you are sure, first turn it off on the node: "
            f"`{'qm' if guest.is_vm else 'pct'} set {guest.vmid} --protection 0`",
        )


async def _refuse_referenced(pve: Cluster, guest: Guest, status: dict[str, Any], *, purge: bool) -> None:
    """PVE keeps a guest that HA or replication still use, unless it is removed from them as well."""
    if purge:
        return
    if (status.get("ha") or {}).get("managed"):
        guest.cluster.obstruct(
            f"{guest} is under HA",
            next_step=Advice("Give {purge} to take it out of HA, replication and backup jobs as well", purge=True),
        )
    jobs = await replication_jobs(pve, guest)
    if jobs:
        guest.cluster.obstruct(
            f"{guest} is replicated by {', '.join(str(job.get('id')) for job in jobs)}",
            next_step=either("Remove the job first and let it clean up its target", Advice("give {purge}", purge=True)),
        )


async def _refuse_used_template(pve: Cluster, guest: Guest, disks: list[AttachedVolume]) -> None:
    """Refuse a template whose disks linked clones build on. PVE checks what these credentials cannot list."""
    if not guest.row.template:
        return
    users: set[int] = set()
    for storage in sorted({disk.storage for disk in disks}):
        try:
            listed = await pve.get(f"/nodes/{guest.row.node}/storage/{storage}/content")
        except Problem:
            continue
        bases = [disk.volid.rpartition("/")[2].rpartition(":")[2] for disk in disks if disk.storage == storage]
        users |= {
            int(row["vmid"])
            for row in listed
            if row.get("vmid") and int(row["vmid"]) != guest.vmid and any(base in _ancestry(row) for base in bases)
        }
    if users:
        guest.cluster.obstruct(
            f"{guest} is still in use: linked clones build on its disks",
            why=f"They belong to {', '.join(str(vmid) for vmid in sorted(users))}",
            next_step="Delete those first, or make their disks independent by moving them to another storage",
        )


def _ancestry(row: dict[str, Any]) -> str:
    """The part of a volume's row that names the disk it builds on: its parent, on file storages its own name."""
    return f"{row.get('parent') or ''} {str(row.get('volid')).rpartition('/')[0]}"
