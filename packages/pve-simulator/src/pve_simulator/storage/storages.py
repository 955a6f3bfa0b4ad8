"""Storages: content types, volumes and space."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pve_simulator.nodes.tasks import TaskError

if TYPE_CHECKING:
    from pve_simulator.storage.appliances import Appliance
    from pve_simulator.storage.archives import Archive
    from pve_simulator.storage.oci_images import OciImage

FILE_BASED = frozenset({"dir", "nfs", "cifs", "btrfs"})


class Backups(Protocol):
    """A backup server that keeps the volumes of a storage."""

    def refresh(self, space: StorageSpace) -> None: ...

    def check_listing(self) -> None: ...

    def store(self, volume: Volume) -> None: ...

    def remove(self, volume: Volume) -> None: ...

    def update(self, volume: Volume) -> None: ...


class StorageFull(TaskError):
    """There is no space for the volume; the text is that of PVE's tools."""


@dataclass(slots=True)
class Volume:
    """One disk image, ISO, template or backup."""

    volid: str
    content: str
    format: str
    size: int
    used: int
    ctime: int
    vmid: int | None = None
    parent: str | None = None
    notes: str | None = None
    protected: bool = False
    verified: bool | None = None  # None: never verified; PBS only
    verified_by: str = ""  # the task of the backup server that verified it
    encrypted: str = ""  # the fingerprint of the key of an encrypted backup
    archive: Archive | None = None  # the contents of a backup that was made in the simulator
    checksums: dict[str, str] | None = None  # of a file, by algorithm, if known
    damaged: bool = False  # a backup that cannot be read to its end
    file_system: str = "part/1"  # where it is on the disks of a backup: also zpool/NAME, lvm/VG/LV or raw
    has_systemd: bool = True  # a container template, if its operating system normally does
    image: OciImage | None = None  # what a registry provided, if it is an application image
    appliance: Appliance | None = None  # the VM that an OVA or OVF describes, if any
    virtual_size: int | None = None  # of an image to import: the disk size, if it differs from the file size
    file: Path | None = None  # the real file behind it, if any; deleted with the volume

    @property
    def name(self) -> str:
        """The part after the storage id."""
        return self.volid.partition(":")[2]

    @property
    def disk_size(self) -> int:
        """The size of the disk in it."""
        return self.size if self.virtual_size is None else self.virtual_size


@dataclass(slots=True)
class StorageSpace:
    """The space and the volumes of a storage on one node, or of a shared one everywhere."""

    total: int
    base_used: int
    volumes: dict[str, Volume] = field(default_factory=dict)
    volumes_used: int = 0

    @property
    def used(self) -> int:
        return min(self.total, self.base_used + self.volumes_used)

    @property
    def available(self) -> int:
        return self.total - self.used


@dataclass(slots=True)
class Storage:
    """A storage of the cluster; `config` holds the options beyond type, content and nodes."""

    id: str
    type: str
    content: tuple[str, ...]
    shared: bool = False
    nodes: frozenset[str] | None = None
    disabled: bool = False
    config: dict[str, str | int] = field(default_factory=dict)
    spaces: dict[str, StorageSpace] = field(default_factory=dict)
    defined_at: float = 0.0
    backups: Backups | None = None
    """The backup server that its volumes are on, if one is simulated."""

    def on_node(self, node: str) -> bool:
        """Whether the storage is available on this node."""
        return self.nodes is None or node in self.nodes

    def space(self, node: str) -> StorageSpace:
        """The space on this node; shared storages have one for all nodes."""
        space = self.spaces["" if self.shared else node]
        if self.backups is not None:
            self.backups.refresh(space)
        return space

    def volumes(self, node: str) -> Iterator[Volume]:
        return iter(self.space(node).volumes.values())

    def volume(self, node: str, volid: str) -> Volume | None:
        return self.space(node).volumes.get(volid)

    def add(self, node: str, volume: Volume) -> None:
        """Add a volume, if there is space for it."""
        space = self.space(node)
        if volume.used > space.available:
            raise StorageFull(_no_room(self, volume))
        space.volumes[volume.volid] = volume
        space.volumes_used += volume.used
        if self.backups is not None:
            self.backups.store(volume)

    def remove(self, node: str, volid: str) -> Volume | None:
        """Remove a volume and free its space; None if there was none."""
        space = self.space(node)
        volume = space.volumes.pop(volid, None)
        if volume is not None:
            space.volumes_used -= volume.used
            if self.backups is not None:
                self.backups.remove(volume)
        return volume

    def annotate(self, volume: Volume, *, notes: str | None = None, protected: bool | None = None) -> None:
        """Set what describes a backup; empty notes are removed."""
        if notes is not None:
            volume.notes = notes or None
        if protected is not None:
            volume.protected = protected
        if self.backups is not None:
            self.backups.update(volume)

    def disk_name(self, vmid: int, number: int, kind: str, *, base: bool = False, fmt: str = "raw") -> str:
        """The volume identifier that PVE gives to disk `number` of a guest here."""
        prefix = "base" if base else "vm"
        if self.type == "zfspool" and kind == "lxc":
            return f"{self.id}:{'basevol' if base else 'subvol'}-{vmid}-disk-{number}"
        if self.type in FILE_BASED:
            return f"{self.id}:{vmid}/{prefix}-{vmid}-disk-{number}.{fmt}"
        return f"{self.id}:{prefix}-{vmid}-disk-{number}"


def _no_room(storage: Storage, volume: Volume) -> str:
    if storage.type == "zfspool":
        return f"zfs error: cannot create '{storage.config.get('pool', storage.id)}/{volume.name}': out of space"
    if storage.type == "lvmthin":
        return f"lvcreate '{storage.config.get('vgname', 'pve')}/{volume.name}' error: insufficient free space"
    return "No space left on device"
