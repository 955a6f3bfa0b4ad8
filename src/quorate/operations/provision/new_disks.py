"""The disks of new guests: what is requested, on which storage, in which format, at which slot."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from quorate.hints import IMAGE_DOWNLOAD, IMAGE_UPLOAD, STORAGE_LIST, Advice
from quorate.operations.disk_images import disk_format, image_size, working_storage
from quorate.operations.placement import pick_storage
from quorate.operations.provision.guest_files import File, Library, matching
from quorate.operations.provision.new_guests import part_text
from quorate.operations.units import parse_size, size
from quorate.problems import BadArgument, Conflict, NotFound, PermissionMissing
from quorate.pve import values
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource

GIBIBYTE = 1024**3
SLOTS = {"scsi": 31, "virtio": 16, "sata": 6, "ide": 4}

# Types that take all the space at once. The others take what is written, so more may be promised than is there.
_THICK_TYPES = frozenset({"lvm", "iscsi", "iscsidirect"})
_IMPORTABLE = ("import", "images")


@dataclass(frozen=True, slots=True)
class DiskSpec:
    """One disk as the caller describes it."""

    bytes: int | None = None
    storage: str | None = None
    bus: str | None = None
    format: str | None = None
    import_from: str | None = None
    more: Mapping[str, str] = field(default_factory=dict)
    """Other parts of PVE's property string."""

    @property
    def gibibytes(self) -> str:
        """As PVE takes it: digits, without an exponent."""
        return f"{(self.bytes or 0) / GIBIBYTE:.10f}".rstrip("0").rstrip(".")


def parse_disk(given: int | str | Mapping[str, Any], storage: str | None = None) -> DiskSpec:
    """A disk from "32G", "local-lvm:32G", "local-lvm:32G,ssd=1" or an object with the same parts."""
    if isinstance(given, Mapping):
        parts = {str(key): part_text(str(key), value) for key, value in given.items() if value is not None}
    else:
        parts = _parts_of(str(given))
    bus, wanted = parts.pop("bus", None), parts.pop("size", None)
    if bus is not None and bus not in SLOTS:
        raise BadArgument(f"There is no bus {bus!r}", next_step=f"Valid values: {', '.join(SLOTS)}")
    import_from = parts.pop("import_from", None) or parts.pop("import-from", None)
    if wanted in (None, "0", "") and not import_from:
        raise BadArgument(
            f"The disk {json.dumps(given, ensure_ascii=False)} has no size",
            next_step='Write "32G", "local-lvm:32G" or {"size": "32G"}',
        )
    if "discard" in parts:
        parts["discard"] = "on" if values.is_on(parts["discard"]) else "ignore"
    return DiskSpec(
        bytes=parse_size(wanted, unit="G") if wanted and wanted != "0" else None,
        storage=parts.pop("storage", None) or storage,
        bus=bus,
        format=parts.pop("format", None),
        import_from=import_from,
        more=parts,
    )


def _parts_of(text: str) -> dict[str, str]:
    parts = values.parse(text, "volume")
    storage, colon, amount = parts.pop("volume", "").rpartition(":")
    return {**({"storage": storage} if colon and storage else {}), **({"size": amount} if amount else {}), **parts}


# -- where they go -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlacedDisk:
    spec: DiskSpec
    storage: Resource
    source: File | None = None

    @property
    def grows_to(self) -> int | None:
        """An imported disk comes in its own size; a larger one is a step of its own."""
        wanted = self.spec.bytes or 0
        return wanted if self.source is not None and wanted > self.source.size else None


async def place_disks(
    pve: Cluster, node: str, specs: Sequence[DiskSpec], content: str, library: Library
) -> tuple[list[PlacedDisk], list[str]]:
    """Each disk with its storage; those that name none share one. Also what to warn of."""
    sources = [await _source(pve, node, spec, library) for spec in specs]
    rooms = [max(spec.bytes or 0, source.size if source else 0) for spec, source in zip(specs, sources, strict=True)]
    unnamed = sum(room for spec, room in zip(specs, rooms, strict=True) if spec.storage is None)
    placed: list[PlacedDisk] = []
    for spec, source in zip(specs, sources, strict=True):
        room = unnamed if spec.storage is None else 0
        storage = await pick_storage(pve, node, content, room=room, wanted=spec.storage)
        disk_format(storage, spec.format)
        placed.append(PlacedDisk(spec, storage, source))
    return placed, _check_room(node, placed, rooms)


