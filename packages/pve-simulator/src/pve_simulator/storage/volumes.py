"""Disks of guests on storages: allocating, finding, resizing, copying, renaming and freeing them.

Errors raise `TaskError`: in a task it becomes the exit status, in an endpoint HTTP 500 with the same text.

    volume = volumes.allocate(world, node, "local-lvm", 100, "qemu", 8 * GIB)
    volumes.resize(world, node, volume.volid, 16 * GIB)
    volumes.free(world, node, volume.volid)

A new disk on a thin storage uses almost no space, as in PVE; a copy uses as much as its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pve_simulator.guests.guest import GIB, MIB, Kind
from pve_simulator.http import refusals
from pve_simulator.nodes.tasks import TaskError
from pve_simulator.storage.storages import FILE_BASED, Storage, StorageFull, Volume
from pve_simulator.storage.volume_names import parse
from pve_simulator.world import World

CLOUDINIT_SIZE = 4 * MIB
EFIDISK_SIZE = 528 * 1024
SMALL_EFIDISK_SIZE = 128 * 1024  # type 2m, the default
TPMSTATE_SIZE = 4 * MIB

_KIB = 1024
_LARGEST_FILE = 16 * 1024 * GIB  # of ext4
_DISK_NUMBER = re.compile(r"(?:vm|base|subvol|basevol)-(\d+)-disk-(\d+)")
VOLID = re.compile(r"([A-Za-z][A-Za-z0-9\-_.]*[A-Za-z0-9]):(.+)")
_FILE_FORMATS = ("raw", "qcow2", "vmdk")
_PLUGIN = {
    "lvmthin": "LvmThinPlugin.pm line 117",
    "lvm": "LVMPlugin.pm line 630",
    "zfspool": "ZFSPoolPlugin.pm line 230",
}
_DIRECTORIES = {
    "iso": "template/iso",
    "vztmpl": "template/cache",
    "backup": "dump",
    "snippets": "snippets",
    "import": "import",
}
_UNITS = (("T", GIB * 1024), ("G", GIB), ("M", MIB), ("K", _KIB))


def usable_storage(world: World, node: str, storage_id: str) -> Storage:
    """The storage, if it exists, is enabled and available on this node."""
    storage = refusals.existing(world.storages.get(storage_id), TaskError(f"storage '{storage_id}' does not exist"))
    if storage.disabled:
        raise TaskError(f"storage '{storage_id}' is disabled")
    if not storage.on_node(node):
        raise TaskError(f"storage '{storage_id}' is not available on node '{node}'")
    if storage.shared and not storage.space(node).total:
        raise TaskError(f"storage '{storage_id}' is not online")
    return storage


def split_volid(volid: str) -> tuple[str, str]:
    """Storage and name of a volume identifier such as `local:iso/debian.iso`."""
    match = refusals.existing(VOLID.fullmatch(volid), TaskError(f"unable to parse volume ID '{volid}'"))
    return match[1], match[2]


def find(world: World, node: str, volid: str) -> Volume | None:
    """The volume on this node, None if there is none."""
    storage_id, _ = split_volid(volid)
    return usable_storage(world, node, storage_id).volume(node, volid)


def existing(world: World, node: str, volid: str) -> Volume:
    """The volume, or PVE's error if it is missing."""
    storage_id, name = split_volid(volid)
    storage = usable_storage(world, node, storage_id)
    return refusals.existing(storage.volume(node, volid), TaskError(_missing_error(storage, volid, name)))


def content_of(world: World, volid: str) -> tuple[str, int | None]:
    """The content type and owner of a volume, by its name.

    The volume need not exist; a name that is invalid for the storage type is refused.
    """
    storage_id, name = split_volid(volid)
    storage = refusals.existing(world.storages.get(storage_id), TaskError(f"storage '{storage_id}' does not exist"))
    parsed = parse(storage, name)
    return parsed.content, parsed.vmid


def owned_by(world: World, node: str, vmid: int) -> Iterator[Volume]:
    """Every disk with the guest's vmid, on all storages of this node."""
    for storage in world.storages.values():
        if storage.on_node(node) and not storage.disabled:
            for volume in list(storage.volumes(node)):
                if volume.vmid == vmid and volume.content in ("images", "rootdir"):
                    yield volume


