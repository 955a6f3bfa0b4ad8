"""Waiting until a change has taken effect: at once, or after PVE has finished its part."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from quorate.pve.cluster import Cluster

PATIENCE_SECONDS = 40.0
INTERVAL_SECONDS = 2.0


async def comes_true(pve: Cluster, condition: Callable[[], Awaitable[bool]]) -> bool:
    """Whether the condition holds within the time that a caller can be kept waiting."""
    deadline = pve.clock.monotonic() + PATIENCE_SECONDS
    while not await condition():
        if pve.clock.monotonic() >= deadline:
            return False
        await pve.clock.sleep(INTERVAL_SECONDS)
    return True
