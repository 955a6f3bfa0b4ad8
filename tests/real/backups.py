"""Backups of the laboratory's VM that are really unpacked, and what is restored from them really boots."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from pve_simulator.builder import Builder
from pve_simulator.guest_os.agent_socket import SocketAgent
from pve_simulator.guest_os.agents import Agents
from pve_simulator.guests.guest import Guest, Viewer
from pve_simulator.nodes.tasks import TaskError
from pve_simulator.simulator import SimulatedCluster
from pve_simulator.storage.archives import pack
from pve_simulator.storage.storages import Volume
from tests.real.machine import Machine
from tests.real.polling import wait_until

_STORAGE = "backups"
_PIECE = 65_536


class Backups:
    """A storage with backups of VM 100, in a folder of its own. Disks that are restored from them lie in it, too."""

    def __init__(self, sim: SimulatedCluster, folder: Path, images: Path) -> None:
        self.folder = folder
        self._sim = sim
        self._images = images
        self._hours = 0
        folder.mkdir()
        Builder(sim.world).storage(_STORAGE, "dir", "backup", total=10, shared=True, path=str(folder))

    def add(self, disk: Path) -> Volume:
        """A backup of VM 100 as if its disk had held this."""
        self._hours += 1
        name = f"vzdump-qemu-100-2026_01_14-{self._hours:02}_00_00.vma.zst"
        file = self.folder / name
        subprocess.run(["zstd", "-q", "-1", "-T0", str(disk), "-o", str(file)], check=True)
        world = self._sim.world
        archive = replace(pack(world, world.guests[100]), content=_Content(self, file))
        more = {"vmid": 100, "archive": archive, "file": file}
        Builder(world).file(_STORAGE, "", f"backup/{name}", "backup", "vma.zst", file.stat().st_size, **more)
        volume = world.storages[_STORAGE].volume("pve1", f"{_STORAGE}:backup/{name}")
        assert volume is not None
        return volume

    def run(self, guest: Guest, disk: Path) -> None:
        """Let a real machine with this disk stand behind the guest."""
        machine = RestoredMachine(guest.vmid, guest.name, self.folder, self._images, disk)
        guest.machine = Process(machine)
        self._sim.world.part(Agents).attach(guest.vmid, SocketAgent(machine.agent_socket))

    def left_over(self) -> list[str]:
        """What was made from the backups and is still there."""
        return sorted(path.name for path in self.folder.iterdir() if not path.name.startswith("vzdump-"))


class _Content:
    """The compressed disk itself: without VMA's frames around it, but as easy to damage."""

    def __init__(self, backups: Backups, file: Path) -> None:
        self._backups = backups
        self._file = file

    async def unpack(self, guest: Guest, disks: Mapping[str, Volume], log: Callable[..., None]) -> None:
        (disk,) = disks.values()
        disk.file = self._backups.folder / f"vm-{guest.vmid}-disk-0.raw"
        command = ["zstd", "-q", "-d", str(self._file), "-o", str(disk.file)]
        reading = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        _, said = await reading.communicate()
        log(*said.decode().splitlines())
        if reading.returncode:
            raise TaskError(f"exit code {reading.returncode}")
        self._backups.run(guest, disk.file)


class RestoredMachine(Machine):
    """It boots from the disk it was given, shows its console on a screen, and halts when it panics."""

    _words = "console=ttyS0 console=tty0"

    def __init__(self, vmid: int, name: str, folder: Path, images: Path, disk: Path) -> None:
        super().__init__(vmid, name, folder, images)
        self._disk = disk

    @property
    def screen(self) -> Path:
        return self._folder / "screen"

    @property
    def _drive(self) -> str:
        return f"file={self._disk}"

    def _command(self) -> list[str]:
        screen = ["-vga", "std", "-vnc", f"unix:{self.screen},password=on"]
        return [*super()._command(), *screen, "-S"]

    def boot(self, *, link: bool) -> None:
        """As PVE starts a VM: first the process, then its cables, then its processors."""
        self._folder.mkdir()
        self.power_on()
        wait_until(lambda: (self._folder / "monitor").is_socket(), "QEMU's monitor")
        self._monitor("set_link", name="net0", up=link)
        self._monitor("cont")

    def set_password(self, password: str) -> None:
        self._monitor("set_password", protocol="vnc", password=password[:8])

    def remove(self) -> None:
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class Process:
    """A machine as the simulated cluster starts and stops it."""

    def __init__(self, machine: RestoredMachine) -> None:
        self._machine = machine

    def start(self, guest: Guest) -> None:
        self._machine.boot(link="link_down=1" not in str(guest.config.get("net0", "")))

    def stop(self) -> None:
        self._machine.remove()

    async def show(self, password: str, viewer: Viewer) -> None:
        """QEMU itself speaks with the viewer, and asks for the password."""
        self._machine.set_password(password)
        reader, writer = await asyncio.open_unix_connection(str(self._machine.screen))

        async def to_viewer() -> None:
            while data := await reader.read(_PIECE):
                await viewer.write(data)

        sending = asyncio.ensure_future(to_viewer())
        try:
            while True:
                writer.write(await viewer.receive())
                await writer.drain()
        finally:
            sending.cancel()
            writer.close()
