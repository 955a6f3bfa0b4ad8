"""Guest agents: the protocol, the agents of all VMs, and the simulated one with its facts."""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pve_simulator.guest_os.files import FileError, FileSystem
from pve_simulator.guest_os.machine import Machine, Machines, OpenFile
from pve_simulator.guests import status
from pve_simulator.guests.guest import MIB, Address, Guest
from pve_simulator.http.refusals import existing
from pve_simulator.world import World

NO_MAC = "00:00:00:00:00:00"

_BLOCK = 128 * MIB
_COMMANDS = (
    "exec exec-status file-close file-flush file-open file-read file-seek file-write fsfreeze-freeze"
    " fsfreeze-freeze-list fsfreeze-status fsfreeze-thaw fstrim get-cpustats get-devices get-disks get-diskstats"
    " get-fsinfo get-host-name get-load get-memory-block-info get-memory-blocks get-osinfo get-time get-timezone"
    " get-users get-vcpus info network-get-interfaces network-get-route ping set-memory-blocks set-time"
    " set-user-password set-vcpus shutdown ssh-add-authorized-keys ssh-get-authorized-keys"
    " ssh-remove-authorized-keys suspend-disk suspend-hybrid suspend-ram sync sync-delimited"
)
_WITHOUT_ANSWER = frozenset({"shutdown", "suspend-disk", "suspend-hybrid", "suspend-ram"})


def _info(machine: Machine) -> dict[str, Any]:
    return {
        "version": machine.guest.system.agent_version,
        "supported_commands": [
            {"name": f"guest-{name}", "enabled": True, "success-response": name not in _WITHOUT_ANSWER}
            for name in _COMMANDS.split()
        ],
    }


def _osinfo(machine: Machine) -> dict[str, str]:
    system = machine.guest.system
    return {
        "id": system.id,
        "name": system.name,
        "pretty-name": f"{system.name} {system.version}",
        "version": system.version,
        "version-id": system.version_id,
        "machine": "x86_64",
        "kernel-release": system.kernel,
        "kernel-version": f"#1 SMP PREEMPT_DYNAMIC {system.kernel}",
    }


def _vcpus(machine: Machine) -> list[dict[str, Any]]:
    return [{"logical-id": number, "online": True, "can-offline": number > 0} for number in range(machine.cpus())]


def _memory_blocks(machine: Machine) -> list[dict[str, Any]]:
    count = machine.guest.memory // _BLOCK
    return [{"phys-index": number, "online": True, "can-offline": True} for number in range(count)]


def _fsinfo(machine: Machine) -> list[dict[str, Any]]:
    if machine.live:
        return []
    size, used = machine.disk()
    key = machine.guest.boot_disk() or "scsi0"
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


