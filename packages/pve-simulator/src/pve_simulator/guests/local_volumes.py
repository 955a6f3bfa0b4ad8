"""The local volumes of a guest, and their migration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from pve_simulator.guests.drives import HOST_CDROM, Drive, all_drives, host_cdroms, unused_drives
from pve_simulator.guests.guest import Guest, Value, size_of_drive
from pve_simulator.http.refusals import bad_parameters
from pve_simulator.nodes.tasks import TaskError
from pve_simulator.storage import volumes
from pve_simulator.storage.storages import Volume
from pve_simulator.storage.volume_names import format_of, is_base
from pve_simulator.world import World


@dataclass(frozen=True, slots=True)
class StorageMap:
    """Source storage -> target storage; unmapped ones map to themselves."""

    entries: dict[str, str] = field(default_factory=dict)
    default: str | None = None
    specified: bool = False
    identity: bool = False

    def target_of(self, storage_id: str) -> str:
        return self.entries.get(storage_id) or self.default or storage_id

    def targets(self) -> list[str]:
        """Every target storage."""
        return [*self.entries.values(), *([self.default] if self.default else [])]


def parse_storage_map(name: str, text: str | None) -> StorageMap:
    """Parse a storage map: `a:b,c:d` maps one by one, `x` maps all, `1` maps each to itself."""
    if text is None:
        return StorageMap()
    entries: dict[str, str] = {}
    default, identity = None, False
    for part in text.replace(";", ",").replace(" ", ",").split(","):
        source, colon, target = part.partition(":")
        if part == "1":
            identity = True
        elif colon:
            if source in entries:
                raise bad_parameters({name: f"failed to parse storage map: duplicate mapping for source '{source}'\n"})
            entries[source] = target
        elif part:
            default = part
    return StorageMap(entries, default, specified=True, identity=identity)


_MIGRATABLE = ("dir", "btrfs", "zfspool", "lvmthin", "lvm")
_NUMBERED_DISK = re.compile(r"(?:vm|subvol)-\d+-disk-\d+")


@dataclass(slots=True)
class LocalVolume:
    """One volume and everything that refers to it."""

    volid: str
    key: str | None = None
    size: int = 0
    attached: bool = False
    is_unused: bool = False
    is_pending: bool = False
    is_vmstate: bool = False
    is_cdrom: bool = False
    is_cloudinit: bool = False
    snapshots: list[str] = field(default_factory=list)

    @property
    def storage(self) -> str:
        return self.volid.partition(":")[0]

    @property
    def is_host_cdrom(self) -> bool:
        """Whether it is the CD drive of the node itself."""
        return self.volid == HOST_CDROM

    @property
    def described(self) -> str:
        """Its description in the migration log."""
        if self.is_cloudinit or self.key == "tpmstate0":
            return f"generated disk '{self.volid}' (in current VM config)"
        if self.attached:
            return f"local disk '{self.volid}' (attached)"
        if self.is_unused:
            return f"local disk '{self.volid}' (unused)"
        if self.is_pending:
            return f"local disk '{self.volid}' (pending change)"
        return f"local disk '{self.volid}' (referenced by snapshot(s))"

    def as_dict(self) -> dict[str, object]:
        """Its row in the migration preconditions."""
        row: dict[str, object] = {
            "volid": self.volid, "cdrom": int(self.is_cdrom), "is_attached": int(self.attached),
            "is_cloudinit": int(self.is_cloudinit), "is_tpmstate": int(self.key == "tpmstate0"),
            "is_unused": int(self.is_unused), "is_vmstate": int(self.is_vmstate), "replicate": 1, "shared": 0,
        }  # fmt: skip
        if self.key is not None:
            row["drivename"] = self.key
        if self.size:
            row["size"] = self.size
        if self.snapshots:
            row["referenced_in_snapshot"] = dict.fromkeys(self.snapshots, 1)
        return row


def local_volumes(world: World, guest: Guest) -> Iterator[LocalVolume]:
    """Every volume on non-shared storages, attached, unused, in snapshots, saved memory, and the node's CD drive."""
    by_volid: dict[str, LocalVolume] = {}
    for drive in (*all_drives(guest.config), *host_cdroms(guest.config)):
        _note(world, by_volid, drive).attached = True
    for drive in unused_drives(guest.config):
        _note(world, by_volid, drive).is_unused = True
    for drive in all_drives(guest.pending):
        _note(world, by_volid, drive).is_pending = True
    for snapshot in guest.snapshots.values():
        for drive in all_drives(snapshot.config):
            _note(world, by_volid, drive).snapshots.append(snapshot.name)
        _note_state(world, by_volid, snapshot.config, snapshot.name)
    _note_state(world, by_volid, guest.config, None)
    return iter(by_volid.values())


