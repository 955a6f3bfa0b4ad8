"""Limits on the requests of a caller, in total and at the same time, and on the failures of an address.

Each process counts on its own.
"""

from __future__ import annotations

import ipaddress
import math
from collections import Counter, OrderedDict

from quorate.pve.clock import Clock

MOST_KEYS = 10_000


class RateLimit:
    """A token bucket per key that holds a minute's worth and refills evenly. 0 per minute means unlimited."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self._most = float(per_minute)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> int:
        """Take one: 0 if there was one, else the seconds until there will be."""
        wait = self.wait(key)
        if not wait and self._most:
            self._buckets[key] = (self._level(key) - 1, self._clock.monotonic())
            self._buckets.move_to_end(key)
            if len(self._buckets) > MOST_KEYS:
                self._buckets.popitem(last=False)
        return wait

    def wait(self, key: str) -> int:
        """Seconds until one can be taken."""
        if not self._most:
            return 0
        missing = 1 - self._level(key)
        return max(0, math.ceil(missing * 60 / self._most)) if missing > 1e-9 else 0

    def _level(self, key: str) -> float:
        level, then = self._buckets.get(key, (self._most, 0.0))
        return min(self._most, level + (self._clock.monotonic() - then) * self._most / 60)


class ConcurrencyLimit:
    """How many may run at the same time per key. 0 means unlimited."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[str] = Counter()

    def take(self, key: str) -> bool:
        """Whether one was free; if so, `release` it later."""
        if self._most and self._taken[key] >= self._most:
            return False
        self._taken[key] += 1
        return True

    def release(self, key: str) -> None:
        self._taken[key] -= 1
        if not self._taken[key]:
            del self._taken[key]


def address_key(client: tuple[str, int] | None) -> str:
    """The key under which an address is counted. A single host can use a whole /64 of IPv6 addresses."""
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
