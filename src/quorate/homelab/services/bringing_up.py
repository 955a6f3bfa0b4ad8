"""Bringing a Compose project up: it is healthy in the end, or all that can be told and taken back is."""

from __future__ import annotations

from typing import Any

from quorate.homelab.services.choosing import Chosen
from quorate.homelab.services.compose import Former, Project
from quorate.homelab.services.health import healthy
from quorate.homelab.services.template import Template
from quorate.problems import Problem, TaskFailed
from quorate.pve.clock import Clock
from quorate.pve.tasks import Report

STAGES = ("write the files", "fetch the images", "start the containers", "get healthy")

FORMER, RUNS_AGAIN = "former_version", "runs again"
"""Among the facts of a failure: what became of the version that was there before."""


async def bring_up(
    project: Project, template: Template, chosen: Chosen, former: Former, clock: Clock, report: Report | None
) -> dict[str, Any]:
    """Put the service there with these settings, in place of what stood there before, if anything did."""
    done: list[str] = []
    try:
        await _told(report, 0.0, "Writing the files")
        await project.write(template, chosen)
        done.append(STAGES[0])
        await project.pull(report)
        done.append(STAGES[1])
        await project.up(report)
        done.append(STAGES[2])
        await _require_health(project, template, chosen, clock, report)
    except Problem as problem:
        raise await _failed(project, template, former, clock, done, problem) from None
    return {"containers": [[one.name, one.state, one.image] for one in await project.containers()], "health": "ok"}


async def _require_health(
    project: Project, template: Template, chosen: Chosen, clock: Clock, report: Report | None
) -> None:
    wrong = await healthy(project.machine, template, chosen.values, clock, report)
    unwell = [f"{one.name} is {one.state}" for one in await project.containers() if not one.well]
    if wrong or unwell:
        raise TaskFailed(f"{template.title} does not get healthy", why="; ".join(filter(None, (wrong, *unwell))))


async def _failed(
    project: Project,
    template: Template,
    former: Former,
    clock: Clock,
    done: list[str],
    problem: Problem,
) -> Problem:
    """The same problem with what was done, what was not, the log, and how to go on or back."""
    facts: dict[str, Any] = {"done": done, "not_done": list(STAGES[len(done) :])}
    if len(done) > 2 and (said := await _logs(project)):
        facts["log"] = said
    if former.images:  # otherwise nothing ran: there is no state to go back to
        facts[FORMER] = await _back(project, template, former, clock)
        step = f"Look at the log; the former version {facts[FORMER]}"
    else:
        step = (
            f"Mend it and call service_install again, or take it away with service_uninstall service={template.id}. "
            f"Its files stand in {project.folder}"
        )
    how_far = f"Done: {', '.join(done) or 'nothing'}. Not done: {', '.join(facts['not_done'])}"
    return TaskFailed(problem.what, why=f"{problem.why or ''} {how_far}".strip(), next_step=step, facts=facts)


async def _back(project: Project, template: Template, former: Former, clock: Clock) -> str:
    """Its data may have been changed by the new version: that cannot be taken back here."""
    try:
        await project.put_back(former)
        await project.up()
        wrong = await healthy(project.machine, template, former.values, clock)
    except Problem as problem:
        return f"could not be put back: {problem}"
    return f"runs again, but is not healthy: {wrong}" if wrong else RUNS_AGAIN


async def _logs(project: Project) -> list[str]:
    try:
        return await project.logs()
    except Problem:
        return []


async def _told(report: Report | None, done: float, line: str) -> None:
    if report is not None:
        await report(done, 100.0, line)
