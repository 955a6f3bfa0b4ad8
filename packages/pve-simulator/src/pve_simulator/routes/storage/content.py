"""Volumes on a storage, and the files inside backups."""

from __future__ import annotations

import re
from typing import Any

from pve_simulator.guests.guest import Kind
from pve_simulator.http.refusals import bad_parameters, existing, failure
from pve_simulator.http.routing import Call, route
from pve_simulator.nodes.tasks import TaskContext, TaskError, Work
from pve_simulator.storage import appliances, archives, volume_access, volumes
from pve_simulator.storage.storages import FILE_BASED, Storage, Volume
from pve_simulator.storage.volume_names import VolumeName, parse
from pve_simulator.world import World

_CONTENT = "/nodes/{node}/storage/{storage}/content"
_KIB = 1024
_SECTOR = 512
_FORMAT_OF_NAME = re.compile(r".*\.(raw|qcow2|vmdk)")
# The limit of protected backups per guest without Datastore.Allocate.
_DEFAULT_PROTECTED = 5


@route(f"POST {_CONTENT}")
def allocate(call: Call) -> str:
    storage = volume_access.storage_of_path(call)
    name, fmt = call.params["filename"], call.params.get("format")
    size = _kibibytes(call.params["size"]) * _KIB
    match = _FORMAT_OF_NAME.fullmatch(name)
    if match is not None:
        if fmt is not None and fmt != match[1]:
            raise bad_parameters({"format": f"different storage formats ({fmt} != {match[1]})"})
        fmt = match[1]
    if storage.type == "pbs":
        raise failure("can't allocate space in pbs storage")
    fmt = fmt or "raw"
    _check_image_name(storage, name, int(call.params["vmid"]), fmt)
    kind: Kind = "lxc" if fmt == "subvol" else "qemu"
    stem = name.removesuffix(f".{fmt}") if storage.type in FILE_BASED else name
    volume = volumes.allocate(
        call.world, call.node, storage.id, int(call.params["vmid"]), kind, size, fmt=fmt, name=stem
    )
    return volume.volid


def _kibibytes(text: str) -> int:
    units = {"M": 1024, "G": 1024**2}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def _check_image_name(storage: Storage, name: str, vmid: int, fmt: str) -> None:
    if storage.type in FILE_BASED:
        match = re.fullmatch(r"[^/\s]+\.(raw|qcow2|vmdk|subvol)", name)
        if match is None and fmt != "subvol":
            raise failure(f"unable to parse volume filename '{name}'")
        if match is not None and match[1] != fmt:
            raise failure(f"illegal name '{name}' - wrong extension for format ('{match[1]} != '{fmt}')")
        return
    prefix = "subvol" if fmt == "subvol" else "vm"
    if not name.startswith(f"{prefix}-{vmid}-"):
        raise failure(f"illegal name '{name}' - should be '{prefix}-{vmid}-*'")


