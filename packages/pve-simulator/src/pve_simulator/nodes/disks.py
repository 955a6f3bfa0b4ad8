"""The disks of the nodes: use, health and wiping, and the pools and directories on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pve_simulator.guests.guest import GIB
from pve_simulator.http.refusals import failure
from pve_simulator.nodes import status_daemon
from pve_simulator.nodes.tasks import TaskContext, TaskError, Work
from pve_simulator.storage.storages import Storage, StorageSpace
from pve_simulator.world import Node, PerNode, World

TB = 1000**4


@dataclass(slots=True)
class Disk:
    """One block device. `used` is the list's word for its use; None for an empty disk."""

    devpath: str
    size: int
    model: str
    serial: str
    kind: str  # hdd, ssd or nvme
    wearout: int | str = "N/A"
    hours: int = 9000
    health: str = "PASSED"
    used: str | None = None
    holder: str | None = None  # the volume group, pool or mounted file system on it
    gpt: bool = False
    parts: list[tuple[str, int]] = field(default_factory=list)  # use and size of each partition

    @property
    def name(self) -> str:
        return self.devpath.rpartition("/")[2]

    def partition(self, number: int) -> str:
        return f"{self.devpath}{'p' if self.kind == 'nvme' else ''}{number}"

    def partitions(self) -> dict[str, tuple[str, int]]:
        """Device path -> use and size."""
        return {self.partition(number): part for number, part in enumerate(self.parts, start=1)}

    def wipe(self) -> None:
        """Reset the disk to empty."""
        self.used, self.holder, self.gpt = None, None, False
        self.parts.clear()

    def occupy(self, used: str, holder: str) -> None:
        self.used, self.holder = used, holder

    def row(self) -> dict[str, Any]:
        """The disk in the list of its node."""
        row: dict[str, Any] = {
            "devpath": self.devpath, "size": self.size, "model": self.model, "serial": self.serial,
            "vendor": "unknown" if self.kind == "nvme" else "ATA     ",
            "wwn": f"0x5000c500{self.serial.encode().hex()[:8]}",
            "by_id_link": f"/dev/disk/by-id/{'nvme' if self.kind == 'nvme' else 'ata'}-{self.model}_{self.serial}",
            "type": self.kind, "rpm": 7200 if self.kind == "hdd" else 0, "gpt": int(self.gpt), "health": self.health,
            "wearout": self.wearout, "osdid": -1, "osdid-list": None,
        }  # fmt: skip
        if self.used is not None:
            row["used"] = self.used
        return row

    def partition_rows(self) -> list[dict[str, Any]]:
        common = {"parent": self.devpath, "gpt": 1, "type": "partition", "osdid": -1, "osdid-list": None}
        return [
            {"devpath": path, "size": size, "used": used, **common}
            | ({"mounted": 1} if used.startswith("mounted") else {})
            for path, (used, size) in self.partitions().items()
        ]

    def smart(self) -> dict[str, Any]:
        """SMART data: a table for ATA, text for NVMe."""
        if self.kind == "nvme":
            return {"health": self.health, "type": "text", "text": self._nvme_text(), "wearout": self.wearout}
        result: dict[str, Any] = {"health": self.health, "type": "ata", "attributes": self._attributes()}
        if self.kind == "ssd":
            result["wearout"] = self.wearout
        return result

    def _attributes(self) -> list[dict[str, Any]]:
        raw = [
            (5, "Reallocated_Sector_Ct", 100, 10, 0),
            (9, "Power_On_Hours", 99, 0, self.hours),
            (12, "Power_Cycle_Count", 100, 20, 41),
            (194, "Temperature_Celsius", 66, 0, 34),
            (197, "Current_Pending_Sector", 100, 0, 0),
            (199, "UDMA_CRC_Error_Count", 200, 0, 0),
        ]
        if self.kind == "ssd":
            raw.insert(3, (177, "Wear_Leveling_Count", int(self.wearout), 0, 100 - int(self.wearout)))
        return [
            {
                "id": f"{number:>3}",
                "name": name,
                "value": value,
                "normalized": float(value),
                "worst": value,
                "threshold": threshold,
                "fail": "-",
                "flags": "PO--CK" if threshold else "-O--CK",
                "raw": str(now),
            }
            for number, name, value, threshold, now in raw
        ]

    def _nvme_text(self) -> str:
        return (
            "\nSMART/Health Information (NVMe Log 0x02, NSID 0xffffffff)\n"
            "Critical Warning:                   0x00\n"
            "Temperature:                        41 Celsius\n"
            "Available Spare:                    100%\n"
            "Available Spare Threshold:          5%\n"
            f"Percentage Used:                    {100 - int(self.wearout)}%\n"
            f"Power On Hours:                     {self.hours:,}\n"
            "Unsafe Shutdowns:                   7\n"
            "Media and Data Integrity Errors:    0\n"
        )


