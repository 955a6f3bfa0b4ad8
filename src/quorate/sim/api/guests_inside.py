"""What a guest tells about itself: the QEMU guest agent, and the addresses of containers."""

from __future__ import annotations

import ipaddress
from typing import Any

from quorate.sim import status
from quorate.sim.guests import Address, Guest
from quorate.sim.refusals import failure
from quorate.sim.routing import Call, route

_AGENT = "/nodes/{node}/qemu/{vmid}/agent"
_NO_MAC = "00:00:00:00:00:00"


def guest_with_agent(call: Call) -> Guest:
    """The VM of the path, if its agent answers; else PVE's refusals in PVE's order."""
    guest = call.guest("qemu")
    if not guest.agent_configured():
        raise failure("No QEMU guest agent configured")
    if not guest.running:
        raise failure(f"VM {guest.vmid} is not running")
    if not guest.agent_answers(call.world.clock.now()):
        raise failure("QEMU guest agent is not running")
    return guest


@route(f"POST {_AGENT}/ping", needs_quorum=False)
def ping(call: Call) -> dict[str, Any]:
    guest_with_agent(call)
    return {"result": {}}


@route(f"GET {_AGENT}/get-osinfo")
def osinfo(call: Call) -> dict[str, Any]:
    system = guest_with_agent(call).system
    return {
        "result": {
            "id": system.id,
            "name": system.name,
            "pretty-name": f"{system.name} {system.version}",
            "version": system.version,
            "version-id": system.version_id,
            "machine": "x86_64",
            "kernel-release": system.kernel,
            "kernel-version": f"#1 SMP PREEMPT_DYNAMIC {system.kernel}",
        }
    }


@route(f"GET {_AGENT}/network-get-interfaces")
def agent_interfaces(call: Call) -> dict[str, Any]:
    guest = guest_with_agent(call)
    moving = status.load(call.world, guest, call.world.clock.now())
    loopback = [_agent_address("127.0.0.1", 8), _agent_address("::1", 128)]
    rows = [{"name": "lo", "hardware-address": _NO_MAC, "ip-addresses": loopback, "statistics": _statistics(0, 0)}]
    rows += [
        {
            "name": name,
            "hardware-address": addresses[0].mac.lower(),
            "ip-addresses": [_agent_address(ip, prefix) for ip, prefix in _with_link_local(addresses)],
            "statistics": _statistics(moving["netin"], moving["netout"]),
        }
        for name, addresses in _by_interface(guest).items()
    ]
    return {"result": rows}


@route("GET /nodes/{node}/lxc/{vmid}/interfaces")
def container_interfaces(call: Call) -> list[dict[str, Any]] | None:
    guest = call.guest("lxc")
    if not guest.running:
        return None
    rows = [_container_interface("lo", _NO_MAC, [("127.0.0.1", 8), ("::1", 128)])]
    for name, addresses in _by_interface(guest).items():
        rows.append(_container_interface(name, addresses[0].mac.lower(), _with_link_local(addresses)))
    return rows


def _by_interface(guest: Guest) -> dict[str, list[Address]]:
    found: dict[str, list[Address]] = {}
    for address in guest.addresses:
        found.setdefault(address.interface, []).append(address)
    return found


def _with_link_local(addresses: list[Address]) -> list[tuple[str, int]]:
    """The given addresses and the one that every interface has by itself."""
    return [(address.ip, address.prefix) for address in addresses] + [(_link_local(addresses[0].mac), 64)]


def _link_local(mac: str) -> str:
    octets = [int(part, 16) for part in mac.split(":")]
    octets[0] ^= 0x02
    packed = bytes([0xFE, 0x80, *([0] * 6), *octets[:3], 0xFF, 0xFE, *octets[3:]])
    return str(ipaddress.IPv6Address(packed))


def _agent_address(ip: str, prefix: int) -> dict[str, Any]:
    return {"ip-address": ip, "prefix": prefix, "ip-address-type": "ipv6" if ":" in ip else "ipv4"}


def _statistics(received: int, sent: int) -> dict[str, int]:
    return {
        "rx-bytes": received,
        "rx-packets": received // 900,
        "rx-errs": 0,
        "rx-dropped": 0,
        "tx-bytes": sent,
        "tx-packets": sent // 700,
        "tx-errs": 0,
        "tx-dropped": 0,
    }


def _container_interface(name: str, mac: str, addresses: list[tuple[str, int]]) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "hwaddr": mac, "hardware-address": mac}
    row["ip-addresses"] = [
        {"ip-address": ip, "prefix": str(prefix), "ip-address-type": "inet6" if ":" in ip else "inet"}
        for ip, prefix in addresses
    ]
    for ip, prefix in addresses:
        row.setdefault("inet6" if ":" in ip else "inet", f"{ip}/{prefix}")
    return row
