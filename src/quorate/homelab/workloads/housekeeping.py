"""Housekeeping: disk space of unused objects, and newer images for Compose projects."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from quorate.documents import Unreadable, read_json
from quorate.homelab.machines import Machine
from quorate.homelab.services.compose import compose_missing, find_compose
from quorate.inside.transport import Command, Output
from quorate.problems import Conflict, GuestRefused, NotConfigured, NotFound, Problem, TaskFailed
from quorate.pve.connection import Clock
from quorate.pve.tasks import Report

SECONDS = 60.0
Kind = Literal["containers", "dangling", "images", "volumes", "networks", "cache"]
_LABEL = "com.docker.compose"
_LOOK = "for one in docker podman; do command -v $one > /dev/null && { echo $one; exit 0; }; done; exit 0"
_BUILT_IN = ("bridge", "host", "none", "podman")


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """The engine's own command on a machine. Docker belongs to the machine, Podman to the login."""

    machine: Machine
    name: str

    async def output(self, *argv: str, seconds: float = SECONDS) -> Output:
        command = Command((self.name, *argv))
        prepared = self.machine.as_root(command) if self.name == "docker" else command
        return await self.machine.transport.run(prepared, seconds=seconds)

    async def lines(self, *argv: str) -> list[str]:
        output = await self.output(*argv)
        if output.exit_code != 0:
            raise GuestRefused(
                f"{self.name} {argv[0]} failed on {self.machine}", why=f"It said: {output.complaint[-300:]}"
            )
        return output.text.splitlines()

    async def rows(self, *argv: str, columns: Sequence[str]) -> list[list[str]]:
        shape = "\t".join(f"{{{{{column}}}}}" for column in columns)
        rows = [line.split("\t") for line in await self.lines(*argv, "--format", shape)]
        return [row for row in rows if len(row) == len(columns)]


async def engine_on(machine: Machine) -> EngineCommand:
    output = await machine.transport.run(Command(("/bin/sh", "-c", _LOOK)))
    name = output.text.strip()
    if not name:
        raise NotConfigured(f"{machine} has no container engine", why="Neither Docker nor Podman is installed there")
    return EngineCommand(machine, name)


async def usage(engine: EngineCommand) -> list[list[str]]:
    """Rows of kind, how many, how many in use, size, and how much of it could go."""
    columns = (".Type", ".TotalCount", ".Active", ".Size", ".Reclaimable")
    if engine.name == "podman":
        columns = (".Type", ".Total", ".Active", ".Size", ".Reclaimable")
    return await engine.rows("system", "df", columns=columns)


async def largest_images(engine: EngineCommand, limit: int) -> list[str]:
    rows = await engine.rows("images", columns=(".Repository", ".Tag", ".Size"))
    return [f"{name}:{tag} {size}" for name, tag, size in sorted(rows, key=lambda row: -_bytes(row[2]))[:limit]]


_UNITS = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


def _bytes(text: str) -> float:
    number = text.rstrip("BkKMGT ")
    try:
        return float(number) * _UNITS.get(text[len(number) :].strip().upper(), 1)
    except ValueError:
        return 0.0


@dataclass(frozen=True, slots=True)
class UnusedObject:
    kind: Kind
    id: str
    about: str


async def find_unused(engine: EngineCommand, kinds: Sequence[Kind]) -> list[UnusedObject]:
    """The objects that could be removed."""
    groups = await asyncio.gather(*(_FINDERS[kind](engine) for kind in dict.fromkeys(kinds)))
    unique: dict[str, UnusedObject] = {}
    for unused in (unused for part in groups for unused in part):
        unique.setdefault(unused.id, unused)
    return list(unique.values())


async def _containers(engine: EngineCommand) -> list[UnusedObject]:
    ended = [word for state in ("exited", "created", "dead") for word in ("--filter", f"status={state}")]
    rows = await engine.rows("ps", "--all", "--no-trunc", *ended, columns=(".ID", ".Names", ".Image", ".Status"))
    return [UnusedObject("containers", row[0], f"{row[1]} ({row[2]}, {row[3]})") for row in rows]


async def _dangling(engine: EngineCommand) -> list[UnusedObject]:
    rows = await engine.rows("images", "--no-trunc", "--filter", "dangling=true", columns=(".ID", ".Size"))
    return [
        UnusedObject("dangling", row[0], f"untagged image {row[0].removeprefix('sha256:')[:12]}, {row[1]}")
        for row in rows
    ]


