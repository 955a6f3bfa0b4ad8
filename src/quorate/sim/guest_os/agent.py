"""The QEMU guest agent inside a VM: what it answers to the commands that need no arguments."""

from __future__ import annotations

from typing import Any

from quorate.sim.guest_os.machine import Machine
from quorate.sim.guests import MIB

VERSION = "10.0.2"

_BLOCK = 128 * MIB
_WHILE_FROZEN = frozenset({"guest-ping", "guest-info", "guest-fsfreeze-status", "guest-fsfreeze-thaw"})
_COMMANDS = (
    "exec exec-status file-close file-flush file-open file-read file-seek file-write fsfreeze-freeze"
    " fsfreeze-freeze-list fsfreeze-status fsfreeze-thaw fstrim get-cpustats get-devices get-disks get-diskstats"
    " get-fsinfo get-host-name get-load get-memory-block-info get-memory-blocks get-osinfo get-time get-timezone"
    " get-users get-vcpus info network-get-interfaces network-get-route ping set-memory-blocks set-time"
    " set-user-password set-vcpus shutdown ssh-add-authorized-keys ssh-get-authorized-keys"
    " ssh-remove-authorized-keys suspend-disk suspend-hybrid suspend-ram sync sync-delimited"
)
_WITHOUT_ANSWER = frozenset({"shutdown", "suspend-disk", "suspend-hybrid", "suspend-ram"})


class AgentError(Exception):
    """An error of the agent itself, in its own words."""


class Agent:
    """The agent of one running machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def check(self, name: str) -> None:
        """While the file systems are frozen, nearly nothing may be done."""
        if self._machine.frozen and name not in _WHILE_FROZEN:
            raise AgentError(f"Command {name} has been disabled: the agent is in frozen state")

    def run(self, name: str) -> Any:
        """The answer to `guest-<name>`."""
        self.check(f"guest-{name}")
        return getattr(self, f"_{name.replace('-', '_')}")()

    def _info(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "supported_commands": [
                {"name": f"guest-{name}", "enabled": True, "success-response": name not in _WITHOUT_ANSWER}
                for name in _COMMANDS.split()
            ],
        }

    def _get_host_name(self) -> dict[str, str]:
        return {"host-name": self._machine.hostname}

    def _get_time(self) -> int:
        return int(self._machine.now() * 1_000_000_000)

    def _get_timezone(self) -> dict[str, Any]:
        return {"zone": "UTC", "offset": 0}

    def _get_users(self) -> list[dict[str, Any]]:
        """Nobody sits at the console of a server."""
        return []

    def _get_vcpus(self) -> list[dict[str, Any]]:
        return [
            {"logical-id": number, "online": True, "can-offline": number > 0} for number in range(self._machine.cpus())
        ]

    def _get_memory_blocks(self) -> list[dict[str, Any]]:
        count = self._machine.guest.memory // _BLOCK
        return [{"phys-index": number, "online": True, "can-offline": True} for number in range(count)]

    def _get_memory_block_info(self) -> dict[str, int]:
        return {"size": _BLOCK}

    def _get_fsinfo(self) -> list[dict[str, Any]]:
        if self._machine.live:
            return []
        size, used = self._machine.disk()
        key = self._machine.guest.boot_disk() or "scsi0"
        device = "vda1" if key.startswith("virtio") else "sda1"
        disk = {
            "bus-type": key.rstrip("0123456789"),
            "bus": 0,
            "target": 0,
            "unit": int(key.lstrip("abcdefghijklmnopqrstuvwxyz") or 0),
            "dev": f"/dev/{device}",
            "serial": f"0QEMU_QEMU_HARDDISK_drive-{key}",
            "pci-controller": {"domain": 0, "bus": 9, "slot": 1, "function": 0},
        }
        return [
            {
                "name": device,
                "mountpoint": "/",
                "type": "ext4",
                "total-bytes": size,
                "total-bytes-privileged": size + size // 20,
                "used-bytes": used,
                "disk": [disk],
            }
        ]

    def _fsfreeze_status(self) -> str:
        return "frozen" if self._machine.frozen else "thawed"

    def _fsfreeze_freeze(self) -> int:
        self._machine.frozen = True
        return 1

    def _fsfreeze_thaw(self) -> int:
        thawed = int(self._machine.frozen)
        self._machine.frozen = False
        return thawed

    def _fstrim(self) -> dict[str, Any]:
        if self._machine.live:
            return {"paths": []}
        size, used = self._machine.disk()
        return {"paths": [{"path": "/", "trimmed": (size - used) // 16 * 16, "minimum": 0}]}

    def _shutdown(self) -> None:
        self._go_down(3.0)

    def _suspend_disk(self) -> None:
        self._go_down(6.0)

    def _suspend_ram(self) -> None:
        self._machine.guest.paused = True
        self._machine.guest.touch()

    def _suspend_hybrid(self) -> None:
        self._suspend_ram()

    def _go_down(self, seconds: float) -> None:
        guest, world = self._machine.guest, self._machine.world
        started = guest.started_at

        async def later() -> None:
            await world.clock.sleep(seconds)
            if guest.running and guest.started_at == started:
                guest.stop_running()

        world.tasks.in_background(later())

    def set_password(self, user: str, password: str) -> None:
        self.check("guest-set-user-password")
        if self._machine.live:
            raise AgentError("cannot find 'passwd' program in PATH")
        if user not in self._machine.users:
            raise AgentError("child process has failed to set user password")
        self._machine.passwords[user] = password
