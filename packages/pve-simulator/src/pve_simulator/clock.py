"""The clock of the simulator: real (optionally faster) time, or time that a test advances."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from datetime import UTC, datetime
from typing import Protocol

# A ManualClock starts here, so that every run sees the same times: 2026-01-15 08:00:00 UTC.
MANUAL_EPOCH = 1768464000.0

# A woken task may need a few turns of the event loop until it sleeps again or ends. What it sent over a socket is read
# in the next turn, so a few turns without anything else to do mean that it does.
_SETTLE_TURNS, _IDLE_TURNS = 25, 3


def log_time(seconds: float) -> str:
    """A time (UTC) as PVE's logs write it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


class Clock(Protocol):
    """The time source of the whole simulator."""

    def now(self) -> float:
        """Wall-clock seconds since the epoch."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait on this clock."""
        ...


class RealClock:
    """Wall-clock time, from now or from `epoch` on; at `speed` 10, ten simulated seconds pass in a real one."""

    def __init__(self, speed: float = 1.0, epoch: float | None = None) -> None:
        if speed <= 0:
            raise ValueError("the speed of a clock must be positive")
        self.speed = speed
        self._epoch = time.time() if epoch is None else epoch
        self._started = time.monotonic()

    def now(self) -> float:
        return self._epoch + (time.monotonic() - self._started) * self.speed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds) / self.speed)


class ManualClock:
    """Time that does not move until `advance` is called; everything due runs in order of its time."""

    def __init__(self, epoch: float = MANUAL_EPOCH) -> None:
        self._now = epoch
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), future))
        await future

    async def advance(self, seconds: float) -> None:
        """Advance the time, waking every sleeper that is due."""
        target = self._now + seconds
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= target:
            when, _, future = heapq.heappop(self._sleepers)
            if future.done():  # its task was canceled
                continue
            self._now = max(self._now, when)
            future.set_result(None)
            await self._settle()
        self._now = target
        await self._settle()

    async def _settle(self) -> None:
        others = getattr(asyncio.get_running_loop(), "_ready", True)  # of this turn; other event loops do not show them
        idle = 0
        for _ in range(_SETTLE_TURNS):
            await asyncio.sleep(0)
            idle = 0 if others else idle + 1
            if idle == _IDLE_TURNS:
                break
