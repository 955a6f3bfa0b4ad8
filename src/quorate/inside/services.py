"""Services inside a guest: their state, and changes that are checked afterwards."""

from __future__ import annotations

from quorate.hints import Advice, tools
from quorate.inside import posix_services, windows_services
from quorate.inside.service_state import Service, has_taken_effect
from quorate.inside.transport import Transport
from quorate.problems import GuestRefused
from quorate.pve.connection import Clock

LOG_LINES_ON_FAILURE = 15
_SHORTEST, _LONGEST = 0.5, 3.0
_SECOND_LOOK = 1.0
"""A service that dies right after its start looks fine at first."""


async def status(transport: Transport, name: str, *, log_lines: int = 0) -> Service:
    if transport.system == "windows":
        return await windows_services.status(transport, name, log_lines=log_lines)
    return await posix_services.status(transport, name, log_lines=log_lines)


async def list_services(transport: Transport) -> list[Service]:
    return (
        await windows_services.list_services(transport)
        if transport.system == "windows"
        else await posix_services.list_services(transport)
    )


async def control(
    transport: Transport, clock: Clock, name: str, action: str, *, wait: float
) -> tuple[Service, Service]:
    """The state before and after. After `wait` seconds the change may still be in progress (`busy`)."""
    deadline = clock.monotonic() + wait
    before = await status(transport, name)
    try:
        await _act(transport, before, action, seconds=max(wait, 5.0))
        after = await _wait_until_settled(transport, clock, before.name, deadline)
        if action in ("start", "restart") and after.state == "active":
            await clock.sleep(_SECOND_LOOK)
            after = await _wait_until_settled(transport, clock, before.name, deadline)
    except GuestRefused as refused:
        refused.facts["log"] = (await status(transport, name, log_lines=LOG_LINES_ON_FAILURE)).log
        raise
    if not after.busy and not has_taken_effect(after, action):
        raise await _unexpected_state(transport, after, action)
    return before, after


async def _act(transport: Transport, service: Service, action: str, *, seconds: float) -> None:
    if transport.system == "windows":
        await windows_services.act(transport, service, action, seconds=seconds)
    else:
        await posix_services.act(transport, service, action, seconds=seconds)


async def _wait_until_settled(transport: Transport, clock: Clock, name: str, deadline: float) -> Service:
    pause = _SHORTEST
    while True:
        service = await status(transport, name)
        if not service.busy or clock.monotonic() >= deadline:
            return service
        await clock.sleep(min(pause, max(0.0, deadline - clock.monotonic())))
        pause = min(pause * 1.5, _LONGEST)


async def _unexpected_state(transport: Transport, service: Service, action: str) -> GuestRefused:
    log = (await status(transport, service.name, log_lines=LOG_LINES_ON_FAILURE)).log
    now = service.enabled or "not known" if action in ("enable", "disable") else service.summary
    return GuestRefused(
        f"After {action}, {service.name} is {now}",
        why=service.result or None,
        next_step="See its log for the reason"
        if log
        else Advice("Look for its log inside", tools.host_exec, tools.guest_exec),
        facts={"state": service.summary, "enabled": service.enabled, "log": log},
    )
