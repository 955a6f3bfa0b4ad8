"""Collects facts from many machines at once, in bounded time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

from quorate.homelab.devices import interfaces
from quorate.homelab.devices.device import Sighting
from quorate.homelab.devices.identity import read_fingerprint
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine, find_machine
from quorate.homelab.selection import HOST_SECONDS, NoSshServer, knock
from quorate.problems import Problem, Unreachable
from quorate.pve.tasks import Report

SPARE_SECONDS = 4.0
"""Reserved for the login."""


@dataclass
class SurveyResult:
    """The result for one machine."""

    ref: str
    seen: Sighting | None = None
    why: str = ""
    absent: bool = False
    """True if nothing answers there, as opposed to a refused login."""


async def survey_machines(
    homelab: Homelab, refs: Iterable[str], *, at_once: int, seconds: float, report: Report | None = None
) -> list[SurveyResult]:
    """One result for each, in order. Machines that are not done after `seconds` are abandoned."""
    looks = [SurveyResult(ref, why="There was not enough time for it") for ref in dict.fromkeys(refs)]
    queue, done = iter(looks), 0

    async def work() -> None:
        nonlocal done
        for one in queue:
            await _look(homelab, one)
            done += 1
            if report is not None:
                await report(float(done), float(len(looks)), f"{one.ref}: {one.why or 'discovered'}")

    with contextlib.suppress(TimeoutError):  # finished results count
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as workers:
            for _ in range(min(at_once, len(looks))):
                workers.create_task(work())
    return looks


async def _look(homelab: Homelab, look: SurveyResult) -> None:
    look.why = "It was not finished in time"
    try:
        async with asyncio.timeout(HOST_SECONDS):
            found = await find_machine(homelab, look.ref)
            await knock(found.target)
            look.seen = await collect_sighting(found)
            look.why = ""
    except TimeoutError:
        look.why = f"It was not finished after {HOST_SECONDS:g} s"
    except Problem as problem:
        look.why = problem.what
        look.absent = isinstance(problem, Unreachable) and not isinstance(problem, NoSshServer)


async def collect_sighting(found: Machine) -> Sighting:
    """Everything that can be found out about a machine, as a sighting."""
    looking = found.collect_facts(seconds=HOST_SECONDS - SPARE_SECONDS)
    facts, (machine_id, serial) = await asyncio.gather(looking, read_fingerprint(found))
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
