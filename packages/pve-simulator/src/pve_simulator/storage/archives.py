"""Backup archives: contents, file names, and lines of backup and restore logs."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol

from pve_simulator.guest_os.files import Entry as FileEntry
from pve_simulator.guest_os.machine import Machines
from pve_simulator.guests import drives
from pve_simulator.guests.guest import GIB, MIB, Guest, Kind, OperatingSystem, Value, parse_size
from pve_simulator.guests.status import SAVED_STATE
from pve_simulator.nodes.tasks import TaskContext
from pve_simulator.pbs.archives import Entry
from pve_simulator.storage.storages import Storage, Volume
from pve_simulator.world import World

_BYTES_PER_SECOND = 500 * MIB
# Large disks are faster here than in reality, to keep backups short.
_LONGEST_SECONDS = 12
_UNITS = (("TiB", 1024 * GIB), ("GiB", GIB), ("MiB", MIB), ("KiB", 1024))


class BackupLog:
    """The log of a vzdump task, with a level on every line."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context

    def info(self, text: str) -> None:
        self._context.log(f"INFO: {text}")

    def error(self, text: str) -> None:
        self._context.log(f"ERROR: {text}")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a transfer: its duration, and the progress at its end."""

    seconds: int
    percent: int
    of_seconds: int


def transfer_steps(total: int) -> Iterator[Step]:
    """The steps of a transfer, one per second; an empty one takes no time."""
    seconds = min(_LONGEST_SECONDS, -(-total // _BYTES_PER_SECOND))
    for second in range(1, seconds + 1):
        yield Step(1, second * 100 // seconds, seconds)


def size_text(size: int, digits: int = 1) -> str:
    """A size as the backup tools write it, such as `1.5 GiB`."""
    for unit, factor in _UNITS:
        if size >= factor:
            return f"{size / factor:.{digits}f} {unit}"
    return f"{size} B"


# Options of a guest's current state, not of its configuration.
_STATE_OPTIONS = frozenset({"lock", "parent", *SAVED_STATE})
_FILE_NAME = re.compile(r"backup/vzdump-(qemu|lxc)-(\d+)-(\d{4})_(\d\d)_(\d\d)-(\d\d)_(\d\d)_(\d\d)\.")
_ENDINGS = {"0": "", "1": ".lzo", "gzip": ".gz", "lzo": ".lzo", "zstd": ".zst"}
_RATIO = {"0": 1.0, "1": 0.62, "lzo": 0.62, "gzip": 0.48, "zstd": 0.44}
_OVERHEAD = 311
_EMPTY_IMAGE = 1024**2  # below this, an image contains only metadata


class Content(Protocol):
    """The real data of a backup, such as that of a bootable VM."""

    async def unpack(self, guest: Guest, disks: Mapping[str, Volume], log: Callable[..., None]) -> None:
        """Fill the guest's new disks, by key, and attach a real machine; raises TaskError on failure."""


@dataclass(frozen=True, slots=True)
class Archive:
    """The contents of one backup."""

    kind: Kind
    vmid: int
    config: dict[str, Value]
    data: int = 0
    system: OperatingSystem = field(default_factory=OperatingSystem)
    content: Content | None = None
    """Its real disks, if any."""
    files: Entry | None = None
    """The files of the guest's system."""

    @property
    def text(self) -> str:
        """The configuration file as stored in the backup."""
        lines = [f"#{line}" for line in str(self.config.get("description", "")).splitlines()]
        lines += [f"{key}: {self.config[key]}" for key in sorted(self.config) if key != "description"]
        if self.kind == "qemu":
            lines += [
                f"#qmdump#map:{drive.key}:drive-{drive.key}:{drive.storage}:{_image_format(drive)}:"
                for drive in self.drives()
            ]
        return "".join(f"{line}\n" for line in lines)

    def drives(self) -> list[drives.Drive]:
        """The disks whose data is in the backup."""
        return [drive for drive in drives.disks(self.config) if included(self.kind, drive)]


def _image_format(drive: drives.Drive) -> str:
    ending = drive.volid.rpartition(".")[2]
    return ending if ending in ("qcow2", "vmdk") else "raw"


def included(kind: Kind, drive: drives.Drive) -> bool:
    """Whether a backup includes this disk: VMs' disks by default, mount points only on request."""
    options = drive.text.split(",")
    if kind == "qemu" or drive.key == "rootfs":
        return not {"backup=0", "backup=no", "backup=off"} & set(options)
    return bool({"backup=1", "backup=yes", "backup=on"} & set(options))