def formats(storage: Storage, kind: Kind) -> tuple[str, ...]:
    """The disk formats of a storage, the default first."""
    if storage.type in FILE_BASED:
        return ("raw", "subvol") if kind == "lxc" else ("raw",) if storage.type == "btrfs" else _FILE_FORMATS
    return ("subvol", "raw") if storage.type == "zfspool" and kind == "lxc" else ("raw",)


def allocate(
    world: World,
    node: str,
    storage_id: str,
    vmid: int,
    kind: Kind,
    size: int,
    *,
    fmt: str | None = None,
    name: str | None = None,
    used: int | None = None,
    linked_to: Volume | None = None,
) -> Volume:
    """Allocate a disk of `size` bytes for a guest, rounded up to the storage's unit.

    `name` replaces the default `vm-<vmid>-disk-<n>`, without directory and extension; `linked_to` makes a linked clone.
    """
    storage = usable_storage(world, node, storage_id)
    linked = linked_to is not None and _links(storage, linked_to)
    if linked and storage.type in FILE_BASED:
        fmt = "qcow2"  # the only one that supports a backing file
    fmt = fmt or (linked_to.format if linked_to else formats(storage, kind)[0])
    if fmt not in formats(storage, kind) and not (storage.type == "btrfs" and fmt in _FILE_FORMATS):
        where = _PLUGIN.get(storage.type, "DirPlugin.pm line 1")
        raise TaskError(f"unsupported format '{fmt}' at /usr/share/perl5/PVE/Storage/{where}.")
    size = round_up_size(storage, size)
    if kind == "lxc" and not linked_to:
        size -= size % MIB  # containers get whole MiB
    if storage.type == "btrfs" and fmt == "subvol" and size and linked_to is None:
        raise TaskError("btrfs quotas are currently not supported, use an unsized subvolume or a raw file")
    volid = _volid(storage, node, vmid, kind, fmt, name, linked_to if linked else None)
    if storage.volume(node, volid) is not None:
        raise TaskError(f"disk image '{_path_or_name(storage, volid)}' already exists")
    if fmt == "raw" and storage.type in FILE_BASED and size > _LARGEST_FILE:
        path = path_of(storage, volid.partition(":")[2])
        raise TaskError(f"unable to create image: qemu-img: {path}: The image size is too large for file format 'raw'")
    volume = Volume(
        volid,
        "rootdir" if kind == "lxc" else "images",
        fmt,
        size,
        initial_usage(storage, fmt, size) if used is None else min(used, size),
        int(world.clock.now()),
        vmid=vmid,
        parent=parent_text(storage, linked_to) if linked_to is not None and linked else None,
    )
    storage.add(node, volume)
    return volume


def copy(
    world: World,
    source: Volume,
    node: str,
    storage_id: str,
    vmid: int,
    kind: Kind,
    *,
    fmt: str | None = None,
    size: int | None = None,
    name: str | None = None,
) -> Volume:
    """A full copy of a disk; a VM's keeps its format if the target supports it."""
    possible = formats(usable_storage(world, node, storage_id), kind)
    if fmt is None and kind == "qemu":
        fmt = source.format
    fmt = fmt if fmt in possible else None
    size = size or source.disk_size
    if kind == "lxc" and not size and "subvol" in possible:
        fmt = "subvol"
    return allocate(world, node, storage_id, vmid, kind, size, fmt=fmt, name=name, used=min(source.used, source.size))


def resize(world: World, node: str, volid: str, size: int) -> Volume:
    """Grow a disk; usage grows only on thick storages."""
    volume = existing(world, node, volid)
    storage = usable_storage(world, node, split_volid(volid)[0])
    if storage.type == "btrfs" and volume.format == "subvol":
        limit = f"qgroup limit -- {size}k 0/0/256 {path_of(storage, volume.name)}"
        raise TaskError(f"command 'btrfs {limit}' failed: exit code 1")
    size = round_up_size(storage, size)
    grown = size - volume.size if _is_thick(storage) else 0
    space = storage.space(node)
    if grown > space.available:
        raise StorageFull(_no_room_to_grow(storage, volume))
    space.volumes_used += grown
    volume.size, volume.used = size, volume.used + grown
    return volume


def fill(world: World, node: str, volume: Volume, used: int) -> None:
    """Set how much of a disk is written, if the storage has space."""
    storage = usable_storage(world, node, split_volid(volume.volid)[0])
    space = storage.space(node)
    grown = min(used, volume.size) - volume.used
    if grown > space.available:
        raise StorageFull("No space left on device")
    if grown > 0:
        space.volumes_used += grown
        volume.used += grown


