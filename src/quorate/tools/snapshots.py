"""Snapshots of guests: list, take, describe, roll back, delete."""

from __future__ import annotations

import asyncio
import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import OMITTED, Advice, Sentence, Wording, either, tools
from quorate.operations.plan import Call, Plan, guest_call
from quorate.operations.preconditions import (
    NEWEST_ONLY,
    data_volumes,
    existing_snapshot,
    has_feature,
    only_for_vms,
    refuse_locked,
    snapshots_of,
    storages_on,
)
from quorate.operations.registry import GuestRef, Risk, Table, operation, page
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster, Guest
from quorate.tools.guest_power import power_call, state_of
from quorate.units import duration, moment, yes

COLUMNS = ("snapshot", "level", "parent", "taken", "age", "ram", "description")
LONGEST_NAME = 40
_WITH_SNAPSHOTS = frozenset({"btrfs", "lvmthin", "rbd", "zfspool"})
_NAME = re.compile(r"[a-z][a-z0-9_-]+", re.I)
_RESERVED = {"vm": ("current", "pending"), "ct": ("current", "vzdump")}


@operation(
    toolset="snapshots",
    risk=Risk.READ,
    search_words="snapshots exist show",
    example="guest=docker01",
)
async def snapshot_list(pve: Cluster, guest: GuestRef) -> Table:
    """The snapshots of a guest as a tree, each below its parent; ram: the memory was saved, too."""
    target = await pve.guest(guest)
    rows = await target.get("snapshot")
    now = pve.clock.time() + pve.client.clock_skew
    tree = _tree([row for row in rows if row.get("name") != "current"])
    table = page(COLUMNS, [_rows(row, level, now) for row, level in tree], limit=len(tree) or 1, offset=0)
    current: dict[str, Any] = next((row for row in rows if row.get("name") == "current"), {})
    table.facts = {"guest": str(target), "now_after": current.get("parent", "")} if tree else {"guest": str(target)}
    return table


def _tree(rows: list[dict[str, Any]]) -> list[tuple[dict[str, Any], int]]:
    """Depth first, older ones before newer ones; a snapshot whose parent is gone is a root."""
    names = {row["name"] for row in rows}
    children: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (row.get("snaptime", 0), row["name"])):
        parent = str(row.get("parent") or "")
        children.setdefault(parent if parent in names else "", []).append(row)
    ordered: list[tuple[dict[str, Any], int]] = []
    waiting = [(row, 0) for row in reversed(children.get("", []))]
    while waiting:
        row, level = waiting.pop()
        ordered.append((row, level))
        waiting += [(child, level + 1) for child in reversed(children.get(row["name"], []))]
    return ordered


def _rows(row: dict[str, Any], level: int, now: float) -> list[Any]:
    time = row.get("snaptime", 0)
    state = f" ({row['snapstate']})" if row.get("snapstate") else ""
    return [
        row["name"],
        level,
        row.get("parent", ""),
        moment(time) if time else "",
        duration(max(0, now - time)) if time else "",
        yes(row.get("vmstate")),
        (str(row.get("description") or "").strip() + state).strip(),
    ]


@operation(
    toolset="snapshots",
    risk=Risk.CHANGE,
    search_words="make snapshot before upgrade update save state go back",
    example="guest=docker01 snapshot=before-update",
)
async def snapshot_create(
    pve: Cluster,
    guest: GuestRef,
    snapshot: Annotated[str, Meta(description="Name; default: the current time")] | None = None,
    description: str | None = None,
    ram: Annotated[bool, Meta(description="Save the memory of a running VM, too")] = False,
) -> Plan:
    """Take a snapshot of a guest."""
    target = await pve.guest(guest)
    only_for_vms(target, "ram", ram, "Leave it out; the memory of containers cannot be saved")
    name = snapshot or name_from_time(pve)
    call, warnings = await creation(target, name, description, ram=ram)
    return Plan(call.summary, (call,), facts={"snapshot": name}, warnings=tuple(warnings))


def name_from_time(pve: Cluster) -> str:
    now = datetime.datetime.fromtimestamp(pve.clock.time() + pve.client.clock_skew, datetime.UTC)
    return now.strftime("auto-%Y%m%d-%H%M%S")


