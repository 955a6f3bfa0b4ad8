"""Services inside a guest of either kind: how they stand, and changing that with a look at what came of it."""

from __future__ import annotations

from quorate.inside import posix_services, windows_services
from quorate.inside.service_state import Service, is_as_wanted
from quorate.inside.way import Way
from quorate.problems import GuestRefused
from quorate.pve.clock import Clock

LOG_LINES_ON_FAILURE = 15
_SHORTEST, _LONGEST = 0.5, 3.0
_SECOND_LOOK = 1.0
"""A service that dies right after its start still looks well at first."""


async def status(way: Way, name: str, *, log_lines: int = 0) -> Service:
    if way.system == "windows":
        return await windows_services.status(way, name, log_lines=log_lines)
    return await posix_services.status(way, name, log_lines=log_lines)


async def every(way: Way) -> list[Service]:
    return await windows_services.every(way) if way.system == "windows" else await posix_services.every(way)


async def control(way: Way, clock: Clock, name: str, action: str, *, wait: float) -> tuple[Service, Service]:
    """Before and after. The state after it may still be on its way (`busy`) when `wait` is over."""
    deadline = clock.monotonic() + wait
    before = await status(way, name)
    try:
        await _act(way, before, action, seconds=max(wait, 5.0))
        after = await _settled(way, clock, before.name, deadline)
        if action in ("start", "restart") and after.state == "active":
            await clock.sleep(_SECOND_LOOK)
            after = await _settled(way, clock, before.name, deadline)
    except GuestRefused as refused:
        refused.facts["log"] = (await status(way, name, log_lines=LOG_LINES_ON_FAILURE)).log
        raise
    if not after.busy and not is_as_wanted(after, action):
        raise await _unlike(way, after, action)
    return before, after


async def _act(way: Way, service: Service, action: str, *, seconds: float) -> None:
    if way.system == "windows":
        await windows_services.act(way, service, action, seconds=seconds)
    else:
        await posix_services.act(way, service, action, seconds=seconds)


async def _settled(way: Way, clock: Clock, name: str, deadline: float) -> Service:
    pause = _SHORTEST
    while True:
        service = await status(way, name)
        if not service.busy or clock.monotonic() >= deadline:
            return service
        await clock.sleep(min(pause, max(0.0, deadline - clock.monotonic())))
        pause = min(pause * 1.5, _LONGEST)


async def _unlike(way: Way, service: Service, action: str) -> GuestRefused:
    log = (await status(way, service.name, log_lines=LOG_LINES_ON_FAILURE)).log
    now = service.enabled or "not known" if action in ("enable", "disable") else service.told
    return GuestRefused(
        f"After {action}, {service.name} is {now}",
        why=service.result or None,
        next_step="The log has its last words" if log else "guest_exec can look for its log",
        facts={"state": service.told, "enabled": service.enabled, "log": log},
    )
