"""What prevents a change to a guest, found before PVE is asked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from quorate.hints import GUEST_POWER, SNAPSHOT_CREATE, TASK_LIST, TASK_WAIT, Advice, ArgumentHint, Sentence
from quorate.operations.units import parse_size
from quorate.problems import BadArgument, Conflict, NotFound, PermissionMissing
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.inventory import Resource

_DRIVE_SIZE = re.compile(r"\d+(?:\.\d+)?[KMGT]?")


@dataclass(frozen=True, slots=True)
class AttachedVolume:
    """A volume in a guest's configuration, with its slot."""

    key: str
    volid: str
    size: int
    cdrom: bool
    shared: bool
    """Marked by the user as reachable from every node (shared=1)."""

    @property
    def storage(self) -> str:
        return self.volid.partition(":")[0]

    @property
    def on_storage(self) -> bool:
        return ":" in self.volid

    @property
    def is_cloudinit(self) -> bool:
        return "cloudinit" in self.volid

    def __str__(self) -> str:
        return f"{self.key} ({self.volid})"


def volumes(config: Mapping[str, Any]) -> list[AttachedVolume]:
    """Everything that the configuration attaches: disks, mount points, CD images; empty drives are left out."""
    found = []
    for key, value in sorted(config.items()):
        if values.bus_of(key) in values.DISKS:
            parts = values.parse(str(value), "volume")
            volid = parts.get("volume") or parts.get("file") or ""
            size = parts.get("size", "")
            if volid not in ("", "none", "cdrom"):
                found.append(
                    AttachedVolume(
                        key,
                        volid,
                        parse_size(size, unit="") if _DRIVE_SIZE.fullmatch(size) else 0,
                        parts.get("media") == "cdrom",
                        values.is_on(parts.get("shared", "0")),
                    )
                )
    return found


def data_volumes(config: Mapping[str, Any]) -> list[AttachedVolume]:
    """The volumes that the guest owns: no ISO images, nothing outside the storages."""
    return [one for one in volumes(config) if one.on_storage and (not one.cdrom or one.is_cloudinit)]


def refuse_locked(guest: Guest, status: Mapping[str, Any], *tolerated: str) -> None:
    """A lock in the configuration: a task is working on the guest, or left it behind."""
    lock = status.get("lock")
    if not lock or lock in tolerated:
        return
    unlock = f"`{'qm' if guest.is_vm else 'pct'} unlock {guest.vmid}` on {guest.row.node}"
    way_out = (
        Advice("Resume it, then shut it down", GUEST_POWER(guest=guest.vmid, action="resume"))
        if lock == "suspended"
        else Advice(
            f"Wait for the task that holds it; if none is running, {unlock} removes a lock that was left behind",
            TASK_LIST(guest=guest.vmid),
            TASK_WAIT,
        )
    )
    raise Conflict(f"{guest} is locked ({lock})", next_step=way_out)


NEWEST_ONLY = ("zfspool", "zfs")
"""Types of storage that can only roll back to the newest snapshot of a disk."""


async def storages_on(pve: Cluster, node: str, needed: Iterable[str] = ()) -> dict[str, Resource]:
    """The storages of a node that can be used, by name. Where one that is needed seems to be missing, it is asked."""
    rows = [row for row in await pve.inventory.of_type("storage") if row.node == node]
    known = {row.storage: row for row in rows if row.status == "available"}
    if known.keys() >= set(needed):
        return known
    return {row.storage: row for row in await pve.inventory.fresh_storages(node) if row.status == "available"}


async def snapshots_of(guest: Guest) -> list[dict[str, Any]]:
    """The guest's snapshots, oldest first, without the row for how it is now."""
    rows = [row for row in await guest.get("snapshot") if row.get("name") != "current"]
    return sorted(rows, key=lambda row: (row.get("snaptime", 0), row["name"]))


def existing_snapshot(guest: Guest, snapshots: Iterable[dict[str, Any]], name: str) -> dict[str, Any]:
    rows = {row["name"]: row for row in snapshots}
    if name not in rows:
        known = (
            Advice(f"It has {', '.join(rows)}")
            if rows
            else Advice("It has none; take one", SNAPSHOT_CREATE(guest=guest.vmid))
        )
        raise NotFound(f"{guest} has no snapshot {name!r}", next_step=known)
    return rows[name]


async def has_feature(guest: Guest, feature: str, snapshot: str | None = None) -> bool:
    """Whether the guest's storages can do this (snapshot, clone, copy) with all of its disks."""
    given = {} if snapshot is None else {"snapname": snapshot}
    return bool((await guest.get("feature", feature=feature, **given)).get("hasFeature"))


async def replication_jobs(pve: Cluster, guest: Guest) -> list[dict[str, Any]]:
    """The jobs that copy this guest to other nodes; none if these credentials may not see them."""
    try:
        jobs = await pve.get("/cluster/replication")
    except PermissionMissing:
        return []
    return [job for job in jobs or [] if int(job.get("guest", 0)) == guest.vmid]


def only_for_vms(guest: Guest, name: str, value: object, instead: str) -> None:
    """An argument that means nothing to a container."""
    if value and not guest.is_vm:
        raise BadArgument(
            Sentence(f"{{name}} does not apply to containers, and {guest} is one", name=ArgumentHint(name)),
            next_step=instead,
        )
