"""Waiting until a guest can be used: its agent, its SSH server or a port answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from quorate.hints import Advice, tools
from quorate.inside.guest_addresses import read_interfaces
from quorate.problems import (
    BadArgument,
    Conflict,
    NodeOffline,
    NotConfigured,
    Problem,
    ServerFailed,
    TimedOut,
    Unreachable,
    catch_problem,
)
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.tasks import Report
from quorate.ssh.target import SSH_PORT
from quorate.tools.guest_addresses import AddressFinder
from quorate.units import duration

WaitFor = Annotated[str, Meta(description="Start, then wait for agent, ssh or a port")]
READY_SECONDS = 45.0
"""How long the call that creates a guest takes if the guest does not answer; many clients give up after 60 seconds."""
_SHORTEST_WAIT = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 5.0
_CONNECT_SECONDS = 3.0
# Problems that waiting can solve: the agent does not run yet, the address is unknown. All others are raised at once.
_PASSING = (Conflict, NodeOffline, NotConfigured, ServerFailed, TimedOut, Unreachable)
T = TypeVar("T")


async def poll(
    pve: Cluster, attempt: Callable[[], Awaitable[T | None]], goal: str, wait: float, report: Report | None
) -> tuple[T | None, float, str]:
    """Try until the attempt returns something or the time is over: its result, the seconds spent, and why not yet."""
    begun, pause, why = pve.clock.monotonic(), _FIRST_PAUSE, ""
    while True:
        result = None
        try:
            result = await attempt()
        except _PASSING as problem:
            why = str(problem)
        spent = pve.clock.monotonic() - begun
        if result is not None or spent >= wait:
            return result, spent, why
        if report is not None:  # there may be no client to notify
            await report(spent, wait, f"waiting for {goal}")
        await pve.clock.sleep(min(pause, wait - spent))
        pause = min(pause * 1.5, _LONGEST_PAUSE)


@dataclass(frozen=True, slots=True)
class Goal:
    """What has to answer before a guest counts as ready: a port, or the guest agent."""

    port: int | None = None

    @property
    def is_agent(self) -> bool:
        return self.port is None

    def __str__(self) -> str:
        return "the agent" if self.is_agent else "SSH" if self.port == SSH_PORT else f"port {self.port}"


def parse_goal(wait_for: str | None, *, is_vm: bool) -> Goal | None:
    if wait_for is None:
        return None
    word = wait_for.strip().lower()
    if word == "agent" and not is_vm:
        raise BadArgument("A container has no agent to wait for", next_step=Advice("Give {wait_for}", wait_for="ssh"))
    if word in ("agent", "ssh"):
        return Goal(None if word == "agent" else SSH_PORT)
    number = word.removeprefix("port").lstrip(" :=")
    if number.isdecimal() and 0 < int(number) < 65536:
        return Goal(int(number))
    raise BadArgument(
        f"{wait_for!r} is nothing to wait for", next_step="Give agent, ssh, or the number of a TCP port such as 443"
    )


async def wait_until_ready(pve: Cluster, vmid: int, goal: Goal, begun: float) -> Mapping[str, Any]:
    """Whether the guest answers, after waiting for it, and its addresses. `begun`: when the call began."""
    guest = await pve.guest(vmid)
    left = max(_SHORTEST_WAIT, READY_SECONDS - (pve.clock.monotonic() - begun))
    addresses, spent, why = await poll(pve, partial(_probe, pve, guest, goal), str(goal), left, None)
    facts = {"ready": addresses is not None, "waited": duration(spent)}
    if addresses is not None:
        return {**facts, **addresses}
    known = await _addresses(pve, guest)
    again = tools.guest_wait(guest=vmid, **({} if goal.is_agent else {"until": "address"}))
    return {
        **facts,
        **known,
        "why": why or f"{goal} does not answer yet".capitalize(),
        "next": Advice("It runs. Keep waiting", again),
    }


async def _probe(pve: Cluster, guest: Guest, goal: Goal) -> dict[str, Any] | None:
    """The addresses of the guest if it answers."""
    if goal.is_agent:
        await guest.get("agent/get-host-name")
        return await _addresses(pve, guest)
    known = await _addresses(pve, guest)
    configured = pve.ssh.guest(guest.vmid)
    hosts = [configured.host] if configured and configured.host else known.get("addresses", [])
    for host in hosts:
        if not configured:
            pve.ssh.require_allowed(host)
        port = configured.port if configured and goal.port == SSH_PORT else goal.port
        if await _answers(host, port or SSH_PORT, is_ssh=goal.port == SSH_PORT):
            return known or {"addresses": hosts}
    return None


async def _answers(host: str, port: int, *, is_ssh: bool) -> bool:
    """Whether the port takes a connection; an SSH server also introduces itself."""
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                return not is_ssh or (await reader.readline()).startswith(b"SSH-")
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError, ValueError):  # ValueError: the line has no end
        return False


async def _addresses(pve: Cluster, guest: Guest) -> dict[str, Any]:
    try:
        config = await guest.get("config")
        # The guest was just started: it is asked itself, because the view may still show it as stopped.
        known = await AddressFinder(pve).find(guest, config, await catch_problem(read_interfaces(guest)))
    except Problem:
        return {}
    addresses = known.best_first(config)
    return {"addresses": addresses, "addresses_from": known.source} if addresses else {}
