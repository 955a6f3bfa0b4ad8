"""Disks of guests on storages: made, found, grown, copied, renamed and freed.

Whatever goes wrong raises `TaskError`: inside a task it becomes the exit text, in an endpoint HTTP 500, because PVE
says the same words in both places.

    volume = volumes.allocate(world, node, "local-lvm", 100, "qemu", 8 * GIB)
    volumes.resize(world, node, volume.volid, 16 * GIB)
    volumes.free(world, node, volume.volid)

A new disk on a thin storage uses next to nothing, as in PVE; a copy uses what its source uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from quorate.sim.guests import GIB, MIB, Kind
from quorate.sim.storages import FILE_BASED, Storage, StorageFull, Volume
from quorate.sim.tasks import TaskError
from quorate.sim.world import World

CLOUDINIT_SIZE = 4 * MIB
EFIDISK_SIZE = 528 * 1024
TPMSTATE_SIZE = 4 * MIB

_KIB = 1024
_DISK_NUMBER = re.compile(r"(?:vm|base|subvol|basevol)-(\d+)-disk-(\d+)")
_OWNED = re.compile(r"(?:.*/)?(?:vm|base|subvol|basevol)-(\d+)-[^/\s]+")
_BACKUP_OWNER = re.compile(r"vzdump-(?:qemu|lxc)-(\d+)-|backup/(?:vm|ct)/(\d+)/")
_FILE_CONTENT = frozenset({"iso", "vztmpl", "backup", "snippets", "import"})
_NAME_KIND = {"lvmthin": "lvm", "lvm": "lvm", "zfspool": "zfs", "pbs": "pbs"}
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
    """The storage, if it exists, is switched on and is meant for this node."""
    storage = world.storages.get(storage_id)
    if storage is None:
        raise TaskError(f"storage '{storage_id}' does not exist")
    if storage.disabled:
        raise TaskError(f"storage '{storage_id}' is disabled")
    if not storage.on_node(node):
        raise TaskError(f"storage '{storage_id}' is not available on node '{node}'")
    return storage


def split_volid(volid: str) -> tuple[str, str]:
    """Storage and name of a volume identifier such as `local:iso/debian.iso`."""
    match = VOLID.fullmatch(volid)
    if match is None:
        raise TaskError(f"unable to parse volume ID '{volid}'")
    return match[1], match[2]


def find(world: World, node: str, volid: str) -> Volume | None:
    """The volume as this node sees it, None if there is none of that name."""
    storage_id, _ = split_volid(volid)
    return usable_storage(world, node, storage_id).volume(node, volid)


def existing(world: World, node: str, volid: str) -> Volume:
    """The volume, or PVE's complaint that it is not there."""
    storage_id, name = split_volid(volid)
    storage = usable_storage(world, node, storage_id)
    volume = storage.volume(node, volid)
    if volume is None:
        raise TaskError(_not_there(storage, volid, name))
    return volume


def content_of(world: World, volid: str) -> tuple[str, int | None]:
    """What kind of content a volume's name stands for, and whose disk or backup it would be.

    The volume does not have to exist; a name that the storage's type cannot have is refused.
    """
    storage_id, name = split_volid(volid)
    storage = world.storages.get(storage_id)
    if storage is None:
        raise TaskError(f"storage '{storage_id}' does not exist")
    directory = name.partition("/")[0]
    if directory in _FILE_CONTENT and (storage.type in FILE_BASED or storage.type == "pbs"):
        owner = _BACKUP_OWNER.search(name) if directory == "backup" else None
        return directory, None if owner is None else int(owner[1] or owner[2])
    match = _OWNED.fullmatch(name)
    if match is None:
        raise TaskError(f"unable to parse {_NAME_KIND.get(storage.type, 'directory')} volume name '{name}'")
    return "images", int(match[1])


