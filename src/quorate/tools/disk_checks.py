"""Checks before a disk is changed: which disk, whether it may be changed, formats and room of the storages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from quorate.hints import NAMED, OMITTED, Advice, either, see, tools
from quorate.operations.placement import pick_storage
from quorate.operations.preconditions import snapshots_of
from quorate.problems import BadArgument, Conflict, NotFound, ServerFailed
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.inventory import Resource
from quorate.tools.guest_options import Config, first_free
from quorate.units import parse_size, size
from quorate.units import size as shown

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


def disk_format(storage: Resource, requested: str | None, slot: str = "") -> str | None:
    """The format to request: the named one if the storage supports it, else the best there; None leaves it to PVE."""
    formats = FORMATS.get(storage.plugintype)
    if requested is not None:
        if formats is not None and requested not in formats:
            raise BadArgument(
                f"Storage {storage.storage} ({storage.plugintype}) keeps disks as {' or '.join(formats)}, "
                f"not {requested}",
                next_step=either(
                    Advice("Leave {format} out", format=OMITTED), "choose a storage that keeps disks as files"
                ),
            )
        return requested
    # PVE 8 takes no format for the state of a TPM, which is raw everywhere.
    return formats[0] if formats is not None and formats[0] != "raw" and slot != "tpmstate0" else None


def firmware_drive(slot: str, storage: Resource) -> dict[str, str]:
    """The parts of a new efidisk0 or tpmstate0; PVE decides its size."""
    chosen = disk_format(storage, None, slot)
    return {"file": f"{storage.storage}:1", **FIRMWARE_DRIVES[slot], **({"format": chosen} if chosen else {})}


# -- images to import from ---------------------------------------------------------------------------------------------


async def image_size(pve: Cluster, node: str, volid: str, requested: int | None = None) -> int:
    """The size of the disk that an image expands to: the file can be smaller. A smaller request is refused."""
    try:
        packed = ".ova/" in volid or volid.endswith(".ova")
        expanded = await (_size_in_archive if packed else _virtual_size)(pve, node, volid)
    except ServerFailed as failed:  # how PVE says that there is no such file
        raise NotFound(
            f"{volid} cannot be read on {node}",
            why=str(failed),
            next_step=see("See what exists", tools.volume_list(storage=volid.partition(":")[0], content="import")),
        ) from None
    if requested and expanded > requested:
        raise BadArgument(
            f"{volid} makes a disk of {size(expanded)}, more than {size(requested)}",
            why="A disk cannot shrink",
            next_step=either("Ask for a larger size", Advice("leave {size} out", size=OMITTED)),
        )
    return expanded


async def _virtual_size(pve: Cluster, node: str, volid: str) -> int:
    details = await pve.get(f"/nodes/{node}/storage/{volid.partition(':')[0]}/content/{volid}")
    return int(details.get("size") or 0)


async def _size_in_archive(pve: Cluster, node: str, volid: str) -> int:
    """The size of a disk inside an appliance; an appliance may contain several, so the name must include the disk."""
    storage, _, name = volid.partition(":")
    stem, _, inside = name.partition(".ova/")
    archive = f"{stem.removesuffix('.ova')}.ova"
    metadata = await pve.get(f"/nodes/{node}/storage/{storage}/import-metadata", volume=archive)
    disks = dict(named_disk(disk) for disk in metadata["disks"].values())
    if volid in disks:
        return disks[volid]
    present = ", ".join(sorted(disks)) or "none"
    if inside:
        raise NotFound(f"{storage}:{archive} has no disk {inside!r}", next_step=f"It has {present}")
    raise BadArgument(
        f"{volid} is an archive, not a disk",
        why="An import needs the name of the disk inside it",
        next_step=either(
            f"Give {present}", Advice("import the whole VM", tools.vm_import(source=f"{storage}:{archive}"))
        ),
    )


def named_disk(disk: Any) -> tuple[str, int]:
    """Name and size of a disk in the metadata; older versions give only the name."""
    return (str(disk["volid"]), int(disk.get("size") or 0)) if isinstance(disk, dict) else (str(disk), 0)


async def working_storage(pve: Cluster, node: str, volid: str, target: Resource) -> str | None:
    """The storage on which PVE extracts a disk from its archive, if it cannot do so where the archive is stored."""
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
                tools.image_upload,
            ),
        )
    return max(able.values(), key=lambda row: (row.maxdisk - row.disk, row.storage)).storage


GIB = 1024**3
SLOTS = {"scsi": 31, "virtio": 16, "sata": 6, "ide": 4, "mp": 256, "unused": 256}
SINGLE = ("efidisk0", "tpmstate0")


# -- which disk --------------------------------------------------------------------------------------------------------


def existing_disk(guest: Guest, config: Config, key: str | None) -> str:
    disks = [name for name in sorted(config) if values.bus_of(name) in (*values.DISKS, "unused")]
    if key in disks:
        return str(key)
    present = f"It has {', '.join(disks) or 'none'}"
    if key is None:
        raise BadArgument(
            f"No disk of {guest} was specified", next_step=Advice("Give {disk}", disk="").then(Advice(present))
        )
    raise NotFound(f"{guest} has no disk {key!r}", next_step=present)


def unused_disk(guest: Guest, config: Config, key: str | None) -> str:
    unused = [name for name in sorted(config) if values.bus_of(name) == "unused"]
    if key is None and len(unused) == 1:
        return unused[0]
    if key in unused:
        return str(key)
    present = ", ".join(f"{name} ({config[name]})" for name in unused) or "none"
    what = (
        f"{guest} has no detached disk" + (f" {key!r}" if key else "") if key or not unused else "Several disks match"
    )
    raise NotFound(what, next_step=f"Detached disks: {present}")


def free_slot(guest: Guest, config: Config, requested: str | None) -> str:
    """The requested slot if it is free, else the first free one of the bus; by default the boot disk's bus."""
    buses = values.BOOTABLE if guest.is_vm else ("mp",)
    boot_disk = values.boot_disk(config, is_vm=True) if guest.is_vm else None
    slot = requested or (str(values.bus_of(boot_disk)) if boot_disk else buses[0])
    if slot in buses:
        free = first_free(config, slot, SLOTS[slot])
        if free is None:
            raise Conflict(f"{guest} has no free {slot} slot", next_step=f"Try another of {', '.join(buses)}")
        return free
    if values.bus_of(slot) not in buses and not (guest.is_vm and slot in SINGLE):
        kind = "VM" if guest.is_vm else "container"
        raise BadArgument(
            f"A {kind} has no disk slot {slot!r}",
            next_step=f"Give one of {', '.join(buses)}, or {buses[0]}1",
        )
    if slot in config:
        raise Conflict(
            f"{slot} of {guest} is taken by {config[slot]}",
            next_step=Advice("Leave {disk} out for a free slot", disk=OMITTED),
        )
    return slot


