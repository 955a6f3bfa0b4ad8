"""What PVE's backups leave out: disks and mount points of a guest, and paths that a job excludes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.pve import values

_VM_DISKS = (*values.BOOTABLE, "efidisk", "tpmstate")


def excluded_volumes(config: Mapping[str, Any], *, is_vm: bool) -> list[str]:
    """What a backup of a guest with this configuration does not hold, such as `mp0 /data 500G (backup=0)`.

    PVE includes the disks of a VM unless they say backup=0, and mount points of a container only if they say backup=1.
    """
    excluded = []
    for key, value in sorted(config.items()):
        bus, parts = values.bus_of(key), values.parse(str(value), "volume")
        volume, size = parts.get("volume") or parts.get("file", ""), parts.get("size", "")
        if is_vm and key.startswith("virtiofs"):
            name = values.parse(str(value), "dirid").get("dirid", "")
            excluded.append(f"{key} {name} (a directory of the node, never in a backup)")
        elif is_vm and bus in _VM_DISKS and values.is_disk(key, str(value)):
            if not values.is_on(parts.get("backup", "1")):
                excluded.append(" ".join(part for part in (key, volume, size, "(backup=0)") if part))
        elif not is_vm and bus == "mp":
            if volume.startswith("/"):
                excluded.append(f"{key} {parts.get('mp', '')} ({volume} of the node, never in a backup)")
            elif not values.is_on(parts.get("backup", "0")):
                excluded.append(" ".join(part for part in (key, parts.get("mp", ""), size, "(backup=0)") if part))
    return excluded


def excluded_paths(options: Mapping[str, Any], source: str) -> list[str]:
    """The paths in containers that a job, or the defaults of a node, leave out."""
    listed = options.get("exclude-path") or ()
    paths = [listed] if isinstance(listed, str) else [str(path) for path in listed]
    return [f"{path} (exclude-path of {source})" for each in paths for path in each.replace("\0", " ").split() if path]