def owned_by(world: World, node: str, vmid: int) -> Iterator[Volume]:
    """Every disk that carries the guest's number, on all storages that this node can use."""
    for storage in world.storages.values():
        if storage.on_node(node) and not storage.disabled:
            for volume in list(storage.volumes(node)):
                if volume.vmid == vmid and volume.content in ("images", "rootdir"):
                    yield volume


def formats(storage: Storage, kind: Kind) -> tuple[str, ...]:
    """The formats a disk can have here, the default one first."""
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
    """A new disk of `size` bytes for a guest, rounded up as the storage rounds.

    `name` replaces the usual `vm-<vmid>-disk-<n>`, without directory and ending; `linked_to` makes a linked clone.
    """
    storage = usable_storage(world, node, storage_id)
    fmt = fmt or (linked_to.format if linked_to else formats(storage, kind)[0])
    if fmt not in formats(storage, kind):
        where = _PLUGIN.get(storage.type, "DirPlugin.pm line 1")
        raise TaskError(f"unsupported format '{fmt}' at /usr/share/perl5/PVE/Storage/{where}.")
    size = rounded(storage, size)
    volid = _volid(storage, node, vmid, kind, fmt, name, linked_to)
    if storage.volume(node, volid) is not None:
        raise TaskError(f"disk image '{_path_or_name(storage, volid)}' already exists")
    volume = Volume(
        volid,
        "rootdir" if kind == "lxc" else "images",
        fmt,
        size,
        _first_use(storage, fmt, size) if used is None else min(used, size),
        int(world.clock.now()),
        vmid=vmid,
        parent=None if linked_to is None else parent_text(storage, linked_to),
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
) -> Volume:
    """A full copy of a disk, a VM's in the source's format where the target can have it."""
    wanted = formats(usable_storage(world, node, storage_id), kind)
    if fmt is None and kind == "qemu" and source.format in wanted:
        fmt = source.format
    return allocate(world, node, storage_id, vmid, kind, size or source.disk_size, fmt=fmt, used=_written(source))


def resize(world: World, node: str, volid: str, size: int) -> Volume:
    """Grow a disk; what it uses grows only where space is reserved in full."""
    volume = existing(world, node, volid)
    storage = usable_storage(world, node, split_volid(volid)[0])
    size = rounded(storage, size)
    grown = size - volume.size if _reserves(storage) else 0
    place = storage.place(node)
    if grown > place.available:
        raise StorageFull(_no_room_to_grow(storage, volume))
    place.volumes_used += grown
    volume.size, volume.used = size, volume.used + grown
    return volume


def fill(world: World, node: str, volume: Volume, used: int) -> None:
    """Say how much of a disk is written, if the storage has room for it."""
    storage = usable_storage(world, node, split_volid(volume.volid)[0])
    place = storage.place(node)
    grown = min(used, volume.size) - volume.used
    if grown > place.available:
        raise StorageFull("No space left on device")
    if grown > 0:
        place.volumes_used += grown
        volume.used += grown


def rename(world: World, node: str, volid: str, new_volid: str, *, vmid: int | None = None) -> Volume:
    """Give a volume another name on its storage, and with `vmid` another owner."""
    volume = existing(world, node, volid)
    storage = usable_storage(world, node, split_volid(volid)[0])
    if storage.volume(node, new_volid) is not None:
        raise TaskError(f"volume '{new_volid}' already exists")
    storage.remove(node, volid)
    renamed = replace(volume, volid=new_volid, vmid=volume.vmid if vmid is None else vmid)
    storage.add(node, renamed)
    return renamed


def free(world: World, node: str, volid: str) -> None:
    """Remove a volume; one that is gone already is fine, one that others build on is not."""
    storage = usable_storage(world, node, split_volid(volid)[0])
    volume = storage.volume(node, volid)
    if volume is None:
        return
    if any(clones_of(storage, node, volume)):
        raise TaskError(f"base volume '{volid}' is still in use by linked cloned")
    storage.remove(node, volid)


