"""Growing the disks of guests and moving them to other storages or other guests."""

from __future__ import annotations

import re
from collections.abc import Mapping

from quorate.sim import drives, guest_volumes, volumes
from quorate.sim.drives import Properties
from quorate.sim.guest_volumes import UNUSED
from quorate.sim.guests import Guest, Kind, parse_size, volume_of_drive
from quorate.sim.power import GuestAddress
from quorate.sim.refusals import bad_parameters, failure
from quorate.sim.routing import Call, route
from quorate.sim.storages import FILE_BASED, Volume
from quorate.sim.tasks import TaskContext, TaskError
from quorate.sim.update_guest import check_digest, config_file_lock
from quorate.sim.world import World

_SECONDS = 0.4
_COPY_STEPS = 4
_OTHER_GUEST = {"qemu": "target-disk", "lxc": "target-volume"}


@route("PUT /nodes/{node}/qemu/{vmid}/resize")
def resize_vm_disk(call: Call) -> str:
    if call.params.get("skiplock"):
        call.root_only("skiplock")
    address = GuestAddress(call.world, call.node, "qemu", call.vmid)

    async def work(context: TaskContext) -> None:
        guest = address.load()
        async with context.config_lock(guest):
            check_digest(call.guest("qemu"), call.params.get("digest"))
            if not call.params.get("skiplock"):
                guest.check_lock()
            await context.sleep(_SECONDS)
            _grow_vm_disk(call, context, guest)

    return call.start_task("resize", str(call.vmid), work)


def _grow_vm_disk(call: Call, context: TaskContext, guest: Guest) -> None:
    key = call.params["disk"]
    drive = _drive(call.world, guest, key)
    if drives.is_cdrom(drive):
        raise TaskError("you can't resize a cdrom")
    volume = volumes.existing(call.world, guest.node, drive["file"])
    if guest.snapshots and volume.format == "qcow2" and guest_volumes.in_snapshot(guest, volume.volid):
        raise TaskError(f"can't resize volume: {key} if snapshot exists")
    call.require(f"/storage/{volumes.split_volid(volume.volid)[0]}", "Datastore.AllocateSpace")
    size = _wanted_size(call.params["size"], volume.size)
    if size < volume.size:
        raise TaskError("shrinking disks is not supported")
    if size == volume.size:
        return
    _grow(call, context, guest, key, volume, size)


@route("PUT /nodes/{node}/lxc/{vmid}/resize")
async def resize_container_disk(call: Call) -> str:
    guest, key = call.guest("lxc"), call.params["disk"]
    guest.check_lock()
    check_digest(guest, call.params.get("digest"))
    drive = _drive(call.world, guest, key)
    volume = volumes.existing(call.world, guest.node, drive["volume"])
    if volume.vmid != guest.vmid:
        raise failure(f"can't resize mount point owned by another container ({volume.vmid})")
    call.require(f"/storage/{volumes.split_volid(volume.volid)[0]}", "Datastore.AllocateSpace")
    size = _wanted_size(call.params["size"], volume.size)
    if size < volume.size:
        raise failure("unable to shrink disk size")
    if size == volume.size:
        raise failure("disk is already at specified size")

    async def work(context: TaskContext) -> None:
        async with context.config_lock(guest):
            call.guest("lxc").check_lock()
            await context.sleep(_SECONDS)
            _grow(call, context, guest, key, volume, size)
            if volume.format == "raw":
                context.log("resize2fs 1.47.2 (1-Jan-2025)")
                context.log(f"The filesystem on {volume.volid} is now {volume.size // 4096} (4k) blocks long.")
                context.log("")

    return call.start_task("resize", str(guest.vmid), work)


def _wanted_size(text: str, current: int) -> int:
    """`+1G` adds, `8G` is the new size; a number alone is bytes."""
    size = parse_size(text.removeprefix("+"))
    return current + size if text.startswith("+") else size


def _grow(call: Call, context: TaskContext, guest: Guest, key: str, volume: Volume, size: int) -> None:
    before = volume.size
    volumes.resize(call.world, guest.node, volume.volid, size)
    for line in _resize_log(call.world, guest, volume, before):
        context.log(line)
    drive = _drive(call.world, guest, key)
    drive["size"] = volumes.size_text(volume.size)
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
    if key not in guest.config:
        raise TaskError(f"disk '{key}' does not exist" if guest.kind == "qemu" else f"volume '{key}' does not exist")
    return drives.parse(world, guest.kind, key, str(guest.config[key]))


