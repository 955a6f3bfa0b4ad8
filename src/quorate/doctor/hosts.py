"""Registered hosts: whether each accepts the login."""

from __future__ import annotations

import asyncio

from quorate.config import Settings
from quorate.config.settings import HOMELAB
from quorate.doctor import Findings
from quorate.homelab.homelab import Homelab
from quorate.homelab.host import Host
from quorate.homelab.machines import resolve_host
from quorate.inside.transport import Command
from quorate.problems import Problem
from quorate.pve.clock import Clock
from quorate.state.store import open_store

SECONDS = 20.0
AT_ONCE = 16
AWAY = ("unreachable", "timeout")
"""A host that is switched off is not a configuration error."""


async def check_hosts(settings: Settings, clock: Clock) -> Findings:
    found = Findings(HOMELAB)
    async with open_store(settings.state, clock=clock) as store:
        homelab = Homelab(settings.homelab, store, clock=clock)
        try:
            hosts = [host for host in await homelab.hosts.everyone() if host.active]
        except Problem:  # reported by the check of the state
            return found
        slots = asyncio.Semaphore(AT_ONCE)
        for one in await asyncio.gather(*(_check(homelab, host, slots) for host in hosts)):
            found += one
        await homelab.close()
    return found


async def _check(homelab: Homelab, host: Host, slots: asyncio.Semaphore) -> Findings:
    found, check = Findings(HOMELAB), f"SSH to {host.name}"
    try:
        async with slots, asyncio.timeout(SECONDS):
            machine = await resolve_host(homelab, host)
            who = await machine.transport.run(Command(("id", "-un")))
    except TimeoutError:
        found.warn(check, f"{host.at} did not answer within {SECONDS:g} s", "Check that it is switched on")
    except Problem as problem:
        tell = found.warn if problem.code in AWAY else found.fail
        tell(check, f"{problem.what} {problem.why or ''}".strip(), problem.next_step or "")
    else:
        found.ok(check, f"{host.at} accepts the login of {who.stdout.decode(errors='replace').strip()}")
    return found
