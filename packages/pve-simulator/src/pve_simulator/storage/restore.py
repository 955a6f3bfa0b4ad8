"""Restoring guests from backups: checks at once, disks and configuration in the task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pve_simulator.guests import clone, drives, guest_volumes, options
from pve_simulator.guests.drives import Drive, all_drives, disks, is_unused_key, mount_order
from pve_simulator.guests.guest import Guest, Kind, Value, size_of_drive
from pve_simulator.guests.new_guests import (
    abandon,
    addresses_of,
    after_creation,
    enter_pool,
    refuse_taken,
    require_new_guest,
    reserve,
)
from pve_simulator.guests.option_privileges import GuestPrivileges
from pve_simulator.guests.tool_output import make_file_system, tar_total
from pve_simulator.http.refusals import Refusal, bad_parameters, failure
from pve_simulator.http.routing import Call
from pve_simulator.nodes.tasks import TaskContext, TaskError
from pve_simulator.storage import archives, volume_access, volumes
from pve_simulator.storage.archives import Archive, transfer_steps
from pve_simulator.storage.storages import Storage, Volume
from pve_simulator.world import World

_FIXED_SIZE = {"efidisk0": volumes.EFIDISK_SIZE, "tpmstate0": volumes.TPMSTATE_SIZE}
_DECOMPRESSOR = {"zst": "zstd -q -d -c", "gz": "zcat", "lzo": "lzop -d -c"}
_DEFAULT_CONTAINER_STORAGE = "local"
_DAMAGED_AT = 40  # readable percentage of a damaged backup


class DiskRestorer:
    """Restores the disks of one guest, all or none."""

    def __init__(self, world: World, guest: Guest, context: TaskContext, storage: str | None) -> None:
        self._world = world
        self._guest = guest
        self._context = context
        self._storage = storage
        self._created: list[Volume] = []

    async def restore(
        self, source: Storage, volume: Volume, archive: Archive, mounts: Mapping[str, str] | None = None
    ) -> dict[str, Value]:
        """Restore all disks; returns the configuration with their new names. `mounts` replace those of a container."""
        command = _extraction(source, volume, self._context.task.upid.pid)
        piped = f"command 'set -o pipefail && {command.partition(': ')[2]}' failed: "
        of_files = archive.kind == "qemu" and source.type != "pbs"
        with volumes.free_on_failure(self._world, self._guest.node, self._created, piped if of_files else ""):
            if archive.kind == "qemu":
                return await self._restore_vm(command, volume, archive)
            return await self._restore_container(source, volume, archive, mounts or {})

    async def _restore_vm(self, command: str, volume: Volume, archive: Archive) -> dict[str, Value]:
        log, data = self._context.log, archive.drives()
        log(command)
        log(f"CFG: size: {len(archive.text)} name: qemu-server.conf")
        for number, drive in enumerate(data, start=1):
            log(f"DEV: dev_id={number} size: {_size(drive)} devname: drive-{drive.key}")
        log(f"CTIME: {datetime.fromtimestamp(archives.made_at(volume), UTC):%a %b %e %H:%M:%S %Y}")
        config = self._config_without_disks(archive)
        disks: dict[str, Volume] = {}
        for drive in data:
            disk = disks[drive.key] = self._allocate(drive, archive)
            log(f"new volume ID is '{disk.volid}'")
            storage = self._world.storages[drive.storage if self._storage is None else self._storage]
            log(f"map 'drive-{drive.key}' to '{volumes.path_of(storage, disk.name)}' (write zeros = 0)")
            config[drive.key] = drive.with_volume(disk.volid, volumes.size_text(disk.size))
        if archive.content is not None:
            await archive.content.unpack(self._guest, disks, log)
        elif data:
            await self._read(volume, archive)
        else:
            log("vma archive contains no image data")
        self._renew_cloudinit(archive, config)
        log("rescan volumes...")
        return config

    def _config_without_disks(self, archive: Archive) -> dict[str, Value]:
        """The configuration without disks; CD-ROMs stay, excluded disks are dropped."""
        own = {drive.key for drive in all_drives(archive.config) if not drive.is_cdrom and not drive.is_bind_mount}
        return {key: value for key, value in archive.config.items() if key not in own and not is_unused_key(key)}

    async def _read(self, volume: Volume, archive: Archive) -> None:
        total, seconds = archives.total_size(archive), 0
        for step in transfer_steps(total):
            if volume.damaged and step.percent > _DAMAGED_AT:
                self._context.log("vma: restore failed - short vma extent (1634816 < 3801600)")
                raise TaskError("exit code 1")
            await self._context.sleep(step.seconds)
            seconds += step.seconds
            done = total * step.percent // 100
            self._context.log(f"progress {step.percent}% (read {done} bytes, duration {seconds} sec)")
        sparse = max(0, total - archive.data)
        share = sparse * 100 // total if total else 0
        self._context.log(f"total bytes read {total}, sparse bytes {sparse} ({share}%)")
        self._context.log("space reduction due to 4K zero blocks 0.2%")

    def _renew_cloudinit(self, archive: Archive, config: dict[str, Value]) -> None:
        for drive in all_drives(archive.config):
            if drive.is_cloudinit:
                storage_id, size = self._storage or drive.storage, volumes.CLOUDINIT_SIZE
                node, vmid, name = self._guest.node, self._guest.vmid, f"vm-{self._guest.vmid}-cloudinit"
                disk = volumes.allocate(self._world, node, storage_id, vmid, "qemu", size, name=name)
                self._created.append(disk)
                config[drive.key] = drive.with_volume(disk.volid)

    async def _restore_container(
        self, source: Storage, volume: Volume, archive: Archive, mounts: Mapping[str, str]
    ) -> dict[str, Value]:
        log = self._context.log
        log(f"recovering backed-up configuration from '{volume.volid}'")
        config = self._config_without_disks(archive)
        maker = guest_volumes.DiskMaker(self._world, self._guest.node, self._guest.vmid, "lxc", log)
        maker.created = self._created
        for key in sorted(mounts, key=mount_order):
            config[key] = maker.mount_point(key, mounts[key])
        if mounts and self._created:
            volumes.fill(self._world, self._guest.node, self._created[0], archive.data)
        for drive in () if mounts else sorted(all_drives(archive.config), key=lambda each: mount_order(each.key)):
            if drive.is_bind_mount:
                config[drive.key] = drive.text
                continue
            disk = self._allocate(drive, archive)
            if disk.format == "raw":
                log(*make_file_system(self._world, disk))
            config[drive.key] = drive.with_volume(disk.volid, volumes.size_text(disk.size))
        log(f"restoring '{volume.volid}' now..")
        log(f"extracting archive '{volumes.path_of(source, volume.name)}'")
        seconds = max(1, sum(step.seconds for step in transfer_steps(archive.data)))
        await self._context.sleep(seconds)
        log(tar_total("read", archive.data, seconds))
        log("merging backed-up and given configuration..")
        return config

    def _allocate(self, drive: Drive, archive: Archive) -> Volume:
        kind = archive.kind
        default = _DEFAULT_CONTAINER_STORAGE if kind == "lxc" else drive.storage
        storage = volumes.usable_storage(self._world, self._guest.node, self._storage or default)
        content = "images" if kind == "qemu" else "rootdir"
        if content not in storage.content:
            raise TaskError(f"content type '{content}' is not available on storage '{storage.id}'")
        possible = volumes.formats(storage, kind)
        ending = drive.volid.rpartition(".")[2]
        disk = volumes.allocate(
            self._world,
            self._guest.node,
            storage.id,
            self._guest.vmid,
            kind,
            _size(drive),
            fmt=ending if kind == "qemu" and ending in possible else possible[0],
            used=_share(archive, drive),
        )
        self._created.append(disk)
        self._context.log(*volumes.allocation_log(storage, disk))
        return disk


def _size(drive: Drive) -> int:
    return size_of_drive(drive.text) or _FIXED_SIZE.get(drive.key, 0)


def _share(archive: Archive, drive: Drive) -> int:
    """The share of the backup's data for one disk, by size."""
    total = sum(_size(each) for each in archive.drives())
    if drive.key not in {each.key for each in archive.drives()} or not total:
        return 0
    return archive.data * _size(drive) // total