def clones_of(storage: Storage, node: str, base: Volume) -> Iterator[Volume]:
    """The linked clones that build on a volume."""
    parent = parent_text(storage, base)
    return (volume for volume in storage.volumes(node) if volume.parent == parent)


def parent_text(storage: Storage, base: Volume) -> str:
    """What a linked clone's `parent` says."""
    if storage.type in FILE_BASED:
        return f"../{base.name}"
    own_name = base.name.rpartition("/")[2]
    return f"{own_name}@__base__" if storage.type == "zfspool" else own_name


def path_of(storage: Storage, volume_name: str) -> str:
    """Where a volume is found on a node: a file, a device, a mounted dataset or an address at a backup server."""
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
    sort, _, rest = volume_name.partition("/")
    if sort in _DIRECTORIES:
        return f"{root}/{_DIRECTORIES[sort]}/{rest}"
    directory, _, name = volume_name.rpartition("/")
    return f"{root}/images/{directory.rpartition('/')[2]}/{name}"


def allocation_log(storage: Storage, volume: Volume) -> list[str]:
    """What the storage's tools print while they make a disk."""
    if storage.type == "lvmthin":
        return [f'  Logical volume "{volume.name}" created.']
    if storage.type not in FILE_BASED or volume.format == "subvol":
        return []
    line = f"Formatting '{path_of(storage, volume.name)}', fmt={volume.format}"
    if volume.format == "qcow2":
        layout = "cluster_size=65536 extended_l2=off preallocation=metadata compression_type=zlib"
        return [f"{line} {layout} size={volume.size} lazy_refcounts=off refcount_bits=16"]
    return [f"{line} size={volume.size} preallocation=off"]


def rounded(storage: Storage, size: int) -> int:
    """The size a disk really gets: whole KiB in files, MiB in ZFS, extents of 4 MiB in LVM."""
    unit = {"lvmthin": 4 * MIB, "lvm": 4 * MIB, "zfspool": MIB}.get(storage.type, _KIB)
    return -(-size // unit) * unit


def size_text(size: int) -> str:
    """A size as PVE writes it: in the largest unit that divides it, such as `8G` or `209716K`."""
    for letter, unit in _UNITS:
        if size and size % unit == 0:
            return f"{size // unit}{letter}"
    return str(size)


def _not_there(storage: Storage, volid: str, name: str) -> str:
    """How the storage's tools say that a volume is missing when it is to be used."""
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
        volid = f"{storage.id}:{base.name}/{volid.partition(':')[2]}"
    return volid


def _free_number(storage: Storage, node: str, vmid: int) -> int:
    """The lowest disk number that no volume of the guest has here."""
    taken = set()
    for volume in storage.volumes(node):
        if volume.vmid == vmid:
            match = _DISK_NUMBER.search(volume.name.rpartition("/")[2])
            if match is not None and int(match[1]) == vmid:
                taken.add(int(match[2]))
    return next(number for number in range(len(taken) + 1) if number not in taken)


def _path_or_name(storage: Storage, volid: str) -> str:
    name = volid.partition(":")[2]
    return path_of(storage, name) if storage.type in FILE_BASED else name


def _reserves(storage: Storage) -> bool:
    """Whether a disk takes all of its space at once."""
    return storage.type == "lvm" or (storage.type == "zfspool" and not storage.config.get("sparse"))


def _first_use(storage: Storage, fmt: str, size: int) -> int:
    if _reserves(storage) and fmt != "subvol":
        return size
    return min(size, {"qcow2": 208 * _KIB + size // 4096}.get(fmt, 4 * _KIB))


def _written(source: Volume) -> int:
    return min(source.used, source.size)


def _no_room_to_grow(storage: Storage, volume: Volume) -> str:
    if storage.type == "zfspool":
        pool = storage.config.get("pool", storage.id)
        return f"zfs error: cannot set property for '{pool}/{volume.name}': size is greater than available space"
    return f"lvextend '{storage.config.get('vgname', 'pve')}/{volume.name}' error: Insufficient free space"
