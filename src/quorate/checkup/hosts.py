"""The registered hosts: whether each of them lets us in."""

from __future__ import annotations

import asyncio

from quorate.checkup.findings import Findings
from quorate.config import Settings
from quorate.homelab.home import Homelab
from quorate.homelab.host import Host
from quorate.homelab.machines import registered
from quorate.homelab.settings import NAME
from quorate.inside.way import Command
from quorate.problems import Problem
from quorate.pve.clock import Clock
from quorate.state.store import open_store

SECONDS = 20.0
AT_ONCE = 16
AWAY = ("unreachable", "timeout")
"""A host may be switched off, and all is well with the settings."""


async def check_hosts(settings: Settings, clock: Clock) -> Findings:
    found = Findings(NAME)
    async with open_store(settings.state, clock=clock) as store:
        home = Homelab(settings.homelab, store, clock=clock)
        try:
            hosts = [host for host in await home.hosts.everyone() if host.active]
        except Problem:  # told by the check of the state
            return found
        places = asyncio.Semaphore(AT_ONCE)
        for one in await asyncio.gather(*(_check(home, host, places) for host in hosts)):
            found += one
        await home.close()
    return found


async def _check(home: Homelab, host: Host, places: asyncio.Semaphore) -> Findings:
    found, check = Findings(NAME), f"SSH to {host.name}"
    try:
        async with places, asyncio.timeout(SECONDS):
            machine = await registered(home, host)
            who = await machine.way.run(Command(("id", "-un")))
    except TimeoutError:
        found.warn(check, f"{host.at} did not answer within {SECONDS:g} s", "Look whether it is on")
    except Problem as problem:
        tell = found.warn if problem.kind in AWAY else found.fail
        tell(check, f"{problem.what} {problem.why or ''}".strip(), problem.next_step or "")
    else:
        found.ok(check, f"{host.at} lets {who.stdout.decode(errors='replace').strip()} in")
    return found
