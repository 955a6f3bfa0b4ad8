"""Starts a Compose project: it becomes healthy, or the previous version is restored."""

from __future__ import annotations

from typing import Any

from quorate.hints import SERVICE_INSTALL, SERVICE_UNINSTALL, Advice
from quorate.homelab.services.compose import PreviousInstallation, Project
from quorate.homelab.services.health import wait_until_healthy
from quorate.homelab.services.settings import ChosenSettings
from quorate.homelab.services.template import Template
from quorate.problems import Problem, TaskFailed
from quorate.pve.clock import Clock
from quorate.pve.tasks import Report

STAGES = ("write the files", "fetch the images", "start the containers", "get healthy")

FORMER, RUNS_AGAIN = "former_version", "runs again"
"""In the facts of a failure: what happened to the previous version."""


async def bring_up(
    project: Project,
    template: Template,
    chosen: ChosenSettings,
    former: PreviousInstallation,
    clock: Clock,
    report: Report | None,
) -> dict[str, Any]:
    """Install the service with these settings, in place of a previous version."""
    done: list[str] = []
    try:
        await _report(report, 0.0, "Writing the files")
        await project.write(template, chosen)
        done.append(STAGES[0])
        await project.pull(report)
        done.append(STAGES[1])
        await project.up(report)
        done.append(STAGES[2])
        await _require_health(project, template, chosen, clock, report)
    except Problem as problem:
        raise await _roll_back(project, template, former, clock, done, problem) from None
    return {"containers": [[one.name, one.state, one.image] for one in await project.containers()], "health": "ok"}


async def _require_health(
    project: Project, template: Template, chosen: ChosenSettings, clock: Clock, report: Report | None
) -> None:
    wrong = await wait_until_healthy(project.machine, template, chosen.values, clock, report)
    unwell = [f"{one.name} is {one.state}" for one in await project.containers() if not one.well]
    if wrong or unwell:
        raise TaskFailed(f"{template.title} does not become healthy", why="; ".join(filter(None, (wrong, *unwell))))


async def _roll_back(
    project: Project,
    template: Template,
    former: PreviousInstallation,
    clock: Clock,
    done: list[str],
    problem: Problem,
) -> Problem:
    """Restore the previous version; returns the problem with completed and skipped stages, the log and advice."""
    facts: dict[str, Any] = {"done": done, "not_done": list(STAGES[len(done) :])}
    if len(done) > 2 and (said := await _logs(project)):
        facts["log"] = said
    if former.images:  # otherwise nothing ran before
        facts[FORMER] = await _restore(project, template, former, clock)
        step = Advice(f"Look at the log; the former version {facts[FORMER]}")
    else:
        step = Advice(
            f"Fix it and install it again, or uninstall it. Its files are in {project.folder}",
            SERVICE_INSTALL,
            SERVICE_UNINSTALL(service=template.id),
        )
    how_far = f"Done: {', '.join(done) or 'nothing'}. Not done: {', '.join(facts['not_done'])}"
    return TaskFailed(problem.what, why=f"{problem.why or ''} {how_far}".strip(), next_step=step, facts=facts)


async def _restore(project: Project, template: Template, former: PreviousInstallation, clock: Clock) -> str:
    """Restore the previous version. Changes that the new version made to its data stay."""
    try:
        await project.restore(former)
        await project.up()
        wrong = await wait_until_healthy(project.machine, template, former.values, clock)
    except Problem as problem:
        return f"could not be restored: {problem}"
    return f"runs again, but is not healthy: {wrong}" if wrong else RUNS_AGAIN


async def _logs(project: Project) -> list[str]:
    try:
        return await project.logs()
    except Problem:
        return []


async def _report(report: Report | None, done: float, line: str) -> None:
    if report is not None:
        await report(done, 100.0, line)