def _fstrim(machine: Machine) -> dict[str, Any]:
    if machine.live:
        return {"paths": []}
    size, used = machine.disk()
    return {"paths": [{"path": "/", "trimmed": (size - used) // 16 * 16, "minimum": 0}]}


def _interfaces(machine: Machine) -> list[dict[str, Any]]:
    moving = status.load(machine.world, machine.guest, machine.now())
    loopback = [_address("127.0.0.1", 8), _address("::1", 128)]
    rows = [{"name": "lo", "hardware-address": NO_MAC, "ip-addresses": loopback, "statistics": _statistics(0, 0)}]
    rows += [
        {
            "name": name,
            "hardware-address": addresses[0].mac.lower(),
            "ip-addresses": [_address(ip, prefix) for ip, prefix in with_link_local(addresses)],
            "statistics": _statistics(moving["netin"], moving["netout"]),
        }
        for name, addresses in by_interface(machine.guest).items()
    ]
    return rows


def by_interface(guest: Guest) -> dict[str, list[Address]]:
    """The guest's addresses by interface."""
    interfaces: dict[str, list[Address]] = {}
    for address in guest.addresses:
        interfaces.setdefault(address.interface, []).append(address)
    return interfaces


def with_link_local(addresses: list[Address]) -> list[tuple[str, int]]:
    """The given addresses plus the link-local one."""
    return [(address.ip, address.prefix) for address in addresses] + [(_link_local(addresses[0].mac), 64)]


def _link_local(mac: str) -> str:
    octets = [int(part, 16) for part in mac.split(":")]
    octets[0] ^= 0x02
    packed = bytes([0xFE, 0x80, *([0] * 6), *octets[:3], 0xFF, 0xFE, *octets[3:]])
    return str(ipaddress.IPv6Address(packed))


def _address(ip: str, prefix: int) -> dict[str, Any]:
    return {"ip-address": ip, "prefix": prefix, "ip-address-type": "ipv6" if ":" in ip else "ipv4"}


def _statistics(received: int, sent: int) -> dict[str, int]:
    return {
        "rx-bytes": received, "rx-packets": received // 900, "rx-errs": 0, "rx-dropped": 0, "tx-bytes": sent,
        "tx-packets": sent // 700, "tx-errs": 0, "tx-dropped": 0,
    }  # fmt: skip


_FACTS: Mapping[str, Callable[[Machine], Any]] = {
    "info": _info,
    "get_osinfo": _osinfo,
    "get_host_name": lambda machine: {"host-name": machine.hostname},
    "get_time": lambda machine: int(machine.now() * 1_000_000_000),
    "get_timezone": lambda _: {"zone": "UTC", "offset": 0},
    "get_users": lambda _: [],  # nobody is logged in at the console
    "get_vcpus": _vcpus,
    "get_memory_blocks": _memory_blocks,
    "get_memory_block_info": lambda _: {"size": _BLOCK},
    "get_fsinfo": _fsinfo,
    "fstrim": _fstrim,
    "network_get_interfaces": _interfaces,
}


class AgentError(Exception):
    """An error answer of the agent, in its own words."""

    def __init__(self, text: str, kind: str = "GenericError") -> None:
        super().__init__(text)
        self.kind = kind


class AgentSilent(Exception):
    """No agent answers in time."""


class Agent(Protocol):
    """Answers agent commands: a simulated agent, or a real one behind its socket."""

    async def ask(self, command: str, arguments: Mapping[str, Any]) -> Any:
        """The answer to a command such as `guest-ping`; AgentError or AgentSilent."""
        ...


class Agents:
    """The agents of all VMs: simulated ones, unless `attach` has set another."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._attached: dict[int, Agent] = {}
        world.on_guest_removed.append(self._detach)

    def of(self, guest: Guest) -> Agent:
        return self._attached.get(guest.vmid) or SimulatedAgent(self._world.part(Machines).of(guest))

    def attach(self, vmid: int, agent: Agent) -> None:
        """Let this agent answer for the VM. The world still decides whether the VM runs."""
        self._attached[vmid] = agent

    def _detach(self, vmid: int) -> None:
        self._attached.pop(vmid, None)


# The agent keeps this much of each output.
_MAX_OUTPUT = 16 * 1024 * 1024
_WHILE_FROZEN = frozenset({"guest-ping", "guest-info", "guest-fsfreeze-status", "guest-fsfreeze-thaw"})


class SimulatedAgent:
    """The agent of one machine; it answers if it is installed and the machine runs."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def ask(self, command: str, arguments: Mapping[str, Any]) -> Any:
        if not self._machine.guest.agent_answers(self._machine.now()):
            raise AgentSilent("got timeout")
        if self._machine.frozen and command not in _WHILE_FROZEN:
            raise AgentError(f"Command {command} has been disabled: the agent is in frozen state", "CommandNotFound")
        name = command.removeprefix("guest-").replace("-", "_")
        facts = _FACTS.get(name)
        if facts is not None:
            return facts(self._machine)
        work = getattr(self, f"_{name}")
        if name == "exec":
            return await work(**_names(arguments))
        return work(**_names(arguments))

    async def _exec(
        self, path: str, arg: list[str] | None = None, input_data: str = "", capture_output: bool = False
    ) -> dict[str, int]:
        stdin = base64.b64decode(input_data)
        process = await self._machine.spawn([path, *(arg or ())], stdin) if path else None
        if process is None:
            raise AgentError(
                f"Guest agent command failed, error was 'Failed to execute child process “{path}”"
                " (No such file or directory)'"
            )
        process.captured = capture_output
        return {"pid": process.pid}

    def _exec_status(self, pid: int) -> dict[str, Any]:
        # Since 9.0 the agent does not fill in the number.
        old = int(self._machine.guest.system.agent_version.partition(".")[0]) < 9
        unknown = AgentError("Invalid parameter 'pid'" if old else "PID ld does not exist")
        process = existing(self._machine.processes.get(pid), unknown)
        if not process.exited:
            return {"exited": False}
        del self._machine.processes[pid]  # the agent reports the end of a process once
        result: dict[str, Any] = {"exited": True}
        result |= {"signal": process.signal} if process.signal is not None else {"exitcode": process.exitcode}
        for name, data in (("out", process.io.out), ("err", process.io.err)):
            if data and process.captured:
                result[f"{name}-data"] = base64.b64encode(data[:_MAX_OUTPUT]).decode()
                result[f"{name}-truncated"] = len(data) > _MAX_OUTPUT
        return result

    def _file_open(self, path: str, mode: str = "r") -> int:
        files, at = self._machine.files, FileSystem.absolute(path, "/")
        try:
            if mode == "wb":
                files.write(at, b"")
            else:
                files.get(at)
        except FileError as error:
            raise AgentError(f"failed to open file '{path}' (mode: '{mode}'): {error.text}") from error
        return self._machine.keep_open(OpenFile(at))

    def _file_read(self, handle: int, count: int) -> dict[str, Any]:
        file = self._open_file(handle)
        try:
            data = self._machine.files.read(file.path)
        except FileError as error:  # opening a directory works, reading it does not
            raise AgentError(f"failed to read file: {error.text}") from error
        part = data[file.position : file.position + count]
        file.position += len(part)
        return {"count": len(part), "buf-b64": base64.b64encode(part).decode(), "eof": len(part) < count}

    def _file_write(self, handle: int, buf_b64: str) -> dict[str, Any]:
        file = self._open_file(handle)
        try:
            data = base64.b64decode("".join(buf_b64.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise AgentError("Base64 data contains invalid characters") from error
        self._machine.files.write(file.path, data, append=True)
        return {"count": len(data), "eof": False}

    def _file_seek(self, handle: int, offset: int, whence: int) -> dict[str, Any]:
        file = self._open_file(handle)
        assert whence == 0  # PVE counts from the beginning
        file.position = offset
        return {"position": offset, "eof": False}

    def _file_close(self, handle: int) -> dict[str, Any]:
        self._open_file(handle)
        del self._machine.open_files[handle]
        return {}

    def _open_file(self, handle: int) -> OpenFile:
        return existing(self._machine.open_files.get(handle), AgentError(f"handle '{handle}' has not been found"))

    def _set_user_password(self, username: str, password: str, crypted: bool) -> dict[str, Any]:
        del crypted
        if self._machine.live:
            raise AgentError("cannot find 'passwd' program in PATH")
        if username not in self._machine.users:
            raise AgentError("child process has failed to set user password")
        self._machine.passwords[username] = base64.b64decode(password).decode("latin-1")
        return {}

    def _ping(self) -> dict[str, Any]:
        return {}

    def _fsfreeze_status(self) -> str:
        return "frozen" if self._machine.frozen else "thawed"

    def _fsfreeze_freeze(self) -> int:
        self._machine.frozen = True
        return 1

    def _fsfreeze_thaw(self) -> int:
        thawed = int(self._machine.frozen)
        self._machine.frozen = False
        return thawed

    def _shutdown(self) -> None:
        self._go_down(3.0)

    def _suspend_disk(self) -> None:
        self._go_down(6.0)

    def _suspend_ram(self) -> None:
        self._machine.guest.paused = True
        self._machine.guest.touch()

    _suspend_hybrid = _suspend_ram

    def _go_down(self, seconds: float) -> None:
        guest, world = self._machine.guest, self._machine.world
        started = guest.started_at

        async def later() -> None:
            await world.clock.sleep(seconds)
            if guest.running and guest.started_at == started:
                guest.stop_running()

        world.tasks.in_background(later())


def _names(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The agent's argument names as Python identifiers."""
    return {name.replace("-", "_"): value for name, value in arguments.items()}