def _extraction(source: Storage, volume: Volume, pid: int) -> str:
    path = volumes.path_of(source, volume.name)
    if source.type == "pbs":
        return f"restore proxmox backup image: {path}"
    temporary = f"/var/tmp/vzdumptmp{pid}"  # noqa: S108 (only a name in a log)
    reader = _DECOMPRESSOR.get(volume.name.rpartition(".")[2])
    piped = f"{reader} {path} | " if reader else ""
    target = "-" if reader else path
    return f"restore vma archive: {piped}vma extract -v -r {temporary}.fifo {target} {temporary}"


_NOT_CLEANED_UP = (
    "error before or during data restore, some or all disks were not completely restored."
    " VM {vmid} state is NOT cleaned up."
)


def restore_guest(call: Call, kind: Kind) -> str:
    """Run the synchronous checks, then start the task that restores the guest."""
    request = _Request(call, kind, int(call.params["vmid"]))
    request.check_disks()
    request.check_privileges()
    request.check_archive()
    request.check_target()
    existing = request.existing()
    guest = reserve(call.world, call.node, kind, request.vmid) if existing is None else existing

    async def work(context: TaskContext) -> None:
        await _Restore(request, context, guest, is_new=existing is None).run()

    return call.start_task("qmrestore" if kind == "qemu" else "vzrestore", str(request.vmid), work)


