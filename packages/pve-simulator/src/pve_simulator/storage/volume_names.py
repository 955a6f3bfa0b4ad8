"""Volume names: content, owner and format, and supported features."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pve_simulator.http.refusals import existing
from pve_simulator.nodes.tasks import TaskError
from pve_simulator.storage.storages import FILE_BASED, Storage

ISO_NAME = re.compile(r"[^/]+\.(?:iso|img)", re.IGNORECASE)
TEMPLATE_NAME = re.compile(r"[^/]+\.tar(?:\.(?:gz|xz|zst|bz2))?", re.IGNORECASE)
UPLOADED_IMPORT_NAME = re.compile(r"[a-zA-Z0-9\-.+=_]+\.(ova|qcow2|raw|vmdk)")
_IMPORT_NAME = re.compile(r"[a-zA-Z0-9\-.+=_]+\.(ova|ovf|qcow2|raw|vmdk)")
_IN_ARCHIVE = re.compile(r"[a-zA-Z0-9\-.+=_]+\.ova/[a-zA-Z0-9\-.+=_]+\.(qcow2|raw|vmdk)")

_IMAGE = re.compile(r"(?:\d+/\S+/)?(\d+)/([^/\s]+\.(raw|qcow2|vmdk|subvol))")
_SUBVOLUME = re.compile(r"(?:\d+/\S+/)?(\d+)/(subvol-\d+-[^/\s]+|basevol-\d+-[^/\s]+)")
_BACKUP_FILE = re.compile(r"[^/]+\.(?:tgz|(?:tar|vma)(?:\.(?:gz|lzo|zst|bz2))?)")
_GUEST_BACKUP = re.compile(r"vzdump-(openvz|lxc|qemu)-(\d+)-.+")
_LOGICAL_VOLUME = re.compile(r"(?:vm|base)-(\d+)-\S+")
_DATASET = re.compile(r"(?:(?:base|basevol)-\d+-\S+/)?(base|basevol|vm|subvol)-(\d+)-\S+")
_PBS_SNAPSHOT = re.compile(r"backup/(vm|ct|host)/([^\s_/]+)/(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")


@dataclass(frozen=True, slots=True)
class VolumeName:
    """A parsed name: content type, owner if any, format."""

    content: str
    vmid: int | None
    format: str


def parse(storage: Storage, name: str) -> VolumeName:
    """Parse a volume's name, or refuse as PVE does for the storage type."""
    if storage.type in FILE_BASED:
        return _parse_file(name)
    if storage.type in ("lvm", "lvmthin"):
        return _parse_logical_volume(name)
    if storage.type == "zfspool":
        return _parse_dataset(name)
    return _parse_snapshot(name)


def _parse_file(name: str) -> VolumeName:
    directory, _, rest = name.partition("/")
    image = _IMAGE.fullmatch(name)
    if image is not None:
        return VolumeName("images", int(image[1]), image[3])
    subvolume = _SUBVOLUME.fullmatch(name)
    if subvolume is not None:
        return VolumeName("images", int(subvolume[1]), "subvol")
    if directory == "iso" and ISO_NAME.fullmatch(rest):
        return VolumeName("iso", None, "raw")
    if directory == "vztmpl" and TEMPLATE_NAME.fullmatch(rest):
        return VolumeName("vztmpl", None, "raw")
    if directory == "backup" and _BACKUP_FILE.fullmatch(rest):
        owner = _GUEST_BACKUP.fullmatch(rest)
        return VolumeName("backup", int(owner[2]) if owner else None, "raw")
    if directory == "snippets" and rest and "/" not in rest:
        return VolumeName("snippets", None, "raw")
    if directory == "import":
        imported = _IMPORT_NAME.fullmatch(rest)
        if imported is not None:
            return VolumeName("import", None, imported[1])
        inside = _IN_ARCHIVE.fullmatch(rest)
        if inside is not None:
            return VolumeName("import", None, f"ova+{inside[1]}")
    raise TaskError(f"unable to parse directory volume name '{name}'")


def _parse_logical_volume(name: str) -> VolumeName:
    match = existing(_LOGICAL_VOLUME.fullmatch(name), TaskError(f"unable to parse lvm volume name '{name}'"))
    return VolumeName("images", int(match[1]), "raw")


