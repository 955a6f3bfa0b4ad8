"""Cleaning up storages: what belongs to nobody goes, in one plan with a reason for each volume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from quorate.hints import Advice, tools
from quorate.operations.plan import Call, Plan
from quorate.operations.preconditions import refuse_locked
from quorate.operations.registry import Neighbors, Risk, operation
from quorate.problems import PermissionMissing, Problem
from quorate.pve import values
from quorate.pve.cluster import Cluster
from quorate.tools.guest_options import Config, ConfigEdit, refuse_protected, write_config
from quorate.tools.storages import StoredVolume, age, require, survey
from quorate.tools.volume_references import find_vmids_elsewhere
from quorate.tools.volume_usage import DISKS, Usage, is_detached, read_usage
from quorate.tools.volumes import VOLUMES_AT_ONCE, StorageNames, names, plan_deletion, refuse_needed
from quorate.units import count_of, size

Kind = Literal["orphans", "detached", "deleted_guests"]
DAY = 86400
IN_THE_MAKING = 3600
"""Younger disks that nothing refers to may still be written by a task that these credentials cannot see."""


@dataclass(slots=True)
class _Cleanup:
    """What goes and what stays, each with its reason."""

    deletions: list[tuple[StoredVolume, str]] = field(default_factory=list)
    detached: dict[int, list[tuple[StoredVolume, str]]] = field(default_factory=dict)
    """By guest, its detached disks with their slots."""
    kept: list[str] = field(default_factory=list)

    def keep(self, volume: StoredVolume, why: str) -> None:
        self.kept.append(f"{volume} ({size(volume.size)}): {why}")

    @property
    def count(self) -> int:
        return len(self.deletions) + sum(map(len, self.detached.values()))


@operation(
    toolset="storage",
    risk=Risk.DESTROY,
    search_words="clean up free space orphaned leftover detached unused disks backups of deleted guests purge reclaim",
    example="storage=local-lvm what=orphans",
)
async def storage_cleanup(
    pve: Cluster,
    what: Annotated[
        list[Kind],
        Meta(description="orphans: disks nothing refers to; detached: unusedN; deleted_guests: their disks, backups"),
    ],
    storage: StorageNames | None = None,
    node: str | None = None,
    older_than: Annotated[int, Meta(ge=0, description="Days")] = 0,
    keep: Annotated[list[str] | None, Meta(description="Volumes or vmids to leave alone")] = None,
    *,
    neighbors: Neighbors,
) -> Plan:
    """Delete what belongs to nobody, as one plan: a reason for each volume, what is kept and why, and what it frees."""
    listed, trouble = await survey(pve, storages=names(storage), node=node)
    usage = await read_usage(pve, listed, "unused")
    cleanup = _Cleanup()
    now = pve.clock.time() + pve.client.clock_skew
    spared = set(keep or ())
    others = [cluster for cluster in neighbors if cluster.name != pve.name]
    elsewhere = await find_vmids_elsewhere(pve, {volume.storage for volume in listed if volume.shared}, others)
    busy = await _busy_vmids(pve)
    for volume in sorted(listed, key=lambda volume: (volume.storage, volume.node, volume.name)):
        if not (reason := _reason(volume, usage, what)):
            continue
        if {volume.volid, str(volume.vmid)} & spared:
            cleanup.keep(volume, "it was to be kept")
        elif older_than and now - volume.ctime < older_than * DAY:
            cleanup.keep(volume, f"it is {age(volume, now)} old" if volume.ctime else "its age is not known")
        elif why := _reason_to_wait(volume, usage, elsewhere, busy, now):
            cleanup.keep(volume, why)
        else:
            _choose(volume, reason, usage, cleanup)
    calls = [*await _plan_removals(pve, cleanup), *await _delete(pve, cleanup)]
    freed = [volume for volume, _ in cleanup.deletions]
    freed += [volume for disks in cleanup.detached.values() for volume, _ in disks]
    facts = {
        "frees": size(sum(volume.size for volume in freed)),
        **({"kept": cleanup.kept} if cleanup.kept else {}),
        **({"not_read": trouble} if trouble else {}),
        **usage.notes,
    }
    where = ", ".join(names(storage) or ()) or "the storages"
    if not calls:
        return Plan(f"Clean up {where}", unchanged=("Nothing there can be cleaned up",), facts=facts)
    summary = f"Clean up {where}: delete {count_of(cleanup.count, 'volume')} ({facts['frees']})"
    more = len(calls) - VOLUMES_AT_ONCE
    rest = Advice(f"{more} more calls are left. Repeat it", tools.storage_cleanup) if more > 0 else None
    return Plan(summary, tuple(calls[:VOLUMES_AT_ONCE]), facts=facts, independent=True, next_step=rest)


def _reason(volume: StoredVolume, usage: Usage, what: Sequence[Kind]) -> str:
    """Why the volume is a candidate; empty if it is not."""
    if "deleted_guests" in what and usage.owner_is_gone(volume) and volume.content in (*DISKS, "backup"):
        return f"guest {volume.vmid} does not exist"
    if "orphans" in what and usage.is_orphan(volume):
        return "nothing refers to it"
    if "detached" in what and volume.content in DISKS and any(map(is_detached, usage.of(volume))):
        return "it is detached"
    return ""


def _reason_to_wait(
    volume: StoredVolume,
    usage: Usage,
    elsewhere: Mapping[str, frozenset[int] | None],
    busy: Mapping[int, str],
    now: float,
) -> str:
    """Why the volume may be needed although no configuration of this cluster says so; empty if nothing hints at it."""
    if volume.shared and volume.storage in elsewhere:
        vmids = elsewhere[volume.storage]
        if vmids is None:
            return "another cluster may use this storage, and not all of its guests can be read"
        if volume.vmid in vmids:
            return f"another cluster uses this storage, and has a guest {volume.vmid}"
    if volume.vmid is not None and volume.vmid in busy:
        return busy[volume.vmid]
    if volume.content in DISKS and not usage.of(volume) and 0 < now - volume.ctime < IN_THE_MAKING:
        return f"it is only {age(volume, now)} old, and what makes it may not be done"
    return ""


async def _busy_vmids(pve: Cluster) -> dict[int, str]:
    """The guests that are locked or have a running task, with the reason to leave their volumes alone.

    A disk that is being moved, migrated or imported is in no configuration until that is done.
    """
    everything = pve.original
    tasks = await everything.get("/cluster/tasks")
    running = [row for row in tasks if not row.get("endtime") and str(row.get("id") or "").isdigit()]
    busy = {int(row["id"]): f"a task is running for guest {row['id']} ({row.get('type')})" for row in running}
    locked = [row for row in (await everything.inventory.view()).guests if row.lock]
    return busy | {row.vmid: f"guest {row.vmid} is locked ({row.lock})" for row in locked}


def _choose(volume: StoredVolume, reason: str, usage: Usage, cleanup: _Cleanup) -> None:
    references = usage.of(volume)
    slots = [reference for reference in references if is_detached(reference)]
    if volume.protected:
        cleanup.keep(volume, "it is protected")
    elif len(references) > len(slots) or len(slots) > 1:
        cleanup.keep(volume, f"{reason}, but it is used by {usage.used_by(volume)}")
    elif not slots:
        cleanup.deletions.append((volume, reason))
    elif volume.vmid is None or slots[0].vmid != volume.vmid or volume.vmid not in usage.guests:
        cleanup.keep(volume, f"it is named after guest {volume.vmid}, but detached from {usage.used_by(volume)}")
    else:
        cleanup.detached.setdefault(volume.vmid, []).append((volume, slots[0].where))


async def _plan_removals(pve: Cluster, cleanup: _Cleanup) -> list[Call]:
    """A call for each guest that destroys its detached disks; those that cannot be destroyed are kept."""
    calls = []
    for vmid, disks in list(cleanup.detached.items()):
        guest = await pve.guest(vmid)
        config: Config = await guest.get("config")
        try:
            await require(pve, f"destroy disks of {guest}", f"/vms/{vmid}", "VM.Config.Disk")
            refuse_locked(guest, config)
            refuse_protected(guest, config, "its disks")
        except Problem as problem:
            for volume, _ in cleanup.detached.pop(vmid):
                cleanup.keep(volume, problem.what)
            continue
        slots = [slot for volume, slot in disks if values.volume_of(str(config.get(slot, ""))) == volume.volid]
        named = ", ".join(f"{slot} {volume.volid} ({size(volume.size)})" for volume, slot in disks)
        summary = f"Destroy the detached disks of {guest}: {named}"
        calls.append(write_config(guest, config, summary, ConfigEdit(delete=slots), slow=True))
    return calls


async def _delete(pve: Cluster, cleanup: _Cleanup) -> list[Call]:
    calls = []
    for volume, reason in list(cleanup.deletions):
        try:
            await refuse_needed(pve, volume)
        except PermissionMissing as problem:
            cleanup.deletions.remove((volume, reason))
            cleanup.keep(volume, problem.what)
        else:
            calls.append(plan_deletion(volume, reason))
    return calls
