"""Workloads on hosts: list them, look at one, read its log, and free the space of unused ones."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.selection import select
from quorate.homelab.services.installations import machine_ref
from quorate.homelab.workloads.engine import Engine
from quorate.homelab.workloads.engines import detect_engines, find_workload
from quorate.homelab.workloads.housekeeping import (
    Kind,
    UnusedObject,
    engine_on,
    find_unused,
    largest_images,
    remove,
    usage,
)
from quorate.homelab.workloads.workload import Deployment, EngineName, Workload, parse_name
from quorate.operations.plan import Action, ActionResult, Plan, StepContext
from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import NotFound, Problem
from quorate.secret import without_secrets
from quorate.tools.hosts import HostRefs
from quorate.tools.machines import machine_action, machine_label, machine_read
from quorate.tools.several_hosts import answer_each, describe_each, plan_each
from quorate.units import When, moment, parse_moment, shortlist, size

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
    toolset="workloads",
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
        engines, silent = await detect_engines(machine, homelab.clock, engine)
        rows = [
            [
                workload.engine,
                workload.name,
                workload.state,
                workload.status,
                workload.image,
                ", ".join(map(str, workload.ports)),
                workload.labels.get(COMPOSE, ""),
            ]
            for host_engine in engines
            for workload in await host_engine.list()
        ]
        about = {"host": machine.ref, "engines": {host_engine.name: host_engine.how for host_engine in engines}}
        return Table(COLUMNS, rows, len(rows), facts=about | ({"no_answer": silent} if silent else {}))

    answer = await describe_each(await select(homelab, host), describe)
    return replace(page(answer.columns, answer.rows, limit=limit, offset=offset), facts=answer.facts)


@operation(
    toolset="workloads",
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
            _, workload = await find_workload(machine, homelab.clock, name, engine)
        except NotFound:
            if not deployment:
                raise
            return {"host": machine.name, "name": name, "state": "not there", **extra}
        return {"host": machine.name, **describe_workload(workload), **extra}

    return await describe_each(await select(homelab, host), describe, IN_SHORT)


@operation(
    toolset="workloads",
    risk=Risk.LOOK_INSIDE,
    search_words="container on host logs output print docker logs podman why does it crash",
    example="host=docker01 name=whoami lines=20",
)
async def workload_logs(
    homelab: Homelab,
    host: HostRefs,
    name: Annotated[str | list[str], Meta(description="Workload or Compose project, or a list of them")],
    lines: Annotated[int, Meta(ge=1, le=1000, description="Last lines of each; 20 for several hosts")] = 50,
    since: When | None = None,
    engine: EngineChoice | None = None,
) -> dict[str, Any] | Table:
    """The last lines that workloads have printed; of LXD and Incus, the console."""
    begin = None if since is None else parse_moment(since, now=homelab.clock.time())
    names = [parse_name(text) for text in ([name] if isinstance(name, str) else name)]  # they become part of a path
    query = _LogQuery(homelab, names, isinstance(name, str), engine, begin)
    chosen = await select(homelab, host)
    if chosen.several:
        return await answer_each(chosen, partial(query.brief_table, lines=min(lines, SEVERAL_LINES)), LOG)
    return await query.answer(chosen.machines[0], lines)


@dataclass(frozen=True, slots=True)
class _LogQuery:
    homelab: Homelab
    names: list[str]
    is_single: bool
    engine: EngineName | None
    begin: float | None

    async def answer(self, machine: Machine, lines: int) -> dict[str, Any] | Table:
        """The lines of a single workload, or a table for a list or a project."""
        names = await self._members(machine)
        if names != self.names or not self.is_single:
            return await self.table(machine, lines)
        engine, workload, printed = await self._read(machine, names[0], lines)
        about = {"host": machine.name, "name": names[0], "engine": engine.name, "state": workload.state}
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
                _, workload, printed = await self._read(machine, name, lines)
                rows += [[name, workload.state, line] for line in printed]
            except Problem as problem:
                silent[name] = str(problem)
        no_answer = {"no_answer": silent} if silent else {}
        return Table(LOG, rows, len(rows), facts={"host": machine.name, **no_answer})

    async def _read(self, machine: Machine, name: str, lines: int) -> tuple[Engine, Workload, list[str]]:
        engine, workload = await find_workload(machine, self.homelab.clock, name, self.engine)
        return engine, workload, (await engine.logs(name, lines, self.begin)).splitlines()[-lines:]

    async def _members(self, machine: Machine) -> list[str]:
        """The workloads; in place of a Compose project, those of the project."""
        engines, _ = await detect_engines(machine, self.homelab.clock, self.engine)
        everything = [workload for engine in engines for workload in await engine.list()]
        members = []
        for name in self.names:
            parts = [workload.name for workload in everything if workload.labels.get(COMPOSE) == name]
            is_workload = any(workload.name == name for workload in everything)
            members += [name] if is_workload or not parts else parts
        return members


def shorten(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}… ({len(line)} characters)"


def _time(text: str) -> str:
    """The engine's own time, to the second; as it is if it cannot be read."""
    try:
        return moment(datetime.datetime.fromisoformat(text).timestamp()) if text else ""
    except ValueError:
        return text