def rename(world: World, node: str, volid: str, new_volid: str, *, vmid: int | None = None) -> Volume:
    """Rename a volume on its storage, with `vmid` to another owner."""
    volume = existing(world, node, volid)
    storage = usable_storage(world, node, split_volid(volid)[0])
    if new_volid != volid and storage.volume(node, new_volid) is not None:
        raise TaskError(f"volume '{new_volid}' already exists")
    storage.remove(node, volid)
    renamed = replace(volume, volid=new_volid, vmid=volume.vmid if vmid is None else vmid)
    storage.add(node, renamed)
    return renamed


def free(world: World, node: str, volid: str) -> None:
    """Remove a volume; a missing one is fine, one with linked clones is not."""
    storage = usable_storage(world, node, split_volid(volid)[0])
    volume = storage.volume(node, volid)
    if volume is None:
        return
    if any(clones_of(storage, node, volume)):
        raise TaskError(f"base volume '{volid}' is still in use by linked cloned")
    storage.remove(node, volid)
    if volume.file is not None:
        volume.file.unlink(missing_ok=True)


@contextmanager
def free_on_failure(world: World, node: str, created: list[Volume], complaint: str = "") -> Iterator[None]:
    """Free the new volumes if the work fails or is interrupted; errors are prefixed with the complaint."""
    try:
        yield
    except BaseException as error:
        for volume in created:
            free(world, node, volume.volid)
        created.clear()
        if isinstance(error, TaskError) and complaint:
            raise TaskError(f"{complaint}{error}") from error
        raise


def clones_of(storage: Storage, node: str, base: Volume) -> Iterator[Volume]:
    """The linked clones of a volume."""
    parent = parent_text(storage, base)
    return (volume for volume in storage.volumes(node) if volume.parent == parent)


def _links(storage: Storage, base: Volume) -> bool:
    """Whether a linked clone depends on its base; btrfs subvolumes do not."""
    return storage.type != "btrfs" or base.format in ("qcow2", "vmdk")


def parent_text(storage: Storage, base: Volume) -> str:
    """The `parent` field of a linked clone."""
    if storage.type in FILE_BASED:
        return f"../{'/'.join(base.name.split('/')[-2:])}"
    own_name = base.name.rpartition("/")[2]
    return f"{own_name}@__base__" if storage.type == "zfspool" else own_name


def path_of(storage: Storage, volume_name: str) -> str:
    """The path of a volume on a node: a file, device, dataset or backup server address."""
    if storage.type in ("lvm", "lvmthin"):
        return f"/dev/{storage.config.get('vgname', 'pve')}/{volume_name}"
    if storage.type == "zfspool":
        dataset = f"{storage.config.get('pool', storage.id)}/{volume_name.rpartition('/')[2]}"
        return f"/{dataset}" if "subvol-" in volume_name or "basevol-" in volume_name else f"/dev/zvol/{dataset}"
    if storage.type == "pbs":
        user, server = storage.config.get("username", "root@pam"), storage.config.get("server", "localhost")
        snapshot = volume_name.removeprefix("backup/")
        return f"pbs://{user}@{server}:{storage.config.get('datastore', '')}/{snapshot}"
    root = storage.config.get("path", f"/mnt/pve/{storage.id}")
    content, _, rest = volume_name.partition("/")
    if content in _DIRECTORIES:
        return f"{root}/{_DIRECTORIES[content]}/{rest}"
    directory, _, name = volume_name.rpartition("/")
    if storage.type == "btrfs" and name.endswith(".raw"):  # every image has its own subvolume
        name = f"{name.removesuffix('.raw')}/disk.raw"
    return f"{root}/images/{directory.rpartition('/')[2]}/{name}"


def allocation_log(storage: Storage, volume: Volume) -> list[str]:
    """The output of the storage's tools for a new disk."""
    if storage.type == "lvmthin":
        return [f'  Logical volume "{volume.name}" created.']
    if storage.type not in FILE_BASED or volume.format == "subvol":
        return []
    if storage.type == "btrfs" and volume.format == "raw":
        return []
    line = f"Formatting '{path_of(storage, volume.name)}', fmt={volume.format}"
    if volume.format == "qcow2":
        layout = "cluster_size=65536 extended_l2=off preallocation=metadata compression_type=zlib"
        return [f"{line} {layout} size={volume.size} lazy_refcounts=off refcount_bits=16"]
    return [f"{line} size={volume.size} preallocation=off"]