@dataclass(slots=True)
class MountedDirectory:
    """A file system on a disk, mounted by a unit that PVE wrote."""

    name: str
    disk: Disk
    filesystem: str

    def row(self) -> dict[str, Any]:
        escaped = self.name.replace("-", "\\x2d")
        return {
            "unitfile": f"/etc/systemd/system/mnt-pve-{escaped}.mount",
            "path": f"/mnt/pve/{self.name}",
            "device": f"/dev/disk/by-uuid/{uuid_of(self.disk)}",
            "type": self.filesystem,
            "options": "defaults",
        }


@dataclass(slots=True)
class NodeDisks:
    """All disks of one node, and the pools on them."""

    disks: dict[str, Disk]
    directories: dict[str, MountedDirectory] = field(default_factory=dict)
    raid_levels: dict[str, str] = field(default_factory=dict)  # of the ZFS pools
    pool_health: dict[str, str] = field(default_factory=dict)  # of those that are not ONLINE
    metadata_used: dict[str, float] = field(default_factory=dict)  # of thin pools whose metadata fills up, as a share

    def find(self, path: str) -> Disk:
        """The disk, or the disk of the partition; PVE's refusal if there is no such device."""
        for disk in self.disks.values():
            if path == disk.devpath or path in disk.partitions():
                return disk
        raise failure("not a valid block device")

    def require_unused(self, path: str) -> Disk:
        """An unused disk, or PVE's refusal."""
        disk = self.find(path)
        if path != disk.devpath or disk.used is not None or disk.parts:
            raise failure(f"device '{path}' is already in use")
        return disk

    def held_by(self, holder: str) -> list[Disk]:
        return [disk for disk in self.disks.values() if disk.holder == holder]


class Disks(PerNode[NodeDisks]):
    """The disks of every node."""

    def make(self, node: Node) -> NodeDisks:
        return _first_disks(self._world, node)


def uuid_of(disk: Disk) -> str:
    """The UUID of the file system on a disk."""
    digits = f"{status_daemon.spread(sum(disk.serial.encode()), 7):.12f}"[2:].ljust(12, "0")
    return f"7c1f{digits[:4]}-{digits[4:8]}-4a5b-9c3d-{digits}"


def _first_disks(world: World, node: Node) -> NodeDisks:
    """A boot disk with the system, the disks of the node's ZFS pools, and two empty ones."""
    thin = sum(
        storage.space(node.name).total
        for storage in world.storages.values()
        if storage.type == "lvmthin" and storage.on_node(node.name) and node.name in storage.spaces
    )
    size = node.disk + thin + 40 * GIB
    boot = Disk("/dev/nvme0n1", size, "Samsung_SSD_980_PRO", f"S5GX{node.number:06d}A", "nvme", wearout=96)
    boot.gpt = True
    boot.parts = [("BIOS boot", 1031168), ("EFI", GIB), ("LVM", size - 2 * GIB)]
    boot.occupy("BIOS boot", "vg:pve")
    own = NodeDisks({boot.devpath: boot})
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    for pool, total in _pools(world, node).items():
        own.raid_levels[pool] = "mirror"
        for _ in range(2):
            letter = next(letters)
            disk = Disk(f"/dev/sd{letter}", total, "WDC_WD40EFRX-68N32N0", f"WCC{node.number}{letter}4093", "hdd")
            disk.gpt = True
            disk.parts = [("ZFS", total - 8 * 1024**2), ("ZFS reserved", 8 * 1024**2)]
            disk.occupy("ZFS", f"zfs:{pool}")
            own.disks[disk.devpath] = disk
    for kind, model in (("ssd", "CT2000MX500SSD1"), ("hdd", "ST2000VN004-2E4164")):
        letter = next(letters)
        wear: int | str = 91 if kind == "ssd" else "N/A"
        disk = Disk(f"/dev/sd{letter}", 2 * TB, model, f"Z{node.number}{letter.upper()}7702", kind, wearout=wear)
        own.disks[disk.devpath] = disk
    return own


def _pools(world: World, node: Node) -> dict[str, int]:
    """The ZFS pools of a node's storages, with their sizes."""
    sizes: dict[str, int] = {}
    for storage in world.storages.values():
        if storage.type == "zfspool" and storage.on_node(node.name) and node.name in storage.spaces:
            pool = str(storage.config.get("pool", storage.id)).partition("/")[0]
            sizes[pool] = max(sizes.get(pool, 0), storage.space(node.name).total)
    return sizes


