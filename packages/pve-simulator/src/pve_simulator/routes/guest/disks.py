"""Resizing disks and moving them to other storages or guests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AsyncExitStack

from pve_schema.validation import MISSING
from pve_simulator.cluster.config_files import MODIFIED
from pve_simulator.guests import drives, guest_volumes
from pve_simulator.guests.clone import copy_files
from pve_simulator.guests.create_vm import boot_order
from pve_simulator.guests.drives import Properties, is_unused_key
from pve_simulator.guests.guest import Guest, Kind, parse_size, volume_of_drive
from pve_simulator.guests.power import GuestAddress
from pve_simulator.guests.tool_output import complete_mirror, copy_image, grow_file_system, mirror_image
from pve_simulator.guests.update import check_digest
from pve_simulator.http.refusals import Refusal, bad_parameters, failure
from pve_simulator.http.routing import LXC, QEMU, Call, route
from pve_simulator.nodes.tasks import TaskContext, TaskError, config_lock
from pve_simulator.storage import volumes
from pve_simulator.storage.storages import FILE_BASED, Volume
from pve_simulator.storage.volume_names import base_name, is_base
from pve_simulator.world import World

_SECONDS = 0.4
# Log texts for a disk that is reassigned to another guest.
_HANDOVER: Mapping[Kind, Mapping[str, str]] = {
    "qemu": {
        "parameter": "target-disk", "missing": "could not find VM", "target missing": "could not find target VM",
        "guests": "VMs", "guest": "VM", "of": "VM", "disk": "Disk", "key": "disk",
        "template": "Can't move disks from or to template VMs",
        "snapshot": "Can't move disk used by a snapshot to another VM",
        "running": "Cannot move disk to another VM while the source VM is running - detach first",
        "log": "reassign disk '{key}' from VM '{vmid}' as '{target_key}' to VM '{target}'",
    },
    "lxc": {
        "parameter": "target-volume", "missing": "could not find CT", "target missing": "could not find CT",
        "guests": "containers", "guest": "Container", "of": "container", "disk": "volume", "key": "volume",
        "template": "Can't move volumes from or to template CT",
        "snapshot": "Cannot move volume used by a snapshot to another container",
        "running": "Cannot move in-use volume while the source CT is running - detach or shutdown first",
        "log": "moving volume '{key}' from container '{vmid}' to '{target}'",
    },
}  # fmt: skip


@route(f"PUT {QEMU}/resize")
def resize_vm_disk(call: Call) -> str:
    if call.params.get("skiplock"):
        call.root_only("skiplock")
    address = GuestAddress.of(call)

    async def work(context: TaskContext) -> None:
        guest = address.load()
        async with context.config_lock(guest):
            check_digest(call.guest(), call.params.get("digest"))
            if not call.params.get("skiplock"):
                guest.check_lock()
            await context.sleep(_SECONDS)
            _grow_vm_disk(call, context, guest)

    return call.start_task("resize", str(call.vmid), work)


def _grow_vm_disk(call: Call, context: TaskContext, guest: Guest) -> None:
    key = call.params["disk"]
    drive = _drive(call.world, guest, key)
    volumes.split_volid(drive["file"])
    if drives.is_cdrom(drive):
        raise TaskError("you can't resize a cdrom")
    volume = volumes.existing(call.world, guest.node, drive["file"])
    call.require(f"/storage/{volumes.split_volid(volume.volid)[0]}", "Datastore.AllocateSpace")
    size = _target_size(call.params["size"], volume.size)
    if size < volume.size:
        raise TaskError("shrinking disks is not supported")
    if size == volume.size:
        return
    _refuse_base_image(call.world, context, volume, size)
    _grow(call, context, guest, key, volume, size)


@route(f"PUT {LXC}/resize")
async def resize_container_disk(call: Call) -> str:
    guest, key = call.guest(), call.params["disk"]
    guest.check_lock()
    check_digest(guest, call.params.get("digest"))
    drive = _drive(call.world, guest, key)
    volume = volumes.existing(call.world, guest.node, drive["volume"])
    if volume.vmid != guest.vmid:
        raise failure(f"can't resize mount point owned by another container ({volume.vmid})")
    call.require(f"/storage/{volumes.split_volid(volume.volid)[0]}", "Datastore.AllocateSpace")
    size = _target_size(call.params["size"], volume.size)
    if size < volume.size:
        raise failure("unable to shrink disk size")
    if size == volume.size:
        raise failure("disk is already at specified size")

    async def work(context: TaskContext) -> None:
        async with context.config_lock(guest):
            call.guest().check_lock()
            await context.sleep(_SECONDS)
            _refuse_base_image(call.world, context, volume, size)
            before = volume.size
            _grow(call, context, guest, key, volume, size)
            if volume.format == "raw":
                context.log(*grow_file_system(call.world, volume, before, mounted=guest.running))

    return call.start_task("resize", str(guest.vmid), work)


def _refuse_base_image(world: World, context: TaskContext, volume: Volume, size: int) -> None:
    """A base image on a file system is immutable, so tools cannot write to it."""
    storage = world.storages[volumes.split_volid(volume.volid)[0]]
    if not is_base(volume.volid) or storage.type not in FILE_BASED or volume.format == "subvol":
        return
    path = volumes.path_of(storage, volume.name)
    context.log(f"qemu-img: Could not open '{path}': Could not open '{path}': Operation not permitted")
    command = f"/usr/bin/qemu-img resize '--preallocation=off' -f {volume.format} {path} {size}"
    raise TaskError(f"command '{command}' failed: exit code 1")


def _target_size(text: str, current: int) -> int:
    """`+1G` adds, `8G` is the new size; a number alone is bytes."""
    size = parse_size(text.removeprefix("+"))
    return current + size if text.startswith("+") else size


def _grow(call: Call, context: TaskContext, guest: Guest, key: str, volume: Volume, size: int) -> None:
    before = volume.size
    volumes.resize(call.world, guest.node, volume.volid, size)
    context.log(*_resize_log(call.world, guest, volume, before))
    drive = _drive(call.world, guest, key)
    drive["size"] = volumes.size_text(size)  # the requested size; the file may have been rounded up
    guest.config[key] = drives.render(call.world, guest.kind, key, drive)
    guest.touch()


def _resize_log(world: World, guest: Guest, volume: Volume, before: int) -> list[str]:
    storage = world.storages[volumes.split_volid(volume.volid)[0]]
    if storage.type in FILE_BASED:
        return [] if guest.kind == "qemu" and guest.running else ["Image resized."]
    if storage.type != "lvmthin":
        return []
    name = f"{storage.config.get('vgname', 'pve')}/{volume.name}"
    extent, gib = 4 * 1024**2, 1024**3
    old, new = (f"{size / gib:.2f} GiB ({size // extent} extents)" for size in (before, volume.size))
    changed = f"  Size of logical volume {name} changed from {old} to {new}."
    return [changed, f"  Logical volume {name} successfully resized."]


def _drive(world: World, guest: Guest, key: str) -> Properties:
    if key not in guest.config and guest.kind == "lxc":  # PVE reads an undefined drive and reports missing keys
        raise Refusal(500, "format error\n", {"mp": MISSING, "volume": MISSING})
    if key not in guest.config:
        raise TaskError(f"disk '{key}' does not exist")
    return drives.parse(world, guest.kind, key, str(guest.config[key]))


@route(f"POST {QEMU}/move_disk")
def move_disk(call: Call) -> str:
    key, target_vmid = call.params["disk"], call.params.get("target-vmid")
    if target_vmid is not None:
        return _reassign(call, "qemu", key, target_vmid)
    storage_id = _target_storage(call)
    call.require(f"/storage/{storage_id}", "Datastore.AllocateSpace")
    guest = call.guest()
    guest.check_lock()
    _refuse_modified(guest, call.params.get("digest"))
    drive = _attached_or_unused_drive(call.world, guest, key)
    if drives.is_cdrom(drive) and not drives.is_cloudinit(drive):
        raise failure("you can't move a cdrom")
    volume = volumes.existing(call.world, guest.node, drive["file"])
    if _is_same_storage(call, volume, storage_id):
        raise failure("you can't move to the same storage with same format")
    if "images" not in volumes.usable_storage(call.world, call.node, storage_id).content:
        raise bad_parameters({"storage": f"storage '{storage_id}' does not support vm images"})
    if call.params.get("delete") and guest_volumes.in_snapshot(guest, volume.volid):
        raise failure("you can't move a disk with snapshots and delete the source")
    return call.start_task("qmmove", str(guest.vmid), _Move(call, guest, key, storage_id).run)


@route(f"POST {LXC}/move_volume")
def move_volume(call: Call) -> str:
    key, target_vmid = call.params["volume"], call.params.get("target-vmid")
    if target_vmid is not None:
        return _reassign(call, "lxc", key, target_vmid)
    storage_id = _target_storage(call)
    call.require(f"/storage/{storage_id}", "Datastore.AllocateSpace")
    guest = call.guest()
    guest.check_lock()
    if guest.running:
        raise failure("cannot move volumes of a running container")
    if is_unused_key(key):
        only = "only configured volumes can be moved to another storage"
        raise failure(f"cannot move volume '{key}', {only}")
    volume = volumes.existing(call.world, guest.node, _drive(call.world, guest, key)["volume"])
    if call.params.get("delete") and guest_volumes.in_snapshot(guest, volume.volid):
        raise failure("you can't move a volume with snapshots and delete the source")
    _refuse_modified(guest, call.params.get("digest"))
    return call.start_task("move_volume", str(guest.vmid), _Move(call, guest, key, storage_id).run)


def _refuse_modified(guest: Guest, digest: str | None, prefix: str = "") -> None:
    if digest and digest != guest.digest():
        raise failure(f"{prefix}{MODIFIED}")


def _target_storage(call: Call) -> str:
    storage_id: str | None = call.params.get("storage")
    if storage_id is None:
        neither = "both 'storage' and 'target-vmid' missing, either needs to be set"
        raise bad_parameters({"storage": neither, "target-vmid": neither})
    return storage_id


def _is_same_storage(call: Call, volume: Volume, storage_id: str) -> bool:
    here = volumes.split_volid(volume.volid)[0]
    return here == storage_id and call.params.get("format", volume.format) == volume.format


def _require_content(call: Call, storage_id: str, content: str) -> None:
    storage = volumes.usable_storage(call.world, call.node, storage_id)
    if content not in storage.content:
        raise failure(f"storage '{storage_id}' does not support content-type '{content}'")


class _Move:
    """Moves one disk to another storage, in its task."""

    def __init__(self, call: Call, guest: Guest, key: str, storage_id: str) -> None:
        self._call = call
        self._guest = guest
        self._key = key
        self._storage_id = storage_id

    async def run(self, context: TaskContext) -> None:
        guest, world = self._guest, self._call.world
        if guest.kind == "lxc":  # for VMs, PVE has already checked the storage
            _require_content(self._call, self._storage_id, "rootdir")
        async with context.config_lock(guest):
            self._call.guest().check_lock()
            drive = _attached_or_unused_drive(world, guest, self._key)
            source = volumes.existing(world, guest.node, drive[drives.volume_key(guest.kind)])
            if guest.kind == "lxc":
                with guest.hold_lock("disk"):
                    copied = await self._copy(context, source)
            else:
                copied = await self._copy(context, source)
            self._replace(context, drive, source, copied)

    async def _copy(self, context: TaskContext, source: Volume) -> Volume:
        guest, world = self._guest, self._call.world
        if guest.kind == "qemu":
            context.log(f"create full clone of drive {self._key} ({source.volid})")
        fmt = self._call.params.get("format")
        name = f"vm-{guest.vmid}-cloudinit" if drives.CLOUDINIT_VOLUME.fullmatch(source.name) else None
        try:
            copied = volumes.copy(
                world, source, guest.node, self._storage_id, guest.vmid, guest.kind, fmt=fmt, name=name
            )
        except TaskError as error:
            if guest.kind == "lxc":
                raise
            raise TaskError(f"storage migration failed: {error}") from error
        with volumes.free_on_failure(world, guest.node, [copied]):
            context.log(*volumes.allocation_log(world.storages[self._storage_id], copied))
            await self._transfer(context, copied)
        return copied

    async def _transfer(self, context: TaskContext, copied: Volume) -> None:
        if self._guest.kind == "lxc":
            await copy_files(context, self._call.world, copied)
            return
        context.log(f"allocated target volume '{copied.volid}'")
        if self._guest.running:
            await mirror_image(context, self._key, copied)
            complete_mirror(context.log, self._key)
        else:
            await copy_image(context, copied)

    def _replace(self, context: TaskContext, drive: Properties, source: Volume, copied: Volume) -> None:
        guest, world = self._guest, self._call.world
        if guest.template:
            copied = volumes.rename(world, guest.node, copied.volid, base_name(copied.volid))
        drive |= {drives.volume_key(guest.kind): copied.volid, "size": volumes.size_text(copied.size)}
        drive.pop("format", None)
        guest.config[self._key] = _render_drive(world, guest, self._key, drive)
        guest.touch()
        if not self._call.params.get("delete"):
            guest_volumes.keep_as_unused(world, guest, source.volid)
            return
        try:
            guest_volumes.destroy(world, guest, source.volid)
            context.log(*removal_log(world, source))
        except TaskError as error:  # linked clones depend on it; the move itself is done
            context.log(str(error))
            guest_volumes.keep_as_unused(world, guest, source.volid)


def removal_log(world: World, volume: Volume) -> list[str]:
    """What the storage's tools print while they remove a disk."""
    storage = world.storages[volumes.split_volid(volume.volid)[0]]
    if storage.type != "lvmthin":
        return []
    return [f'  Logical volume "{volume.name}" successfully removed.']