async def _images(engine: EngineCommand) -> list[UnusedObject]:
    """Tagged or not: those that no container was made from."""
    ids = await engine.lines("ps", "--all", "--quiet", "--no-trunc")
    used = set(await engine.lines("inspect", "--format", "{{.Image}}", *ids)) if ids else set()
    used |= {f"sha256:{image_id}" for image_id in used if not image_id.startswith("sha256:")}
    rows = await engine.rows("images", "--no-trunc", columns=(".ID", ".Repository", ".Tag", ".Size"))
    unused = [row for row in rows if row[0] not in used and f"sha256:{row[0]}" not in used]
    return [UnusedObject("images", row[0], f"{row[1]}:{row[2]}, {row[3]}") for row in unused]


async def _volumes(engine: EngineCommand) -> list[UnusedObject]:
    rows = await engine.rows("volume", "ls", "--filter", "dangling=true", columns=(".Name", ".Driver"))
    return [UnusedObject("volumes", name, f"volume {name}") for name, _ in rows]


async def _networks(engine: EngineCommand) -> list[UnusedObject]:
    rows = await engine.rows("network", "ls", "--filter", "dangling=true", columns=(".ID", ".Name"))
    return [UnusedObject("networks", row[0], f"network {row[1]}") for row in rows if row[1] not in _BUILT_IN]


async def _cache(engine: EngineCommand) -> list[UnusedObject]:
    rows = await usage(engine)
    size = next((row[4] for row in rows if row[0] == "Build Cache"), "")
    return [UnusedObject("cache", "build cache", f"build cache, {size}")] if _bytes(size.partition(" ")[0]) else []


_FINDERS = {
    "containers": _containers,
    "dangling": _dangling,
    "images": _images,
    "volumes": _volumes,
    "networks": _networks,
    "cache": _cache,
}
_REMOVERS: dict[Kind, tuple[str, ...]] = {
    "containers": ("rm",),
    "dangling": ("rmi",),
    "images": ("rmi", "--force"),  # an image with several tags goes as a whole; one in use is refused anyway
    "volumes": ("volume", "rm"),
    "networks": ("network", "rm"),
    "cache": ("builder", "prune", "--all", "--force"),
}


async def remove(engine: EngineCommand, unused: UnusedObject) -> str:
    """Empty if it is gone, else why not: it may be in use by now."""
    ids = () if unused.kind == "cache" else (unused.id,)
    output = await engine.output(*_REMOVERS[unused.kind], *ids, seconds=300.0)
    complaint = output.complaint
    return (
        ""
        if output.exit_code == 0 or "no such" in complaint.lower()
        else complaint[-200:] or f"exit code {output.exit_code}"
    )


# -- Compose projects --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProjectContainer:
    id: str
    name: str
    service: str
    image: str
    image_id: str
    state: str
    health: str
    restarts: int

    @property
    def well(self) -> bool:
        return self.state == "running" and self.health in ("", "healthy")

    @property
    def hopeless(self) -> bool:
        return self.health == "unhealthy" or self.state in ("exited", "dead", "restarting")


@dataclass(frozen=True, slots=True)
class RunningProject:
    """A Compose project as its containers describe it, no matter who started it."""

    engine: EngineCommand
    name: str
    folder: str
    files: tuple[str, ...]
    parts: tuple[ProjectContainer, ...] = field(default=())

    def line(self, compose: tuple[str, ...], *argv: str) -> tuple[str, ...]:
        files = [word for file in self.files for word in ("-f", file)]
        return (*compose, "-p", self.name, *files, *argv)

    def command_line(self, compose: tuple[str, ...], *argv: str) -> str:
        return shlex.join(self.line(compose, *argv))


async def project_names(engine: EngineCommand) -> dict[str, int]:
    rows = await engine.rows(
        "ps", "--all", "--filter", f"label={_LABEL}.project", columns=(f'.Label "{_LABEL}.project"',)
    )
    counts: dict[str, int] = {}
    for [name] in rows:
        counts[name] = counts.get(name, 0) + 1
    return counts


async def project_on(engine: EngineCommand, name: str) -> RunningProject:
    ids = await engine.lines(
        "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={_LABEL}.project={name}",
    )  # fmt: skip
    if not ids:
        known = ", ".join(sorted(await project_names(engine))) or "none"
        raise NotFound(f"{engine.machine} has no Compose project {name!r}", next_step=f"Available: {known}")
    try:
        containers = read_json("\n".join(await engine.lines("inspect", *ids)), list[dict[str, object]])
    except Unreadable as error:
        raise GuestRefused(f"What {engine.name} says about {name} {error}") from None
    labels = _labels(containers[0])
    files = tuple(path for path in labels.get(f"{_LABEL}.project.config_files", "").split(",") if path)
    parts = sorted((_part(container) for container in containers), key=lambda part: part.name)
    return RunningProject(engine, name, labels.get(f"{_LABEL}.project.working_dir", ""), files, tuple(parts))


def _labels(container: dict[str, object]) -> dict[str, str]:
    config = container.get("Config")
    labels = config.get("Labels") if isinstance(config, dict) else None
    return {str(name): str(value) for name, value in labels.items()} if isinstance(labels, dict) else {}


