"""What a scan has found at an address."""

from __future__ import annotations

from dataclasses import dataclass, field

from quorate.homelab.network.targets import Address


@dataclass
class Seen:
    address: Address
    open: set[int] = field(default_factory=set)
    closed: set[int] = field(default_factory=set)
    """Answered with a no, or not at all by one that answers elsewhere."""
    mac: str = ""
    name: str = ""
    quiet: bool = False
    """It answered no connection; only the neighbour table tells of it, which remembers for a while who has left."""


@dataclass
class Scan:
    seen: dict[Address, Seen]
    """Who answered."""
    unfinished: list[Address]
    """Not looked at in time."""
    ports: tuple[int, ...]
    engine: str