def link_log(storage: Storage, base: Volume, volume: Volume) -> list[str]:
    """The output of the storage's tools for a linked clone."""
    if storage.type not in FILE_BASED or volume.parent is None:
        return allocation_log(storage, volume)
    name, preallocation = volume.name.rpartition("/")[2], "metadata" if base.format == "qcow2" else "off"
    formatting = (
        f"Formatting '{path_of(storage, volume.name)}', fmt=qcow2 cluster_size=131072 extended_l2=on"
        f" preallocation={preallocation} compression_type=zlib size={volume.size} backing_file={volume.parent}"
        f" backing_fmt={base.format} lazy_refcounts=off refcount_bits=16"
    )
    return [f"clone {base.name}: images, {name}, {volume.vmid} to {name} (base={volume.parent})", formatting]


def round_up_size(storage: Storage, size: int) -> int:
    """Round up to the storage's unit: KiB in files, MiB in ZFS, extents of 4 MiB in LVM."""
    unit = {"lvmthin": 4 * MIB, "lvm": 4 * MIB, "zfspool": MIB}.get(storage.type, _KIB)
    return -(-size // unit) * unit


def size_text(size: int) -> str:
    """A size as PVE writes it: in the largest unit that divides it, such as `8G` or `209716K`."""
    for letter, unit in _UNITS:
        if size % unit == 0:
            return f"{size // unit}{letter}"
    return str(size)


def _missing_error(storage: Storage, volid: str, name: str) -> str:
    """The error of the storage's tools for a missing volume."""
    if storage.type == "lvmthin":
        logical = f"{storage.config.get('vgname', 'pve')}/{name}"
        return f"can't activate LV '/dev/{logical}':   Failed to find logical volume \"{logical}\""
    if storage.type == "zfspool":
        return f"zfs error: cannot open '{storage.config.get('pool', storage.id)}/{name}': dataset does not exist"
    return f"volume '{volid}' does not exist"


def _volid(storage: Storage, node: str, vmid: int, kind: Kind, fmt: str, name: str | None, base: Volume | None) -> str:
    volid = storage.disk_name(vmid, _free_number(storage, node, vmid), kind, fmt=fmt)
    if fmt == "subvol" and storage.type in FILE_BASED:
        volid = volid.replace("/vm-", "/subvol-")
    if storage.type == "zfspool" and fmt == "raw":
        volid = volid.replace(":subvol-", ":vm-")
    if name is not None:
        volid = re.sub(r"(?:vm|subvol)-\d+-disk-\d+", name, volid)
    if base is not None and storage.type in (*FILE_BASED, "zfspool"):
        own_name = "/".join(base.name.split("/")[-2 if storage.type in FILE_BASED else -1 :])  # without its base
        volid = f"{storage.id}:{own_name}/{volid.partition(':')[2]}"
    return volid


def _free_number(storage: Storage, node: str, vmid: int) -> int:
    """The lowest unused disk number of the guest on this storage."""
    numbers = set()
    for volume in storage.volumes(node):
        if volume.vmid == vmid:
            match = _DISK_NUMBER.search(volume.name.rpartition("/")[2])
            if match is not None and int(match[1]) == vmid:
                numbers.add(int(match[2]))
    return next(number for number in range(len(numbers) + 1) if number not in numbers)


def _path_or_name(storage: Storage, volid: str) -> str:
    name = volid.partition(":")[2]
    return path_of(storage, name).removesuffix("/disk.raw") if storage.type in FILE_BASED else name


def _is_thick(storage: Storage) -> bool:
    """Whether the storage allocates the full size of a disk."""
    return storage.type == "lvm" or (storage.type == "zfspool" and not storage.config.get("sparse"))


def initial_usage(storage: Storage, fmt: str, size: int) -> int:
    if _is_thick(storage) and fmt != "subvol":
        return size
    return min(size, {"qcow2": 208 * _KIB + size // 4096}.get(fmt, 4 * _KIB))


def _no_room_to_grow(storage: Storage, volume: Volume) -> str:
    if storage.type == "zfspool":
        pool = storage.config.get("pool", storage.id)
        return f"zfs error: cannot set property for '{pool}/{volume.name}': size is greater than available space"
    return f"lvextend '{storage.config.get('vgname', 'pve')}/{volume.name}' error: Insufficient free space"