def refuse_cdrom(key: str, value: str, what: str) -> None:
    if values.bus_of(key) == "unused":
        raise BadArgument(
            f"{key} is detached and cannot be {what}",
            next_step=Advice("Attach it first", tools.disk_change(action="attach", disk=key)),
        )
    if not values.is_disk(key, value) or ":" not in values.volume_of(value):
        raise BadArgument(f"{key} is {values.volume_of(value)}, not a disk of the guest, and cannot be {what}")


def guard_boot(guest: Guest, config: Config, key: str, what: str, *, force: bool) -> None:
    if key == "rootfs":
        raise BadArgument(
            f"{guest} needs its rootfs",
            next_step=Advice("To delete the whole guest", tools.guest_delete(guest=guest.vmid)),
        )
    if force or key not in (values.boot_disk(config, is_vm=guest.is_vm), "efidisk0", "tpmstate0"):
        return
    why = {
        "efidisk0": "It holds the UEFI settings",
        "tpmstate0": "It holds the keys of the TPM; encrypted disks may not open without it",
    }.get(key, f"{guest} boots from it")
    raise Conflict(f"{key} of {guest} is not {what}", why=why, next_step=Advice("To confirm, give {force}", force=True))


async def refuse_in_snapshot(guest: Guest, config: Config, volume: str, what: str, *way_out: Advice) -> None:
    """Refuse if a snapshot contains the volume."""
    if "parent" not in config:
        return
    names = [str(row["name"]) for row in await snapshots_of(guest)]
    configs = await asyncio.gather(*(guest.get(f"snapshot/{name}/config") for name in names))
    holding = [
        name
        for name, old in zip(names, configs, strict=True)
        if volume in (values.volume_of(str(value)) for key, value in old.items() if values.bus_of(key))
    ]
    if holding:
        raise Conflict(
            what,
            why=f"The snapshots {', '.join(holding)} need it",
            next_step=either(Advice("Delete them", tools.snapshot_delete(guest=guest.vmid)), *way_out),
        )


