"""A clock that advances only when someone waits or the test sets it, and long jumps of the simulator's clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pve_simulator.clock import ManualClock
from pve_simulator.cluster.ha_manager import TURN_SECONDS


async def jump(clock: ManualClock, seconds: float) -> None:
    """Jump ahead: whatever is due runs once. (Advancing step by step through a day takes a second.)

    The last seconds pass step by step, so that HA's managers have reported lately, as they do on nodes that run.
    """
    last = min(seconds, TURN_SECONDS)
    clock._now += seconds - last
    await clock.advance(0)
    await clock.advance(last)


class HandClock:
    def __init__(self, now: float = 1_750_000_000.0) -> None:
        self.now = now
        self.while_waiting: Callable[[], Awaitable[None]] | None = None
        """Called whenever someone sleeps."""

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.while_waiting is not None:
            await self.while_waiting()
