"""The disks of the nodes: their use, health and wiping."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pve_simulator.guests.guest import GIB
from pve_simulator.http.refusals import failure
from pve_simulator.nodes import status_daemon
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
    found = NodeDisks({boot.devpath: boot})
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    for pool, total in _pools(world, node).items():
        found.raid_levels[pool] = "mirror"
        for _ in range(2):
            letter = next(letters)
            disk = Disk(f"/dev/sd{letter}", total, "WDC_WD40EFRX-68N32N0", f"WCC{node.number}{letter}4093", "hdd")
            disk.gpt = True
            disk.parts = [("ZFS", total - 8 * 1024**2), ("ZFS reserved", 8 * 1024**2)]
            disk.occupy("ZFS", f"zfs:{pool}")
            found.disks[disk.devpath] = disk
    for kind, model in (("ssd", "CT2000MX500SSD1"), ("hdd", "ST2000VN004-2E4164")):
        letter = next(letters)
        wear: int | str = 91 if kind == "ssd" else "N/A"
        disk = Disk(f"/dev/sd{letter}", 2 * TB, model, f"Z{node.number}{letter.upper()}7702", kind, wearout=wear)
        found.disks[disk.devpath] = disk
    return found


def _pools(world: World, node: Node) -> dict[str, int]:
    """The ZFS pools of a node's storages, with their sizes."""
    found: dict[str, int] = {}
    for storage in world.storages.values():
        if storage.type == "zfspool" and storage.on_node(node.name) and node.name in storage.spaces:
            pool = str(storage.config.get("pool", storage.id)).partition("/")[0]
            found[pool] = max(found.get(pool, 0), storage.space(node.name).total)
    return found