# -- sizes and storages ------------------------------------------------------------------------------------------------


def requested_bytes(size: int | str | None, slot: str, import_from: str | None) -> int:
    if size is None and slot in SINGLE:
        return GIB  # PVE decides the size of these
    if size is None and import_from is None:
        raise BadArgument(
            "The size is missing",
            next_step=either(
                Advice("Give {size}, such as 32G", size=NAMED), Advice("{import_from}", import_from=NAMED)
            ),
        )
    requested = 0 if size is None else parse_size(size, unit="G")
    if size is not None and requested <= 0:
        raise BadArgument(
            f"{size!r} is not a size for a disk", next_step=Advice("Give {size}, such as 32G", size=NAMED)
        )
    return requested


def size_of(value: str) -> int:
    text = values.parse(value, "volume").get("size", "")
    return parse_size(text, unit="") if re.fullmatch(r"\d+(\.\d+)?[KMGT]?", text) else 0


def gibibytes(count: int) -> str:
    return f"{count / GIB:.10f}".rstrip("0").rstrip(".")


def exact_size(count: int) -> str:
    """Bytes in the largest unit that loses nothing, as PVE reads sizes."""
    for power, unit in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
        if count % 1024**power == 0:
            return f"{count // 1024**power}{unit}"
    return str(count)


def format_of(volume: str) -> str:
    return volume.rpartition(".")[2] if volume.endswith((".raw", ".qcow2", ".vmdk")) else "raw"


async def storage_with_room(pve: Cluster, guest: Guest, storage: str | None, room: int, *, force: bool) -> Resource:
    content = "images" if guest.is_vm else "rootdir"
    row = await pick_storage(pve, guest.row.node, content, requested=storage)
    return await with_room(pve, row, room, force=force)


async def storage_of(pve: Cluster, guest: Guest, volume: str) -> Resource:
    name = volume.partition(":")[0]
    rows = await pve.inventory.of_type("storage")
    return next(
        (row for row in rows if row.storage == name and row.node == guest.row.node),
        Resource(type="storage", id=name, storage=name, node=guest.row.node),
    )


async def with_room(pve: Cluster, row: Resource, needed: int, *, force: bool | None = None) -> Resource:
    """The storage, if it has this much room by what its node says; `force` is None where the tool cannot overcommit."""
    return await pve.inventory.choose_storage(row.node, partial(_require_room, row, needed, force))


def _require_room(storage: Resource, needed: int, force: bool | None, rows: list[Resource]) -> Resource:
    row = next((row for row in rows if row.storage == storage.storage and row.maxdisk), storage)
    if row.maxdisk and row.maxdisk - row.disk < needed and not force:
        way_out = Advice("Choose another storage or less, or make room")
        if force is not None:
            way_out = way_out.then(Advice("where disks are thin, {force} overcommits", force=True), "; ")
        raise Conflict(
            f"Storage {row.storage} on {row.node} has {shown(row.maxdisk - row.disk)} free, not {shown(needed)}",
            next_step=way_out,
        )
    return row


def space_warnings(row: Resource, needed: int) -> tuple[str, ...]:
    free = row.maxdisk - row.disk
    if not row.maxdisk or free >= needed:
        return ()
    return (f"Storage {row.storage} has {shown(free)} free; guests stop when it is full",)


async def import_size(pve: Cluster, guest: Guest, source: str, requested: int) -> int:
    """The size of the image; what cannot be imported is refused with the reason."""
    _, colon, name = source.partition(":")
    if not colon or source.startswith("/"):
        raise BadArgument(
            f"{source!r} is not a volume",
            why="Only root@pam itself may import from a path of the node",
            next_step=Advice("Write it as storage:import/file.qcow2", tools.storage_list(content="import")),
        )
    if name.startswith(("iso/", "vztmpl/", "backup/", "snippets/")):
        raise BadArgument(
            f"{source} is {name.partition('/')[0]} content, and PVE imports only images and import content",
            next_step=Advice(
                "Upload or download it as such",
                tools.image_upload(content="import"),
                tools.image_download(content="import"),
            ),
        )
    return await image_size(pve, guest.row.node, source, requested)
