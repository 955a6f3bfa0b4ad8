"""MAC addresses and UUIDs for what is made while the cluster runs: another one every time, the same for a seed."""

from __future__ import annotations

import itertools
import re

from quorate.sim import drives
from quorate.sim.world import World

_MAC = re.compile(r"(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}")


class Identities:
    """The part of a world that invents identities."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._count = itertools.count()

    def mac(self) -> str:
        """A MAC address that no guest has."""
        return drives.new_mac(self._world, next(self._count))

    def uuid(self) -> str:
        return drives.new_uuid(self._world, next(self._count))

    def with_new_mac(self, network: str) -> str:
        """A network card's property string with another MAC address."""
        return _MAC.sub(self.mac(), network, count=1)