async def creation(guest: Guest, name: str, description: str | None, *, ram: bool = False) -> tuple[Call, list[str]]:
    """The call that takes a snapshot, and warnings; a Problem if PVE would not take it."""
    check_name(guest.row.kind, name)
    status, existing, able = await asyncio.gather(
        guest.get("status/current"), snapshots_of(guest), has_feature(guest, "snapshot")
    )
    if guest.row.template:
        raise Conflict(f"{guest} is a template, and those have no snapshots", next_step="It does not change anyway")
    refuse_locked(guest, status)
    if name in (row["name"] for row in existing):
        raise Conflict(
            f"{guest} already has a snapshot {name!r}",
            next_step=either("Choose another name", Advice("leave {snapshot} out", snapshot=OMITTED)),
        )
    if not able:
        raise await _unable(guest)
    running = status.get("status") == "running"
    warnings = [f"{guest} is not running, so there is no memory to save"] if ram and not running else []
    summary = f"Take snapshot {name} of {guest}" + (" with its memory" if ram and running else "")
    call = guest_call(
        guest,
        "POST",
        "snapshot",
        summary,
        snapname=name,
        description=description,
        vmstate=1 if ram and running else None,
    )
    return call, warnings


def check_name(kind: str, name: str) -> None:
    rules = f"A name begins with a letter, then has letters, digits, - and _; it has 2 to {LONGEST_NAME} characters"
    if not _NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        near = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")[:LONGEST_NAME]
        leave_out = Advice("leave {snapshot} out", snapshot=OMITTED)
        hint = Advice(f"{near!r} would work") if _NAME.fullmatch(near) else either("Choose another", leave_out)
        raise BadArgument(f"{name!r} is not a name for a snapshot", why=rules, next_step=hint)
    if name in _RESERVED[kind]:
        raise BadArgument(f"PVE reserves the name {name!r}", next_step="Choose another name")


async def _unable(guest: Guest) -> Conflict:
    config, known = await asyncio.gather(guest.get("config"), storages_on(guest.cluster, guest.row.node))
    able = {name for name, storage in known.items() if storage.plugintype in _WITH_SNAPSHOTS}
    volumes = [volume for volume in data_volumes(config) if not volume.is_cloudinit]
    unable = [volume for volume in volumes if volume.storage not in able and not volume.volid.endswith(".qcow2")]
    disks = ", ".join(map(str, unable or volumes))
    return Conflict(
        f"The storage of {guest} cannot take snapshots",
        why=f"PVE cannot snapshot {disks}" if disks else None,
        next_step=Advice(
            "Move the disks to a storage that can (ZFS, LVM-thin, Ceph, qcow2 files), or make a backup",
            tools.backup_create(guest=guest.vmid),
        ),
    )


@operation(
    toolset="snapshots",
    risk=Risk.CHANGE,
    idempotent=True,
    search_words="rename describe note comment description snapshot",
    example="guest=docker01 snapshot=before-upgrade description='before docker 29'",
)
async def snapshot_update(pve: Cluster, guest: GuestRef, snapshot: str, description: str) -> Plan:
    """Change the description of a snapshot."""
    target = await pve.guest(guest)
    row = existing_snapshot(target, await snapshots_of(target), snapshot)
    summary = f"Describe snapshot {snapshot} of {target}"
    if str(row.get("description") or "").strip() == description.strip():
        return Plan(summary, unchanged=("It already has this description",))

    call = guest_call(target, "PUT", f"snapshot/{snapshot}/config", summary, description=description)
    return Plan(summary, (call,))


@operation(
    toolset="snapshots",
    risk=Risk.DESTROY,
    search_words="go back revert undo before update upgrade broke earlier state restore snapshot",
    example="guest=docker01 snapshot=before-upgrade",
)
async def snapshot_rollback(
    pve: Cluster,
    guest: GuestRef,
    snapshot: str,
    start: Annotated[bool, Meta(description="Start it afterwards")] = False,
) -> Plan:
    """Roll a guest back to a snapshot. All later changes are lost; a running guest is stopped."""
    target = await pve.guest(guest)
    status, snapshots = await asyncio.gather(target.get("status/current"), snapshots_of(target))
    row = existing_snapshot(target, snapshots, snapshot)
    refuse_locked(target, status)
    if row.get("snapstate"):
        raise Conflict(
            f"Snapshot {snapshot} of {target} is incomplete ({row['snapstate']})",
            next_step=Advice(
                "An interrupted task left it behind; delete it",
                tools.snapshot_delete(guest=target.vmid, snapshot=snapshot),
            ),
        )
    await _refuse_newer(pve, target, snapshots, row)
    summary = f"Roll {target} back to snapshot {snapshot}"
    calls = [guest_call(target, "POST", f"snapshot/{snapshot}/rollback", summary)]
    resumes = bool(row.get("vmstate"))
    if start and not resumes:
        starting = power_call(target, "start", "stopped", {})
        assert starting is not None
        calls.append(starting)
    age = duration(max(0, pve.clock.time() + pve.client.clock_skew - row.get("snaptime", 0)))
    return Plan(
        summary,
        tuple(calls),
        facts={"taken": moment(row.get("snaptime", 0)), "age": age},
        warnings=tuple(_losses(target, await state_of(target), age, resumes=resumes, start=start)),
    )


