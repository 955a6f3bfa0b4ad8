"""A device as it is stored, and a sighting: what one observation says about it."""

from __future__ import annotations

import ipaddress
from typing import Any, Literal

import msgspec

from quorate.inside.facts.model import Facts

State = Literal["up", "away", "stopped", "retired"]
View = dict[str, dict[str, Any]]
"""Section -> key -> value: the parts of a device that its history tracks."""


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """One observation. What it does not mention was not observed, which does not mean that it is gone."""

    kind: str = "device"
    """host, node, vm, ct; device if only seen on the network."""
    name: str = ""
    ref: str = ""
    """The name that host tools accept."""
    place: str = ""
    """cluster/vmid or cluster/node, for members of a cluster."""
    node: str = ""
    """The node it runs on."""
    address: str = ""
    """Where it was reached."""
    macs: tuple[str, ...] = ()
    machine_id: str = ""
    serial: str = ""
    facts: Facts | None = None
    open_ports: tuple[int, ...] = ()
    closed_ports: tuple[int, ...] = ()
    """Scanned and not open."""


class Device(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything known about a device."""

    id: int = 0
    first_seen: float = 0.0
    last_seen: float = 0.0
    kind: str = "device"
    name: str = ""
    refs: tuple[str, ...] = ()
    place: str = ""
    node: str = ""
    addresses: tuple[str, ...] = ()
    """With their prefix if known: 192.168.1.5/24"""
    macs: tuple[str, ...] = ()
    machine_id: str = ""
    serial: str = ""
    facts: Facts | None = None
    open_ports: tuple[int, ...] = ()
    closed_ports: tuple[int, ...] = ()
    state: State = "up"
    discovered: float | None = None
    """When facts were last collected from it."""
    changed: float = 0.0
    """When its history last got an entry."""
    reported: View = msgspec.field(default_factory=dict, name="told")  # the name in stored rows
    """The state in its history: small changes are measured from here, so that they add up."""

    def __str__(self) -> str:
        return self.name or self.address or f"device {self.id}"

    @property
    def address(self) -> str:
        """Its first address, without the prefix."""
        return bare(self.addresses[0]) if self.addresses else ""


def bare(address: str) -> str:
    return address.partition("/")[0]


def is_address(text: str) -> bool:
    """A scoped address such as fe80::1%eth0 does not count: it means nothing to others."""
    if "%" in text:
        return False
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_place(text: str) -> bool:
    """Whether the text is an address, with or without a port, rather than a name."""
    return is_address(text) or is_address(text.rpartition(":")[0].strip("[]"))


def segment_of(address: str) -> str:
    """The network of an address; without a prefix, the usual size of a home network."""
    bits = "" if "/" in address else "/24" if ":" not in address else "/64"
    return str(ipaddress.ip_network(f"{address}{bits}", strict=False))
