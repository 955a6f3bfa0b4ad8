"""What the operations on services have in common."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from quorate.hints import SERVICE_STATUS, see
from quorate.homelab.homelab import Homelab
from quorate.homelab.secret_scope import question_about
from quorate.homelab.services.catalogue import load_catalogue
from quorate.homelab.services.installations import RENEW_SECONDS, Installation, Installations
from quorate.homelab.services.rollout import FORMER, RUNS_AGAIN
from quorate.homelab.services.template import Template
from quorate.homelab.workloads.deployments import Deployment
from quorate.operations.plan import Action, ActionResult, Perform, Plan, StepContext
from quorate.operations.registry import Risk
from quorate.problems import Problem
from quorate.pve.tasks import Report

Work = Callable[[Report], Awaitable[dict[str, Any]]]
ServiceName = Annotated[str, Meta(description="Name in the catalog")]
ServiceSettings = Annotated[
    dict[str, Any], Meta(description="As service_info lists them; secrets by reference: env:NAME, vault:NAME")
]


def template_of(homelab: Homelab, service: str) -> Template:
    return load_catalogue(homelab.settings.catalogue).find(service)


def bind_secrets(plan: Plan, references: Collection[str], host: str) -> Plan:
    """A stored secret is sent to a machine only after a person has approved it."""
    if not references:
        return plan
    because = question_about(references, host)
    steps = [
        replace(step, risk=Risk.DESTROY, risk_because=because) if isinstance(step, Action) else step
        for step in plan.calls
    ]
    return replace(plan, calls=tuple(steps))


def install_exclusively(
    homelab: Homelab, entry: Installation, work: Work, hidden: tuple[str, ...] = (), old: Installation | None = None
) -> Perform:
    """Install a service in place of `old`, as work that only one server does at a time."""
    return work_exclusively(homelab, entry.host, entry.service, with_record(homelab, entry, work, old), hidden)


def with_record(homelab: Homelab, entry: Installation, work: Work, old: Installation | None = None) -> Work:
    """Record in the ledger that the work has begun, then how it ended."""
    ledger = Installations(homelab.store)

    async def run_recorded(report: Report) -> dict[str, Any]:
        await ledger.keep(entry)
        try:
            facts = await work(report)
        except Problem as problem:
            left = old if old and problem.facts.get(FORMER) == RUNS_AGAIN else entry
            state = "failed" if left is entry else "installed"
            await ledger.keep(msgspec.structs.replace(left, state=state, why=problem.what))
            raise
        except BaseException:  # interrupted, or a defect: nothing stays `installing` forever
            await ledger.keep(msgspec.structs.replace(entry, state="failed", why="It was interrupted before its end."))
            raise
        await ledger.keep(msgspec.structs.replace(entry, state="installed"))
        return facts

    return run_recorded


def work_exclusively(homelab: Homelab, host: str, service: str, work: Work, hidden: tuple[str, ...] = ()) -> Perform:
    """Work on a service that may outlast the call and that only one server does at a time."""
    ledger = Installations(homelab.store)

    async def perform(context: StepContext) -> ActionResult:
        claim = await ledger.begin_work(host, service)

        async def run_claimed(report: Report) -> dict[str, Any]:
            renewing = asyncio.ensure_future(_keep_renewing(ledger, claim))
            try:
                return await work(report)
            finally:
                renewing.cancel()
                await ledger.end_work(claim)

        facts = await Deployment(homelab.store, host, f"service {service}", hidden).follow(
            run_claimed, context.wait, context.report, homelab.ssh.pool
        )
        if facts is None:
            step = see("See its progress", SERVICE_STATUS(host=host, service=service))
            return ActionResult(running=True, next_step=step)
        return ActionResult(facts)

    return perform


async def _keep_renewing(ledger: Installations, claim: str) -> None:
    """Renew the claim, so that no other server takes over the work while this one runs."""
    while True:
        await asyncio.sleep(RENEW_SECONDS)
        with contextlib.suppress(Problem):  # the database may be unavailable for a moment
            await ledger.renew_work(claim)
