"""A service as a Compose project on a host: its files, its health, and a start that ends well or is taken back."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quorate.hints import Advice, tools
from quorate.homelab.machines import Machine
from quorate.homelab.services.catalogue import Health, Template, services_of
from quorate.homelab.services.installations import ChosenSettings
from quorate.inside.ssh_transport import content_of, read_command
from quorate.inside.transport import Command, Output
from quorate.problems import GuestRefused, NotConfigured, NotFound, Problem, ServerFailed, TaskFailed, TimedOut
from quorate.pve.connection import Clock
from quorate.pve.tasks import Report

COMPOSE, ENVIRONMENT = "compose.yaml", ".env"
PULL_SECONDS, START_SECONDS = 1800.0, 600.0
PREFIX = "quorate-"
"""Prefix of project names, so that other projects are not mistaken for Quorate's."""
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
        """True if it runs and is not unhealthy, or has finished successfully."""
        return (self.state == "running" and "unhealthy" not in self.status) or self.status.startswith("Exited (0)")

    @property
    def crashed(self) -> bool:
        """True if its program has ended with an error, and may be about to start again."""
        return self.state in ("restarting", "exited", "dead") and not self.well


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
    command = await find_compose(machine)
    if command is None:
        raise ServerFailed(f"Docker was installed on {machine}, but Compose is missing")
    return command


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
        lines = output.text.splitlines()
        changed = [f"{line.partition(':')[0]} was changed" for line in lines if not line.endswith(": OK")]
        there = {container.service for container in await self.containers()}
        return changed + [f"{name} has no container" for name in services_of(template.compose) if name not in there]

    async def delete(self) -> None:
        await self._script('rm -rf -- "$1"', self.folder, what=f"{self.folder} could not be removed")

    # -- its containers --------------------------------------------------------------------------------------------

    async def containers(self) -> list[Container]:
        shape = "\t".join(
            ("{{.ID}}", "{{.Names}}", "{{.State}}", "{{.Status}}", "{{.Image}}", f'{{{{.Label "{_LABEL}.service"}}}}')
        )
        label = f"label={_LABEL}.project={self.name}"
        output = await self._run(self._engine, "ps", "--all", "--no-trunc", "--filter", label, "--format", shape)
        rows = [line.split("\t") for line in output.text.splitlines()]
        return sorted((Container(*row) for row in rows if len(row) == 6), key=lambda container: container.name)

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
        return [line[:WORDS] for line in output.text.splitlines()][-LOG_LINES:]

    async def _images(self) -> tuple[tuple[str, str], ...]:
        if not (ids := [container.id for container in await self.containers()]):
            return ()
        output = await self._run(self._engine, "inspect", "--format", "{{.Image}}\t{{.Config.Image}}", *ids)
        rows = [line.split("\t") for line in output.text.splitlines()]
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

    async def _script(self, script: str, *arguments: str, what: str, stdin: bytes = b"") -> None:
        _require(await self._sh(script, *arguments, stdin=stdin), what)

    async def _sh(self, script: str, *arguments: str, stdin: bytes = b"") -> Output:
        return await self._output(("/bin/sh", "-c", script, "sh", *arguments), 60.0, stdin)

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
    """A hash of the template's files; settings do not count."""
    parts = (template.compose, *(text for pair in sorted(template.files.items()) for text in pair))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _parse_environment(text: str) -> dict[str, str]:
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.lstrip().startswith("#"))
    return {name.strip().lower(): _unquote(value.strip()) for name, value in pairs}


def _unquote(value: str) -> str:
    """Remove one pair of surrounding quotes."""
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
        so_far = await job.partial_output()
        line = _words(so_far.stderr or so_far.stdout)
        if report is not None and line != reported:
            reported = line
            await report(10.0 + min(70.0, waited / 5), 100.0, f"{doing}: {line}")
    return output


def _require(output: Output, what: str) -> None:
    if output.exit_code != 0:
        complaint = (output.stderr or output.stdout).decode("utf-8", "replace").strip()[-WORDS:]
        raise GuestRefused(what, why=f"It said: {complaint}" if complaint else f"It ended with {output.exit_code}")


