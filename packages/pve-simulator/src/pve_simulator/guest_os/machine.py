"""The running system of one guest: its first files and services, users and processes."""

from __future__ import annotations

import asyncio
import ipaddress
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pve_simulator.guest_os.execution import Command, Io, Program, find_program, program_names
from pve_simulator.guest_os.files import Entry, FileSystem
from pve_simulator.guests import status
from pve_simulator.guests.guest import Guest
from pve_simulator.nodes import status_daemon
from pve_simulator.world import World

# A word in the guest's name or tags -> the service that it runs.
_SERVICES_BY_NAME = {
    "nginx": ("nginx", "A high performance web server and a reverse proxy server"),
    "web": ("nginx", "A high performance web server and a reverse proxy server"),
    "postgres": ("postgresql", "PostgreSQL RDBMS"),
    "db": ("postgresql", "PostgreSQL RDBMS"),
    "docker": ("docker", "Docker Application Container Engine"),
    "pihole": ("pihole-FTL", "Pi-hole FTL"),
    "grafana": ("grafana-server", "Grafana instance"),
    "jellyfin": ("jellyfin", "Jellyfin Media Server"),
    "nextcloud": ("apache2", "The Apache HTTP Server"),
    "k3s": ("k3s", "Lightweight Kubernetes"),
}
_DIRECTORIES = "boot dev home mnt opt proc root run srv tmp usr/bin var/log var/tmp"
_ONLY_ON_ALPINE = frozenset({"rc-service", "rc-status", "rc-update"})
_NOT_ON_ALPINE = frozenset({"apt", "apt-get", "bash", "dash", "journalctl", "systemctl"})


@dataclass(slots=True)
class Unit:
    """A service of the guest."""

    name: str
    description: str
    active: bool = True
    enabled: bool = True
    pid: int = 0
    failed: bool = False
    fails_with: str = ""  # the error with which every start fails
    start_seconds: float = 0.0
    starting: bool = False
    changed_at: float = 0.0
    log: list[str] = field(default_factory=list)


def is_alpine(guest: Guest) -> bool:
    """Whether the guest runs OpenRC; the others have systemd."""
    return guest.system.id == "alpine"


def first_services(guest: Guest) -> dict[str, Unit]:
    """The services of every system, and the one that this guest's name implies."""
    if is_alpine(guest):
        units = {"crond": Unit("crond", "", pid=301), "sshd": Unit("sshd", "", pid=322)}
    else:
        units = {
            "cron": Unit("cron", "Regular background program processing daemon", pid=301),
            "ssh": Unit("ssh", "OpenBSD Secure Shell server", pid=322),
            "systemd-journald": Unit("systemd-journald", "Journal Service", pid=188),
        }
    if guest.kind == "qemu" and guest.system.agent_installed:
        units["qemu-guest-agent"] = Unit("qemu-guest-agent", "QEMU Guest Agent", pid=344)
    words = f"{guest.name} {guest.config.get('tags', '')}"
    for word, (name, description) in _SERVICES_BY_NAME.items():
        if word in words and name not in units:
            units[name] = Unit(name, description, pid=400 + 7 * len(units))
    for unit in units.values():
        unit.changed_at = guest.started_at
    return units


