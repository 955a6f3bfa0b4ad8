"""Housekeeping for Docker and Podman: disk usage, unused objects, and running Compose projects."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from quorate.documents import Unreadable, read_json
from quorate.homelab.machines import Machine
from quorate.inside.transport import Command, Output
from quorate.problems import GuestRefused, NotConfigured, NotFound

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
        wanted = self.machine.as_root(command) if self.name == "docker" else command
        return await self.machine.transport.run(wanted, seconds=seconds)

    async def lines(self, *argv: str) -> list[str]:
        output = await self.output(*argv)
        if output.exit_code != 0:
            said = output.stderr.decode("utf-8", "replace").strip()[-300:]
            raise GuestRefused(f"{self.name} {argv[0]} failed on {self.machine}", why=f"It said: {said}")
        return output.stdout.decode("utf-8", "replace").splitlines()

    async def rows(self, *argv: str, columns: Sequence[str]) -> list[list[str]]:
        shape = "\t".join(f"{{{{{one}}}}}" for one in columns)
        found = [line.split("\t") for line in await self.lines(*argv, "--format", shape)]
        return [row for row in found if len(row) == len(columns)]


async def engine_on(machine: Machine) -> EngineCommand:
    output = await machine.transport.run(Command(("/bin/sh", "-c", _LOOK)))
    name = output.stdout.decode("utf-8", "replace").strip()
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
    """An unused object."""

    kind: Kind
    id: str
    about: str


async def find_unused(engine: EngineCommand, kinds: Sequence[Kind]) -> list[UnusedObject]:
    """What could be removed, each by its id."""
    found = await asyncio.gather(*(_FINDERS[kind](engine) for kind in dict.fromkeys(kinds)))
    unique: dict[str, UnusedObject] = {}
    for one in (one for part in found for one in part):
        unique.setdefault(one.id, one)
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
    used |= {f"sha256:{one}" for one in used if not one.startswith("sha256:")}
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


async def remove(engine: EngineCommand, one: UnusedObject) -> str:
    """Empty if it is gone, else why not: it may be in use by now."""
    ids = () if one.kind == "cache" else (one.id,)
    output = await engine.output(*_REMOVERS[one.kind], *ids, seconds=300.0)
    said = output.stderr.decode("utf-8", "replace").strip()
    return "" if output.exit_code == 0 or "no such" in said.lower() else said[-200:] or f"exit code {output.exit_code}"


# -- Compose projects --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProjectContainer:
    """One container of a project."""

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
    found: dict[str, int] = {}
    for [name] in rows:
        found[name] = found.get(name, 0) + 1
    return found


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
    files = tuple(one for one in labels.get(f"{_LABEL}.project.config_files", "").split(",") if one)
    parts = sorted((_part(one) for one in containers), key=lambda one: one.name)
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