_MINIMUM_DISKS = {
    "single": 1, "mirror": 2, "raid10": 4, "raidz": 3, "raidz2": 4, "raidz3": 5, "draid": 3, "draid2": 4, "draid3": 5,
}  # fmt: skip
_PARITY = {"raidz": 1, "raidz2": 2, "raidz3": 3, "draid": 1, "draid2": 2, "draid3": 3}


def volume_groups(world: World, node: str) -> list[dict[str, Any]]:
    """The LVM volume groups with the devices under them."""
    disks = world.part(Disks).of(node)
    holders = dict.fromkeys(disk.holder or "" for disk in disks.disks.values())
    names = [holder.removeprefix("vg:") for holder in holders if holder.startswith("vg:")]
    return [_volume_group(world, node, disks, name) for name in names]


def _volume_group(world: World, node: str, disks: NodeDisks, name: str) -> dict[str, Any]:
    under: list[dict[str, Any]] = [
        {"name": disk.partition(3) if disk.parts else disk.devpath, "size": _lvm_size(disk), "free": 0, "leaf": 1}
        for disk in disks.held_by(f"vg:{name}")
    ]
    size = sum(each["size"] for each in under)
    thin = sum(storage.space(node).total for storage in matching_storages(world, node, "lvmthin", vgname=name))
    plain = sum(storage.space(node).used for storage in matching_storages(world, node, "lvm", vgname=name))
    used = thin + plain + (world.nodes[node].disk if name == "pve" else 0)
    free = max(0, size - used)
    under[0]["free"] = free
    return {"name": name, "size": size, "free": free, "lvcount": 3, "leaf": 0, "children": under}


def _lvm_size(disk: Disk) -> int:
    return disk.parts[2][1] if disk.parts else disk.size // (4 * 1024**2) * (4 * 1024**2)


def matching_storages(world: World, node: str, kind: str, **config: str) -> list[Storage]:
    """The storages of a type with these options on a node."""
    return [
        storage
        for storage in world.storages.values()
        if storage.type == kind
        and storage.on_node(node)
        and ("" if storage.shared else node) in storage.spaces
        and all(str(storage.config.get(key)) == value for key, value in config.items())
    ]