def install(machine: Machine) -> None:
    """Create the files of a fresh system."""
    files, system = machine.files, machine.guest.system
    for name in _DIRECTORIES.split():
        files.make_directories(f"/{name}")
    files.add_link("/bin", "usr/bin")
    files.add_link("/sbin", "usr/bin")
    files.add_link("/usr/sbin", "bin")
    for name in program_names():
        if name not in (_NOT_ON_ALPINE if is_alpine(machine.guest) else _ONLY_ON_ALPINE):
            files.add(f"/usr/bin/{name}", b"\x7fELF", mode=0o755)
    if not is_alpine(machine.guest):
        files.make_directories("/run/systemd/system")
    files.add("/dev/null", b"", mode=0o666)
    files.get("/dev/null").special = stat.S_IFCHR
    files.add("/etc/hostname", f"{_host_name(machine.guest)}\n")
    files.add("/etc/hosts", f"127.0.0.1\tlocalhost\n127.0.1.1\t{_host_name(machine.guest)}\n")
    files.add("/etc/resolv.conf", "search home.lan\nnameserver 192.168.10.2\n")
    files.add("/etc/timezone", "Etc/UTC\n")
    files.add(f"/etc/{'alpine-release' if is_alpine(machine.guest) else 'debian_version'}", f"{system.version_id}.1\n")
    files.add("/etc/os-release", _os_release(machine))
    files.add("/etc/passwd", _passwd(machine))
    files.add("/etc/group", "root:x:0:\n" + "".join(f"{name}:x:{uid}:\n" for name, uid in machine.users.items() if uid))
    files.add("/etc/fstab", "UUID=6f1c7a52-0b1e-4b39-9f4b-2d1a8a1c0001 / ext4 errors=remount-ro 0 1\n")
    files.add("/etc/ssh/sshd_config", "Include /etc/ssh/sshd_config.d/*.conf\nPermitRootLogin prohibit-password\n")
    files.add("/root/.bashrc", "# ~/.bashrc: executed by bash(1) for non-login shells.\n")
    for name, uid in machine.users.items():
        if uid:
            files.make_directories(f"/home/{name}")
    files.add("/var/log/syslog", f"{_host_name(machine.guest)} systemd[1]: Startup finished in 1.204s.\n")
    if not is_alpine(machine.guest):
        files.add("/var/log/dpkg.log", "2026-01-02 06:11:40 status installed libc-bin:amd64 2.41-12\n")
    _add_proc(machine)


