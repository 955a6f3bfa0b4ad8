"""Guests: their configuration as PVE stores it, and their state."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pve_simulator.guest_os.files import Entry
from pve_simulator.http.parameters import split_list
from pve_simulator.nodes.tasks import Lockable, TaskError

Kind = Literal["qemu", "lxc"]
Value = str | int

MIB = 1024**2
GIB = 1024**3

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)")
_SIZE_UNITS = {"": 1, "K": 1024, "M": MIB, "G": GIB, "T": 1024 * GIB}
_DISK_KEY = re.compile(r"(?:ide|sata|scsi|virtio)\d+|efidisk0|tpmstate0|rootfs|mp\d+")
_BOOT_DISK_KEY = re.compile(r"(?:ide|sata|scsi|virtio)\d+")


@dataclass(slots=True)
class Snapshot:
    """A saved state of the configuration, with the guest's memory if `vmstate`."""

    name: str
    snaptime: int
    config: dict[str, Value]
    description: str = ""
    parent: str | None = None
    vmstate: bool = False
    state: str | None = None  # `prepare` or `delete` during a task
    files: Entry | None = field(default=None, repr=False)  # the files, if the guest's inside was ever accessed


@dataclass(slots=True)
class Address:
    """An address on one of the guest's own network interfaces."""

    interface: str
    mac: str
    ip: str
    prefix: int = 24


@dataclass(slots=True)
class OperatingSystem:
    """The operating system inside, as the guest agent reports it."""

    id: str = "debian"
    name: str = "Debian GNU/Linux"
    version: str = "13 (trixie)"
    version_id: str = "13"
    kernel: str = "6.12.57+deb13-amd64"
    systemd: int = 257  # 0 without systemd
    agent_installed: bool = True
    agent_version: str = "10.0.2"
    obeys_shutdown: bool = True


class Machine(Protocol):
    """A real process that runs a guest, with a real screen; see `Agents.attach` for its agent."""

    def start(self, guest: Guest) -> None: ...

    def stop(self) -> None: ...

    async def show(self, password: str, viewer: Viewer) -> None:
        """Serve its screen by VNC to one viewer until it disconnects."""


class Viewer(Protocol):
    """The byte stream of a VNC viewer."""

    async def receive(self) -> bytes: ...

    async def write(self, data: bytes) -> None: ...