@route(f"GET {_CONTENT}/{{volume}}")
def attributes(call: Call) -> dict[str, Any]:
    volid = volume_access.full_volid(call.values["storage"], call.values["volume"])
    storage, parsed = volume_access.check_access(call, volid)
    volume = existing(volumes.find(call.world, call.node, volid), f"volume_size_info on '{volid}' failed - no format")
    row: dict[str, Any] = {
        "path": volumes.path_of(storage, volume.name),
        "size": -(-volume.disk_size // _SECTOR) * _SECTOR,
        "used": volume_access.used_by_file(volume.used),
        "format": parsed.format,
    }
    if parsed.content == "backup":
        row |= {"notes": volume.notes or "", "protected": int(volume.protected)}
    return row


@route(f"PUT {_CONTENT}/{{volume}}")
def update_attributes(call: Call) -> None:
    volid = volume_access.full_volid(call.values["storage"], call.values["volume"])
    storage, parsed = volume_access.check_access(call, volid)
    for attribute in ("notes", "protected"):
        if attribute in call.params:
            _check_attribute(storage, parsed, attribute)
            if attribute == "notes" and volumes.find(call.world, call.node, volid) is None:
                continue  # PVE still writes the notes file
            volume = volumes.existing(call.world, call.node, volid)
            if attribute == "notes":
                storage.annotate(volume, notes=call.params["notes"])
            else:
                _protect(call, storage, volume, bool(call.params["protected"]))


def _check_attribute(storage: Storage, parsed: VolumeName, attribute: str) -> None:
    if storage.type not in FILE_BASED and storage.type != "pbs":
        raise failure(f"attribute '{attribute}' is not supported for storage type '{storage.type}'")
    if parsed.content != "backup":
        words = "only backups can have notes" if attribute == "notes" else "only backups support attribute 'protected'"
        raise failure(words)


def _protect(call: Call, storage: Storage, volume: Volume, protected: bool) -> None:
    if protected and not volume.protected:
        may_allocate = call.allowed(f"/storage/{storage.id}", "Datastore.Allocate")
        limit = int(storage.config.get("max-protected-backups", -1 if may_allocate else _DEFAULT_PROTECTED))
        have = sum(
            other.protected and other.vmid == volume.vmid and other.content == "backup"
            for other in storage.volumes(call.node)
        )
        if limit >= 0 and have >= limit:
            raise failure(f"The number of protected backups per guest is limited to {limit} on storage '{storage.id}'")
    storage.annotate(volume, protected=protected)


@route(f"DELETE {_CONTENT}/{{volume}}")
async def delete(call: Call) -> str | None:
    volid = volume_access.full_volid(call.values["storage"], call.values["volume"])
    storage_id, name = volumes.split_volid(volid)
    storage = call.world.storage(storage_id)
    parsed = parse(storage, name)
    if parsed.content == "backup" and parsed.vmid is not None:
        call.require(f"/storage/{storage_id}", "Datastore.AllocateSpace")
        call.require(f"/vms/{parsed.vmid}", "VM.Backup")
    else:
        call.require(f"/storage/{storage_id}", "Datastore.Allocate")
    target = storage_id if parsed.vmid is None else f"{parsed.vmid}@{storage_id}"
    upid = call.start_task("imgdel", target, _removal(call.world, call.node, storage, volid))
    delay = call.params.get("delay")
    return upid if delay is None else await call.wait_for(upid, int(delay))


def _removal(world: World, node: str, storage: Storage, volid: str) -> Work:
    async def work(context: TaskContext) -> None:
        await context.sleep(0.3)
        volume = volumes.find(world, node, volid)
        if volume is None:
            _complain_about_missing(context, storage, volid)
        else:
            _check_removable(world, node, storage, volume)
            volumes.free(world, node, volid)
            if storage.type in ("lvm", "lvmthin"):
                context.log(f'  Logical volume "{volume.name}" successfully removed.')
        context.log(f"Removed volume '{volid}'")

    return work


def _complain_about_missing(context: TaskContext, storage: Storage, volid: str) -> None:
    """Log a missing file; a missing logical volume is an error."""
    name = volid.partition(":")[2]
    if storage.type in ("lvm", "lvmthin"):
        group = storage.config.get("vgname", "pve")
        raise TaskError(f"lvremove '{group}/{name}' error:   Failed to find logical volume \"{group}/{name}\"")
    if storage.type in FILE_BASED:
        context.log(f"disk image '{volumes.path_of(storage, name)}' does not exist")


def _check_removable(world: World, node: str, storage: Storage, volume: Volume) -> None:
    if volume.protected and storage.type == "pbs":
        why = 'failed to delete snapshot - "cannot remove protected snapshot"'
        raise TaskError(f"proxmox-backup-client failed: Error: {why}")
    if volume.protected:
        raise TaskError(f"cannot remove protected volume '{volume.name}' on '{storage.id}'")
    owner = world.guests.get(volume.vmid or 0)
    if owner is None or not owner.running or owner.node != node:
        return
    if not any(volid == volume.volid for _, volid in owner.drives()):
        return
    if storage.type in ("lvm", "lvmthin"):
        full = f"{storage.config.get('vgname', 'pve')}/{volume.name}"
        raise TaskError(f"lvremove '{full}' error:   Logical volume {full} in use.")
    if storage.type == "zfspool":
        dataset = f"{storage.config.get('pool', storage.id)}/{volume.name}"
        raise TaskError(f"zfs error: cannot destroy '{dataset}': dataset is busy")


@route(f"POST {_CONTENT}/{{volume}}")
def copy(call: Call) -> str:
    source = volume_access.full_volid(call.values["storage"], call.values["volume"])
    target = volume_access.full_volid(call.values["storage"], call.params["target"])
    target_node = call.params.get("target_node", call.node)
    if target_node not in call.world.nodes:
        raise failure(f"no such cluster node '{target_node}'")
    return call.start_task("imgcopy", "", _copying(call.world, call.node, source, target_node, target))


def _copying(world: World, node: str, source: str, target_node: str, target: str) -> Work:
    async def work(context: TaskContext) -> None:
        upid = context.task.upid
        context.log(f"DEBUG: starting worker {upid}")
        volume = volumes.existing(world, node, source)
        storage = volumes.usable_storage(world, target_node, volumes.split_volid(target)[0])
        parsed = parse(storage, target.partition(":")[2])
        if storage.volume(target_node, target) is not None:
            raise TaskError(f"volume '{target}' already exists")
        await context.sleep(1.0 + volume.used / 1024**3)
        now = int(world.clock.now())
        copied = Volume(target, volume.content, volume.format, volume.size, volume.used, now, vmid=parsed.vmid)
        copied.archive, copied.checksums = volume.archive, volume.checksums
        copied.image, copied.appliance = volume.image, volume.appliance
        storage.add(target_node, copied)
        context.log(f"DEBUG: end worker {upid}")

    return work


@route("GET /nodes/{node}/storage/{storage}/import-metadata")
def import_metadata(call: Call) -> dict[str, Any]:
    volid = f"{call.values['storage']}:{call.params['volume']}"
    storage, parsed = volume_access.check_access(call, volid)
    volume = volumes.existing(call.world, call.node, volid)
    if parsed.content != "import":
        raise failure(f"invalid content type '{parsed.content}'")
    if parsed.format not in ("ova", "ovf"):
        raise failure("invalid format")
    return appliances.metadata(call.world, call.node, storage, volume)


@route("GET /nodes/{node}/storage/{storage}/content")
def content(call: Call) -> list[dict[str, Any]]:
    storage = volume_access.storage_of_path(call)
    kind, vmid = call.params.get("content"), call.params.get("vmid")
    if storage.backups is not None and "backup" in storage.content and kind in (None, "backup"):
        storage.backups.check_listing()
    listed = [
        volume
        for volume in storage.volumes(call.node)
        if kind in (None, volume.content) and vmid in (None, volume.vmid) and volume_access.may_read(call, volume.volid)
    ]
    return [_volume_row(storage, volume) for volume in sorted(listed, key=lambda volume: volume.volid)]


def _volume_row(storage: Storage, volume: Volume) -> dict[str, Any]:
    row: dict[str, Any] = {
        "volid": volume.volid,
        "content": volume.content,
        "format": volume.format,
        "size": volume.size,
        "ctime": archives.made_at(volume) if volume.content == "backup" else volume.ctime,
    }
    if volume.vmid is not None:
        row["vmid"] = volume.vmid
    if volume.content in ("images", "rootdir"):
        row["parent"] = volume.parent
        if storage.type != "lvmthin":
            row["used"] = volume.used
    if volume.content == "backup":
        row["subtype"] = "lxc" if "-lxc-" in volume.volid or "/ct/" in volume.volid else "qemu"
        row |= {"notes": volume.notes.split("\n")[0]} if volume.notes else {}  # lists show the first line
        row |= {"protected": 1} if volume.protected else {}
        row |= {"encrypted": volume.encrypted} if volume.encrypted else {}
        if volume.verified is not None:
            upid = volume.verified_by or _verification_task(row["ctime"])
            row["verification"] = {"state": "ok" if volume.verified else "failed", "upid": upid}
    return row


def _verification_task(made: int) -> str:
    """The task of a backup server that is not simulated: it verified the backup an hour later."""
    return f"UPID:pbs:00000FA1:000186A1:00000001:{made + 3600:08X}:verificationjob:store1\\x3adaily:root@pam:"
