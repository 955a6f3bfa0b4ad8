"""What the operations on services have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from quorate.homelab.home import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.services.catalogue import catalogue
from quorate.homelab.services.installed import Installed, Ledger
from quorate.homelab.services.template import Template
from quorate.homelab.workloads.underway import Underway
from quorate.operations.plan import Performed
from quorate.problems import Problem
from quorate.pve.tasks import Report

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
    work: Callable[[Report], Awaitable[dict[str, Any]]],
    hidden: tuple[str, ...] = (),
) -> Callable[[float, Report | None], Awaitable[Performed]]:
    """Work that may outlast the call. The record says that it was begun, and in the end how it went."""
    ledger = Ledger(home.store)

    async def noted(report: Report) -> dict[str, Any]:
        await ledger.keep(entry)
        try:
            facts = await work(report)
        except Problem as problem:
            await ledger.keep(msgspec.structs.replace(entry, state="failed", why=problem.what))
            raise
        except asyncio.CancelledError:
            await ledger.keep(msgspec.structs.replace(entry, state="failed", why="It was broken off before its end."))
            raise
        await ledger.keep(msgspec.structs.replace(entry, state="installed"))
        return facts

    async def perform(wait: float, report: Report | None) -> Performed:
        underway = Underway(home.store, machine, f"service {entry.service}", hidden)
        facts = await underway.followed(noted, wait, report, home.ssh.pool)
        if facts is None:
            step = f"service_status host={entry.host} service={entry.service} tells how it goes on"
            return Performed(running=True, next_step=step)
        return Performed(facts)

    return perform
