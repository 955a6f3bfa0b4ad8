"""Bringing guests back from their backups: beside the one that is there, or over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from quorate.operations.backups.backups import archived_config, find_backup
from quorate.operations.placement import next_vmid, pick_node, pick_storage
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.readiness import refuse_locked
from quorate.operations.registry import Risk, operation
from quorate.operations.stored import Volume, require
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.errors import BadArgument, Conflict, NotFound, Problem
from quorate.pve.inventory import Resource


def _restore_risk(arguments: Mapping[str, Any]) -> Risk:
    return Risk.DESTROY if arguments["overwrite"] else Risk.CHANGE


@dataclass(frozen=True, slots=True)
class _Wish:
    """A restore, but for the id."""

    backup: Volume
    node: str
    storage: str | None
    name: str | None
    unique: bool
    start: bool
    remarks: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return "ct" if self.backup.is_container else "vm"


@operation(risk=Risk.DESTROY, risk_of=_restore_risk, least=Risk.CHANGE)
async def backup_restore(
    pve: Cluster,
    backup: Annotated[str, Meta(description="As in backup_list")],
    vmid: Annotated[int, Meta(ge=100, le=999_999_999, description="Default: the next free one")] | None = None,
    overwrite: Annotated[bool, Meta(description="Replace the guest that has this vmid; needs access admin")] = False,
    node: Annotated[str, Meta(description="Where the guest is to be")] | None = None,
    storage: Annotated[str, Meta(description="For all its disks; default: as they were")] | None = None,
    name: str | None = None,
    unique: Annotated[bool, Meta(description="New MAC addresses; default: if the original still exists")] | None = None,
    start: bool = False,
) -> Plan:
    """Restore a VM or container from a backup, as a new guest or over an existing one."""
    if overwrite and vmid is None:
        raise BadArgument("overwrite needs a vmid", next_step="Say which guest is to be replaced: vmid=")
    guests = {row.vmid: row for row in await pve.inventory.guests()}
    taken = guests.get(vmid or 0)
    found = await _find(pve, backup, taken.node if taken else node)
    if taken is not None:
        return await _over(pve, found, taken, overwrite, node, storage, name, bool(unique), start)
    original = guests.get(found.vmid or 0)
    where = await _node_for(pve, found, node, original)
    wish = await _wish(pve, found, where, storage, name, original is not None if unique is None else unique, start)
    if vmid is None:
        return await _with_next_id(pve, wish)
    await _may_create(pve, vmid, wish)
    return _plan(wish, vmid)


async def _find(pve: Cluster, backup: str, near: str | None) -> Volume:
    """The backup; of several nodes that have one of this name, the node that needs it comes first."""
    if near is not None:
        try:
            return await find_backup(pve, backup, near)
        except NotFound:  # then it is elsewhere, which may still be an answer, or an explanation
            pass
    return await find_backup(pve, backup)


async def _readers(pve: Cluster, backup: Volume) -> list[str]:
    """The nodes that can read the backup."""
    if not backup.shared:
        return [backup.node]
    rows = await pve.inventory.of_type("storage")
    return [row.node for row in rows if row.storage == backup.storage and row.status == "available"]


async def _node_for(pve: Cluster, backup: Volume, wanted: str | None, original: Resource | None) -> str:
    """As wished, else where the original is, else the best node that can read the backup."""
    readers = await _readers(pve, backup)
    if wanted is not None:
        if wanted not in readers:
            await pve.inventory.node(wanted)
            raise BadArgument(
                f"Node {wanted} cannot read {backup}",
                next_step=f"Leave node out, or choose {', '.join(sorted(readers))}",
            )
        return await pick_node(pve, wanted)
    if original is not None and original.node in readers:
        return original.node
    best = await pick_node(pve) if backup.shared else backup.node
    return best if best in readers else await pick_node(pve, backup.node)


async def _wish(
    pve: Cluster, backup: Volume, node: str, storage: str | None, name: str | None, unique: bool, start: bool
) -> _Wish:
    chosen, remarks = await _storage(pve, backup, node, storage)
    if chosen is not None:
        await require(pve, f"restore to {chosen}", f"/storage/{chosen}", "Datastore.AllocateSpace")
    return _Wish(backup, node, chosen, name, unique, start, remarks)


async def _storage(pve: Cluster, backup: Volume, node: str, wanted: str | None) -> tuple[str | None, tuple[str, ...]]:
    """Where the disks go. A VM's may stay apart as they were; PVE puts all of a container's on one storage."""
    content = "rootdir" if backup.is_container else "images"
    if wanted is not None:
        return (await pick_storage(pve, node, content, wanted=wanted)).storage, ()
    here = {
        row.storage
        for row in await pve.inventory.of_type("storage")
        if row.node == node and row.status == "available" and content in row.content.split(",")
    }
    before = await _storages_before(pve, backup)
    if before and set(before) <= here:
        return (before[0] if backup.is_container else None), ()
    chosen = (await pick_storage(pve, node, content)).storage
    lost = sorted(set(before) - here)
    return chosen, ((f"{node} has no {', '.join(lost)} for the disks; they go to {chosen}",) if lost else ())


async def _storages_before(pve: Cluster, backup: Volume) -> list[str]:
    """The storages of the disks in the backup, that of the root disk first; [] if it does not tell."""
    try:
        config = await archived_config(pve, backup)
    except Problem:
        return []
    volumes = [
        values.parse(value, "volume").get("volume", "")
        for key, value in sorted(config.items(), key=lambda item: (item[0] != "rootfs", item[0]))
        if values.is_disk(key, value)
    ]
    return [volume.partition(":")[0] for volume in volumes if ":" in volume and not volume.startswith("/")]


# -- as a new guest ----------------------------------------------------------------------------------------------------


async def _with_next_id(pve: Cluster, wish: _Wish) -> Plan:
    """If somebody takes the id before PVE sees our call, the next one is tried."""
    vmid = await next_vmid(pve)
    await _may_create(pve, vmid, wish)
    return _plan(wish, vmid, otherwise=partial(_with_next_id, pve, wish))


async def _may_create(pve: Cluster, vmid: int, wish: _Wish) -> None:
    await require(pve, f"restore {wish.backup} as {vmid}", f"/vms/{vmid}", "VM.Allocate")


# -- over an existing one ----------------------------------------------------------------------------------------------


async def _over(
    pve: Cluster,
    backup: Volume,
    row: Resource,
    overwrite: bool,
    node: str | None,
    storage: str | None,
    name: str | None,
    unique: bool,
    start: bool,
) -> Plan:
    guest = await pve.guest(row.vmid)
    if not overwrite:
        raise Conflict(
            f"{guest} exists already",
            next_step="Leave vmid out to restore beside it, or give overwrite=true to replace it (needs access admin)",
        )
    await _refuse_wrong(guest, backup, node, await _readers(pve, backup))
    wish = await _wish(pve, backup, guest.row.node, storage, name, unique, start)
    warnings = [f"{guest} as it is now is lost, with its disks and snapshots"]
    if backup.vmid != guest.vmid:
        warnings.append(f"The backup is one of guest {backup.vmid}, not of {guest.vmid}")
    return _plan(wish, guest.vmid, replaces=guest, warnings=tuple(warnings))


async def _refuse_wrong(guest: Guest, backup: Volume, node: str | None, readers: list[str]) -> None:
    if guest.is_vm == backup.is_container:
        kind = "container" if backup.is_container else "VM"
        raise Conflict(f"{guest} cannot be replaced by a {kind}", next_step="Choose another vmid, or leave it out")
    if node not in (None, guest.row.node):
        raise BadArgument(f"{guest} is on {guest.row.node}, not on {node}", next_step="Leave node out")
    if guest.row.node not in readers:
        raise Conflict(
            f"{guest} is on {guest.row.node}, which cannot read {backup}",
            next_step=f"Restore to a new vmid on {readers[0]}, or migrate the guest there first",
        )
    status = await guest.get("status/current")
    refuse_locked(guest, status)
    if status.get("status") != "stopped":
        raise Conflict(f"{guest} is running", next_step="Shut it down first with guest_power action=shutdown")
    if int((await guest.get("config")).get("protection") or 0):
        raise Conflict(f"{guest} is protected", next_step="Its owner has to switch protection off first")


# -- the plan ----------------------------------------------------------------------------------------------------------


def _plan(
    wish: _Wish, vmid: int, *, replaces: Guest | None = None, warnings: tuple[str, ...] = (), otherwise: Any = None
) -> Plan:
    target = replaces.label if replaces else f"{wish.kind} {vmid}"
    says = f"Restore {wish.backup.volid} {'over' if replaces else 'as'} {target} on {wish.node}"
    call = Call(
        says,
        "POST",
        f"/nodes/{wish.node}/{'lxc' if wish.kind == 'ct' else 'qemu'}",
        _parameters(wish, vmid, force=replaces is not None),
        Target(wish.kind, str(vmid), replaces.row.name, wish.node) if replaces else Target("backup", wish.backup.volid),
        task_id=str(vmid),
    )
    facts = {"vmid": vmid, "node": wish.node, "storage": wish.storage or "as it was", "new_macs": wish.unique}
    return Plan(
        says,
        (call,),
        facts=facts,
        warnings=(*wish.remarks, *warnings),
        next_step=None if wish.start else f"Start it with guest_power guest={vmid} action=start",
        otherwise=otherwise,
    )


def _parameters(wish: _Wish, vmid: int, *, force: bool) -> dict[str, Any]:
    container = wish.kind == "ct"
    archive = {"ostemplate": wish.backup.volid, "restore": 1} if container else {"archive": wish.backup.volid}
    wanted = {
        "vmid": vmid,
        **archive,
        "storage": wish.storage,
        "hostname" if container else "name": wish.name,
        "unique": int(wish.unique) or None,
        "start": int(wish.start) or None,
        "force": int(force) or None,
    }
    return {key: value for key, value in wanted.items() if value is not None}