def _words(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip()[-200:] if lines else ""


EVERY = 3.0
CRASHES = 5
"""Looks in a row, EVERY seconds apart, that find a crashed container before the version is given up."""
HEALTH_WORDS = 200
# A page that requires a login counts as healthy. The certificate is self-signed, so it is not checked.
_ASK = """
if command -v curl > /dev/null 2>&1; then
code=$(curl -sSk --noproxy '*' --max-time 5 --output /dev/null --write-out '%{http_code}' "$1")
case $code in 2??|3??|401|403) exit 0;; esac; echo "it answers $code" >&2; exit 1
elif command -v wget > /dev/null 2>&1; then exec wget -q -T 5 -O /dev/null "$1"
else exit 127; fi
"""


async def find_health_problem(machine: Machine, template: Template, values: Mapping[str, Any]) -> str | None:
    """What is wrong with it; None if it is healthy, or has no health check."""
    health = template.health
    if health is None:
        return None
    try:
        if health.command:
            return await _run_check(machine, machine.as_root(Command(health.command)))
        port = template.port(health.port, values)
        return await (_http(machine, health, port) if health.http else _tcp(machine, port))
    except Problem as problem:
        return str(problem)


async def wait_until_healthy(
    machine: Machine,
    template: Template,
    values: Mapping[str, Any],
    clock: Clock,
    report: Report | None = None,
    project: Project | None = None,
    *,
    may_crash: bool = True,
) -> str | None:
    """Wait until it is healthy; returns what is wrong when the time is up, or when its containers keep crashing.

    The first start of a service may crash until its database is ready: then `may_crash`, and only the time counts.
    """
    seconds = template.health.seconds if template.health else 0
    begun, crashes = clock.monotonic(), 0
    while wrong := await find_health_problem(machine, template, values):
        spent = clock.monotonic() - begun
        crashed = [container for container in await project.containers() if container.crashed] if project else []
        crashes = crashes + 1 if crashed else 0
        if spent >= seconds or (crashes >= CRASHES and not may_crash):
            return wrong
        if report is not None:
            states = "".join(f"; {container.name} is {container.state}" for container in crashed)
            await report(90.0, 100.0, f"Waiting for {template.title}, {spent:.0f} of {seconds:g} s: {wrong}{states}")
        await clock.sleep(EVERY)
    return None


async def _http(machine: Machine, health: Health, port: int) -> str | None:
    url = f"{'https' if health.tls else 'http'}://127.0.0.1:{port}{health.http}"
    output = await machine.transport.run(Command(("/bin/sh", "-c", _ASK, "sh", url)), seconds=20)
    if output.exit_code == 0:
        return None
    if output.exit_code == 127:  # neither curl nor wget is installed
        return await _tcp(machine, port)
    return f"{url}: {_health_words(output.stderr) or 'no answer'}"


async def _tcp(machine: Machine, port: int) -> str | None:
    facts = await machine.collect_facts(sections=("ports",), seconds=15)
    if any((listener.protocol, listener.port) == ("tcp", port) for listener in facts.ports or ()):
        return None
    return f"Nothing listens on port {port}"


async def _run_check(machine: Machine, command: Command) -> str | None:
    output = await machine.transport.run(command, seconds=20)
    if output.exit_code == 0:
        return None
    return f"{command.argv[0]} ended with {output.exit_code}: {_health_words(output.stderr or output.stdout)}"


def _health_words(output: bytes) -> str:
    return " ".join(output.decode("utf-8", "replace").split())[-HEALTH_WORDS:]


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
        await _require_health(project, template, chosen, clock, report, may_crash=not former.images)
    except Problem as problem:
        raise await _roll_back(project, template, former, clock, done, problem) from None
    return {
        "containers": [[container.name, container.state, container.image] for container in await project.containers()],
        "health": "ok",
    }


async def _require_health(
    project: Project,
    template: Template,
    chosen: ChosenSettings,
    clock: Clock,
    report: Report | None,
    *,
    may_crash: bool,
) -> None:
    wrong = await wait_until_healthy(
        project.machine, template, chosen.values, clock, report, project, may_crash=may_crash
    )
    unwell = [
        f"{container.name} is {container.state}" for container in await project.containers() if not container.well
    ]
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
    if len(done) > 2 and (log := await _logs(project)):
        facts["log"] = log
    if former.images:  # otherwise nothing ran before
        facts[FORMER] = await _restore(project, template, former, clock)
        step = Advice(f"Look at the log; the former version {facts[FORMER]}")
    else:
        step = Advice(
            f"Fix it and install it again, or uninstall it. Its files are in {project.folder}",
            tools.service_install,
            tools.service_uninstall(service=template.id),
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