def _add_proc(machine: Machine) -> None:
    def uptime() -> bytes:
        return f"{machine.uptime():.2f} {machine.uptime() * machine.cpus() * 0.9:.2f}\n".encode()

    def average() -> bytes:
        load = machine.load()
        return f"{load:.2f} {load * 0.95:.2f} {load * 0.9:.2f} 1/213 {machine.next_pid()}\n".encode()

    def memory() -> bytes:
        total, used = (value // 1024 for value in machine.memory())
        rows = {"MemTotal": total, "MemFree": (total - used) // 2, "MemAvailable": total - used, "SwapTotal": 0}
        return "".join(f"{name + ':':<16}{value:>8} kB\n" for name, value in rows.items()).encode()

    def cpus() -> bytes:
        model = machine.world.nodes[machine.guest.node].cpu_model
        return "".join(f"processor\t: {n}\nmodel name\t: {model}\n\n" for n in range(machine.cpus())).encode()

    files = machine.files
    files.add("/proc/uptime", uptime)
    files.add("/proc/loadavg", average)
    files.add("/proc/meminfo", memory)
    files.add("/proc/cpuinfo", cpus)
    files.add("/proc/version", lambda: f"Linux version {kernel_of(machine)}\n".encode())
    files.add("/proc/sys/kernel/hostname", lambda: f"{machine.hostname}\n".encode())
    files.add("/proc/net/route", lambda: _routes(machine))
    files.add("/proc/net/ipv6_route", lambda: _ipv6_routes(machine))


def _routes(machine: Machine) -> bytes:
    """The kernel's route table: addresses in little-endian hexadecimal. The first address determines the gateway."""
    rows = ["Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"]
    own = [address for address in machine.guest.addresses if ":" not in address.ip]
    if own:
        gateway = ipaddress.IPv4Address(own[0].ip.rpartition(".")[0] + ".1")
        rows.append(_route(own[0].interface, "0.0.0.0/0", gateway, 0x3))
    rows += [_route(address.interface, f"{address.ip}/{address.prefix}", None, 0x1) for address in own]
    return ("\n".join(rows) + "\n").encode()


def _route(interface: str, network: str, gateway: ipaddress.IPv4Address | None, flags: int) -> str:
    where = ipaddress.IPv4Network(network, strict=False)
    numbers = [where.network_address, gateway or ipaddress.IPv4Address(0), where.netmask]
    destination, via, mask = (number.packed[::-1].hex().upper() for number in numbers)
    return f"{interface}\t{destination}\t{via}\t{flags:04X}\t0\t0\t0\t{mask}\t0\t0\t0"


def _ipv6_routes(machine: Machine) -> bytes:
    zeros = "0" * 32
    rows = [f"{zeros} 00 {zeros} 00 {zeros} ffffffff 00000001 00000000 00200200       lo"]
    for address in machine.guest.addresses:
        if ":" in address.ip:
            network = ipaddress.IPv6Network(f"{address.ip}/{address.prefix}", strict=False)
            where = f"{network.network_address.packed.hex()} {address.prefix:02x}"
            numbers = f"{zeros} 00 {zeros} 00000100 00000001 00000000 00000001"
            rows.append(f"{where} {numbers} {address.interface:>8}")
    return ("\n".join(rows) + "\n").encode()


def kernel_of(machine: Machine) -> str:
    """A container runs on the kernel of its node."""
    guest = machine.guest
    return guest.system.kernel if guest.kind == "qemu" else machine.world.nodes[guest.node].kernel


def _host_name(guest: Guest) -> str:
    name = str(guest.config.get("name" if guest.kind == "qemu" else "hostname", ""))
    return name or f"{'vm' if guest.kind == 'qemu' else 'CT'}{guest.vmid}"


def _os_release(machine: Machine) -> str:
    system = machine.guest.system
    return (
        f'PRETTY_NAME="{system.name} {system.version}"\nNAME="{system.name}"\nVERSION_ID="{system.version_id}"\n'
        f'VERSION="{system.version}"\nID={system.id}\n'
    )


def _passwd(machine: Machine) -> str:
    lines = ["root:x:0:0:root:/root:/bin/bash", "daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin"]
    lines += [f"{name}:x:{uid}:{uid}::/home/{name}:/bin/bash" for name, uid in machine.users.items() if uid]
    return "\n".join(lines) + "\n"


SIGTERM, SIGKILL, SIGSEGV = 15, 9, 11

_FIRST_PID = 610
_FIRST_HANDLE = 1000


@dataclass(slots=True)
class Process:
    """A command started from outside, kept with its output until its exit status is read."""

    pid: int
    argv: list[str]
    io: Io
    started_at: float
    captured: bool = True  # whether the agent captures the output
    exitcode: int | None = None
    signal: int | None = None
    leads_group: bool = False
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    children: list[Process] = field(default_factory=list, repr=False)

    @property
    def exited(self) -> bool:
        return self.exitcode is not None or self.signal is not None


@dataclass(slots=True)
class OpenFile:
    """A file that an agent client has open."""

    path: str
    position: int = 0


class Machine:
    """The inside of one guest. Its files last as long as the guest, its processes until it stops.

    Of a live system from a CD-ROM, the files last until it stops, too.
    """

    def __init__(self, world: World, guest: Guest) -> None:
        self.world = world
        self.guest = guest
        self._begin()
        self.updates: list[str] | None = None  # upgradable packages; None if no package source answers
        self.unfetched: list[str] = []  # further ones, which the package lists contain after the next update
        self.on_upgrade: Callable[[], None] = lambda: None
        self.frozen = False
        self.own_commands: dict[str, Command] = {}  # programs of this machine only, such as pct on a node
        self.processes: dict[int, Process] = {}
        self.open_files: dict[int, OpenFile] = {}
        self._boot = guest.started_at
        self._next_pid = _FIRST_PID
        self._next_handle = _FIRST_HANDLE

    def _begin(self) -> None:
        """A fresh system."""
        self.files = FileSystem(self.world.clock.now)
        self.users: dict[str, int] = {"root": 0, _login(self.guest): 1000}
        self.passwords: dict[str, str] = {}
        self.services: dict[str, Unit] = first_services(self.guest)
        install(self)

    @property
    def hostname(self) -> str:
        return self.files.read("/etc/hostname").decode().strip() or "localhost"

    @property
    def live(self) -> bool:
        """Whether the machine was booted from a CD-ROM, as a live system."""
        drives = (str(self.guest.config.get(key, "")) for key in self.guest.boot_devices())
        return "media=cdrom" in next((drive for drive in drives if drive.partition(",")[0] not in ("", "none")), "")

    def now(self) -> float:
        return self.world.clock.now()

    def uptime(self) -> float:
        return max(0.0, self.now() - self.guest.started_at)

    def cpus(self) -> int:
        return self.world.guest_cpus(self.guest)

    def memory(self) -> tuple[int, int]:
        """Total and used bytes."""
        seed = status.guest_seed(self.world, self.guest)
        return self.guest.memory, int(self.guest.memory * status_daemon.memory_share(seed, self.now()))

    def load(self) -> float:
        return status_daemon.cpu_load(status.guest_seed(self.world, self.guest), self.now()) * self.cpus()

    def disk(self) -> tuple[int, int]:
        """Size and usage of the root file system in bytes."""
        size = (self.guest.disk_size or 8 * 1024**3) * 97 // 100
        share = status_daemon.profile(status.guest_seed(self.world, self.guest)).disk
        return size, int(size * share)

    def primary_address(self) -> str | None:
        return self.guest.addresses[0].ip if self.guest.addresses else None

    def since_boot(self) -> Machine:
        """This machine, reset if the guest was restarted since the last access."""
        if self._boot != self.guest.started_at:
            self._boot = self.guest.started_at
            for process in self.processes.values():
                if process.task is not None:
                    process.task.cancel()
            self.processes.clear()
            self.open_files.clear()
            self.frozen = False
            self._next_pid = _FIRST_PID
            if self.live:  # its files were in memory
                self._begin()
            for unit in self.services.values():
                unit.active = unit.enabled
        return self

    def program(self, name: str) -> Program | None:
        """The program of a command name, found on PATH or by its path."""
        return find_program(self, name)

    async def spawn(
        self, argv: Sequence[str], stdin: bytes = b"", out: bytearray | None = None, err: bytearray | None = None
    ) -> Process | None:
        """Start a command; None if there is no such program. A command that takes no time has ended when this returns.

        Output is appended to `out` and `err` as it is written.
        """
        program = self.program(argv[0])
        if program is None:
            return None
        io = Io(self, stdin, bytearray() if out is None else out, bytearray() if err is None else err)
        io.pid = self.next_pid()
        process = Process(io.pid, list(argv), io, self.now())
        self.processes[process.pid] = process
        self.world.tasks.in_background(self._run(process, program))
        await asyncio.sleep(0)
        return process

    async def execute(
        self, argv: Sequence[str], stdin: bytes = b"", out: bytearray | None = None, err: bytearray | None = None
    ) -> Process | None:
        """Run a command to its end."""
        process = await self.spawn(argv, stdin, out, err)
        while process is not None and not process.exited:
            assert process.task is not None
            await asyncio.wait([process.task])
        return process

    def in_background(self, io: Io, program: Program) -> Process:
        """Start a background process; it can outlive its parent, but not a signal to its group."""
        parent = self.processes.get(io.pid)
        io.pid = self.next_pid()
        process = self.processes[io.pid] = Process(io.pid, [], io, self.now())
        process.task = self.world.tasks.in_background(self._run(process, program))
        process.task.add_done_callback(lambda _: self.processes.pop(process.pid, None))
        if parent is not None:
            parent.children.append(process)
        return process

    def next_pid(self) -> int:
        self._next_pid += 2
        return self._next_pid

    def keep_open(self, file: OpenFile) -> int:
        """Register an open file and return its handle."""
        handle = self._next_handle
        self._next_handle += 1
        self.open_files[handle] = file
        return handle

    def kill(self, pid: int, signal: int, *, group: bool = False) -> bool:
        """Send a signal; whether there was such a process."""
        process = self.processes.get(pid)
        if process is None:
            return False
        children = [child for child in process.children if group and not child.leads_group]
        reached = [self.kill(child.pid, signal, group=True) for child in children]
        if process.exited or process.task is None:
            return any(reached)
        process.signal = signal
        process.task.cancel()
        return True

    def is_alive(self, pid: int) -> bool:
        process = self.processes.get(pid)
        return process is not None and not process.exited

    async def _run(self, process: Process, program: Program) -> None:
        process.task = asyncio.current_task()
        try:
            process.exitcode = await program(process.io, process.argv)
        except asyncio.CancelledError:
            if process.signal is None:
                process.signal = SIGKILL
                raise
        finally:
            if not process.exited:  # the program crashed
                process.signal = SIGSEGV


class Machines:
    """The machines of all guests that were accessed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[int, Machine] = {}

    def of(self, guest: Guest) -> Machine:
        machine = self._known.get(guest.vmid)
        if machine is None or machine.guest is not guest:
            machine = self._known[guest.vmid] = Machine(self._world, guest)
        return machine.since_boot()

    def snapshot_files(self, guest: Guest) -> Entry | None:
        """A copy of the guest's files; None if it was never accessed and they are as installed."""
        machine = self._known.get(guest.vmid)
        return machine.files.snapshot() if machine is not None and machine.guest is guest else None

    def restore_files(self, guest: Guest, snapshot: Entry | None) -> None:
        if snapshot is None:
            self._known.pop(guest.vmid, None)
        else:
            self.of(guest).files.restore(snapshot)


def _login(guest: Guest) -> str:
    """The name of the first regular user."""
    return str(guest.config.get("ciuser", guest.system.id if guest.system.id in ("debian", "ubuntu") else "admin"))
