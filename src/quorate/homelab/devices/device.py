"""A device as it is kept, and a sighting: what one look at the network told of it."""

from __future__ import annotations

import ipaddress
from typing import Any, Literal

import msgspec

from quorate.homelab.discovery.facts import Facts

State = Literal["up", "away", "stopped", "retired"]
View = dict[str, dict[str, Any]]
"""Section -> key -> value: what of a device is worth a line in its history."""


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """What one look told. What it does not tell is not gone: it was not looked for."""

    kind: str = "device"
    """host, node, vm, ct; device if only the network told of it."""
    name: str = ""
    ref: str = ""
    """As the tools for hosts know it."""
    place: str = ""
    """cluster/vmid or cluster/node of what belongs to a cluster."""
    node: str = ""
    """The node that it runs on."""
    address: str = ""
    """Where it was reached."""
    macs: tuple[str, ...] = ()
    machine_id: str = ""
    serial: str = ""
    facts: Facts | None = None
    open_ports: tuple[int, ...] = ()
    closed_ports: tuple[int, ...] = ()
    """Looked at by a scan, and not open."""


class Device(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that is known of it by now."""

    id: int = 0
    first_seen: float = 0.0
    last_seen: float = 0.0
    kind: str = "device"
    name: str = ""
    refs: tuple[str, ...] = ()
    place: str = ""
    node: str = ""
    addresses: tuple[str, ...] = ()
    """With their prefix where that is known: 192.168.1.5/24"""
    macs: tuple[str, ...] = ()
    machine_id: str = ""
    serial: str = ""
    facts: Facts | None = None
    open_ports: tuple[int, ...] = ()
    closed_ports: tuple[int, ...] = ()
    state: State = "up"
    discovered: float | None = None
    """When it was last looked into."""
    changed: float = 0.0
    """When its history last got an entry."""
    told: View = {}
    """As its history has it: small movements are measured from here, so that many of them are noticed."""

    def __str__(self) -> str:
        return self.name or self.address or f"device {self.id}"

    @property
    def address(self) -> str:
        """The first of its addresses, bare."""
        return bare(self.addresses[0]) if self.addresses else ""


def bare(address: str) -> str:
    return address.partition("/")[0]


def is_address(text: str) -> bool:
    """Of the network: one that needs an interface beside it is nobody else's."""
    if "%" in text:
        return False
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_place(text: str) -> bool:
    """An address, with or without a port: where something is, and not what it is called."""
    return is_address(text) or is_address(text.rpartition(":")[0].strip("[]"))


def segment_of(address: str) -> str:
    """The network of an address with prefix; without one, what a home network usually is."""
    bits = "" if "/" in address else "/24" if ":" not in address else "/64"
    return str(ipaddress.ip_network(f"{address}{bits}", strict=False))
