"""How much one caller may ask, and how often one address may be wrong. Each process counts for itself."""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict

from quorate.pve.clock import Clock

MOST_KEYS = 10_000


class Buckets:
    """A bucket of tokens for each key: a minute's worth fits in, and it fills up evenly. 0 a minute is no limit."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self._most = float(per_minute)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> int:
        """Take one. 0 if there was one, else the seconds until there is."""
        wait = self.wait(key)
        if not wait and self._most:
            self._buckets[key] = (self._level(key) - 1, self._clock.monotonic())
            self._buckets.move_to_end(key)
            if len(self._buckets) > MOST_KEYS:
                self._buckets.popitem(last=False)
        return wait

    def wait(self, key: str) -> int:
        """Seconds until one could be taken."""
        if not self._most:
            return 0
        missing = 1 - self._level(key)
        return max(0, math.ceil(missing * 60 / self._most)) if missing > 1e-9 else 0

    def _level(self, key: str) -> float:
        level, then = self._buckets.get(key, (self._most, 0.0))
        return min(self._most, level + (self._clock.monotonic() - then) * self._most / 60)


def address_key(client: tuple[str, int] | None) -> str:
    """Whom failures are counted for. A single host has a whole /64 of IPv6 addresses to play with."""
    host = client[0] if client else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host[:64]
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host
