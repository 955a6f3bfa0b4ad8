"""Looking into many machines at once, in bounded time: what each tells, or why it does not."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from quorate.homelab.devices import interfaces
from quorate.homelab.devices.device import Sighting
from quorate.homelab.devices.identity import fingerprint
from quorate.homelab.discovery.discover import discover
from quorate.homelab.home import Homelab
from quorate.homelab.machines import Machine, machine
from quorate.homelab.network.probing import Answer, probe
from quorate.problems import Problem, Unreachable
from quorate.pve.tasks import Report
from quorate.ssh.target import SshTarget

HOST_SECONDS = 20.0
SPARE_SECONDS = 4.0
"""For the login: what could be found out until then is told."""
KNOCK_SECONDS = 3.0


@dataclass
class Look:
    """What came of looking into one machine."""

    ref: str
    seen: Sighting | None = None
    why: str = ""
    absent: bool = False
    """Nobody answers there, as opposed to somebody who does not let us in."""


async def look_at_all(
    home: Homelab, refs: Iterable[str], *, at_once: int, seconds: float, report: Report | None = None
) -> list[Look]:
    """One look for each, in their order. Those that are not done after `seconds` are given up."""
    looks = [Look(ref, why="There was no time left for it") for ref in dict.fromkeys(refs)]
    queue, done = iter(looks), 0

    async def work() -> None:
        nonlocal done
        for one in queue:
            await _look(home, one)
            done += 1
            if report is not None:
                await report(float(done), float(len(looks)), f"{one.ref}: {one.why or 'discovered'}")

    with contextlib.suppress(TimeoutError):  # what was done by then counts
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as workers:
            for _ in range(min(at_once, len(looks))):
                workers.create_task(work())
    return looks


async def _look(home: Homelab, look: Look) -> None:
    look.why = "It was not finished when time was up"
    try:
        async with asyncio.timeout(HOST_SECONDS):
            found = await machine(home, look.ref)
            reason, look.absent = await _knock(found.target)
            if not reason:
                look.seen = await sighting(found)
            look.why = reason
    except TimeoutError:
        look.why = f"It was not finished after {HOST_SECONDS:g} s"
    except Problem as problem:
        look.why, look.absent = problem.what, isinstance(problem, Unreachable)


async def _knock(target: SshTarget | None) -> tuple[str, bool]:
    """Why there is no use in a login, and whether nobody is there: that should cost seconds, not a login's patience."""
    try:
        address = ipaddress.ip_address(target.host if target and target.jump is None else "")
    except ValueError:
        return "", False  # not by SSH, by a detour, or by a name: the login itself tells
    assert target is not None
    answer = await probe(address, target.port, KNOCK_SECONDS)
    if answer is Answer.SILENT:
        return f"Nobody answers at {target}", True
    return (f"{target} refuses the connection", False) if answer is Answer.CLOSED else ("", False)


async def sighting(found: Machine) -> Sighting:
    """All that can be found out about a machine, for the record."""
    looking = discover(found, seconds=HOST_SECONDS - SPARE_SECONDS)
    facts, (machine_id, serial) = await asyncio.gather(looking, fingerprint(found))
    guest, cluster = found.guest, found.where
    place = f"{cluster.name}/{guest.vmid if guest else found.name}" if cluster else ""
    return Sighting(
        kind=found.kind,
        name=found.name,
        ref=place or found.name,
        place=place,
        node=guest.row.node if guest else "",
        address=found.target.host if found.target else "",
        macs=interfaces.macs(facts.network) if facts.network else (),
        machine_id=machine_id,
        serial=serial,
        facts=facts,
    )