def thin_pools(world: World, node: str) -> list[dict[str, Any]]:
    rows = []
    for storage in matching_storages(world, node, "lvmthin"):
        space, pool = storage.space(node), str(storage.config.get("thinpool", storage.id))
        metadata = max(GIB // 8, space.total // 1000)
        share = world.part(Disks).of(node).metadata_used.get(pool, space.used / max(1, space.total) / 4)
        rows.append(
            {
                "lv": pool,
                "vg": str(storage.config.get("vgname", "pve")),
                "lv_size": space.total,
                "used": space.used,
                "metadata_size": metadata,
                "metadata_used": int(metadata * share),
            }
        )
    return rows


def zfs_pools(world: World, node: str) -> list[dict[str, Any]]:
    disks = world.part(Disks).of(node)
    return [_zfs_row(world, node, disks, name) for name in disks.raid_levels]


def _zfs_row(world: World, node: str, disks: NodeDisks, name: str) -> dict[str, Any]:
    size = _zfs_size(disks.held_by(f"zfs:{name}"), disks.raid_levels[name])
    used = sum(storage.space(node).used for storage in pool_storages(world, node, name))
    used = min(size, used)
    return {"name": name, "size": size, "alloc": used, "free": size - used, "frag": 4, "dedup": 1} | {
        "health": disks.pool_health.get(name, "ONLINE")
    }


def pool_storages(world: World, node: str, pool: str) -> list[Storage]:
    return [
        storage
        for storage in matching_storages(world, node, "zfspool")
        if str(storage.config.get("pool", storage.id)).partition("/")[0] == pool
    ]


def _zfs_size(disks: Sequence[Disk], level: str) -> int:
    smallest = min(disk.size for disk in disks)
    if level in ("single", "mirror"):
        return smallest
    if level == "raid10":
        return smallest * len(disks) // 2
    return smallest * (len(disks) - _PARITY[level])


def zfs_detail(world: World, node: str, name: str) -> dict[str, Any]:
    disks = world.part(Disks).of(node)
    if name not in disks.raid_levels:
        raise failure(f"command '/sbin/zpool status -P {name}' failed: exit code 1")
    level = disks.raid_levels[name]
    leaves = [_vdev(disk.partition(1), []) for disk in disks.held_by(f"zfs:{name}")]
    if level == "raid10":
        groups = [_vdev(f"mirror-{number // 2}", leaves[number : number + 2]) for number in range(0, len(leaves), 2)]
    else:
        groups = leaves if level == "single" else [_vdev(f"{level}-0" if level == "mirror" else f"{level}1-0", leaves)]
    return {
        "name": name,
        "state": disks.pool_health.get(name, "ONLINE"),
        "scan": "scrub repaired 0B in 03:12:44 with 0 errors on Sun Jan 11 03:36:45 2026",
        "errors": "No known data errors",
        "leaf": 0,
        "children": [_vdev(name, groups)],
    }


def _vdev(name: str, children: list[dict[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "state": "ONLINE", "read": 0, "write": 0, "cksum": 0, "msg": ""}
    return row | ({"leaf": 0, "children": children} if children else {"leaf": 1})


def check_raid(level: str, devices: Sequence[str]) -> None:
    """Refuse a number of disks that the RAID level does not support."""
    if level == "raid10" and len(devices) % 2:
        raise failure("raid10 needs an even number of disks")
    if level == "single" and len(devices) > 1:
        raise failure("please give only one disk for single disk mode")
    if len(devices) < _MINIMUM_DISKS[level]:
        raise failure(f"{level} needs at least {_MINIMUM_DISKS[level]} disks")


def check_storage_name(world: World, node: str, name: str, kind: str) -> None:
    """Refuse a storage name in use, unless that storage can be extended to this node."""
    storage = world.storages.get(name)
    if storage is None:
        return
    if storage.type != kind:
        raise failure(f"storage ID '{name}' already exists with different type '{storage.type}'")
    if storage.on_node(node):
        raise failure(f"storage ID '{name}' already exists on node {node}")


def add_storage(world: World, node: str, name: str, kind: str, size: int, content: str, **config: str | int) -> None:
    """Add a storage for the new object, or extend the one of that name to this node."""
    storage = world.storages.get(name)
    if storage is None:
        storage = Storage(name, kind, tuple(content.split(",")), nodes=frozenset(), config=dict(config))
        world.storages[name] = storage
    storage.nodes = (storage.nodes or frozenset()) | {node}
    storage.spaces[node] = StorageSpace(size, 0)


def create_work(disks: Sequence[Disk], steps: Sequence[str], finish: Callable[[], None]) -> Work:
    """Log the commands, then let `finish` apply their effect."""

    async def work(context: TaskContext) -> None:
        for disk in disks:
            if disk.used is not None:
                raise TaskError(f"device '{disk.devpath}' is already in use")
        for step in steps:
            context.log(step)
            await context.sleep(0.8)
        finish()

    return work


def make_directory(world: World, node: str, disk: Disk, name: str, filesystem: str) -> None:
    disk.gpt = True
    disk.parts = [(f"mounted: /mnt/pve/{name}", disk.size - 2 * 1024**2)]
    disk.occupy("partitions", f"dir:{name}")
    world.part(Disks).of(node).directories[name] = MountedDirectory(name, disk, filesystem)


def removal_work(
    world: World, node: str, holder: str, storages: Sequence[Storage], missing: str, busy: str, options: dict[str, Any]
) -> Work:
    """Remove a group, pool or directory, unless guests have disks on it."""

    async def work(context: TaskContext) -> None:
        own = world.part(Disks).of(node)
        held = own.held_by(holder)
        if not held:
            if holder.startswith("dir:"):
                unit = f"mnt-pve-{holder[4:]}.mount"
                context.log(f"Failed to stop {unit}: Unit {unit} not loaded.")
            raise TaskError(missing)
        if holder == "vg:pve" or any(storage.space(node).volumes for storage in storages):
            raise TaskError(busy)
        await context.sleep(1.0)
        kind, _, name = holder.partition(":")
        if kind == "dir":
            directory = own.directories.pop(name)
            directory.disk.parts = [(directory.filesystem, size) for _, size in directory.disk.parts]
        elif kind == "zfs":
            del own.raid_levels[name]
        for disk in held:
            disk.holder = None
            if options.get("cleanup-disks"):
                disk.wipe()
        if options.get("cleanup-config"):
            for storage in storages:
                _withdraw(world, node, storage)

    return work


def _withdraw(world: World, node: str, storage: Storage) -> None:
    """Remove the storage from this node; without any node left, delete it."""
    left = frozenset(world.nodes if storage.nodes is None else storage.nodes) - {node}
    if left:
        storage.nodes = left
        storage.spaces.pop(node, None)
    else:
        del world.storages[storage.id]