def _reassign(call: Call, kind: Kind, key: str, target_vmid: int) -> str:
    """Reassign a disk to another guest on the same node."""
    if "storage" in call.params and kind == "lxc":
        raise failure("either set storage or target-vmid, but not both")
    if "storage" in call.params:
        both = "either set 'storage' or 'target-vmid', but not both"
        raise bad_parameters({"storage": both, "target-vmid": both})
    words = _HANDOVER[kind]
    target_key = call.params.get(words["parameter"], key)
    call.require(f"/vms/{target_vmid}", "VM.Config.Disk")
    if kind == "qemu" and target_vmid == call.vmid:
        raise bad_parameters({"target-vmid": "must be different than source VMID to reassign disk"})
    if kind == "lxc":
        _check_volume_keys(key, target_key)
    for vmid, missing in ((call.vmid, words["missing"]), (target_vmid, words["target missing"])):
        if vmid not in call.world.guests:
            raise failure(f"{missing} {vmid}")
    nodes = [call.world.guests[vmid].node for vmid in (call.vmid, target_vmid)]
    if nodes[0] != nodes[1]:
        raise failure(f"Both {words['guests']} need to be on the same node ({nodes[0]} != {nodes[1]})")
    guest, target = call.guest(), call.world.guest(call.node, kind, target_vmid)
    _check_handover(call, guest, target, key, target_key)

    async def work(context: TaskContext) -> None:
        async with AsyncExitStack() as locks:
            await locks.enter_async_context(context.config_lock(guest))
            if target is not guest:
                await locks.enter_async_context(config_lock(call.world.clock, target))
            call.world.guest(call.node, kind, target_vmid)
            _check_handover(call, call.guest(), target, key, target_key)
            await context.sleep(_SECONDS)
            _reassign_volume(call.world, context, guest, target, (key, target_key))

    name = "qmmove" if kind == "qemu" else "move_volume"
    return call.start_task(name, f"{guest.vmid}-{key}>{target.vmid}-{target_key}", work)