@dataclass(frozen=True, slots=True)
class _Request:
    """A restore request."""

    call: Call
    kind: Kind
    vmid: int

    @property
    def world(self) -> World:
        return self.call.world

    @property
    def params(self) -> dict[str, Any]:
        return self.call.params

    @property
    def volid(self) -> str:
        return str(self.params["archive" if self.kind == "qemu" else "ostemplate"])

    @property
    def complaint(self) -> str:
        return f"unable to restore {'VM' if self.kind == 'qemu' else 'CT'} {self.vmid} - "

    @property
    def settings(self) -> dict[str, Value]:
        """Options of the call that replace those of the backup."""
        settings = options.settings_of(self.params)
        return {key: value for key, value in settings.items() if options.option_exists(self.world, self.kind, key)}

    def check_privileges(self) -> None:
        call, pool = self.call, self.params.get("pool")
        overwrites = self.params.get("force") and self.world.find_guest(call.node, self.kind, self.vmid) is not None
        if not (overwrites and call.allowed(f"/vms/{self.vmid}", "VM.Backup")):
            require_new_guest(call, self.vmid, pool)
        privileges = GuestPrivileges(call, self.vmid, pool)
        if self.params.get("start"):
            privileges.require("VM.PowerMgmt")
        if self.params.get("ha-managed"):
            call.require("/", "Sys.Console")
        if self.kind == "qemu":
            privileges.check_vm_options(self.settings)
        else:
            privileges.check_container_options(self.settings, unprivileged=bool(self.params.get("unprivileged", True)))
        privileges.check_bridges(self.kind, self.settings)

    def check_archive(self) -> None:
        if self.volid == "-":
            raise failure("pipe requires cli environment")
        storage, _ = volume_access.check_access(self.call, self.volid, vmid=self.vmid, content="backup")
        if self.kind == "qemu" and storage.type != "pbs":  # the others are checked in the task
            volumes.existing(self.world, self.call.node, self.volid)

    def check_disks(self) -> None:
        """Check the disks of the call: only containers may replace those of the backup."""
        mounts = [key for key in sorted(self.settings) if drives.is_drive(self.kind, key)]
        if self.kind == "qemu" and mounts:
            raise bad_parameters({mounts[0]: "option conflicts with option 'archive'"})
        if mounts and "rootfs" not in mounts:
            raise failure("mount points configured, but 'rootfs' not set - aborting")

    @property
    def mounts(self) -> dict[str, str]:
        """The mount points that replace those of the backup."""
        default = self.params.get("storage", "local")
        return {
            key: f"{default}:{value}" if str(value).replace(".", "", 1).isdecimal() else str(value)
            for key, value in self.settings.items()
            if drives.is_drive("lxc", key)
        }

    def check_target(self) -> None:
        storage_id = self.params.get("storage")
        if storage_id is None:
            return
        self.call.require(f"/storage/{storage_id}", "Datastore.AllocateSpace")
        storage = volumes.usable_storage(self.world, self.call.node, storage_id)
        if self.kind == "qemu" and "images" not in storage.content:
            raise bad_parameters({"storage": f"storage '{storage_id}' does not support vm images"})
        if self.kind == "lxc" and "rootdir" not in storage.content:
            raise bad_parameters({"storage": f"storage '{storage_id}' does not support container directories"})

    def existing(self) -> Guest | None:
        """The guest to overwrite; refuses if the vmid belongs to another guest."""
        guest = self.world.find_guest(self.call.node, self.kind, self.vmid)
        if guest is None or not self.params.get("force"):
            refuse_taken(self.world, self.vmid, self.complaint if self.kind == "qemu" else "")
            return None
        if self.kind == "lxc" and guest.running:
            raise failure("can't overwrite running container")
        if guest.lock is not None:
            raise failure(f"{self.complaint}{guest.word} is locked ({guest.lock})")
        return guest


