"""Checks of the disk tools: which disk to act on, whether it may be changed, and whether there is room."""

from __future__ import annotations

import asyncio
import re

from quorate.hints import (
    DISK_CHANGE,
    GUEST_DELETE,
    IMAGE_DOWNLOAD,
    IMAGE_UPLOAD,
    NAMED,
    OMITTED,
    SNAPSHOT_DELETE,
    STORAGE_LIST,
    Advice,
    either,
)
from quorate.operations.config_change import Config, first_free
from quorate.operations.disk_images import image_size
from quorate.operations.placement import pick_storage
from quorate.operations.preconditions import snapshots_of
from quorate.operations.units import parse_size
from quorate.operations.units import size as shown
from quorate.problems import BadArgument, Conflict, NotFound
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.inventory import Resource

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


def free_slot(guest: Guest, config: Config, given: str | None) -> str:
    """The requested slot if it is free, else the first free one of the bus; by default the boot disk's bus."""
    buses = values.BOOTABLE if guest.is_vm else ("mp",)
    boots = values.boot_disk(config, is_vm=True) if guest.is_vm else None
    wanted = given or (str(values.bus_of(boots)) if boots else buses[0])
    if wanted in buses:
        free = first_free(config, wanted, SLOTS[wanted])
        if free is None:
            raise Conflict(f"{guest} has no free {wanted} slot", next_step=f"Try another of {', '.join(buses)}")
        return free
    if values.bus_of(wanted) not in buses and not (guest.is_vm and wanted in SINGLE):
        kind = "VM" if guest.is_vm else "container"
        raise BadArgument(
            f"A {kind} has no disk slot {wanted!r}",
            next_step=f"Give one of {', '.join(buses)}, or {buses[0]}1",
        )
    if wanted in config:
        raise Conflict(
            f"{wanted} of {guest} is taken by {config[wanted]}",
            next_step=Advice("Leave {disk} out for a free slot", disk=OMITTED),
        )
    return wanted


def refuse_cdrom(key: str, value: str, what: str) -> None:
    if values.bus_of(key) == "unused":
        raise BadArgument(
            f"{key} is detached and cannot be {what}",
            next_step=Advice("Attach it first", DISK_CHANGE(action="attach", disk=key)),
        )
    if not values.is_disk(key, value) or ":" not in values.volume_of(value):
        raise BadArgument(f"{key} is {values.volume_of(value)}, not a disk of the guest, and cannot be {what}")


def guard_boot(guest: Guest, config: Config, key: str, what: str, *, force: bool) -> None:
    if key == "rootfs":
        raise BadArgument(
            f"{guest} needs its rootfs",
            next_step=Advice("To delete the whole guest", GUEST_DELETE(guest=guest.vmid)),
        )
    if force or key not in (values.boot_disk(config, is_vm=guest.is_vm), "efidisk0", "tpmstate0"):
        return
    why = {
        "efidisk0": "It holds the UEFI settings",
        "tpmstate0": "It holds the keys of the TPM; encrypted disks may not open without it",
    }.get(key, f"{guest} boots from it")
    raise Conflict(f"{key} of {guest} is not {what}", why=why, next_step=Advice("To confirm, give {force}", force=True))


async def refuse_in_snapshot(guest: Guest, config: Config, volume: str, what: str, *way_out: Advice) -> None:
    """A snapshot that holds the volume needs it as it is."""
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
            next_step=either(Advice("Delete them", SNAPSHOT_DELETE(guest=guest.vmid)), *way_out),
        )


# -- sizes and storages ------------------------------------------------------------------------------------------------


def wanted_bytes(size: int | str | None, slot: str, import_from: str | None) -> int:
    if size is None and slot in SINGLE:
        return GIB  # PVE decides the size of these
    if size is None and import_from is None:
        raise BadArgument(
            "The size is missing",
            next_step=either(
                Advice("Give {size}, such as 32G", size=NAMED), Advice("{import_from}", import_from=NAMED)
            ),
        )
    wanted = 0 if size is None else parse_size(size, unit="G")
    if size is not None and wanted <= 0:
        raise BadArgument(
            f"{size!r} is not a size for a disk", next_step=Advice("Give {size}, such as 32G", size=NAMED)
        )
    return wanted


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
    row = await pick_storage(pve, guest.row.node, content, wanted=storage)
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

    def has_room(rows: list[Resource]) -> Resource:
        found = next((one for one in rows if one.storage == row.storage and one.maxdisk), row)
        _require_room(found, needed, force=force)
        return found

    return await pve.inventory.choose_storage(row.node, has_room)


def _require_room(row: Resource, needed: int, *, force: bool | None) -> None:
    if row.maxdisk and row.maxdisk - row.disk < needed and not force:
        way_out = Advice("Choose another storage or less, or make room")
        if force is not None:
            way_out = way_out.then(Advice("where disks are thin, {force} overcommits", force=True), "; ")
        raise Conflict(
            f"Storage {row.storage} on {row.node} has {shown(row.maxdisk - row.disk)} free, not {shown(needed)}",
            next_step=way_out,
        )


def space_warnings(row: Resource, needed: int) -> tuple[str, ...]:
    free = row.maxdisk - row.disk
    if not row.maxdisk or free >= needed:
        return ()
    return (f"Storage {row.storage} has {shown(free)} free; guests stop when it is full",)


async def import_size(pve: Cluster, guest: Guest, source: str, wanted: int) -> int:
    """The size of the image; what cannot be imported is refused with the reason."""
    _, colon, name = source.partition(":")
    if not colon or source.startswith("/"):
        raise BadArgument(
            f"{source!r} is not a volume",
            why="Only root@pam itself may import from a path of the node",
            next_step=Advice("Write it as storage:import/file.qcow2", STORAGE_LIST(content="import")),
        )
    if name.startswith(("iso/", "vztmpl/", "backup/", "snippets/")):
        raise BadArgument(
            f"{source} is {name.partition('/')[0]} content, and PVE imports only images and import content",
            next_step=Advice(
                "Upload or download it as such", IMAGE_UPLOAD(content="import"), IMAGE_DOWNLOAD(content="import")
            ),
        )
    return await image_size(pve, guest.row.node, source, wanted)