def describe_workload(workload: Workload) -> dict[str, Any]:
    """The known facts, without empty ones."""
    facts = {
        "name": workload.name,
        "engine": workload.engine,
        "id": workload.id[:12] if len(workload.id) == 64 else workload.id,
        "state": workload.state,
        "health": workload.health,
        "status": workload.status,
        "exit_code": workload.exit_code,
        "error": workload.error,
        "image": workload.image,
        "digest": workload.digest,
        "ports": [str(port) for port in workload.ports],
        "volumes": [str(mount) for mount in workload.mounts],
        "addresses": dict(workload.addresses),
        "memory": size(workload.memory) if workload.memory else None,
        "cpus": workload.cpus,
        "restart": workload.restart,
        "restarts": workload.restarts,
        "created": _time(workload.created),
        "started": _time(workload.started),
        "command": without_secrets(shlex.join(workload.command)),
        "env": list(workload.env),
        "labels": dict(list(workload.labels.items())[:LABELS_SHOWN]),
    }
    return {name: value for name, value in facts.items() if value not in (None, "", [], {})}


IMAGES_SHOWN = 5
WASTE_SHOWN = 40
DEFAULT: tuple[Kind, ...] = ("dangling", "cache")


@operation(
    toolset="workloads",
    risk=Risk.LOOK_INSIDE,
    search_words="docker disk space usage images volumes build cache reclaimable system df what fills the disk",
    example="host=docker01",
)
async def workload_usage(homelab: Homelab, host: HostRefs) -> Table:
    """What Docker or Podman uses disk space for on hosts, how much of it is unused, and the largest images."""
    largest: dict[str, list[str]] = {}

    async def ask(machine: Machine) -> list[list[Any]]:
        engine = await engine_on(machine)
        largest[machine_label(machine)] = await largest_images(engine, IMAGES_SHOWN)
        return [list(row) for row in await usage(engine)]

    table = await answer_each(await select(homelab, host), ask, ("what", "count", "in_use", "size", "reclaimable"))
    table.facts |= {"largest_images": largest} if largest else {}
    return table


@operation(
    toolset="workloads",
    risk=Risk.DESTROY,
    shown_by=("workload_usage", "host"),
    search_words="docker prune clean up free disk space remove unused images dangling stopped containers volumes cache",
    example="host=docker01 dry_run=true",
)
async def workload_prune(
    homelab: Homelab,
    host: HostRefs,
    what: Annotated[
        list[Kind],
        Meta(description="Default: dangling (untagged images) and cache. images: all unused ones"),
    ]
    | None = None,
) -> Plan:
    """Remove unused objects, exactly those that the plan lists by id; dry_run=true shows the list."""

    async def prepare(machine: Machine) -> Action:
        engine = await engine_on(machine)
        unused = await find_unused(engine, what or DEFAULT)
        label = machine_label(machine)
        if not unused:
            return machine_read(
                machine, f"Remove nothing from {label}: everything is in use", "nothing", _remove_nothing
            )

        async def perform(context: StepContext) -> ActionResult:
            left: dict[str, str] = {}
            for entry in unused:
                await context.permit()
                if why := await remove(engine, entry):
                    left[entry.about] = why
            kept = {"kept": "; ".join(f"{name}: {why}" for name, why in left.items())} if left else {}
            return ActionResult({"removed": len(unused) - len(left), **kept})

        summary = f"Remove from {label}: {shortlist([entry.about for entry in unused], WASTE_SHOWN)}"
        return machine_action(machine, summary, f"{engine.name} remove {_ids(unused)}", perform)

    return await plan_each(homelab, host, "Remove unused items from", prepare, ("removed", "kept"))


async def _remove_nothing(_: StepContext) -> ActionResult:
    return ActionResult({"removed": 0})


def _ids(unused: list[UnusedObject]) -> str:
    by_kind: Mapping[str, list[str]] = {
        kind: [entry.id for entry in unused if entry.kind == kind] for kind in {entry.kind for entry in unused}
    }
    return "; ".join(f"{kind} {' '.join(sorted(ids))}" for kind, ids in sorted(by_kind.items()))
