"""The inside of the simulated guests, inspected independently of the product."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pve_simulator.guest_os.files import Entry, FileSystem
from pve_simulator.guest_os.machine import Machine, Machines
from pve_simulator.guests.guest import OperatingSystem
from quorate.ssh.settings import Login
from tests.rigs.mcp_session import Rig

ALPINE = OperatingSystem("alpine", "Alpine Linux", "v3.22", "3.22", "6.12.31-0-lts")
WINDOWS = OperatingSystem("mswindows", "Microsoft Windows", "Server 2022", "2022", "20348")

VM, CONTAINER = 102, 201
"""Reached through the agent, and through pct on its node."""

HOSTILE_NAMES = (
    "a b", "q'uo\"te", "$(touch owned)", "`touch owned`", "; touch owned", "--help", "-rf", "new\nline",
    "tab\there", "*", "?", "[a]", "\\", "%s%n", "ümlaut", "日本", "a\u202eb", "\x1b[31mred", "&&", "|cat", "#", "~",
)  # fmt: skip


def reach_by_ssh(quorate: Rig, vmid: int, *, port: int | None = None) -> None:
    """Make a guest reachable at the simulated node pve1's SSH port: a POSIX machine behind a real SSH server."""
    assert quorate.app.cluster is not None
    access, sim = quorate.app.cluster.ssh, quorate.sim
    login = Login(f"127.0.0.1:{port or sim.ssh_ports['pve1']}", user="root", key=Path(sim.ssh_key_file))
    access.settings = replace(access.settings, single_guests={vmid: login})


def machine(quorate: Rig, vmid: int) -> Machine:
    world = quorate.sim.world
    return world.part(Machines).of(world.guests[vmid])


def files(quorate: Rig, vmid: int) -> FileSystem:
    return machine(quorate, vmid).files


def entry(quorate: Rig, vmid: int, path: str) -> Entry:
    return files(quorate, vmid).get(path, follow=False)


def was_injected(quorate: Rig, vmid: int) -> bool:
    """Whether any command from the hostile names was run, anywhere."""
    return any(files(quorate, vmid).find(f"{folder}/owned") for folder in ("", "/root", "/srv", "/tmp", "/home"))


def leftovers(quorate: Rig, vmid: int, folder: str) -> list[str]:
    """Leftover temporary files."""
    return [name for name in files(quorate, vmid).get(folder).children if name.startswith(".quorate")]