@route("POST /nodes/{node}/qemu/{vmid}/move_disk")
def move_disk(call: Call) -> str:
    key, target_vmid = call.params["disk"], call.params.get("target-vmid")
    if target_vmid is not None:
        return _give_to(call, "qemu", key, target_vmid)
    storage_id = call.params.get("storage")
    if storage_id is None:
        raise failure(
            "Provide either a 'storage' to move the disk to a different storage or 'target-vmid' and"
            " 'target-disk' to move the disk to another VM"
        )
    call.require(f"/storage/{storage_id}", "Datastore.AllocateSpace")
    guest = call.guest("qemu")
    check_digest(guest, call.params.get("digest"))
    guest.check_lock()
    drive = _drive(call.world, guest, key)
    if drive["file"] == "none":
        raise failure(f"disk '{key}' has no associated volume")
    if drives.is_cdrom(drive):
        raise failure("you can't move a cdrom")
    volume = volumes.existing(call.world, guest.node, drive["file"])
    if _same_place(call, volume, storage_id):
        raise failure("you can't move to the same storage with same format")
    if call.params.get("delete") and guest_volumes.in_snapshot(guest, volume.volid):
        raise failure("you can't move a disk with snapshots and delete the source")
    _require_content(call, storage_id, "images")
    return call.start_task("qmmove", str(guest.vmid), _Move(call, guest, key, storage_id).run)


@route("POST /nodes/{node}/lxc/{vmid}/move_volume")
def move_volume(call: Call) -> str:
    key, target_vmid = call.params["volume"], call.params.get("target-vmid")
    if target_vmid is not None:
        return _give_to(call, "lxc", key, target_vmid)
    storage_id = call.params.get("storage")
    if storage_id is None:
        raise failure(
            "Provide either a 'storage' to move the mount point to a different storage or 'target-vmid' and"
            " 'target-volume' to move the mount point to another container"
        )
    call.require(f"/storage/{storage_id}", "Datastore.AllocateSpace")
    guest = call.guest("lxc")
    check_digest(guest, call.params.get("digest"))
    guest.check_lock()
    if guest.running:
        raise failure("cannot move volumes of a running container")
    volume = volumes.existing(call.world, guest.node, _drive(call.world, guest, key)["volume"])
    if call.params.get("delete") and guest_volumes.in_snapshot(guest, volume.volid):
        raise failure("volume has snapshots, cannot move and delete the source")
    if volumes.split_volid(volume.volid)[0] == storage_id:
        raise failure("you can't move to the same storage")
    _require_content(call, storage_id, "rootdir")
    return call.start_task("move_volume", str(guest.vmid), _Move(call, guest, key, storage_id).run)


def _same_place(call: Call, volume: Volume, storage_id: str) -> bool:
    here = volumes.split_volid(volume.volid)[0]
    return here == storage_id and call.params.get("format", volume.format) == volume.format


def _require_content(call: Call, storage_id: str, content: str) -> None:
    storage = volumes.usable_storage(call.world, call.node, storage_id)
    if content not in storage.content:
        raise failure(f"storage '{storage_id}' does not support content-type '{content}'")


class _Move:
    """The copying of one disk to another storage, inside its task."""

    def __init__(self, call: Call, guest: Guest, key: str, storage_id: str) -> None:
        self._call = call
        self._guest = guest
        self._key = key
        self._storage_id = storage_id

    async def run(self, context: TaskContext) -> None:
        guest, world = self._guest, self._call.world
        async with context.config_lock(guest):
            self._call.guest(guest.kind).check_lock()
            drive = _drive(world, guest, self._key)
            source = volumes.existing(world, guest.node, drive[drives.volume_key(guest.kind)])
            if guest.kind == "lxc":
                with guest.locked("disk"):
                    copied = await self._copy(context, source)
            else:
                copied = await self._copy(context, source)
            self._replace(context, drive, source, copied)

    async def _copy(self, context: TaskContext, source: Volume) -> Volume:
        guest, world = self._guest, self._call.world
        what = "drive" if guest.kind == "qemu" else "mountpoint"
        context.log(f"create full clone of {what} {self._key} ({source.volid})")
        try:
            copied = volumes.copy(
                world,
                source,
                guest.node,
                self._storage_id,
                guest.vmid,
                guest.kind,
                fmt=self._call.params.get("format"),
            )
        except TaskError as error:
            if guest.kind == "lxc":
                raise
            raise TaskError(f"storage migration failed: {error}") from error
        try:
            for line in volumes.allocation_log(world.storages[self._storage_id], copied):
                context.log(line)
            await self._transfer(context, source)
        except BaseException:
            volumes.free(world, guest.node, copied.volid)
            raise
        return copied

    async def _transfer(self, context: TaskContext, source: Volume) -> None:
        total = source.size / 1024**3
        mirrored = self._guest.kind == "qemu" and self._guest.running
        if mirrored:
            context.log(f"drive mirror is starting for drive-{self._key}")
        for step in range(1, _COPY_STEPS + 1):
            await context.sleep(1.0)
            share = 100 * step / _COPY_STEPS
            done = f"transferred {total * step / _COPY_STEPS:.1f} GiB of {total:.1f} GiB ({share:.2f}%)"
            context.log(f"drive-{self._key}: {done} in {step}s" if mirrored else done)
        if mirrored:
            context.log("all 'mirror' jobs are ready")
            context.log(f"drive-{self._key}: Completing block job...")
            context.log(f"drive-{self._key}: Completed successfully.")

    def _replace(self, context: TaskContext, drive: Properties, source: Volume, copied: Volume) -> None:
        guest, world = self._guest, self._call.world
        drive |= {drives.volume_key(guest.kind): copied.volid, "size": volumes.size_text(copied.size)}
        drive.pop("format", None)
        guest.config[self._key] = drives.render(world, guest.kind, self._key, drive)
        guest.touch()
        if not self._call.params.get("delete"):
            guest_volumes.keep_as_unused(world, guest, source.volid)
            return
        try:
            guest_volumes.destroy(world, guest, source.volid)
            for line in removal_log(world, source):
                context.log(line)
        except TaskError as error:  # linked clones build on it; the move itself is done
            context.log(str(error))
            guest_volumes.keep_as_unused(world, guest, source.volid)


