"""Interfaces, gateways and name servers of a POSIX guest, from files of the kernel that need no program."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from quorate.inside.interfaces import Interface
from quorate.inside.posix_script import failure, script
from quorate.inside.way import Way

_ASK = (
    "ip -o addr show 2>/dev/null\n"
    "printf '\\0'\ncat /proc/net/route 2>/dev/null\n"
    "printf '\\0'\ncat /proc/net/ipv6_route 2>/dev/null\n"
    # With systemd-resolved the usual file names only its stub.
    "printf '\\0'\ncat /run/systemd/resolve/resolv.conf 2>/dev/null || cat /etc/resolv.conf 2>/dev/null\n"
    "printf '\\0'"
)
_UP = 0x1
_GATEWAY = 0x2


@dataclass(frozen=True, slots=True)
class Surroundings:
    interfaces: list[Interface] = field(default_factory=list)
    gateways: list[str] = field(default_factory=list)
    """192.168.1.1 dev eth0"""
    dns: list[str] = field(default_factory=list)
    search: list[str] = field(default_factory=list)


async def surroundings(way: Way) -> Surroundings:
    output = await way.run(script(_ASK))
    parts = output.stdout.decode("utf-8", "replace").split("\0")
    if len(parts) < 5:
        raise failure(output, "Asking for the network")
    addresses, routes, routes6, resolver, _ = parts
    dns, search = _resolver(resolver)
    return Surroundings(_interfaces(addresses), _ipv4_gateways(routes) + _ipv6_gateways(routes6), dns, search)


def _interfaces(text: str) -> list[Interface]:
    """Lines such as `2: eth0    inet 10.0.0.5/24 brd 10.0.0.255 scope global eth0`."""
    found: dict[str, list[str]] = {}
    for words in (line.split() for line in text.splitlines()):
        if len(words) > 3 and words[2] in ("inet", "inet6"):
            found.setdefault(words[1].partition("@")[0], []).append(words[3])
    return [Interface(name, "", tuple(addresses)) for name, addresses in found.items()]


def _ipv4_gateways(text: str) -> list[str]:
    """Rows of Iface, Destination, Gateway, Flags, …, Metric, Mask; addresses in hexadecimal, last byte first."""
    found: list[tuple[int, str]] = []
    for words in (line.split() for line in text.splitlines()[1:]):
        if len(words) > 7 and words[1] == words[7] == "00000000" and int(words[3], 16) & _UP and words[2] != "00000000":
            gateway = ipaddress.IPv4Address(int.from_bytes(bytes.fromhex(words[2]), "little"))
            found.append((int(words[6]), f"{gateway} dev {words[0]}"))
    return [gateway for _, gateway in sorted(found)]


def _ipv6_gateways(text: str) -> list[str]:
    """Rows of destination, its length, source, its length, next hop, metric, …, flags, interface."""
    found = [
        (int(words[5], 16), f"{ipaddress.IPv6Address(bytes.fromhex(words[4]))} dev {words[9]}")
        for words in (line.split() for line in text.splitlines())
        if len(words) > 9 and words[1] == "00" and int(words[8], 16) & _GATEWAY
    ]
    return [gateway for _, gateway in sorted(found)]


def _resolver(text: str) -> tuple[list[str], list[str]]:
    lines = [words for line in text.splitlines() if len(words := line.split()) > 1]
    servers = [words[1] for words in lines if words[0] == "nameserver"]
    return servers, [name for words in lines if words[0] == "search" for name in words[1:]]
