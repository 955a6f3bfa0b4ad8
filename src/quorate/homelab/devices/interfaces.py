"""Which interfaces and addresses of a machine say something about it, and which come and go by themselves."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from quorate.homelab.devices.device import bare
from quorate.homelab.discovery.facts import Interface, Network

_FLEETING = re.compile(r"lo\d*|veth.*|tap.*|vnet\d+|fw(?:br|pr|ln).*|cali.*|lxc[0-9a-f_]{6,}|ifb\d+|dummy\d+")
"""Made and removed with what they belong to."""
_INWARD = re.compile(
    r"docker\d*|br-[0-9a-f]{12}|virbr\d+|lxdbr\d+|incusbr\d+|lxcbr\d+|cni\d*|podman\d+|flannel.*|bridge100"
)
"""Networks that exist only within one machine."""


def lasting(network: Network) -> Iterator[Interface]:
    """Those that stay: `veth…` and their like belong to containers and guests, which are told of elsewhere."""
    return (one for one in network.interfaces if not _FLEETING.fullmatch(one.name))


def outward(network: Network) -> Iterator[Interface]:
    """Those by which others reach the machine."""
    return (one for one in lasting(network) if not _INWARD.fullmatch(one.name))


def addresses(network: Network) -> tuple[str, ...]:
    """By which others reach it; the one of the default route first."""
    first = {words[2] for gateway in network.gateways if len(words := gateway.split()) > 2 and words[1] == "dev"}
    found = sorted(outward(network), key=lambda one: (one.name not in first, one.name))
    return tuple(dict.fromkeys(address for one in found for address in one.addresses if steady(address)))


def macs(network: Network) -> tuple[str, ...]:
    """Of its own network cards."""
    given = {one.mac.lower() for one in outward(network) if one.mac}
    return tuple(sorted(given - {"00:00:00:00:00:00"}))


def steady(address: str) -> bool:
    """Not one that is bound to a link, or that privacy makes anew every day."""
    try:
        found = ipaddress.ip_address(bare(address))
    except ValueError:
        return False
    if found.is_loopback or found.is_link_local or found.is_unspecified:
        return False
    if found.version == 4:
        return True
    own = int(found) & (2**64 - 1)
    return own >> 24 & 0xFFFF == 0xFFFE or own < 2**32  # made of the MAC, or written by hand
