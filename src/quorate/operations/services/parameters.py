"""What the operations on services have in common."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from quorate.homelab.home import Homelab
from quorate.homelab.services.bringing_up import FORMER, RUNS_AGAIN
from quorate.homelab.services.catalogue import catalogue
from quorate.homelab.services.installed import RENEW_SECONDS, Installed, Ledger
from quorate.homelab.services.template import Template
from quorate.homelab.workloads.underway import Underway
from quorate.operations.plan import Performed
from quorate.problems import Problem
from quorate.pve.tasks import Report

Work = Callable[[Report], Awaitable[dict[str, Any]]]
Perform = Callable[[float, Report | None], Awaitable[Performed]]
ServiceName = Annotated[str, Meta(description="Name in the catalogue")]
ServiceSettings = Annotated[
    dict[str, Any], Meta(description="As service_info lists them; secrets by reference: env:NAME, vault:NAME")
]


def template_of(home: Homelab, service: str) -> Template:
    return catalogue(home.settings.catalogue).find(service)


def recorded(
    home: Homelab, entry: Installed, work: Work, hidden: tuple[str, ...] = (), old: Installed | None = None
) -> Perform:
    """Work that puts a service there, in place of `old`."""
    return lasting(home, entry.host, entry.service, noted(home, entry, work, old), hidden)


def noted(home: Homelab, entry: Installed, work: Work, old: Installed | None = None) -> Work:
    """The record says that it was begun, and then how it went."""
    ledger = Ledger(home.store)

    async def begun(report: Report) -> dict[str, Any]:
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

    return begun


def lasting(home: Homelab, place: str, service: str, work: Work, hidden: tuple[str, ...] = ()) -> Perform:
    """Work on a service that may outlast the call, and that nobody else does at the same time."""
    ledger = Ledger(home.store)

    async def perform(wait: float, report: Report | None) -> Performed:
        claim = await ledger.begin_work(place, service)

        async def alone(report: Report) -> dict[str, Any]:
            renewing = asyncio.ensure_future(_renewed(ledger, claim))
            try:
                return await work(report)
            finally:
                renewing.cancel()
                await ledger.end_work(claim)

        facts = await Underway(home.store, place, f"service {service}", hidden).followed(
            alone, wait, report, home.ssh.pool
        )
        if facts is None:
            step = f"service_status host={place} service={service} tells how it goes on"
            return Performed(running=True, next_step=step)
        return Performed(facts)

    return perform


async def _renewed(ledger: Ledger, claim: str) -> None:
    """As long as this server lives, nobody takes the work from it."""
    while True:
        await asyncio.sleep(RENEW_SECONDS)
        with contextlib.suppress(Problem):  # a database that is away for a moment
            await ledger.renew_work(claim)
