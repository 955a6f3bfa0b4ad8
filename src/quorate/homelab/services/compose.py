"""A service as a Compose project on a host: its files in a separate folder, run by the host's own Compose."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field

from quorate.hints import Advice
from quorate.homelab.machines import Machine
from quorate.homelab.services.settings import ChosenSettings
from quorate.homelab.services.template import Template, services_of
from quorate.inside.ssh_transport import content_of, read_command
from quorate.inside.transport import Command, Output
from quorate.problems import GuestRefused, NotConfigured, NotFound, ServerFailed, TimedOut
from quorate.pve.tasks import Report

COMPOSE, ENVIRONMENT = "compose.yaml", ".env"
PULL_SECONDS, START_SECONDS = 1800.0, 600.0
PREFIX = "quorate-"
"""Of project names, so that other projects are not mistaken for ours."""
DOCKER = ("docker", "compose")
LOG_LINES = 20
WORDS = 500
_MOST = 1024 * 1024
_LABEL = "com.docker.compose"
_LOOK = """
if docker compose version > /dev/null 2>&1; then echo docker compose
elif docker-compose version > /dev/null 2>&1; then echo docker-compose
elif podman compose version > /dev/null 2>&1; then echo podman compose; fi
"""
# $1 the folder, $2 the file, $3 its mode. Atomic.
_WRITE = 'umask 077; mkdir -p -- "$1" && cat > "$1/$2.new" && chmod "$3" "$1/$2.new" && mv -f -- "$1/$2.new" "$1/$2"'
_FOLDER = 'mkdir -p -- "$1" && chown "$2" "$1" && chmod 750 "$1"'
_SUM = 'cd -- "$1" && umask 077 && shift && sha256sum -- "$@" > .quorate.sums'
_COMPARE = """
cd -- "$1" 2> /dev/null && [ -e .quorate.sums ] || exit 44
LC_ALL=C sha256sum -c .quorate.sums 2> /dev/null; exit 0
"""
_APT = """
command -v apt-get > /dev/null 2>&1 || { echo "there is no apt-get" >&2; exit 44; }
export DEBIAN_FRONTEND=noninteractive
apt-get update && apt-get install --yes --no-install-recommends docker.io docker-compose
"""


@dataclass(frozen=True, slots=True)
class Container:
    id: str
    name: str
    state: str
    status: str
    image: str
    service: str

    @property
    def well(self) -> bool:
        """It runs, or has finished successfully."""
        return (self.state == "running" and "unhealthy" not in self.status) or self.status.startswith("Exited (0)")


@dataclass(frozen=True, slots=True)
class PreviousInstallation:
    """The previous installation, so that it can be restored."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    images: tuple[tuple[str, str], ...] = ()
    """Id and name of each; a name may refer to another image by now."""

    @property
    def values(self) -> dict[str, str]:
        """Its settings, including secrets."""
        return _parse_environment(self.files.get(ENVIRONMENT, b"").decode("utf-8", "replace"))


async def find_compose(machine: Machine) -> tuple[str, ...] | None:
    """The host's Compose command: `docker compose`, `docker-compose` or `podman compose`."""
    if machine.transport.system != "posix":
        raise NotConfigured(f"{machine} is not a POSIX system", next_step="Use a Linux host")
    output = await machine.transport.run(machine.as_root(Command(("/bin/sh", "-c", _LOOK))), seconds=30)
    _require(output, f"Compose on {machine} cannot be detected")
    return tuple(output.stdout.decode().split()) or None


async def install_docker(machine: Machine, report: Report | None) -> tuple[str, ...]:
    """Install Docker with Compose from the packages of Debian or Ubuntu."""
    output = await _run_with_progress(machine, ("/bin/sh", "-c", _APT), PULL_SECONDS, report, "Docker")
    _require(output, f"Docker could not be installed on {machine}")
    found = await find_compose(machine)
    if found is None:
        raise ServerFailed(f"Docker was installed on {machine}, but Compose is missing")
    return found


