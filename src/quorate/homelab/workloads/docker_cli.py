"""Docker and Podman through their own commands, if their socket cannot be reached."""

from __future__ import annotations

from typing import Any

from quorate.documents import Unreadable, read_json
from quorate.homelab.machines import Machine
from quorate.homelab.workloads.docker_api import LOG_BYTES, PULL_SECONDS, STOP_SECONDS
from quorate.homelab.workloads.docker_shapes import RESTARTS_ON_FAILURE, digest_of, parse_container
from quorate.homelab.workloads.engine import Engine
from quorate.homelab.workloads.model import EngineName, Mount, Power, Spec, Workload
from quorate.inside.transport import Command, Output
from quorate.problems import Conflict, NotFound, Problem, ServerFailed
from quorate.pve.clock import Clock
from quorate.pve.tasks import Report

MOST = 1024 * 1024
_ABSENT = ("No such container", "no such container", "No such object", "no such object", "No such image",
           "image not known", "no container with name or ID")  # fmt: skip
_TAKEN = ("is already in use", "already exists")


class DockerCli(Engine):
    def __init__(self, name: EngineName, machine: Machine, clock: Clock, *, root: bool) -> None:
        super().__init__(name, f"the command {name} by {machine.transport.description}", clock)
        self._machine = machine
        self._root = root

    def objection(self, spec: Spec) -> str | None:
        if any("\n" in value for value in spec.env.values()):
            return "Its command does not accept line breaks in the environment"
        if any(set(one.source + one.path) & set(',"\n') for one in spec.mounts):
            return "Its command does not accept commas or quotes in volume paths"
        return None

    async def check(self) -> None:
        """Raises a Problem if it does not answer: the daemon is missing, or access is denied."""
        await self._run("ps", "--quiet", "--last", "1")

    async def list(self) -> list[Workload]:
        ids = (await self._text("ps", "--all", "--quiet", "--no-trunc")).split()
        return sorted((parse_container(self.name, one) for one in await self._inspect(*ids)), key=lambda one: one.name)

    async def find(self, name: str) -> Workload | None:
        try:
            found = await self._inspect(name)
        except NotFound:
            return None
        if not found or str(found[0].get("Name", "")).lstrip("/") != name:
            return None
        try:
            images = await self._query("image", "inspect", str(found[0]["Image"]))
        except Problem:
            images = ({},)
        return parse_container(self.name, found[0], digest_of(images[0]))

    async def logs(self, name: str, lines: int, since: float | None = None) -> str:
        some = () if since is None else ("--since", str(int(since)))
        output = await self._run("logs", "--tail", str(lines), *some, name, keep=LOG_BYTES)
        while (output.stdout_cut or output.stderr_cut) and lines > 1:  # what is cut off is the end, which is the newest
            lines //= 2
            output = await self._run("logs", "--tail", str(lines), *some, name, keep=LOG_BYTES)
        return (output.stdout + output.stderr).decode("utf-8", "replace")

    async def has_image(self, image: str) -> bool:
        try:
            await self._run("image", "inspect", image)
        except NotFound:
            return False
        return True

    async def pull(self, image: str, report: Report | None) -> None:
        if report is not None:
            await report(0.0, 100.0, f"{image}: pulling")
        await self._run("pull", "--quiet", image, seconds=PULL_SECONDS)

    async def create(self, spec: Spec, report: Report | None) -> tuple[str, ...]:
        del report
        restart = f"on-failure:{RESTARTS_ON_FAILURE}" if spec.restart == "on-failure" else spec.restart
        argv = ["create", "--name", spec.name, "--restart", restart, "--pull", "never"]
        for port in spec.ports:
            argv += ["--publish", str(port)]
        for one in spec.mounts:
            argv += ["--mount", _mount(one)]
        for name, value in spec.labels.items():
            argv += ["--label", f"{name}={value}"]
        argv += ["--memory", f"{spec.memory}b"] if spec.memory else []
        argv += ["--cpus", f"{spec.cpus:g}"] if spec.cpus else []
        argv += ["--network", spec.network] if spec.network else []
        # On standard input: a command line would be visible to every user there.
        argv += ["--env-file", "/dev/stdin"] if spec.env else []
        given = "".join(f"{name}={value}\n" for name, value in spec.env.items()).encode()
        output = await self._run(*argv, spec.image, *spec.command, stdin=given)
        return tuple(output.stderr.decode("utf-8", "replace").strip().splitlines())

    async def power(self, name: str, action: Power) -> None:
        grace = () if action == "start" else ("--time", str(STOP_SECONDS))
        await self._run(action, *grace, name, seconds=STOP_SECONDS + 30.0)

    async def rename(self, name: str, new: str) -> None:
        await self._run("rename", name, new)

    async def remove(self, name: str, *, volumes: bool = False) -> None:
        await self._run("rm", "--force", *(("--volumes",) if volumes else ()), name, seconds=STOP_SECONDS + 30.0)

    async def _inspect(self, *names: str) -> tuple[dict[str, Any], ...]:
        return await self._query("container", "inspect", *names) if names else ()

    async def _query(self, *argv: str) -> tuple[dict[str, Any], ...]:
        try:
            found: tuple[dict[str, Any], ...] = read_json(await self._text(*argv), tuple[dict[str, Any], ...])
        except Unreadable as fault:
            raise ServerFailed(f"The output of {self.name} {argv[0]} inspect {fault}") from None
        return found

    async def _text(self, *argv: str) -> str:
        output = await self._run(*argv)
        if output.stdout_cut:
            raise ServerFailed(f"The output of {self.name} is too long", why=f"It exceeds {MOST} bytes")
        return output.stdout.decode("utf-8", "replace")

    async def _run(self, *argv: str, stdin: bytes = b"", seconds: float = 30.0, keep: int = MOST) -> Output:
        command = Command((self.name, *argv), stdin=stdin)
        output = await self._machine.transport.run(
            self._machine.as_root(command) if self._root else command, seconds=seconds, keep=keep
        )
        if output.exit_code == 0:
            return output
        said = output.stderr.decode("utf-8", "replace").strip()[-500:]
        kind = (
            NotFound if any(one in said for one in _ABSENT)
            else Conflict if any(one in said for one in _TAKEN)
            else ServerFailed
        )  # fmt: skip
        raise kind(f"{self.name} {argv[0]} failed", why=f"It said: {said}")


def _mount(one: Mount) -> str:
    kind = "bind" if one.is_path else "volume"
    return f"type={kind},source={one.source},target={one.path}" + (",readonly" if one.read_only else "")
