"""Workloads on hosts: list them, look at one, read its log."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from quorate.command_secrets import without_secrets
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.selection import select
from quorate.homelab.services.installations import machine_ref
from quorate.homelab.workloads import request
from quorate.homelab.workloads.deployments import Deployment
from quorate.homelab.workloads.docker_shapes import shown_command
from quorate.homelab.workloads.engine import Engine
from quorate.homelab.workloads.engines import detect_engines, find_workload
from quorate.homelab.workloads.model import EngineName, Workload
from quorate.operations.hosts.parameters import HostRefs
from quorate.operations.hosts.several import answer_each, describe_each
from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.units import When, moment, parse_moment, size
from quorate.problems import NotFound, Problem

Name = Annotated[str, Meta(description="Name of the workload")]
EngineChoice = Annotated[EngineName, Meta(description="Needed only if the host has several")]


COLUMNS = ("engine", "name", "state", "status", "image", "ports", "project")
COMPOSE = "com.docker.compose.project"
LABELS_SHOWN = 40
IN_SHORT = ("engine", "state", "health", "status", "image", "digest", "ports", "restarts", "started", "deployment")
"""What is shown of a workload on several hosts."""
LOG = ("name", "state", "line")
SEVERAL_LINES = 20
LONGEST_LINE = 500


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words="containers on host docker ps podman lxc list incus what runs on this server",
    example="host=docker01",
)
async def workload_list(
    homelab: Homelab,
    host: HostRefs,
    engine: EngineChoice | None = None,
    limit: Annotated[int, Meta(ge=1, le=500)] = 100,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Containers of hosts, running or not: Docker, Podman, LXD, Incus."""

    async def describe(machine: Machine) -> Table:
        found, silent = await detect_engines(machine, homelab.clock, engine)
        rows = [
            [
                one.engine,
                one.name,
                one.state,
                one.status,
                one.image,
                ", ".join(map(str, one.ports)),
                one.labels.get(COMPOSE, ""),
            ]
            for each in found
            for one in await each.list()
        ]
        about = {"host": machine.ref, "engines": {one.name: one.how for one in found}}
        return Table(COLUMNS, rows, len(rows), facts=about | ({"no_answer": silent} if silent else {}))

    found = await describe_each(await select(homelab, host), describe)
    return replace(page(found.columns, found.rows, limit=limit, offset=offset), facts=found.facts)


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words="container on host status health ports mounts limits restarts image digest inspect docker",
    example="host=docker01 name=whoami",
)
async def workload_get(
    homelab: Homelab, host: HostRefs, name: Name, engine: EngineChoice | None = None
) -> dict[str, Any] | Table:
    """One workload: state, health, ports, volumes, limits, restarts, image and its digest."""

    async def describe(machine: Machine) -> dict[str, Any]:
        deployment = await Deployment(homelab.store, machine_ref(machine), name).state()
        extra = {"deployment": deployment} if deployment else {}
        try:
            _, found = await find_workload(machine, homelab.clock, name, engine)
        except NotFound:
            if not deployment:
                raise
            return {"host": machine.name, "name": name, "state": "not there", **extra}
        return {"host": machine.name, **describe_workload(found), **extra}

    return await describe_each(await select(homelab, host), describe, IN_SHORT)


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words="container on host logs output print docker logs podman why does it crash",
    example="host=docker01 name=whoami lines=20",
)
async def workload_logs(
    homelab: Homelab,
    host: HostRefs,
    name: Annotated[str | list[str], Meta(description="Workload, list of them, or Compose project")],
    lines: Annotated[int, Meta(ge=1, le=1000, description="Last lines of each; 20 for several hosts")] = 50,
    since: When | None = None,
    engine: EngineChoice | None = None,
) -> dict[str, Any] | Table:
    """The last lines that workloads have printed; of LXD and Incus, the console."""
    begin = None if since is None else parse_moment(since, now=homelab.clock.time())
    given = [request.name(one) for one in ([name] if isinstance(name, str) else name)]  # they become part of a path
    asked = _LogQuery(homelab, given, isinstance(name, str), engine, begin)
    chosen = await select(homelab, host)
    if chosen.several:
        return await answer_each(chosen, partial(asked.brief_table, lines=min(lines, SEVERAL_LINES)), LOG)
    return await asked.answer(chosen.machines[0], lines)