def _note(world: World, by_volid: dict[str, LocalVolume], drive: Drive) -> LocalVolume:
    """Record a drive's volume, if it is not shared."""
    volume = by_volid.get(drive.volid, LocalVolume(drive.volid))
    storage = world.storages.get(drive.storage)
    if not ((storage is not None and storage.shared) or drive.is_shared):
        by_volid[drive.volid] = volume
    volume.key = volume.key or drive.key
    volume.size = volume.size or size_of_drive(drive.text)
    volume.is_cdrom |= drive.is_cdrom
    volume.is_cloudinit |= drive.is_cloudinit
    return volume


def _note_state(
    world: World, by_volid: dict[str, LocalVolume], config: Mapping[str, Value], snapshot: str | None
) -> None:
    volid = str(config.get("vmstate", ""))
    storage = world.storages.get(volid.partition(":")[0])
    if storage is not None and not storage.shared:
        volume = by_volid.setdefault(volid, LocalVolume(volid, is_vmstate=True))
        if snapshot is not None:
            volume.snapshots.append(snapshot)


def obstacle(world: World, guest: Guest, local: LocalVolume, *, with_local_disks: bool) -> str | None:
    """Why this volume cannot be migrated, as in the migration log; None if it can."""
    if local.volid.startswith("/"):
        return "local file/device"
    if local.is_cdrom and not local.is_cloudinit:
        return "local cdrom image"
    volume = volumes.find(world, guest.node, local.volid)
    if volume is None:
        return f"volume '{local.volid}' does not exist"
    if volume.vmid != guest.vmid:
        return f"owned by other VM (owner = VM {volume.vmid})"
    storage = world.storages[local.storage]
    if storage.type not in _MIGRATABLE:
        return f"storage type '{storage.type}' not supported"
    if local.snapshots and not local.is_vmstate:
        if guest.running and guest.kind == "qemu":
            return "online storage migration not possible if non-replicated snapshot exists"
        if storage.type not in ("zfspool", "btrfs") and format_of(local.volid) != "qcow2":
            return "non-migratable snapshot exists"
    if is_base(local.volid) and any(volumes.clones_of(storage, guest.node, volume)):
        return "referenced by linked clone(s)"
    if volume.parent is not None:
        return f"it's a clone of '{volume.parent}'"
    if guest.running and guest.kind == "qemu" and local.attached and not local.is_cloudinit and not with_local_disks:
        return "can't live migrate attached local disks without with-local-disks option"
    return None


def carry_over(world: World, guest: Guest, local: LocalVolume, target: str, storage_id: str) -> Volume:
    """A copy of the volume on the target node, under its own name if that is free there."""
    volume = volumes.existing(world, guest.node, local.volid)
    storage = volumes.usable_storage(world, target, storage_id)
    source = world.storages[local.storage]
    if storage is source:
        if storage.volume(target, volume.volid) is None:
            storage.add(target, replace(volume))
            return volume
    elif not guest.running and not _transferable(source.type, storage.type, volume.format):
        raise TaskError(
            f"storage migration for '{volume.volid}' to storage '{storage_id}' failed - "
            f"cannot migrate from storage type '{source.type}' to '{storage.type}'"
        )
    own_name = volume.name.rpartition("/")[2].partition(".")[0]
    fmt = volume.format if volume.format in volumes.formats(storage, guest.kind) else None
    name, used = None if _NUMBERED_DISK.fullmatch(own_name) else own_name, volume.used
    return volumes.allocate(
        world, target, storage_id, guest.vmid, guest.kind, volume.size, fmt=fmt, name=name, used=used
    )


def _transferable(source: str, target: str, fmt: str) -> bool:
    """Whether a stopped guest's disk can be streamed: ZFS only to ZFS, other formats only to files."""
    if source == target:
        return True
    if "zfspool" in (source, target):
        return False
    return fmt == "raw" or target == "dir"


def switch_volumes(guest: Guest, moved: Mapping[str, str]) -> None:
    """Update configuration, pending changes and snapshots to the new volumes."""
    for config in (guest.config, guest.pending, *(snapshot.config for snapshot in guest.snapshots.values())):
        for drive in (*all_drives(config), *unused_drives(config)):
            if drive.volid in moved:
                config[drive.key] = drive.with_volume(moved[drive.volid])
        if config.get("vmstate") in moved:
            config["vmstate"] = moved[str(config["vmstate"])]