@dataclass(slots=True, eq=False)
class Guest(Lockable):
    """One virtual machine or container."""

    vmid: int
    kind: Kind
    node: str
    config: dict[str, Value]
    pending: dict[str, Value] = field(default_factory=dict)
    pending_delete: dict[str, int] = field(default_factory=dict)  # key -> 1, or 2 if forced
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    running: bool = False
    paused: bool = False
    started_at: float = 0.0
    arrived_at: float = 0.0
    """When it last arrived by a live migration: the system runs on, in a new process."""
    pid: int = 0
    created_at: float = 0.0  # 0 if it existed when the simulator started
    addresses: list[Address] = field(default_factory=list)
    system: OperatingSystem = field(default_factory=OperatingSystem)
    lock_file_held: bool = False
    enters: int = 0  # how often Enter was pressed at its screen since it started
    cloudinit: dict[str, Value] | None = (
        None  # the settings on the cloud-init drive, if they differ from the current ones
    )
    machine: Machine | None = None  # the real process behind it, if any
    revision: int = 0  # incremented to invalidate cached rows

    @property
    def name(self) -> str:
        """The name that PVE shows, even if none is configured."""
        if self.kind == "qemu":
            return str(self.config.get("name", f"VM {self.vmid}"))
        return str(self.config.get("hostname", f"CT{self.vmid}"))

    @property
    def word(self) -> str:
        """VM or CT, as in PVE's messages."""
        return "VM" if self.kind == "qemu" else "CT"

    @property
    def sid(self) -> str:
        """Its identifier in the HA manager."""
        return f"{self.word.lower()}:{self.vmid}"

    @property
    def template(self) -> bool:
        return bool(self.config.get("template"))

    @property
    def lock(self) -> str | None:
        lock = self.config.get("lock")
        return None if lock is None else str(lock)

    @property
    def status(self) -> str:
        return "running" if self.running else "stopped"

    @property
    def lock_file(self) -> str:  # type: ignore[override]
        if self.kind == "qemu":
            return f"/var/lock/qemu-server/lock-{self.vmid}.conf"
        return f"/run/lock/lxc/pve-config-{self.vmid}.lock"

    @property
    def memory(self) -> int:
        """Its memory in bytes; QEMU's setting is a property string, whose first value counts."""
        configured = str(self.config.get("memory", 512)).split(",")[0].removeprefix("current=")
        return int(configured) * MIB

    @property
    def swap(self) -> int:
        return int(self.config.get("swap", 512)) * MIB

    @property
    def cores(self) -> int | None:
        """The number of CPUs, None for a container without a limit."""
        if self.kind == "lxc":
            cores = self.config.get("cores")
            return None if cores is None else int(cores)
        vcpus = self.config.get("vcpus")
        if vcpus is not None:
            return int(vcpus)
        return int(self.config.get("sockets", 1)) * int(self.config.get("cores", 1))

    def startup(self, name: str) -> int | None:
        """A number of the option `startup`, such as `order` or `down`; the bare first value is the order."""
        for part in str(self.config.get("startup", "")).split(","):
            key, separator, value = part.partition("=")
            key, value = (key, value) if separator else ("order", key)
            if key == name and value.isdecimal():
                return int(value)
        return None

    @property
    def disk_size(self) -> int:
        """What PVE calls maxdisk: the size of the boot disk or of the root file system."""
        if self.kind == "lxc":
            return size_of_drive(str(self.config.get("rootfs", "")))
        key = self.boot_disk()
        return 0 if key is None else size_of_drive(str(self.config[key]))

    def boot_devices(self) -> list[str]:
        """The boot order, without pending changes."""
        return split_list(str(self.config.get("boot", "")).partition("order=")[2])

    def boot_disk(self) -> str | None:
        """The first disk of the boot order, or the first disk."""
        candidates = self.boot_devices() or sorted(self.config)
        for key in candidates:
            drive = str(self.config.get(key, ""))
            if _BOOT_DISK_KEY.fullmatch(key) and drive and "media=cdrom" not in drive:
                return key
        return None

    def drives(self) -> Iterator[tuple[str, str]]:
        """Key and volume of every drive that has one, CD-ROMs included."""
        for key, value in self.config.items():
            if _DISK_KEY.fullmatch(key):
                volume = volume_of_drive(str(value))
                if ":" in volume:
                    yield key, volume

    def agent_configured(self) -> bool:
        """Whether the agent option exists; PVE's first check ignores its value."""
        return "agent" in self.config

    def agent_enabled(self) -> bool:
        first = str(self.config.get("agent", "0")).split(",")[0].removeprefix("enabled=")
        return first in ("1", "on", "yes", "true")

    def agent_answers(self, now: float) -> bool:
        """Whether the agent is up; it needs a moment after the start."""
        return (
            self.running
            and not self.paused
            and self.agent_enabled()
            and self.system.agent_installed
            and now - self.started_at >= 2.0
        )

    def touch(self) -> None:
        """Invalidate cached rows."""
        self.revision += 1

    @property
    def process_began(self) -> float:
        """Since when its process has run on this node; PVE shows the uptime of the process."""
        return max(self.started_at, self.arrived_at)

    def start_running(self, now: float, pid: int) -> None:
        """Mark it as running and apply pending changes."""
        self.apply_pending()
        if self.machine is not None:
            self.machine.start(self)
        self.running, self.paused, self.started_at, self.pid = True, False, now, pid
        self.cloudinit, self.enters = None, 0
        self.touch()

    def stop_running(self) -> None:
        if self.machine is not None:
            self.machine.stop()
        self.running, self.paused, self.pid = False, False, 0
        self.apply_pending()
        self.touch()

    def apply_pending(self) -> None:
        before = [str(self.config[key]) for key in (*self.pending_delete, *self.pending) if key in self.config]
        for key in self.pending_delete:
            self.config.pop(key, None)
        self.config.update(self.pending)
        self.pending.clear()
        self.pending_delete.clear()
        for value in before:
            self._keep_disk(volume_of_drive(value))
        self.touch()

    def _keep_disk(self, volid: str) -> None:
        """Keep a removed disk of the guest as unused."""
        if re.search(rf":(?:.*/)?(?:vm|base|subvol|basevol)-{self.vmid}-(?:disk-|cloudinit)", volid) is None:
            return
        if all(volume_of_drive(str(value)) != volid for value in self.config.values()):
            number = next(n for n in range(256) if f"unused{n}" not in self.config)
            self.config[f"unused{number}"] = volid

    def forget_past(self) -> None:
        """Drop snapshots and pending changes."""
        self.snapshots.clear()
        self.pending.clear()
        self.pending_delete.clear()

    def effective_config(self) -> dict[str, Value]:
        """The configuration with pending changes, as after a restart."""
        merged = {key: value for key, value in self.config.items() if key not in self.pending_delete}
        merged.update(self.pending)
        return merged

    def digest(self) -> str:
        """The digest of the configuration file, for optimistic locking."""
        return config_digest(self.config, self.pending, self.snapshots)

    @contextmanager
    def hold_lock(self, lock: str) -> Iterator[None]:
        """Hold a lock in the configuration during a task."""
        self.check_lock()
        self.config["lock"] = lock
        self.touch()
        try:
            yield
        finally:
            self.config.pop("lock", None)
            self.touch()

    def check_lock(self, *tolerated: str) -> None:
        """Fail the task if the guest is locked."""
        if self.lock is not None and self.lock not in tolerated:
            raise TaskError(f"{self.word} is locked ({self.lock})")