class _Restore:
    """The work of one restore task."""

    def __init__(self, request: _Request, context: TaskContext, guest: Guest, *, is_new: bool) -> None:
        self._request = request
        self._world = request.world
        self._context = context
        self._guest = guest
        self._is_new = is_new

    async def run(self) -> None:
        guest, context = self._guest, self._context
        try:
            async with context.config_lock(guest):
                await self._restore_vm()
        except TaskError as error:
            self._clean_up()
            if guest.kind == "qemu":
                raise
            raise TaskError(f"{self._request.complaint}{error}") from error
        except BaseException:
            self._clean_up()
            raise
        if guest.template:
            context.log("Convert to template.")
            del guest.config["template"]
            await clone.convert(self._world, guest)(context)
        enter_pool(self._world.access, guest.vmid, self._request.params.get("pool"))
        after_creation(self._request.call, context, guest)

    async def _restore_vm(self) -> None:
        self._check_existing()
        volume = self._find_archive()
        archive = archives.open_archive(self._world, volume)
        if self._request.params.get("live-restore") and self._storage_of(volume).type != "pbs":
            raise TaskError("live-restore is only compatible with backup images from a Proxmox Backup Server")
        if archive.kind != self._request.kind:
            raise self._wrong_kind(volume, archive)
        self._check_restored_privileges(archive)
        if self._guest.kind == "lxc":
            await self._restore_container(volume, archive)
            return
        kept = self._remove_disks(archive)
        restorer = DiskRestorer(self._world, self._guest, self._context, self._request.params.get("storage"))
        config = await restorer.restore(self._storage_of(volume), volume, archive)
        self._set_config(archive, {**config, **kept})

    async def _restore_container(self, volume: Volume, archive: Archive) -> None:
        """Restore a container: create the new disks before deleting the old ones."""
        guest = self._guest
        owned = [volid for volid in guest_volumes.all_volumes(guest) if guest_volumes.owns(self._world, guest, volid)]
        restorer = DiskRestorer(self._world, guest, self._context, self._request.params.get("storage"))
        config = await restorer.restore(self._storage_of(volume), volume, archive, self._request.mounts)
        guest.forget_past()
        for volid in owned:
            volumes.free(self._world, guest.node, volid)
        self._set_config(archive, config)

    def _check_restored_privileges(self, archive: Archive) -> None:
        """Check privileges on restored options: bridges and privileged containers."""
        request, old = self._request, self._guest.config
        unprivileged = request.params.get("unprivileged", archive.config.get("unprivileged"))
        try:
            privileges = GuestPrivileges(request.call, request.vmid, request.params.get("pool"))
            privileges.check_bridges(request.kind, {**archive.config, **request.settings})
            if request.kind == "lxc" and not unprivileged and (self._is_new or old.get("unprivileged")):
                request.call.require("/", "Sys.Modify")
        except Refusal as refusal:
            raise TaskError(f"{refusal.status} {refusal.message}") from refusal

    def _wrong_kind(self, volume: Volume, archive: Archive) -> TaskError:
        if self._request.kind == "lxc":
            return TaskError("ERROR: archive contains no configuration file")
        path = volumes.path_of(self._storage_of(volume), volume.name)
        unknown = [key for key in sorted(archive.config) if not options.option_exists(self._world, "qemu", key)]
        complaint = "vm {0} - unable to parse value of '{1}' - unknown setting '{1}'"
        self._context.log(*(complaint.format(self._guest.vmid, key) for key in unknown))
        return TaskError(f"ERROR: file '{path}' does not look like a QemuServer vzdump backup")

    def _check_existing(self) -> None:
        if self._is_new:
            return
        complaint = self._request.complaint if self._guest.kind == "qemu" else ""  # a container's is added to all
        if self._guest.config.get("protection"):
            raise TaskError(f"{complaint}protection mode enabled")
        if self._guest.running:
            raise TaskError(f"{complaint}vm is running")

    def _find_archive(self) -> Volume:
        volume = volumes.find(self._world, self._guest.node, self._request.volid)
        if volume is None:
            raise TaskError(f"volume '{self._request.volid}' does not exist")
        return volume

    def _storage_of(self, volume: Volume) -> Storage:
        return self._world.storages[volumes.split_volid(volume.volid)[0]]

    def _remove_disks(self, archive: Archive) -> dict[str, Value]:
        """Remove the disks that the backup replaces; detach the others."""
        guest = self._guest
        left_out = {drive.volid for drive in disks(guest.config) if not _is_in_archive(archive, drive)}
        kept: dict[str, Value] = {f"unused{number}": volid for number, volid in enumerate(sorted(left_out))}
        owned = [volid for volid in guest_volumes.all_volumes(guest) if guest_volumes.owns(self._world, guest, volid)]
        guest.forget_past()
        guest.config = {**kept, "lock": "create"}
        guest.touch()
        for volid in owned:
            if volid not in left_out:
                volumes.free(self._world, guest.node, volid)
        return kept

    def _set_config(self, archive: Archive, config: dict[str, Value]) -> None:
        """Set the restored configuration."""
        request, guest = self._request, self._guest
        if request.params.get("unique"):
            self._make_unique(config)
        if str(config.get("vmgenid", "0")) != "0":
            config["vmgenid"] = drives.new_uuid(self._world, guest.vmid, "vmgenid")
        for key, value in request.settings.items():
            if not drives.is_drive(request.kind, key):
                config[key] = options.complete(self._world, request.kind, guest.vmid, key, value)
        guest.config = config
        guest.system = archive.system
        guest.addresses = addresses_of(self._world, guest)
        guest.touch()

    def _make_unique(self, config: dict[str, Value]) -> None:
        """Give the guest new MAC addresses and a new identity."""
        vmid, kind = self._guest.vmid, self._request.kind
        own = "macaddr" if kind == "qemu" else "hwaddr"
        for key in config:
            if drives.is_net(key):
                card = drives.parse(self._world, kind, key, str(config[key]))
                card[own] = drives.new_mac(self._world, vmid, key)
                config[key] = drives.render(self._world, kind, key, card)
        if "smbios1" in config:
            config["smbios1"] = f"uuid={drives.new_uuid(self._world, vmid, 'smbios1')}"

    def _clean_up(self) -> None:
        """Clean up after a failure: a new container is removed, a VM is left incomplete."""
        guest = self._guest
        locked = guest.config.get("lock") == "create"
        if guest.kind == "lxc":
            if locked and self._is_new:
                abandon(self._world, guest)
            return
        if locked:
            guest.config.pop("lock")
            guest.touch()
        self._context.log(_NOT_CLEANED_UP.format(vmid=guest.vmid))


def _is_in_archive(archive: Archive, drive: Drive) -> bool:
    """Whether the backup contains this disk's data, or another disk under its key."""
    return drive.key in {each.key for each in archive.drives()} or archives.included(archive.kind, drive)
