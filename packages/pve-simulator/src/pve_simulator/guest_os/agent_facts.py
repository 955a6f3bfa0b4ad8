"""Facts from the simulated agent: commands without arguments."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any

from pve_simulator.guest_os.machine import Machine
from pve_simulator.guests import status
from pve_simulator.guests.guest import MIB, Address, Guest

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
    found: dict[str, list[Address]] = {}
    for address in guest.addresses:
        found.setdefault(address.interface, []).append(address)
    return found


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


FACTS: Mapping[str, Callable[[Machine], Any]] = {
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