async def _source(pve: Cluster, node: str, spec: DiskSpec, library: Library) -> File | None:
    """The image that a disk is imported from. PVE imports from contents `import` and `images` only."""
    wanted = spec.import_from
    if wanted is None:
        return None
    if wanted.startswith("/"):
        if pve.client.identity != "root@pam":
            raise PermissionMissing(
                "Only root@pam itself may import a disk from a path",
                next_step=Advice("Upload it as content import, then give its name", IMAGE_UPLOAD),
            )
        return File(wanted)
    source = await _volume(node, wanted, library) or await _import_file(node, wanted, library)
    if source.content not in _IMPORTABLE:
        raise _wrong_content(source)
    return msgspec.structs.replace(source, size=await image_size(pve, node, source.volid, spec.bytes))


async def _volume(node: str, wanted: str, library: Library) -> File | None:
    """An image by its volid; a disk inside an appliance archive is below the archive that is listed."""
    if ":" not in wanted:
        return None
    archive, inside, _ = wanted.partition(".ova/")
    if not inside:
        return await library.volume(node, wanted)
    return File(wanted, "import") if await library.volume(node, f"{archive}.ova") else None


async def _import_file(node: str, wanted: str, library: Library) -> File:
    try:
        return await library.find(node, "import", wanted, "disk image")
    except NotFound:
        if elsewhere := matching(await library.on(node, "iso"), wanted):
            raise _wrong_content(elsewhere[0]) from None
        raise


def _wrong_content(file: File) -> BadArgument:
    return BadArgument(
        f"PVE does not import disks from {file.volid}",
        why=f"It is kept as {file.content}; disks come from content import (.qcow2, .raw, .vmdk, .ova) or images",
        next_step=Advice("Download or upload it again, as content import", IMAGE_DOWNLOAD, IMAGE_UPLOAD),
    )


def _check_room(node: str, placed: Sequence[PlacedDisk], rooms: Sequence[int]) -> list[str]:
    warnings: list[str] = []
    needed: dict[str, int] = {}
    for disk, room in zip(placed, rooms, strict=True):
        needed[disk.storage.storage] = needed.get(disk.storage.storage, 0) + room
    for storage in {disk.storage.storage: disk.storage for disk in placed}.values():
        free = storage.maxdisk - storage.disk
        if not storage.maxdisk or free >= needed[storage.storage]:
            continue
        text = f"Storage {storage.storage} on {node} has {size(free)} free, not {size(needed[storage.storage])}"
        if storage.plugintype in _THICK_TYPES:
            raise Conflict(text, next_step=Advice("Choose another storage or a smaller size", STORAGE_LIST))
        warnings.append(f"{text}: full disks would not fit")
    return warnings


def chosen_storage(placed: Iterable[PlacedDisk]) -> dict[str, str]:
    """The storage of the disks that named none, for the answer."""
    return next(({"storage": disk.storage.storage} for disk in placed if disk.spec.storage is None), {})


# -- how PVE wants them ------------------------------------------------------------------------------------------------


class Slots:
    """Which drives of a new VM are taken."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def take(self, bus: str, order: Iterable[int] | None = None) -> str:
        for number in order if order is not None else range(SLOTS[bus]):
            key = f"{bus}{number}"
            if key not in self._taken:
                self._taken.add(key)
                return key
        raise BadArgument(f"A VM has only {SLOTS[bus]} {bus} drives", next_step="Put disks on another bus")


def drive(disk: PlacedDisk, *, bus: str) -> str:
    """The property string that makes the disk."""
    spec = disk.spec
    size_part = "0" if disk.source else spec.gibibytes
    threaded = {"iothread": "1"} if bus in ("scsi", "virtio") else {}
    chosen = disk_format(disk.storage, spec.format)
    return values.build(
        {
            "file": f"{disk.storage.storage}:{size_part}",
            **({"import-from": disk.source.volid} if disk.source else {}),
            **({"format": chosen} if chosen else {}),
            **threaded,
            **spec.more,
        },
        "file",
    )


async def extraction(pve: Cluster, node: str, placed: Iterable[PlacedDisk]) -> dict[str, str]:
    """The parameters that importing from archives needs; one storage serves all of them."""
    for disk in placed:
        if disk.source and (storage := await working_storage(pve, node, disk.source.volid, disk.storage)):
            return {"import-working-storage": storage}
    return {}


def mount(disk: PlacedDisk) -> str:
    """The property string of a container's root file system or mount point."""
    return values.build({"volume": f"{disk.storage.storage}:{disk.spec.gibibytes}", **disk.spec.more}, "volume")
