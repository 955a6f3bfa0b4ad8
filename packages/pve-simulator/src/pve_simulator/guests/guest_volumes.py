"""The disks of guests: creating them from drive strings, detaching and removing them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from pve_simulator.guests import drives
from pve_simulator.guests.drives import Properties, is_unused_key
from pve_simulator.guests.guest import Guest, Kind, Value, volume_of_drive
from pve_simulator.guests.tool_output import copy_efi_image, make_file_system
from pve_simulator.nodes.tasks import TaskError
from pve_simulator.storage import appliances, volumes
from pve_simulator.storage.storages import FILE_BASED, Volume
from pve_simulator.storage.volume_names import base_name
from pve_simulator.world import World

Log = Callable[..., None]

_MAX_UNUSED = 256
_SECTOR = 512  # QEMU counts whole ones, also of an image that ends within one


def silent(*_lines: str) -> None:
    """Discard log lines."""


class DiskMaker:
    """Creates the volumes of one guest."""

    def __init__(
        self, world: World, node: str, vmid: int, kind: Kind, log: Log = silent, *, template: bool = False
    ) -> None:
        self._world = world
        self._node = node
        self._vmid = vmid
        self._kind: Kind = kind
        self._log = log
        self._template = template
        self.created: list[Volume] = []
        self.imported = False

    def undo_on_failure(self, complaint: str = "") -> AbstractContextManager[None]:
        return volumes.free_on_failure(self._world, self._node, self.created, complaint)

    def drive(self, key: str, text: str, default_storage: str | None = None) -> str:
        """A VM's drive as stored, after creating or finding its volume."""
        drive = drives.parse(self._world, "qemu", key, text)
        volume = drive["file"]
        if volume in ("none", "cdrom"):
            drive.pop("size", None)
            drive["media"] = "cdrom"
            return drives.render(self._world, "qemu", key, drive)
        if volume.endswith(":cloudinit") or volume == "cloudinit":
            return self._cloudinit(key, drive, default_storage)
        new_disk = drives.new_disk(volume, default_storage)
        if new_disk is not None:
            return self._new_drive(key, drive, *new_disk)
        return self._existing_drive(key, drive)

    def _cloudinit(self, key: str, drive: Properties, default_storage: str | None) -> str:
        """The cloud-init drive; a leftover one is rewritten."""
        storage_id = drive["file"].rpartition(":")[0] or default_storage
        if not storage_id:
            raise TaskError("no storage ID specified (and no default storage)")
        storage = volumes.usable_storage(self._world, self._node, storage_id)
        fmt = drive.pop("format", "qcow2" if storage.type in FILE_BASED else "raw")
        name = f"vm-{self._vmid}-cloudinit"
        for left_over in [each for each in storage.volumes(self._node) if _is_cloudinit_of(each, self._vmid)]:
            storage.remove(self._node, left_over.volid)
        volume = self._allocate(storage_id, volumes.CLOUDINIT_SIZE, fmt, name)
        drive |= {"file": volume.volid, "media": "cdrom"}
        return self._report_creation(key, drive)

    def _new_drive(self, key: str, drive: Properties, storage_id: str | None, size: int) -> str:
        if storage_id is None:
            raise TaskError("no storage ID specified (and no default storage)")
        fmt = drive.pop("format", None)
        source = drive.pop("import-from", None)
        if source is not None:
            volume = self._import(storage_id, source, fmt)
        else:
            efi = volumes.EFIDISK_SIZE if drive.get("efitype") == "4m" else volumes.SMALL_EFIDISK_SIZE
            fixed = {"efidisk0": efi, "tpmstate0": volumes.TPMSTATE_SIZE}
            volume = self._allocate(storage_id, fixed.get(key, size), fmt)
            if key == "efidisk0":
                self._log(*copy_efi_image(volume))
        if self._template:
            volume = volumes.rename(self._world, self._node, volume.volid, base_name(volume.volid))
            self.created[-1] = volume
        drive |= {"file": volume.volid, "size": volumes.size_text(volume.size)}
        return self._report_creation(key, drive)

    def _import(self, storage_id: str, source: str, fmt: str | None) -> Volume:
        if ":" not in source:
            raise TaskError(f"could not get file size of {source}")
        archive, packed, inside = source.partition(".ova/")
        image = volumes.find(self._world, self._node, f"{archive}.ova" if packed else source)
        if image is None or (image.format == "ova" and not inside):
            raise TaskError(f"cannot import from '{source}' - could not get size of {source}")
        if inside:
            image = _disk_of_appliance(image, source, inside)
        if drives.CLOUDINIT_VOLUME.fullmatch(image.name):
            raise TaskError(f"cannot import from '{source}' - cannot import from cloudinit disk")
        self._log(f"create full clone of drive ({source})")
        volume = volumes.copy(self._world, image, self._node, storage_id, self._vmid, "qemu", fmt=fmt)
        self.created.append(volume)
        self._log_allocation(volume)
        self.imported = True
        return volume

    def _existing_drive(self, key: str, drive: Properties) -> str:
        if ":" not in drive["file"]:  # a path of the host
            raise TaskError(f"volume {drive['file']} does not exist")
        volume = volumes.existing(self._world, self._node, drive["file"])
        if drive.get("format") not in (None, volume.format):
            raise TaskError(
                f"drive '{key}' - volume '{volume.volid}' - 'format={drive['format']}' option different"
                f" from storage format '{volume.format}'"
            )
        drive["size"] = volumes.size_text(-(-volume.size // _SECTOR) * _SECTOR)
        return drives.render(self._world, "qemu", key, drive)

    def mount_point(self, key: str, text: str) -> str:
        """A container's mount point as stored, after creating its file system."""
        mount = drives.parse(self._world, "lxc", key, text)
        new_disk = drives.new_disk(mount["volume"])
        if new_disk is not None and new_disk[0] is not None:
            volume = self._container_volume(new_disk[0], new_disk[1])
        elif mount["volume"].startswith("/"):
            return drives.render(self._world, "lxc", key, mount)
        else:
            stored = volumes.find(self._world, self._node, mount["volume"])
            if stored is None:  # PVE tolerates an unknown size
                return drives.render(self._world, "lxc", key, mount)
            volume = stored
        mount |= {"volume": volume.volid, "size": volumes.size_text(volume.size)}
        return drives.render(self._world, "lxc", key, mount)

    def _container_volume(self, storage_id: str, size: int) -> Volume:
        storage = volumes.usable_storage(self._world, self._node, storage_id)
        if "rootdir" not in storage.content:
            raise TaskError(f"content type 'rootdir' is not available on storage '{storage_id}'")
        subvolume = storage.type == "zfspool" or size == 0
        volume = self._allocate(storage_id, size, "subvol" if subvolume else "raw")
        if volume.format == "raw":
            self._log(*make_file_system(self._world, volume))
        return volume

    def _allocate(self, storage_id: str, size: int, fmt: str | None, name: str | None = None) -> Volume:
        volume = volumes.allocate(self._world, self._node, storage_id, self._vmid, self._kind, size, fmt=fmt, name=name)
        self.created.append(volume)
        self._log_allocation(volume)
        return volume

    def _log_allocation(self, volume: Volume) -> None:
        storage = self._world.storages[volumes.split_volid(volume.volid)[0]]
        self._log(*volumes.allocation_log(storage, volume))

    def _report_creation(self, key: str, drive: Mapping[str, str]) -> str:
        stored = drives.render(self._world, "qemu", key, drive)
        self._log(f"{key}: successfully created disk '{stored}'")
        return stored


def _disk_of_appliance(archive: Volume, source: str, file: str) -> Volume:
    """A disk that is extracted from an archive."""
    disk = appliances.of_volume(archive).disk(file)
    if disk is None:
        raise TaskError(f"cannot import from '{source}' - could not get size of {source}")
    return replace(archive, format=file.rpartition(".")[2], virtual_size=disk.size, used=min(archive.used, disk.size))


def _is_cloudinit_of(volume: Volume, vmid: int) -> bool:
    return volume.vmid == vmid and drives.CLOUDINIT_VOLUME.fullmatch(volume.name) is not None


def volumes_in(config: Mapping[str, Value], kind: Kind) -> Iterator[tuple[str, str]]:
    """Key and volume of every drive and unused disk in a configuration."""
    for key, value in config.items():
        if drives.is_drive(kind, key) or is_unused_key(key) or key == "vmstate":
            volume = volume_of_drive(str(value))
            if ":" in volume:
                yield key, volume


def all_volumes(guest: Guest) -> list[str]:
    """Every volume that the guest refers to, including pending changes and snapshots, each once."""
    configs = [guest.config, guest.pending, *(snapshot.config for snapshot in guest.snapshots.values())]
    return list(dict.fromkeys(volid for config in configs for _, volid in volumes_in(config, guest.kind)))


def in_snapshot(guest: Guest, volid: str) -> bool:
    """Whether a snapshot needs the volume."""
    return any(
        volid == used for snapshot in guest.snapshots.values() for _, used in volumes_in(snapshot.config, guest.kind)
    )


def owns(world: World, guest: Guest, volid: str) -> bool:
    """Whether the guest owns the volume, by the vmid in its name."""
    try:
        content, owner = volumes.content_of(world, volid)
    except TaskError:
        return False
    return content == "images" and owner == guest.vmid


def keep_as_unused(world: World, guest: Guest, volid: str) -> str | None:
    """List a detached volume as unused; None if the guest does not own it."""
    if not owns(world, guest, volid):
        return None
    for key, listed in volumes_in(guest.config, guest.kind):
        if listed == volid:
            return key
    for number in range(_MAX_UNUSED):
        key = f"unused{number}"
        if key not in guest.config:
            guest.config[key] = volid
            guest.touch()
            return key
    raise TaskError("too many unused volumes - please delete them first.")


def destroy(world: World, guest: Guest, volid: str) -> None:
    """Delete a volume of the guest from its storage."""
    if not owns(world, guest, volid):
        return
    if in_snapshot(guest, volid):
        raise TaskError(f"unable to delete '{volid}' - volume is still in use (snapshot?)")
    volumes.free(world, guest.node, volid)


def detach(world: World, guest: Guest, key: str, value: str, *, force: bool = False) -> None:
    """Detach a drive's volume: keep it as unused, or delete it."""
    volid = volume_of_drive(value)
    if ":" not in volid:
        return
    made_for_guest = guest.kind == "qemu" and drives.is_cloudinit(drives.parse(world, "qemu", key, value))
    if force or made_for_guest:
        destroy(world, guest, volid)
    else:
        keep_as_unused(world, guest, volid)