def _part(container: dict[str, object]) -> ProjectContainer:
    state, config = container.get("State"), container.get("Config")
    state, config = state if isinstance(state, dict) else {}, config if isinstance(config, dict) else {}
    health = state.get("Health") or state.get("Healthcheck")
    return ProjectContainer(
        str(container.get("Id", "")),
        str(container.get("Name", "")).lstrip("/"),
        _labels(container).get(f"{_LABEL}.service", ""),
        str(config.get("Image", "")),
        str(container.get("Image", "")),
        str(state.get("Status", "")),
        str(health.get("Status", "")) if isinstance(health, dict) else "",
        int(str(container.get("RestartCount", 0))),
    )


PULL_SECONDS, START_SECONDS = 3600.0, 600.0
HEALTH_SECONDS = 120.0
WATCHED_SECONDS = 5.0
"""A container without a health check counts as healthy once it has run this long."""
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
        raise Conflict(
            f"The files of {project.name} are not where they were", why=f"The host said: {output.complaint[-300:]}"
        )


async def compose_command(engine: EngineCommand) -> tuple[str, ...]:
    command = await find_compose(engine.machine)
    if command is None:
        raise compose_missing(engine.machine)
    return command


async def update(
    project: RunningProject, compose: tuple[str, ...], services: tuple[str, ...], clock: Clock, report: Report
) -> dict[str, Any]:
    await report(5.0, 100.0, "Pulling the images")
    await _run(project, compose, "pull", *services, seconds=PULL_SECONDS)
    selected = [part for part in project.parts if not services or part.service in services]
    ids = {part.image: await _image_id(project.engine, part.image) for part in selected}
    newer = sorted({part.image for part in selected if ids[part.image] not in ("", part.image_id)})
    if not newer:
        return {"updated": "nothing: all images are the newest of their tags"}
    try:
        await report(60.0, 100.0, f"Starting {', '.join(newer)}")
        await _run(project, compose, "up", "--detach", *services, seconds=START_SECONDS)
        await report(80.0, 100.0, "Waiting until it is healthy")
        now = await _until_well(project, clock)
    except Problem as problem:
        raise await _rolled_back(project, compose, services, selected, clock, problem) from None
    before = {part.name: part.image_id for part in project.parts}
    changed = [part.name for part in now.parts if before.get(part.name) != part.image_id]
    return {"updated": newer, "restarted": changed, "health": "ok"}


async def _run(project: RunningProject, compose: tuple[str, ...], *argv: str, seconds: float) -> None:
    machine = project.engine.machine
    command = Command(project.line(compose, *argv), cwd=project.folder)
    output = await machine.transport.run(machine.as_root(command), seconds=seconds)
    if output.exit_code != 0:
        raise TaskFailed(f"{compose[-1]} {argv[0]} of {project.name} failed", why=f"It said: {output.complaint[-500:]}")


async def _image_id(engine: EngineCommand, image: str) -> str:
    output = await engine.output("image", "inspect", "--format", "{{.Id}}", image)
    return output.text.strip() if output.exit_code == 0 else ""


async def _until_well(project: RunningProject, clock: Clock) -> RunningProject:
    """Containers that ended well before, such as a migration, may have ended now, too."""
    ends = {part.service for part in project.parts if part.state == "exited"}
    begun = clock.monotonic()
    while True:
        now = await project_on(project.engine, project.name)
        unwell = [part for part in now.parts if not part.well and not (part.service in ends and part.state == "exited")]
        spent = clock.monotonic() - begun
        if not unwell and spent >= WATCHED_SECONDS:
            return now
        given_up = [part for part in unwell if part.hopeless]
        if (given_up and spent >= WATCHED_SECONDS) or spent >= HEALTH_SECONDS:
            unhealthy = "; ".join(f"{part.name} is {part.health or part.state}" for part in given_up or unwell)
            log = await _log(project.engine, (given_up or unwell)[0])
            raise TaskFailed(f"{project.name} is not healthy with the new images", why=unhealthy, facts={"log": log})
        await clock.sleep(EVERY)


async def _log(engine: EngineCommand, container: ProjectContainer) -> list[str]:
    output = await engine.output("logs", "--tail", str(LOG_LINES), container.id)
    text = output.stdout + output.stderr
    return text.decode("utf-8", "replace").splitlines()[-LOG_LINES:]


async def _rolled_back(
    project: RunningProject,
    compose: tuple[str, ...],
    services: tuple[str, ...],
    selected: list[ProjectContainer],
    clock: Clock,
    problem: Problem,
) -> Problem:
    """Give the former images their names back and start them. What the new ones did to data stays."""
    try:
        for part in {part.image: part for part in selected if "@" not in part.image}.values():
            await project.engine.lines("tag", part.image_id, part.image)
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