def pack(world: World, guest: Guest) -> Archive:
    """The archive of a guest's current state."""
    config = {key: value for key, value in guest.config.items() if key not in _STATE_OPTIONS}
    files = file_tree(world.part(Machines).of(guest).files.snapshot())
    archive = Archive(guest.kind, guest.vmid, config, system=replace(guest.system), files=files)
    return replace(archive, data=sum(_data_size(world, guest.node, drive) for drive in archive.drives()))


_SPECIAL = {stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket", stat.S_IFCHR: "char", stat.S_IFBLK: "block"}
_NOT_STORED = frozenset({"proc", "sys", "run"})
"""Other file systems, which a backup leaves out."""


def file_tree(folder: FileEntry) -> Entry:
    """The files of a guest as a backup stores them."""
    children = {name: _store_entry(entry) for name, entry in folder.children.items() if name not in _NOT_STORED}
    return Entry("folder", mtime=int(folder.mtime), children=children)


def _store_entry(entry: FileEntry) -> Entry:
    if entry.special is not None:
        return Entry(_SPECIAL[entry.special], mtime=int(entry.mtime))
    if entry.link is not None:
        return Entry("symlink", entry.link.encode(), int(entry.mtime))
    if entry.is_directory:
        children = {name: _store_entry(child) for name, child in entry.children.items()}
        return Entry("folder", mtime=int(entry.mtime), children=children)
    return Entry("file", entry.read(), int(entry.mtime))


def _data_size(world: World, node: str, drive: drives.Drive) -> int:
    storage = world.storages.get(drive.storage)
    volume = storage.volume(node, drive.volid) if storage is not None and storage.on_node(node) else None
    if volume is None or volume.used < _EMPTY_IMAGE:
        return 0
    return min(volume.used, volume.size)


def _dated_until(entry: Entry, when: int) -> Entry:
    """The tree without times after its backup."""
    children = {name: _dated_until(child, when) for name, child in entry.children.items()}
    return replace(entry, mtime=min(entry.mtime, when), children=children)


def open_archive(world: World, volume: Volume) -> Archive:
    """The contents of a backup; one from before the start has its guest's current configuration."""
    if volume.archive is not None:
        return volume.archive
    kind: Kind = "lxc" if is_container(volume) else "qemu"
    vmid = volume.vmid or 100
    guest = world.guests.get(vmid)
    if guest is not None and guest.kind == kind:
        packed = pack(world, guest)
        volume.archive = replace(packed, files=packed.files and _dated_until(packed.files, made_at(volume)))
    else:
        config: dict[str, Value] = {"hostname": f"CT{vmid}", "memory": 512} if kind == "lxc" else {"memory": "512"}
        volume.archive = Archive(kind, vmid, config)
    return volume.archive


def is_container(volume: Volume) -> bool:
    return "-lxc-" in volume.volid or "/ct/" in volume.volid


def backups(storage: Storage, node: str) -> list[Volume]:
    """The backups on a storage, oldest first."""
    volumes = [volume for volume in storage.volumes(node) if volume.content == "backup"]
    return sorted(volumes, key=lambda volume: (made_at(volume), volume.volid))


def made_at(volume: Volume) -> int:
    """The time of a backup, preferably from its name."""
    match = _FILE_NAME.match(volume.name)
    try:
        if match is not None:
            year, month, day, hour, minute, second = (int(part) for part in match.groups()[2:])
            return int(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp())
        if volume.format.startswith("pbs-"):
            stamp = volume.name.rpartition("/")[2]
            return int(datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp())
    except ValueError:  # not a valid date after all
        pass
    return volume.ctime


def has_standard_name(volume: Volume) -> bool:
    """Whether the backup has PVE's standard name; others are never pruned."""
    return volume.format.startswith("pbs-") or _FILE_NAME.match(volume.name) is not None


def backup_name(storage: Storage, kind: Kind, vmid: int, now: float, compress: str) -> tuple[str, str]:
    """Name and format of a new backup on a storage."""
    when = datetime.fromtimestamp(now, UTC)
    if storage.type == "pbs":
        group = "vm" if kind == "qemu" else "ct"
        return f"backup/{group}/{vmid}/{when:%Y-%m-%dT%H:%M:%SZ}", f"pbs-{group}"
    fmt = ("vma" if kind == "qemu" else "tar") + _ENDINGS[compress]
    return f"backup/vzdump-{kind}-{vmid}-{when:%Y_%m_%d-%H_%M_%S}.{fmt}", fmt


def packed_size(archive: Archive, compress: str) -> int:
    """The size of the backup file."""
    return _OVERHEAD + len(archive.config) + int(archive.data * _RATIO[compress])


def total_size(archive: Archive) -> int:
    """The total size of the disks in the backup."""
    sizes = (option for drive in archive.drives() for option in drive.text.split(",") if option.startswith("size="))
    return sum(parse_size(option.removeprefix("size=")) for option in sizes)
