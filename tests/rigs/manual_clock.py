"""A clock that advances only when someone waits or the test sets it, and long jumps of the simulator's clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pve_simulator.clock import ManualClock


async def jump(clock: ManualClock, seconds: float) -> None:
    """Jump ahead: whatever is due runs once. (Advancing step by step through a day takes a second.)"""
    clock._now += seconds
    await clock.advance(0)
    await clock.advance(0)


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
