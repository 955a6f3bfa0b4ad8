"""The drives of a guest's configuration: which keys have volumes, of which sort, and how a drive gets another one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from quorate.sim.guests import Value, volume_of_drive

_DRIVE_KEY = re.compile(r"(?:ide|sata|scsi|virtio|mp)\d+|efidisk0|tpmstate0|rootfs")
_UNUSED_KEY = re.compile(r"unused\d+")
_CLOUDINIT = re.compile(r"vm-\d+-cloudinit(\.\w+)?")


@dataclass(frozen=True, slots=True)
class Drive:
    """One drive: its key, its whole property string and the volume in it."""

    key: str
    text: str
    volid: str

    @property
    def storage(self) -> str:
        return self.volid.partition(":")[0]

    @property
    def is_cdrom(self) -> bool:
        """A CD-ROM, a cloud-init drive included."""
        return "media=cdrom" in self.text.split(",")

    @property
    def is_cloudinit(self) -> bool:
        return _CLOUDINIT.fullmatch(self.volid.rpartition("/")[2].rpartition(":")[2]) is not None

    @property
    def is_bind_mount(self) -> bool:
        """A mount point that is a directory or a device of the host."""
        return self.volid.startswith("/")

    @property
    def is_shared(self) -> bool:
        """Marked by hand as being on every node."""
        return "shared=1" in self.text.split(",")

    def with_volume(self, volid: str, size: str | None = None) -> str:
        """The property string with another volume, and with `size` another size."""
        _, *options = self.text.split(",")
        if size is not None and any(option.startswith("size=") for option in options):
            options = [f"size={size}" if option.startswith("size=") else option for option in options]
        return ",".join([volid, *options])


def all_drives(config: Mapping[str, Value]) -> Iterator[Drive]:
    """Every drive that has something in it, empty CD-ROM drives left out."""
    for key in sorted(config):
        if _DRIVE_KEY.fullmatch(key):
            text = str(config[key])
            volid = volume_of_drive(text)
            if volid not in ("none", "cdrom"):
                yield Drive(key, text, volid)


def disks(config: Mapping[str, Value]) -> Iterator[Drive]:
    """The drives that hold the guest's own data: no CD-ROMs, no cloud-init, nothing of the host's."""
    return (drive for drive in all_drives(config) if not drive.is_cdrom and not drive.is_bind_mount)


def unused(config: Mapping[str, Value]) -> Iterator[Drive]:
    """The volumes that belong to the guest without being attached."""
    for key in sorted(config):
        if _UNUSED_KEY.fullmatch(key):
            yield Drive(key, str(config[key]), volume_of_drive(str(config[key])))


def is_unused_key(key: str) -> bool:
    return _UNUSED_KEY.fullmatch(key) is not None


def add_unused(config: dict[str, Value], volid: str) -> None:
    """Remember a volume that is no longer attached, once."""
    if any(drive.volid == volid for drive in unused(config)):
        return
    number = next(number for number in range(256) if f"unused{number}" not in config)
    config[f"unused{number}"] = volid
