"""Updates the images of a Compose project: everything is well afterwards, or the former images run again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quorate.homelab.services.compose import compose_missing, find_compose
from quorate.homelab.workloads.cleanup import EngineCommand, ProjectContainer, RunningProject, project_on
from quorate.inside.transport import Command
from quorate.problems import Conflict, Problem, TaskFailed
from quorate.pve.clock import Clock
from quorate.pve.tasks import Report

PULL_SECONDS, START_SECONDS = 3600.0, 600.0
HEALTH_SECONDS = 120.0
WATCHED_SECONDS = 5.0
"""A container without a health check that runs this long counts as well."""
EVERY = 2.0
LOG_LINES = 15
_THERE = 'cd -- "$1" || exit; shift; for file; do [ -f "$file" ] || { echo "$file is missing" >&2; exit 1; }; done'


async def require_files(project: RunningProject) -> None:
    """The project can be started again only from its own files."""
    if not project.folder or not project.files:
        raise Conflict(
            f"Where the files of {project.name} are is not known", next_step="Update it with the tool that started it"
        )
    machine = project.engine.machine
    look = Command(("/bin/sh", "-c", _THERE, "sh", project.folder, *project.files))
    output = await machine.transport.run(machine.as_root(look))
    if output.exit_code != 0:
        said = output.stderr.decode("utf-8", "replace").strip()[-300:]
        raise Conflict(f"The files of {project.name} are not where they were", why=f"The host said: {said}")


async def compose_command(engine: EngineCommand) -> tuple[str, ...]:
    found = await find_compose(engine.machine)
    if found is None:
        raise compose_missing(engine.machine)
    return found


async def update(
    project: RunningProject, compose: tuple[str, ...], services: tuple[str, ...], clock: Clock, report: Report
) -> dict[str, Any]:
    await report(5.0, 100.0, "Pulling the images")
    await _run(project, compose, "pull", *services, seconds=PULL_SECONDS)
    wanted = [one for one in project.parts if not services or one.service in services]
    ids = {one.image: await _image_id(project.engine, one.image) for one in wanted}
    newer = sorted({one.image for one in wanted if ids[one.image] not in ("", one.image_id)})
    if not newer:
        return {"updated": "nothing: all images are the newest of their tags"}
    try:
        await report(60.0, 100.0, f"Starting {', '.join(newer)}")
        await _run(project, compose, "up", "--detach", *services, seconds=START_SECONDS)
        await report(80.0, 100.0, "Waiting until it is healthy")
        now = await _until_well(project, clock)
    except Problem as problem:
        raise await _rolled_back(project, compose, services, wanted, clock, problem) from None
    before = {one.name: one.image_id for one in project.parts}
    changed = [one.name for one in now.parts if before.get(one.name) != one.image_id]
    return {"updated": newer, "restarted": changed, "health": "ok"}


async def _run(project: RunningProject, compose: tuple[str, ...], *argv: str, seconds: float) -> None:
    machine = project.engine.machine
    command = Command(project.line(compose, *argv), cwd=project.folder)
    output = await machine.transport.run(machine.as_root(command), seconds=seconds)
    if output.exit_code != 0:
        said = output.stderr.decode("utf-8", "replace").strip()[-500:]
        raise TaskFailed(f"{compose[-1]} {argv[0]} of {project.name} failed", why=f"It said: {said}")


async def _image_id(engine: EngineCommand, image: str) -> str:
    output = await engine.output("image", "inspect", "--format", "{{.Id}}", image)
    return output.stdout.decode("utf-8", "replace").strip() if output.exit_code == 0 else ""


async def _until_well(project: RunningProject, clock: Clock) -> RunningProject:
    """Containers that ended well before, such as a migration, may have ended now, too."""
    ends = {one.service for one in project.parts if one.state == "exited"}
    begun = clock.monotonic()
    while True:
        now = await project_on(project.engine, project.name)
        unwell = [one for one in now.parts if not one.well and not (one.service in ends and one.state == "exited")]
        spent = clock.monotonic() - begun
        if not unwell and spent >= WATCHED_SECONDS:
            return now
        given_up = [one for one in unwell if one.hopeless]
        if (given_up and spent >= WATCHED_SECONDS) or spent >= HEALTH_SECONDS:
            unhealthy = "; ".join(f"{one.name} is {one.health or one.state}" for one in given_up or unwell)
            log = await _log(project.engine, (given_up or unwell)[0])
            raise TaskFailed(f"{project.name} is not healthy with the new images", why=unhealthy, facts={"log": log})
        await clock.sleep(EVERY)


async def _log(engine: EngineCommand, one: ProjectContainer) -> list[str]:
    output = await engine.output("logs", "--tail", str(LOG_LINES), one.id)
    text = output.stdout + output.stderr
    return text.decode("utf-8", "replace").splitlines()[-LOG_LINES:]


async def _rolled_back(
    project: RunningProject,
    compose: tuple[str, ...],
    services: tuple[str, ...],
    wanted: list[ProjectContainer],
    clock: Clock,
    problem: Problem,
) -> Problem:
    """Give the former images their names back and start them. What the new ones did to data stays."""
    try:
        for one in {part.image: part for part in wanted if "@" not in part.image}.values():
            await project.engine.lines("tag", one.image_id, one.image)
        await _run(project, compose, "up", "--detach", *services, seconds=START_SECONDS)
        await _until_well(replace(project), clock)
        former = "run again"
    except Problem as other:
        former = f"could not be restored: {other}"
    return TaskFailed(
        problem.what,
        why=f"{problem.why or ''} The former images {former}.".strip(),
        next_step="Look at the log; pin the image to its former version until it is fixed",
        facts={**problem.facts, "former_images": former},
    )