def removal_log(world: World, volume: Volume) -> list[str]:
    """What the storage's tools print while they remove a disk."""
    storage = world.storages[volumes.split_volid(volume.volid)[0]]
    if storage.type != "lvmthin":
        return []
    return [f'  Logical volume "{volume.name}" successfully removed.']


def _give_to(call: Call, kind: Kind, key: str, target_vmid: int) -> str:
    """Hand a disk over to another guest of the same node."""
    if "storage" in call.params:
        raise bad_parameters({"target-vmid": "either set storage or target-vmid, but not both"})
    target_key = call.params.get(_OTHER_GUEST[kind], key)
    call.require(f"/vms/{target_vmid}", "VM.Config.Disk")
    guest = call.guest(kind)
    target = call.world.guest(call.node, kind, target_vmid)
    if target is guest:
        word = "VM" if kind == "qemu" else "CT"
        raise failure(f"cannot move disk '{key}' to the same {word} '{call.vmid}'")
    _check_handover(call, guest, target, key, target_key)

    async def work(context: TaskContext) -> None:
        async with context.config_lock(guest), config_file_lock(call.world, target):
            call.world.guest(call.node, kind, target_vmid)
            _check_handover(call, call.guest(kind), target, key, target_key)
            await context.sleep(_SECONDS)
            _hand_over(call.world, context, guest, target, (key, target_key))

    name = "qmmove" if kind == "qemu" else "move_volume"
    return call.start_task(name, f"{guest.vmid}-{key}>{target.vmid}-{target_key}", work)


def _check_handover(call: Call, guest: Guest, target: Guest, key: str, target_key: str) -> None:
    check_digest(guest, call.params.get("digest"))
    check_digest(target, call.params.get("target-digest"))
    for each in (guest, target):
        each.check_lock()
        if each.template:
            raise failure(f"Moving disks from or to a template is not possible: {each.word} {each.vmid}")
    if target_key in target.config:
        raise failure(f"Target disk key '{target_key}' is already in use for {target.word} '{target.vmid}'")
    if guest.running and not UNUSED.fullmatch(key):
        raise failure(f"Cannot move disk '{key}' of a running {guest.word}")
    drive = _drive_or_unused(call.world, guest, key)
    volid = drive[drives.volume_key(guest.kind)]
    volumes.existing(call.world, guest.node, volid)
    if guest_volumes.in_snapshot(guest, volid):
        raise failure(f"Can't move disk '{key}' used by a snapshot to another owner")


def _drive_or_unused(world: World, guest: Guest, key: str) -> Properties:
    if UNUSED.fullmatch(key) and key in guest.config:
        return {drives.volume_key(guest.kind): volume_of_drive(str(guest.config[key]))}
    return _drive(world, guest, key)


def _hand_over(world: World, context: TaskContext, guest: Guest, target: Guest, keys: tuple[str, str]) -> None:
    key, target_key = keys
    drive = _drive_or_unused(world, guest, key)
    volume = volumes.existing(world, guest.node, drive[drives.volume_key(guest.kind)])
    renamed = volumes.rename(world, guest.node, volume.volid, _new_name(world, target, volume), vmid=target.vmid)
    context.log(f"moving disk '{key}' from {guest.word} '{guest.vmid}' to '{target.vmid}'")
    context.log(f"renamed volume '{volume.volid}' to '{renamed.volid}'")
    del guest.config[key]
    drive |= {drives.volume_key(guest.kind): renamed.volid, "size": volumes.size_text(renamed.size)}
    target.config[target_key] = _stored(world, target, target_key, drive)
    for each in (guest, target):
        each.touch()


def _stored(world: World, target: Guest, key: str, drive: Mapping[str, str]) -> str:
    if UNUSED.fullmatch(key):
        return drive[drives.volume_key(target.kind)]
    return drives.render(world, target.kind, key, drive)


def _new_name(world: World, target: Guest, volume: Volume) -> str:
    """The volume's name with the other guest's number, under a disk number that is free there."""
    taken = {each.volid for each in volumes.owned_by(world, target.node, target.vmid)}
    number = 0
    while True:
        name = re.sub(r"(vm|base|subvol|basevol)-\d+-disk-\d+", rf"\g<1>-{target.vmid}-disk-{number}", volume.volid)
        name = re.sub(r":\d+/", f":{target.vmid}/", name)
        if name not in taken:
            return name
        number += 1