@dataclass(frozen=True, slots=True, init=False)
class Loss(Advice):
    """A warning about what is lost unless a snapshot of now is taken first."""

    what: str

    def __init__(self, what: str) -> None:
        Advice.__init__(self, f"{what} is lost; take a snapshot first if it may be needed")
        object.__setattr__(self, "what", what)

    def transform(self, change: Callable[[Any], Any]) -> Loss:
        return Loss(change(self.what))

    def kept_in(self, snapshot: str) -> str:
        return f"{self.what} is kept only in snapshot {snapshot}"


def _losses(guest: Guest, state: str, age: str, *, resumes: bool, start: bool) -> list[str | Wording]:
    warnings: list[str | Wording] = [Loss(f"What was written in the last {age}")]
    if resumes:
        warnings.append("The snapshot holds the memory: the VM continues from that moment")
    elif state != "stopped" and not start:
        warnings.append(Sentence(f"{guest} is {state}; it will be stopped and stay so, unless {{start}}", start=True))
    return warnings


async def _refuse_newer(pve: Cluster, guest: Guest, snapshots: list[dict[str, Any]], row: dict[str, Any]) -> None:
    """ZFS can only go back to the newest snapshot of a disk."""
    newer = [other for other in snapshots if other.get("snaptime", 0) > row.get("snaptime", 0)]
    if not newer:
        return
    known = await storages_on(pve, guest.row.node)
    zfs = {name for name, storage in known.items() if storage.plugintype in NEWEST_ONLY}
    config, *later = await asyncio.gather(
        *(guest.get(f"snapshot/{other['name']}/config") for other in (row, *newer)),
    )
    disks = {volume.volid for volume in data_volumes(config) if volume.storage in zfs}
    blocking = [
        other["name"]
        for other, kept in zip(newer, later, strict=True)
        if disks & {volume.volid for volume in data_volumes(kept)}
    ]
    if blocking:
        raise Conflict(
            f"{guest} cannot be rolled back to {row['name']}: ZFS can only roll back to the newest snapshot",
            why=f"Newer snapshots: {', '.join(blocking)}",
            next_step=Advice(
                "Delete those first, or clone the guest",
                tools.snapshot_delete(guest=guest.vmid, snapshot=blocking[-1]),
                tools.guest_clone(guest=guest.vmid),
            ),
        )


@operation(
    toolset="snapshots",
    risk=Risk.DESTROY,
    search_words="snapshots remove cleanup",
    example="guest=docker01 snapshot=before-upgrade",
)
async def snapshot_delete(pve: Cluster, guest: GuestRef, snapshot: str) -> Plan:
    """Delete a snapshot. The guest stays as it is; later snapshots are kept."""
    target = await pve.guest(guest)
    status, snapshots = await asyncio.gather(target.get("status/current"), snapshots_of(target))
    row = existing_snapshot(target, snapshots, snapshot)
    refuse_locked(target, status)
    children = [other["name"] for other in snapshots if other.get("parent") == snapshot]
    summary = f"Delete snapshot {snapshot} of {target}"
    few = len(children) == 1
    below = f"below {row['parent']}" if row.get("parent") else "at the root of the tree"
    kept = f"Its {'child' if few else 'children'} {', '.join(children)} {'is' if few else 'are'} kept, {below}"
    return Plan(
        summary,
        (guest_call(target, "DELETE", f"snapshot/{snapshot}", summary),),
        facts={"taken": moment(row.get("snaptime", 0)), "children": children},
        warnings=(kept,) if children else (),
    )