def compose_missing(machine: Machine) -> NotConfigured:
    return NotConfigured(
        f"There is no Compose on {machine}",
        why="None of `docker compose`, `docker-compose` and `podman compose` works there",
        next_step=Advice("Use {docker} to install it on Debian or Ubuntu", docker=True),
    )


def project_line(command: tuple[str, ...], base: str, service: str, *argv: str) -> tuple[str, ...]:
    return (*command, "-p", f"{PREFIX}{service}", "-f", posixpath.join(base, service, COMPOSE), *argv)


class Project:
    def __init__(self, machine: Machine, command: tuple[str, ...], base: str, service: str) -> None:
        self.machine = machine
        self.command = command
        self.folder = posixpath.join(base, service)
        self.name = f"{PREFIX}{service}"
        self._base, self._service = base, service
        self._engine = "podman" if command[0] == "podman" else "docker"

    def line(self, *argv: str) -> tuple[str, ...]:
        return project_line(self.command, self._base, self._service, *argv)

    # -- its files -------------------------------------------------------------------------------------------------

    async def environment(self) -> dict[str, str]:
        """The current settings, including secrets."""
        return _parse_environment((await self._read(ENVIRONMENT) or b"").decode("utf-8", "replace"))

    async def read_previous(self, template: Template) -> PreviousInstallation:
        names = (COMPOSE, ENVIRONMENT, *template.files)
        files = {name: content for name in names if (content := await self._read(name)) is not None}
        return PreviousInstallation(files, await self._images()) if COMPOSE in files else PreviousInstallation()

    async def write(self, template: Template, chosen: ChosenSettings) -> None:
        await self._put(
            {
                COMPOSE: template.compose.encode(),
                ENVIRONMENT: environment_text(chosen).encode(),
                **{name: text.encode() for name, text in template.files.items()},
            }
        )
        for name, owner in template.folders.items():
            await self._script(
                _FOLDER, f"{self.folder}/{name}", str(owner), what=f"The folder {name} could not be created"
            )

    async def restore(self, former: PreviousInstallation) -> None:
        await self._put(former.files)
        for image, name in former.images:
            await self._run(self._engine, "tag", image, name)

    async def drift(self, template: Template) -> list[str]:
        """What was changed since the installation."""
        output = await self._sh(_COMPARE, self.folder)
        if output.exit_code == 44:
            return [f"{self.folder} is missing"]
        lines = output.stdout.decode("utf-8", "replace").splitlines()
        found = [f"{line.partition(':')[0]} was changed" for line in lines if not line.endswith(": OK")]
        there = {one.service for one in await self.containers()}
        return found + [f"{name} has no container" for name in services_of(template.compose) if name not in there]

    async def delete(self) -> None:
        await self._script('rm -rf -- "$1"', self.folder, what=f"{self.folder} could not be removed")

    # -- its containers --------------------------------------------------------------------------------------------

    async def containers(self) -> list[Container]:
        shape = "\t".join(
            ("{{.ID}}", "{{.Names}}", "{{.State}}", "{{.Status}}", "{{.Image}}", f'{{{{.Label "{_LABEL}.service"}}}}')
        )
        label = f"label={_LABEL}.project={self.name}"
        output = await self._run(self._engine, "ps", "--all", "--no-trunc", "--filter", label, "--format", shape)
        rows = [line.split("\t") for line in output.stdout.decode("utf-8", "replace").splitlines()]
        return sorted((Container(*row) for row in rows if len(row) == 6), key=lambda one: one.name)

    async def pull(self, report: Report | None) -> None:
        output = await _run_with_progress(self.machine, self.line("pull"), PULL_SECONDS, report, "Pulling the images")
        _require(output, "The images could not be pulled")

    async def up(self, report: Report | None = None) -> None:
        line = self.line("up", "--detach", "--remove-orphans")
        _require(
            await _run_with_progress(self.machine, line, START_SECONDS, report, "Starting"), "It could not be started"
        )

    async def down(self, *, volumes: bool) -> None:
        line = self.line("down", "--remove-orphans", *(("--volumes",) if volumes else ()))
        _require(await self._output(line, START_SECONDS), "It could not be taken down")

    async def logs(self) -> list[str]:
        output = await self._output(self.line("logs", "--no-color", "--tail", str(LOG_LINES)), 30.0)
        return [line[:WORDS] for line in output.stdout.decode("utf-8", "replace").splitlines()][-LOG_LINES:]

    async def _images(self) -> tuple[tuple[str, str], ...]:
        if not (ids := [one.id for one in await self.containers()]):
            return ()
        output = await self._run(self._engine, "inspect", "--format", "{{.Image}}\t{{.Config.Image}}", *ids)
        rows = [line.split("\t") for line in output.stdout.decode("utf-8", "replace").splitlines()]
        return tuple((row[0], row[1]) for row in rows if len(row) == 2 and "@" not in row[1])

    # -- how it is done --------------------------------------------------------------------------------------------

    async def _put(self, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            mode = "600" if name == ENVIRONMENT else "644"
            await self._script(_WRITE, self.folder, name, mode, what=f"{name} could not be written", stdin=content)
        await self._script(_SUM, self.folder, *files, what="The checksums could not be written")

    async def _read(self, name: str) -> bytes | None:
        path = f"{self.folder}/{name}"
        output = await self.machine.transport.run(self.machine.as_root(read_command(path, 0, _MOST)), seconds=30)
        try:
            return content_of(output, path)
        except NotFound:
            return None

    async def _script(self, script: str, *given: str, what: str, stdin: bytes = b"") -> None:
        _require(await self._sh(script, *given, stdin=stdin), what)

    async def _sh(self, script: str, *given: str, stdin: bytes = b"") -> Output:
        return await self._output(("/bin/sh", "-c", script, "sh", *given), 60.0, stdin)

    async def _run(self, *argv: str) -> Output:
        output = await self._output(argv, 60.0)
        _require(output, f"{argv[0]} {argv[1]} failed on {self.machine}")
        return output

    async def _output(self, argv: tuple[str, ...], seconds: float, stdin: bytes = b"") -> Output:
        return await self.machine.transport.run(self.machine.as_root(Command(argv, stdin)), seconds=seconds)


def environment_text(chosen: ChosenSettings) -> str:
    """Compose reads settings from here: values never become part of YAML."""
    return "".join(f"{name.upper()}='{value}'\n" for name, value in chosen.values.items())


def digest(template: Template) -> str:
    """Of the files without the settings."""
    parts = (template.compose, *(text for pair in sorted(template.files.items()) for text in pair))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _parse_environment(text: str) -> dict[str, str]:
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.lstrip().startswith("#"))
    return {name.strip().lower(): _unquote(value.strip()) for name, value in pairs}


def _unquote(value: str) -> str:
    """Without one pair of surrounding quotes."""
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


async def _run_with_progress(
    machine: Machine, argv: tuple[str, ...], seconds: float, report: Report | None, doing: str
) -> Output:
    """Run it to its end; its last line is the progress."""
    job = await machine.transport.start(machine.as_root(Command(argv)), limit=seconds)
    waited, reported = 0.0, ""
    while (output := await job.wait(1.0)) is None:
        waited += 1.0
        if waited >= seconds:
            await job.stop()
            raise TimedOut(f"{doing} did not end within {seconds:g} s", next_step="Check the host, then try again")
        said = await job.partial_output()
        line = _words(said.stderr or said.stdout)
        if report is not None and line != reported:
            reported = line
            await report(10.0 + min(70.0, waited / 5), 100.0, f"{doing}: {line}")
    return output


def _require(output: Output, what: str) -> None:
    if output.exit_code != 0:
        said = (output.stderr or output.stdout).decode("utf-8", "replace").strip()[-WORDS:]
        raise GuestRefused(what, why=f"It said: {said}" if said else f"It ended with {output.exit_code}")


def _words(said: bytes) -> str:
    lines = said.decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip()[-200:] if lines else ""