def _check_volume_keys(key: str, target_key: str) -> None:
    if "rootfs" in (key, target_key):
        raise failure("Cannot move to/from 'rootfs'")
    if is_unused_key(key) and not is_unused_key(target_key):
        raise failure("Moving an unused volume to a used one is not possible")


def _check_handover(call: Call, guest: Guest, target: Guest, key: str, target_key: str) -> None:
    words = _HANDOVER[guest.kind]
    for each in (guest, target):
        each.check_lock()
    if guest.template or target.template:
        raise failure(words["template"])
    for each, digest in ((guest, "digest"), (target, "target-digest")):
        _refuse_modified(each, call.params.get(digest), f"{words['guest']} {each.vmid}: ")
    if key not in guest.config:
        raise failure(f"{words['disk']} '{key}' for {words['of']} '{guest.vmid}' does not exist")
    if target_key in target.config:
        raise failure(f"Target {words['key']} key '{target_key}' is already in use for {words['of']} '{target.vmid}'")
    drive = _attached_or_unused_drive(call.world, guest, key)
    volid = drive[drives.volume_key(guest.kind)]
    if guest.kind == "qemu" and drives.is_cdrom(drive) and not drives.is_cloudinit(drive):
        raise failure("CD drive contents can't be moved to another VM")
    if guest_volumes.in_snapshot(guest, volid):
        raise failure(words["snapshot"])
    if guest.kind == "lxc" and volid.startswith("/"):
        raise failure("Cannot move a bindmount or device mount to another container")
    if guest.running and not is_unused_key(key):
        raise failure(words["running"])
    volumes.existing(call.world, guest.node, volid)


