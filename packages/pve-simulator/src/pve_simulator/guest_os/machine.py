"""The running system of one guest: files, users, services and processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pve_simulator.guest_os.execution import Command, Io, Program, find_program
from pve_simulator.guest_os.files import Entry, FileSystem
from pve_simulator.guest_os.installation import Unit, first_services, install
from pve_simulator.guests import status
from pve_simulator.guests.guest import Guest
from pve_simulator.nodes import status_daemon
from pve_simulator.world import World

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
    """The inside of one guest. Its files last as long as the guest, its processes until it stops."""

    def __init__(self, world: World, guest: Guest) -> None:
        self.world = world
        self.guest = guest
        self.files = FileSystem(world.clock.now)
        self.users: dict[str, int] = {"root": 0, _login(guest): 1000}
        self.passwords: dict[str, str] = {}
        self.services: dict[str, Unit] = first_services(guest)
        self.updates: list[str] | None = None  # upgradable packages; None if no package source answers
        self.on_upgrade: Callable[[], None] = lambda: None
        self.frozen = False
        self.own_commands: dict[str, Command] = {}  # programs of this machine only, such as pct on a node
        self.processes: dict[int, Process] = {}
        self.open_files: dict[int, OpenFile] = {}
        self._boot = guest.started_at
        self._next_pid = _FIRST_PID
        self._next_handle = _FIRST_HANDLE
        install(self)

    @property
    def hostname(self) -> str:
        return self.files.read("/etc/hostname").decode().strip() or "localhost"

    @property
    def live(self) -> bool:
        """Whether it was booted from a CD-ROM, as a live system."""
        first = str(self.guest.config.get("boot", "")).partition("order=")[2].split(";")[0]
        return "media=cdrom" in str(self.guest.config.get(first, ""))

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
