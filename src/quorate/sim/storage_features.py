"""What the storage types can do with a volume: take snapshots of it, clone it, copy it, make it a template."""

from __future__ import annotations

from typing import Literal

from quorate.sim.storages import FILE_BASED, Storage

Feature = Literal["snapshot", "clone", "copy", "template"]

_IMAGES = frozenset({"raw", "qcow2", "vmdk"})
_QCOW2 = frozenset({"qcow2"})
_ANY = frozenset({"raw", "qcow2", "vmdk", "subvol"})

# Feature -> sort of volume (the current disk, a base image, a snapshot) -> formats that have it.
_Matrix = dict[str, dict[str, frozenset[str]]]
_FILES: _Matrix = {
    "snapshot": {"current": _QCOW2, "snap": _QCOW2},
    "clone": {"base": _IMAGES},
    "template": {"current": _ANY},
    "copy": {"base": _ANY, "current": _ANY, "snap": _QCOW2},
}
_LVM: _Matrix = {
    "snapshot": {"current": _QCOW2, "snap": _QCOW2},
    "copy": {"base": _ANY, "current": _ANY},
}
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
_BY_TYPE: dict[str, _Matrix] = {"lvm": _LVM, "lvmthin": _LVM_THIN, "zfspool": _ZFS, "rbd": _RBD}


def has_feature(storage: Storage, volume_name: str, fmt: str, feature: Feature, *, of_snapshot: bool = False) -> bool:
    """Whether the storage can do this with the volume, or with a snapshot of it."""
    matrix = _FILES if storage.type in FILE_BASED else _BY_TYPE.get(storage.type, {})
    sort = "snap" if of_snapshot else "base" if is_base(volume_name) else "current"
    return fmt in matrix.get(feature, {}).get(sort, frozenset())


def is_base(volume_name: str) -> bool:
    """Whether a volume is the read-only image of a template, which its name tells."""
    return _own_name(volume_name).startswith(("base-", "basevol-"))


def format_of(volume_name: str) -> str:
    """The format that a volume's name tells."""
    own_name = _own_name(volume_name)
    if own_name.startswith(("subvol-", "basevol-")):
        return "subvol"
    _, dot, ending = own_name.rpartition(".")
    return ending if dot and ending in _ANY else "raw"


def _own_name(volume: str) -> str:
    """The last part of a volume's name or identifier."""
    return volume.rpartition("/")[2].rpartition(":")[2]
