"""Restoring guests from backups, as a new guest or over an existing one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import NAMED, OMITTED, Advice, Sentence, either, tools
from quorate.operations.placement import pick_node, pick_storage
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.preconditions import refuse_locked, storages_on
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, Conflict, NotFound, Problem
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.inventory import Resource
from quorate.tools.backups import NEWEST, BackupRef, archived_config, find_backup
from quorate.tools.new_guests import NewGuest, is_running
from quorate.tools.storages import StoredVolume, require


def _restore_risk(arguments: Mapping[str, Any]) -> Risk:
    return Risk.DESTROY if arguments["overwrite"] else Risk.CHANGE


@dataclass(frozen=True, slots=True)
class _Request:
    """The arguments of the caller apart from the backup and the vmid."""

    node: str | None
    storage: str | None
    name: str | None
    unique: bool | None
    start: bool


@dataclass(frozen=True, slots=True)
class _Restore:
    """A decided restore: only the vmid is still open."""

    backup: StoredVolume
    node: str
    storage: str | None
    name: str | None
    unique: bool
    start: bool
    remarks: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return "ct" if self.backup.is_container else "vm"

    @property
    def facts(self) -> dict[str, Any]:
        return {"storage": self.storage or "as it was", "new_macs": self.unique}

    def call(self, target: Target, *, replaces: bool = False) -> Call:
        container = self.kind == "ct"
        archive = {"ostemplate": self.backup.volid, "restore": 1} if container else {"archive": self.backup.volid}
        params = {
            "vmid": int(target.id),
            **archive,
            "storage": self.storage,
            "hostname" if container else "name": self.name,
            "unique": int(self.unique) or None,
            "start": int(self.start) or None,
            "force": int(replaces) or None,
        }
        return Call(
            f"Restore {self.backup.volid} {'over' if replaces else 'as'} {target} on {self.node}",
            "POST",
            f"/nodes/{self.node}/{'lxc' if container else 'qemu'}",
            {key: value for key, value in params.items() if value is not None},
            target if replaces else Target("backup", self.backup.volid),
            task_id=target.id,
        )


@operation(
    toolset="backups",
    risk=Risk.DESTROY,
    risk_of=_restore_risk,
    least=Risk.CHANGE,
    search_words="vm bring back recover lost deleted broken guest disaster backup last week",
    example="backup=newest:docker01 vmid=602 storage=local-lvm",
)
async def backup_restore(
    pve: Cluster,
    backup: BackupRef,
    vmid: Annotated[int, Meta(ge=100, le=999_999_999, description="Default: the next free one")] | None = None,
    overwrite: Annotated[bool, Meta(description="Replace the guest that has this vmid; needs access admin")] = False,
    node: Annotated[str, Meta(description="Node for the guest")] | None = None,
    storage: Annotated[str, Meta(description="For all its disks; default: as they were")] | None = None,
    name: str | None = None,
    unique: Annotated[bool, Meta(description="New MAC addresses; default: if the original still exists")] | None = None,
    start: bool = False,
) -> Plan:
    """Restore a VM or container from a backup, as a new guest or over an existing one."""
    if overwrite and vmid is None:
        raise BadArgument(
            Sentence("{overwrite} needs a {vmid}", overwrite=NAMED, vmid=NAMED),
            next_step=Advice("Say which guest to replace: {vmid}", vmid=""),
        )
    pve.inventory.forget()  # whether the vmid is free decides what happens
    guests = (await pve.inventory.view()).by_vmid
    existing = guests.get(vmid or 0)
    archive = await _find(pve, backup, existing.node if existing else node)
    request = _Request(node, storage, name, unique, start)
    if existing is not None:
        guest = await pve.guest(existing.vmid)
        if not overwrite:
            raise Conflict(
                f"{guest} already exists",
                next_step=either(
                    Advice("Leave {vmid} out to restore it as a new guest", vmid=OMITTED),
                    Advice("give {overwrite} to replace it (needs access admin)", overwrite=True),
                ),
            )
        return await _over(pve, archive, guest, request)
    original = guests.get(archive.vmid or 0)
    target_node = await _node_for(pve, archive, node, original)
    restore = await _restore(pve, archive, target_node, request, twin=original is not None)
    return await NewGuest(
        restore.kind,
        "",
        target_node,
        restore.call,
        started=start,
        facts=restore.facts,
        warnings=restore.remarks,
        read_back=False,
    ).plan(pve, vmid)


async def _find(pve: Cluster, backup: str, near: str | None) -> StoredVolume:
    """The backup. If several nodes have one of this name, that of the node `near`; the newest of all nodes."""
    if near is not None and not backup.startswith(f"{NEWEST}:"):
        try:
            return await find_backup(pve, backup, near)
        except NotFound:  # it may be on another node, which solves or explains it
            pass
    return await find_backup(pve, backup)


async def _readers(pve: Cluster, backup: StoredVolume) -> list[str]:
    """The nodes that can read the backup."""
    if not backup.shared:
        return [backup.node]
    rows = await pve.inventory.of_type("storage")
    return [row.node for row in rows if row.storage == backup.storage and row.status == "available"]


async def _node_for(pve: Cluster, backup: StoredVolume, requested: str | None, original: Resource | None) -> str:
    """The requested node, else that of the original guest, else the best node that can read the backup."""
    readers = await _readers(pve, backup)
    if requested is not None:
        if requested not in readers:
            await pve.inventory.online_node(requested)
            if backup.shared and backup.storage in await storages_on(pve, requested, [backup.storage]):
                return requested
            raise BadArgument(
                f"Node {requested} cannot read {backup}",
                next_step=either(Advice("Leave {node} out", node=OMITTED), f"choose {', '.join(sorted(readers))}"),
            )
        return await pick_node(pve, requested)
    if original is not None and original.node in readers:
        return original.node
    best = await pick_node(pve) if backup.shared else backup.node
    return best if best in readers else await pick_node(pve, backup.node)


async def _restore(pve: Cluster, backup: StoredVolume, node: str, request: _Request, *, twin: bool = False) -> _Restore:
    """Decide storage and MAC addresses; `twin`: the original still exists."""
    chosen, remarks = await _storage(pve, backup, node, request.storage)
    if chosen is not None:
        await require(pve, f"restore to {chosen}", f"/storage/{chosen}", "Datastore.AllocateSpace")
    unique = twin if request.unique is None else request.unique
    return _Restore(backup, node, chosen, request.name, unique, request.start, remarks)


async def _storage(
    pve: Cluster, backup: StoredVolume, node: str, requested: str | None
) -> tuple[str | None, tuple[str, ...]]:
    """The storage for all disks, and remarks. None: every disk of a VM goes to the storage that it was on."""
    content = "rootdir" if backup.is_container else "images"
    if requested is not None:
        return (await pick_storage(pve, node, content, requested=requested)).storage, ()
    before = await _storages_before(pve, backup)
    available = {name for name, row in (await storages_on(pve, node, before)).items() if row.holds(content)}
    if before and set(before) <= available:
        return (before[0] if backup.is_container else None), ()
    chosen = (await pick_storage(pve, node, content)).storage
    lost = sorted(set(before) - available)
    return chosen, ((f"{node} has no {', '.join(lost)} for the disks; they go to {chosen}",) if lost else ())


async def _storages_before(pve: Cluster, backup: StoredVolume) -> list[str]:
    """The storages of the disks in the backup, that of the root disk first; [] if it is unknown."""
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


# -- over an existing one ----------------------------------------------------------------------------------------------


async def _over(pve: Cluster, backup: StoredVolume, guest: Guest, request: _Request) -> Plan:
    await _refuse_wrong(guest, backup, request.node, await _readers(pve, backup))
    restore = await _restore(pve, backup, guest.row.node, request)
    warnings: list[str | Advice] = [f"{guest} as it is now is lost, with its disks and snapshots"]
    if not guest.is_vm:
        text = (
            "PVE deletes the container before it unpacks the backup: if the restore fails, it is lost. Back it up first"
        )
        warnings.append(Advice(text, tools.backup_create(guest=guest.vmid)))
    if backup.vmid != guest.vmid:
        warnings.append(f"The backup is of guest {backup.vmid}, not of {guest.vmid}")
    target = Target(restore.kind, str(guest.vmid), guest.row.name, guest.row.node)
    call = restore.call(target, replaces=True)
    if request.start:
        call = replace(call, arrived=partial(is_running, pve, target))
    return Plan(
        call.summary,
        (call,),
        facts={"vmid": guest.vmid, "node": guest.row.node, **restore.facts},
        warnings=(*restore.remarks, *warnings),
        next_step=None if request.start else Advice("Start it", tools.guest_power(guest=guest.vmid, action="start")),
    )


async def _refuse_wrong(guest: Guest, backup: StoredVolume, node: str | None, readers: list[str]) -> None:
    if guest.is_vm == backup.is_container:
        kind = "container" if backup.is_container else "VM"
        raise Conflict(
            f"{guest} cannot be replaced by a {kind}",
            next_step=either("Choose another vmid", Advice("leave {vmid} out", vmid=OMITTED)),
        )
    if node not in (None, guest.row.node):
        raise BadArgument(
            f"{guest} is on {guest.row.node}, not on {node}", next_step=Advice("Leave {node} out", node=OMITTED)
        )
    if guest.row.node not in readers:
        raise Conflict(
            f"{guest} is on {guest.row.node}, which cannot read {backup}",
            next_step=f"Restore to a new vmid on {readers[0]}, or migrate the guest there first",
        )
    status = await guest.get("status/current")
    refuse_locked(guest, status)
    if status.get("status") != "stopped":
        raise Conflict(
            f"{guest} is running",
            next_step=Advice("Shut it down first", tools.guest_power(guest=guest.vmid, action="shutdown")),
        )
    if int((await guest.get("config")).get("protection") or 0):
        raise Conflict(f"{guest} is protected", next_step="Its owner has to switch protection off first")
