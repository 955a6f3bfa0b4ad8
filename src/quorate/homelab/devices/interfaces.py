"""Which interfaces and addresses identify a machine, and which come and go."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from quorate.homelab.devices.device import bare
from quorate.inside.facts.model import Interface, Network

_FLEETING = re.compile(r"lo\d*|veth.*|tap.*|vnet\d+|fw(?:br|pr|ln).*|cali.*|lxc[0-9a-f_]{6,}|ifb\d+|dummy\d+")
"""Created and removed with their owner."""
_INWARD = re.compile(
    r"docker\d*|br-[0-9a-f]{12}|virbr\d+|lxdbr\d+|incusbr\d+|lxcbr\d+|cni\d*|podman\d+|flannel.*|bridge100"
)
"""Networks inside one machine."""


def lasting(network: Network) -> Iterator[Interface]:
    """Permanent interfaces: `veth…` and similar ones belong to containers and guests."""
    return (one for one in network.interfaces if not _FLEETING.fullmatch(one.name))


def outward(network: Network) -> Iterator[Interface]:
    """Interfaces that other machines can reach."""
    return (one for one in lasting(network) if not _INWARD.fullmatch(one.name))


def addresses(network: Network) -> tuple[str, ...]:
    """Addresses that other machines can reach, that of the default route first."""
    first = {words[2] for gateway in network.gateways if len(words := gateway.split()) > 2 and words[1] == "dev"}
    found = sorted(outward(network), key=lambda one: (one.name not in first, one.name))
    return tuple(dict.fromkeys(address for one in found for address in one.addresses if steady(address)))


def macs(network: Network) -> tuple[str, ...]:
    """The addresses of its own network cards."""
    given = {one.mac.lower() for one in outward(network) if one.mac}
    return tuple(sorted(given - {"00:00:00:00:00:00"}))


def steady(address: str) -> bool:
    """Neither link-local nor a temporary IPv6 address."""
    try:
        found = ipaddress.ip_address(bare(address))
    except ValueError:
        return False
    if found.is_loopback or found.is_link_local or found.is_unspecified:
        return False
    if found.version == 4:
        return True
    own = int(found) & (2**64 - 1)
    return own >> 24 & 0xFFFF == 0xFFFE or own < 2**32  # derived from the MAC, or set manually
