"""The plan of a cluster as one step of another plan, such as the guest that a service is put into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.operations.plan import Plan
from quorate.pipeline import telling
from quorate.pipeline.apply import Step, apply
from quorate.pve.cluster import Cluster
from quorate.pve.errors import TaskFailed
from quorate.pve.tasks import Report


async def carry_out(cluster: Cluster, plan: Plan, wait: float, report: Report | None) -> Mapping[str, Any]:
    """Do it, or raise what became of it. The gates were passed before, with the calls as needs of the step."""
    steps = [Step(call) for call in plan.calls]
    await apply(cluster, plan, steps, wait=wait, report=report)
    told = telling.outcome(plan, steps)
    if all(step.state in ("done", "warnings") for step in steps):
        return {**told, **(await plan.after() if plan.after else {})}
    unfinished = next(step for step in steps if step.state not in ("done", "warnings"))
    if unfinished.problem is not None:
        raise unfinished.problem
    raise TaskFailed(f"{unfinished.call.says}: {unfinished.state}", next_step=told.get("next"), facts=told)