def is_net(key: str) -> bool:
    """Whether the option is a network card."""
    return key.startswith("net") and key[3:].isdecimal()


def task_type(kind: Kind, action: str) -> str:
    """The type of a guest's task, such as qmstart or vzstart."""
    return "qmigrate" if (kind, action) == ("qemu", "migrate") else f"{'qm' if kind == 'qemu' else 'vz'}{action}"


def config_path(node: str, kind: str, vmid: int) -> str:
    """The configuration path in PVE's error texts."""
    return f"nodes/{node}/{'qemu-server' if kind == 'qemu' else 'lxc'}/{vmid}.conf"


def volume_of_drive(drive: str) -> str:
    """The volume of a drive's property string: `local-lvm:vm-100-disk-0` of `…,size=8G`."""
    first = drive.split(",", 1)[0]
    return first.partition("=")[2] if first.startswith(("file=", "volume=")) else first


def size_of_drive(drive: str) -> int:
    """The `size=` of a drive's property string in bytes, 0 without one."""
    for part in drive.split(",")[1:]:
        key, _, value = part.partition("=")
        if key == "size":
            return parse_size(value)
    return 0


def parse_size(text: str) -> int:
    """Bytes of a size such as `8G` or `209716K`; 0 if it is invalid."""
    match = _SIZE.fullmatch(text)
    return 0 if match is None else int(float(match[1]) * _SIZE_UNITS[match[2]])


def config_digest(config: Mapping[str, Value], pending: Mapping[str, Value], snapshots: Mapping[str, Snapshot]) -> str:
    lines = [f"{key}: {value}" for key, value in sorted(config.items())]
    lines += [f"[PENDING] {key}: {value}" for key, value in sorted(pending.items())]
    lines += [f"[{snapshot.name}] {snapshot.snaptime}" for snapshot in snapshots.values()]
    return hashlib.sha1("\n".join(lines).encode(), usedforsecurity=False).hexdigest()