def _attached_or_unused_drive(world: World, guest: Guest, key: str) -> Properties:
    if is_unused_key(key) and key in guest.config:
        return {drives.volume_key(guest.kind): volume_of_drive(str(guest.config[key]))}
    return _drive(world, guest, key)


def _reassign_volume(world: World, context: TaskContext, guest: Guest, target: Guest, keys: tuple[str, str]) -> None:
    key, target_key = keys
    drive = _attached_or_unused_drive(world, guest, key)
    volume = volumes.existing(world, guest.node, drive[drives.volume_key(guest.kind)])
    renamed = volumes.rename(world, guest.node, volume.volid, _new_name(world, target, volume), vmid=target.vmid)
    words = _HANDOVER[guest.kind]
    context.log(words["log"].format(key=key, vmid=guest.vmid, target_key=target_key, target=target.vmid))
    order = guest.boot_devices()
    if key in order:
        context.log(f"removing disk '{key}' from boot order config")
        guest.config["boot"] = boot_order([device for device in order if device != key])
    context.log(f"removing {words['key']} '{key}' from {words['of']} '{guest.vmid}' config")
    del guest.config[key]
    drive |= {drives.volume_key(guest.kind): renamed.volid, "size": volumes.size_text(renamed.size)}
    target.config[target_key] = _render_drive(world, target, target_key, drive)
    if guest.kind == "lxc":
        context.log(f"target container '{target.vmid}' updated with '{target_key}'")
    elif not is_unused_key(target_key):
        context.log(f"update VM {target.vmid}: -{target_key} {target.config[target_key]}")
    for each in (guest, target):
        each.touch()


def _render_drive(world: World, target: Guest, key: str, drive: Mapping[str, str]) -> str:
    if is_unused_key(key):
        return drive[drives.volume_key(target.kind)]
    return drives.render(world, target.kind, key, drive)


def _new_name(world: World, target: Guest, volume: Volume) -> str:
    """The volume's name with the other guest's vmid and a free disk number."""
    volids = {each.volid for each in volumes.owned_by(world, target.node, target.vmid)}
    number = 0
    while True:
        name = re.sub(r"(vm|base|subvol|basevol)-\d+-disk-\d+", rf"\g<1>-{target.vmid}-disk-{number}", volume.volid)
        name = re.sub(r":\d+/", f":{target.vmid}/", name)
        if name not in volids:
            return name
        number += 1