def _parse_dataset(name: str) -> VolumeName:
    match = existing(_DATASET.fullmatch(name), TaskError(f"unable to parse zfs volume name '{name}'"))
    return VolumeName("images", int(match[2]), "subvol" if match[1] in ("subvol", "basevol") else "raw")


def _parse_snapshot(name: str) -> VolumeName:
    match = existing(_PBS_SNAPSHOT.fullmatch(name), TaskError(f"unable to parse PBS volume name '{name}'"))
    return VolumeName("backup", int(match[2]) if match[2].isdecimal() else None, f"pbs-{match[1]}")


Feature = Literal["snapshot", "clone", "copy", "template"]

_IMAGES = frozenset({"raw", "qcow2", "vmdk"})
_QCOW2 = frozenset({"qcow2"})
_ANY = frozenset({"raw", "qcow2", "vmdk", "subvol"})

# Feature -> kind of volume (current disk, base image, snapshot) -> formats that support it.
_Matrix = dict[str, dict[str, frozenset[str]]]
_FILES: _Matrix = {
    "snapshot": {"current": _QCOW2, "snap": _QCOW2},
    "clone": {"base": _IMAGES},
    "template": {"current": _ANY},
    "copy": {"base": _ANY, "current": _ANY, "snap": _QCOW2},
}
_LVM: _Matrix = {"snapshot": {"current": _QCOW2, "snap": _QCOW2}, "copy": {"base": _ANY, "current": _ANY}}
_LVM_THIN: _Matrix = {
    "snapshot": {"current": _ANY},
    "clone": {"base": _ANY, "snap": _ANY},
    "template": {"current": _ANY},
    "copy": {"base": _ANY, "current": _ANY, "snap": _ANY},
}
_ZFS: _Matrix = {
    "snapshot": {"current": _ANY, "snap": _ANY},
    "clone": {"base": _ANY},
    "template": {"current": _ANY},
    "copy": {"base": _ANY, "current": _ANY},
}
_RBD: _Matrix = {
    "snapshot": {"current": _ANY, "snap": _ANY},
    "clone": {"base": _ANY, "snap": _ANY},
    "template": {"current": _ANY},
    "copy": {"base": _ANY, "current": _ANY, "snap": _ANY},
}
_BTRFS: _Matrix = {
    "snapshot": {"current": _ANY, "snap": _ANY},
    "clone": {"base": _ANY, "current": _ANY, "snap": _ANY},
    "template": {"current": _ANY},
    "copy": {"base": _ANY, "current": _ANY, "snap": _ANY},
}
_BY_TYPE: dict[str, _Matrix] = {"lvm": _LVM, "lvmthin": _LVM_THIN, "zfspool": _ZFS, "rbd": _RBD, "btrfs": _BTRFS}


def has_feature(storage: Storage, volume_name: str, fmt: str, feature: Feature, *, of_snapshot: bool = False) -> bool:
    """Whether the storage supports a feature for the volume or its snapshot."""
    matrix = _BY_TYPE.get(storage.type, _FILES if storage.type in FILE_BASED else {})
    state = "snap" if of_snapshot else "base" if is_base(volume_name) else "current"
    return fmt in matrix.get(feature, {}).get(state, frozenset())


def is_base(volume_name: str) -> bool:
    """Whether a volume is a base image, by its name."""
    return _own_name(volume_name).startswith(("base-", "basevol-"))


def format_of(volume_name: str) -> str:
    """The format of a volume, by its name."""
    own_name = _own_name(volume_name)
    if own_name.startswith(("subvol-", "basevol-")):
        return "subvol"
    _, dot, ending = own_name.rpartition(".")
    return ending if dot and ending in _ANY else "raw"


def _own_name(volume: str) -> str:
    """The last part of a volume's name or identifier."""
    return volume.rpartition("/")[2].rpartition(":")[2]


def base_name(volid: str) -> str:
    """The name of a disk as a base image."""
    storage, _, name = volid.partition(":")
    directory, slash, own_name = name.rpartition("/")
    if slash and own_name.startswith("subvol-"):  # a directory keeps its name
        return volid
    prefix = "basevol-" if own_name.startswith("subvol-") else "base-"
    return f"{storage}:{directory}{slash}{prefix}{own_name.partition('-')[2]}"
