"""What the operations on services have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from quorate.homelab.home import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.services.bringing_up import FORMER, RUNS_AGAIN
from quorate.homelab.services.catalogue import catalogue
from quorate.homelab.services.installed import Installed, Ledger, place_of
from quorate.homelab.services.template import Template
from quorate.homelab.workloads.underway import Underway
from quorate.operations.plan import Performed
from quorate.problems import Problem
from quorate.pve.tasks import Report

Work = Callable[[Report], Awaitable[dict[str, Any]]]
ServiceName = Annotated[str, Meta(description="Name in the catalogue")]
ServiceSettings = Annotated[
    dict[str, Any], Meta(description="As service_info lists them; secrets by reference: env:NAME, vault:NAME")
]


def template_of(home: Homelab, service: str) -> Template:
    return catalogue(home.settings.catalogue).find(service)


def recorded(
    home: Homelab,
    machine: Machine,
    entry: Installed,
    work: Work,
    hidden: tuple[str, ...] = (),
    old: Installed | None = None,
) -> Callable[[float, Report | None], Awaitable[Performed]]:
    """Work that puts a service there, in place of `old`. The record says that it was begun, and then how it went."""
    ledger = Ledger(home.store)

    async def noted(report: Report) -> dict[str, Any]:
        await ledger.keep(entry)
        try:
            facts = await work(report)
        except Problem as problem:
            left = old if old and problem.facts.get(FORMER) == RUNS_AGAIN else entry
            state = "failed" if left is entry else "installed"
            await ledger.keep(msgspec.structs.replace(left, state=state, why=problem.what))
            raise
        except BaseException:  # broken off, or a defect: nothing stays `installing` for ever
            await ledger.keep(msgspec.structs.replace(entry, state="failed", why="It was broken off before its end."))
            raise
        await ledger.keep(msgspec.structs.replace(entry, state="installed"))
        return facts

    return lasting(home, machine, entry.service, noted, hidden)


def lasting(
    home: Homelab, machine: Machine, service: str, work: Work, hidden: tuple[str, ...] = ()
) -> Callable[[float, Report | None], Awaitable[Performed]]:
    """Work on a service that may outlast the call, and that nobody else does at the same time."""
    ledger, place = Ledger(home.store), place_of(machine)

    async def alone(report: Report) -> dict[str, Any]:
        try:
            return await work(report)
        finally:
            await ledger.end_work(place, service)

    async def perform(wait: float, report: Report | None) -> Performed:
        await ledger.begin_work(place, service)
        facts = await Underway(home.store, machine, f"service {service}", hidden).followed(
            alone, wait, report, home.ssh.pool
        )
        if facts is None:
            step = f"service_status host={place} service={service} tells how it goes on"
            return Performed(running=True, next_step=step)
        return Performed(facts)

    return perform
