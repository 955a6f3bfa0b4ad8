"""Disks of VMs as the storages keep them: their formats, the drives of the firmware, and images to import from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.hints import IMAGE_UPLOAD, OMITTED, VOLUME_LIST, Advice, either, see
from quorate.operations.units import size
from quorate.problems import BadArgument, NotFound, ServerFailed
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource

_FILES = ("qcow2", "raw", "vmdk")
_RAW = ("raw",)
# What a disk can be by the type of its storage; the first is what a new one gets. Where disks are files, that is
# qcow2, because only that can have snapshots there; btrfs makes its own. Of other types only PVE knows.
FORMATS: Mapping[str, tuple[str, ...]] = {
    "dir": _FILES,
    "nfs": _FILES,
    "cifs": _FILES,
    "glusterfs": _FILES,
    "btrfs": _RAW,
    "lvm": ("raw", "qcow2"),  # qcow2 since PVE 9, if it was set up so
    "lvmthin": _RAW,
    "zfspool": _RAW,
    "zfs": _RAW,
    "rbd": _RAW,
    "iscsi": _RAW,
    "iscsidirect": _RAW,
}
# Types that have a directory, where a disk can be taken out of an archive.
_WITH_DIRECTORY = frozenset({"dir", "nfs", "cifs", "glusterfs", "btrfs"})

# PVE itself would make a TPM 1.2 and variables for an old, small UEFI; Windows 11 starts with neither.
FIRMWARE_DRIVES: Mapping[str, Mapping[str, str]] = {
    "efidisk0": {"efitype": "4m", "pre-enrolled-keys": "1"},
    "tpmstate0": {"version": "v2.0"},
}


def disk_format(storage: Resource, given: str | None, slot: str = "") -> str | None:
    """The format to ask PVE for: the given one if the storage can, else its best; None leaves it to PVE."""
    formats = FORMATS.get(storage.plugintype)
    if given is not None:
        if formats is not None and given not in formats:
            raise BadArgument(
                f"Storage {storage.storage} ({storage.plugintype}) keeps disks as {' or '.join(formats)}, not {given}",
                next_step=either(
                    Advice("Leave {format} out", format=OMITTED), "choose a storage that keeps disks as files"
                ),
            )
        return given
    # PVE 8 takes no format for the state of a TPM, which is raw everywhere.
    return formats[0] if formats is not None and formats[0] != "raw" and slot != "tpmstate0" else None


def firmware_drive(slot: str, storage: Resource) -> dict[str, str]:
    """The parts of a new efidisk0 or tpmstate0; PVE decides its size."""
    chosen = disk_format(storage, None, slot)
    return {"file": f"{storage.storage}:1", **FIRMWARE_DRIVES[slot], **({"format": chosen} if chosen else {})}


# -- images to import from ---------------------------------------------------------------------------------------------


async def image_size(pve: Cluster, node: str, volid: str, wanted: int | None = None) -> int:
    """How large a disk the image expands to, which its file size does not show; a smaller one is refused."""
    try:
        packed = ".ova/" in volid or volid.endswith(".ova")
        held = await (_size_in_archive if packed else _virtual_size)(pve, node, volid)
    except ServerFailed as failed:  # how PVE says that there is no such file
        raise NotFound(
            f"{volid} cannot be read on {node}",
            why=str(failed),
            next_step=see("See what exists", VOLUME_LIST(storage=volid.partition(":")[0], content="import")),
        ) from None
    if wanted and held > wanted:
        raise BadArgument(
            f"{volid} makes a disk of {size(held)}, more than {size(wanted)}",
            why="A disk cannot shrink",
            next_step=either("Ask for a larger size", Advice("leave {size} out", size=OMITTED)),
        )
    return held


async def _virtual_size(pve: Cluster, node: str, volid: str) -> int:
    details = await pve.get(f"/nodes/{node}/storage/{volid.partition(':')[0]}/content/{volid}")
    return int(details.get("size") or 0)


async def _size_in_archive(pve: Cluster, node: str, volid: str) -> int:
    """The size of a disk inside an appliance; an appliance may contain several, so the name must include the disk."""
    storage, _, name = volid.partition(":")
    stem, _, inside = name.partition(".ova/")
    archive = f"{stem.removesuffix('.ova')}.ova"
    metadata = await pve.get(f"/nodes/{node}/storage/{storage}/import-metadata", volume=archive)
    disks = dict(_named_disk(disk) for disk in metadata["disks"].values())
    if volid in disks:
        return disks[volid]
    present = ", ".join(sorted(disks)) or "none"
    if inside:
        raise NotFound(f"{storage}:{archive} has no disk {inside!r}", next_step=f"It has {present}")
    raise BadArgument(
        f"{volid} is an archive, not a disk",
        why="An import needs the name of the disk inside it",
        next_step=f"Give {present}",
    )


def _named_disk(disk: Any) -> tuple[str, int]:
    """A disk of the metadata; older versions give only its name."""
    return (str(disk["volid"]), int(disk.get("size") or 0)) if isinstance(disk, dict) else (str(disk), 0)


async def working_storage(pve: Cluster, node: str, volid: str, target: Resource) -> str | None:
    """Where PVE is to extract the disk from its archive, if it cannot do so where the archive is stored."""
    if ".ova/" not in volid:
        return None
    return await pve.inventory.choose_storage(node, lambda rows: _working_storage(rows, node, volid, target))


def _working_storage(rows: list[Resource], node: str, volid: str, target: Resource) -> str | None:
    able = {
        row.storage: row
        for row in rows
        if row.status == "available" and row.plugintype in _WITH_DIRECTORY and row.holds("images")
    }
    source = volid.partition(":")[0]
    if source in able:
        return None
    if target.storage in able:
        return target.storage
    if not able:
        raise BadArgument(
            f"{node} has no storage to extract {volid} to",
            why=f"That needs a file-based storage with content images, which {source} lacks",
            next_step=Advice(
                f"An administrator can add content images to {source}; or unpack the archive and upload its disk as "
                "content import",
                IMAGE_UPLOAD,
            ),
        )
    return max(able.values(), key=lambda row: (row.maxdisk - row.disk, row.storage)).storage
