"""The disks of a restored guest: allocated and filled from the backup."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from pve_simulator.guests import guest_volumes
from pve_simulator.guests.drives import Drive, all_drives, is_unused_key, mount_order
from pve_simulator.guests.guest import Guest, Value, size_of_drive
from pve_simulator.guests.tool_output import make_file_system, tar_total
from pve_simulator.nodes.tasks import TaskContext, TaskError
from pve_simulator.storage import archives, volumes
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
        self._made: list[Volume] = []

    async def restore(
        self, source: Storage, volume: Volume, archive: Archive, mounts: Mapping[str, str] | None = None
    ) -> dict[str, Value]:
        """Restore all disks; returns the configuration with their new names. `mounts` replace those of a container."""
        command = _extraction(source, volume, self._context.task.upid.pid)
        piped = f"command 'set -o pipefail && {command.partition(': ')[2]}' failed: "
        of_files = archive.kind == "qemu" and source.type != "pbs"
        with volumes.free_on_failure(self._world, self._guest.node, self._made, piped if of_files else ""):
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
            made = disks[drive.key] = self._allocate(drive, archive)
            log(f"new volume ID is '{made.volid}'")
            storage = self._world.storages[drive.storage if self._storage is None else self._storage]
            log(f"map 'drive-{drive.key}' to '{volumes.path_of(storage, made.name)}' (write zeros = 0)")
            config[drive.key] = drive.with_volume(made.volid, volumes.size_text(made.size))
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
                made = volumes.allocate(self._world, node, storage_id, vmid, "qemu", size, name=name)
                self._made.append(made)
                config[drive.key] = drive.with_volume(made.volid)

    async def _restore_container(
        self, source: Storage, volume: Volume, archive: Archive, mounts: Mapping[str, str]
    ) -> dict[str, Value]:
        log = self._context.log
        log(f"recovering backed-up configuration from '{volume.volid}'")
        config = self._config_without_disks(archive)
        maker = guest_volumes.DiskMaker(self._world, self._guest.node, self._guest.vmid, "lxc", log)
        maker.made = self._made
        for key in sorted(mounts, key=mount_order):
            config[key] = maker.mount_point(key, mounts[key])
        if mounts and self._made:
            volumes.fill(self._world, self._guest.node, self._made[0], archive.data)
        for drive in () if mounts else sorted(all_drives(archive.config), key=lambda each: mount_order(each.key)):
            if drive.is_bind_mount:
                config[drive.key] = drive.text
                continue
            made = self._allocate(drive, archive)
            if made.format == "raw":
                log(*make_file_system(self._world, made))
            config[drive.key] = drive.with_volume(made.volid, volumes.size_text(made.size))
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
        made = volumes.allocate(
            self._world,
            self._guest.node,
            storage.id,
            self._guest.vmid,
            kind,
            _size(drive),
            fmt=ending if kind == "qemu" and ending in possible else possible[0],
            used=_share(archive, drive),
        )
        self._made.append(made)
        self._context.log(*volumes.allocation_log(storage, made))
        return made


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