@dataclass(frozen=True, slots=True)
class _LogQuery:
    homelab: Homelab
    names: list[str]
    may_be_project: bool
    engine: EngineName | None
    begin: float | None

    async def answer(self, machine: Machine, lines: int) -> dict[str, Any] | Table:
        """The lines of a single workload, or a table for a list or a project."""
        names = await self._members(machine)
        if names != self.names or not self.may_be_project:
            return await self.table(machine, lines)
        engine, one, printed = await self._read(machine, names[0], lines)
        about = {"host": machine.name, "name": names[0], "engine": engine.name, "state": one.state}
        return about | ({"log": printed} if printed else {"note": "It has printed nothing"})

    async def brief_table(self, machine: Machine, lines: int) -> Table:
        """The lines for a table of several hosts, cut to fit. Raises a Problem if no workload can be read."""
        table = await self.table(machine, lines)
        if not table.rows and (silent := table.facts.get("no_answer")) and len(silent) == len(self.names):
            raise NotFound(next(iter(silent.values())))
        return replace(table, rows=[[*about, shorten(line)] for *about, line in table.rows])

    async def table(self, machine: Machine, lines: int) -> Table:
        rows: list[list[Any]] = []
        silent: dict[str, str] = {}
        for name in dict.fromkeys(await self._members(machine)):
            try:
                _, one, printed = await self._read(machine, name, lines)
                rows += [[name, one.state, line] for line in printed]
            except Problem as problem:
                silent[name] = str(problem)
        no_answer = {"no_answer": silent} if silent else {}
        return Table(LOG, rows, len(rows), facts={"host": machine.name, **no_answer})

    async def _read(self, machine: Machine, name: str, lines: int) -> tuple[Engine, Workload, list[str]]:
        engine, one = await find_workload(machine, self.homelab.clock, name, self.engine)
        return engine, one, (await engine.logs(name, lines, self.begin)).splitlines()[-lines:]

    async def _members(self, machine: Machine) -> list[str]:
        """The workloads of a Compose project where the name is that of a project; else those that are named."""
        if not self.may_be_project:
            return self.names
        found, _ = await detect_engines(machine, self.homelab.clock, self.engine)
        everything = [one for each in found for one in await each.list()]
        [name] = self.names
        if any(one.name == name for one in everything):
            return self.names
        return [one.name for one in everything if one.labels.get(COMPOSE) == name] or self.names


def shorten(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}… ({len(line)} characters)"


def _time(text: str) -> str:
    """The engine's own time, to the second; as it is if it cannot be read."""
    try:
        return moment(datetime.datetime.fromisoformat(text).timestamp()) if text else ""
    except ValueError:
        return text


def describe_workload(one: Workload) -> dict[str, Any]:
    """The known facts, without empty ones."""
    facts = {
        "name": one.name,
        "engine": one.engine,
        "id": one.id[:12] if len(one.id) == 64 else one.id,
        "state": one.state,
        "health": one.health,
        "status": one.status,
        "exit_code": one.exit_code,
        "error": one.error,
        "image": one.image,
        "digest": one.digest,
        "ports": [str(port) for port in one.ports],
        "volumes": [str(mount) for mount in one.mounts],
        "addresses": dict(one.addresses),
        "memory": size(one.memory) if one.memory else None,
        "cpus": one.cpus,
        "restart": one.restart,
        "restarts": one.restarts,
        "created": _time(one.created),
        "started": _time(one.started),
        "command": without_secrets(shown_command(one.command)),
        "env": list(one.env),
        "labels": dict(list(one.labels.items())[:LABELS_SHOWN]),
    }
    return {name: value for name, value in facts.items() if value not in (None, "", [], {})}
