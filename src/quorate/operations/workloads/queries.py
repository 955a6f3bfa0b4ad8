"""Workloads on hosts: list them, look at one, read its log."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

from msgspec import Meta

from quorate.command_secrets import without_secrets
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine, machine
from quorate.homelab.services.installations import place_of
from quorate.homelab.workloads import request
from quorate.homelab.workloads.deployments import Deployment
from quorate.homelab.workloads.docker_shapes import shown_command
from quorate.homelab.workloads.engines import survey, with_workload
from quorate.homelab.workloads.model import EngineName, Workload
from quorate.operations.hosts.parameters import HostRef
from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.units import When, moment, parse_moment, size
from quorate.problems import NotFound, Problem

Name = Annotated[str, Meta(description="Name of the workload")]
EngineChoice = Annotated[EngineName, Meta(description="Needed only where the host has several")]


COLUMNS = ("engine", "name", "state", "status", "image", "ports", "project")
COMPOSE = "com.docker.compose.project"
LABELS_SHOWN = 40


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words="containers on host docker ps podman lxc list incus what runs on this server",
    example="host=docker01",
)
async def workload_list(
    home: Homelab,
    host: HostRef,
    engine: EngineChoice | None = None,
    limit: Annotated[int, Meta(ge=1, le=500)] = 100,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Containers of a host, running or not: Docker, Podman, LXD, Incus."""
    there, silent = await survey(await machine(home, host), home.clock, engine)
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
        for each in there
        for one in await each.list()
    ]
    table = page(COLUMNS, rows, limit=limit, offset=offset)
    table.facts = {"host": host, "engines": {one.name: one.how for one in there}}
    table.facts |= {"no_answer": silent} if silent else {}
    return table


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words="container on host status health ports mounts limits restarts image digest inspect docker",
    example="host=docker01 name=whoami",
)
async def workload_get(home: Homelab, host: HostRef, name: Name, engine: EngineChoice | None = None) -> dict[str, Any]:
    """One workload: state, health, ports, volumes, limits, restarts, image and its digest."""
    place = await machine(home, host)
    deployment = await Deployment(home.store, place_of(place), name).state()
    beside = {"deployment": deployment} if deployment else {}
    try:
        _, found = await with_workload(place, home.clock, name, engine)
    except NotFound:
        if not deployment:
            raise
        return {"host": place.name, "name": name, "state": "not there", **beside}
    return {"host": place.name, **described(found), **beside}


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words="container on host logs output print docker logs podman why does it crash",
    example="host=docker01 name=whoami lines=20",
)
async def workload_logs(
    home: Homelab,
    host: HostRef,
    name: Annotated[str | list[str], Meta(description="Workload, list of them, or Compose project")],
    lines: Annotated[int, Meta(ge=1, le=1000, description="Last ones of each")] = 50,
    since: When | None = None,
    engine: EngineChoice | None = None,
) -> dict[str, Any] | Table:
    """The last lines that workloads have printed; of LXD and Incus, the console."""
    place = await machine(home, host)
    begin = None if since is None else parse_moment(since, now=home.clock.time())
    names = [request.name(one) for one in ([name] if isinstance(name, str) else name)]  # they become parts of paths
    if isinstance(name, str) and (members := await _members(place, home, name, engine)):
        names = members
    elif isinstance(name, str):
        found, one = await with_workload(place, home.clock, name, engine)
        told = (await found.logs(name, lines, begin)).splitlines()[-lines:]
        about = {"host": place.name, "name": name, "engine": found.name, "state": one.state}
        return about | ({"log": told} if told else {"note": "It has printed nothing"})
    rows: list[list[Any]] = []
    silent: dict[str, str] = {}
    for each in dict.fromkeys(names):
        try:
            found, one = await with_workload(place, home.clock, each, engine)
            rows += [[each, one.state, line] for line in (await found.logs(each, lines, begin)).splitlines()[-lines:]]
        except Problem as problem:
            silent[each] = str(problem)
    table = page(("name", "state", "line"), rows, limit=len(rows) or 1, offset=0)
    table.facts = {"host": place.name, **({"no_answer": silent} if silent else {})}
    return table


async def _members(place: Machine, home: Homelab, name: str, engine: EngineName | None) -> list[str]:
    """The workloads of a Compose project; none if a workload has that name, or no project."""
    there, _ = await survey(place, home.clock, engine)
    everything = [one for each in there for one in await each.list()]
    if any(one.name == name for one in everything):
        return []
    return [one.name for one in everything if one.labels.get(COMPOSE) == name]


def _time(text: str) -> str:
    """The engine's own time, to the second; as it is if it cannot be read."""
    try:
        return moment(datetime.datetime.fromisoformat(text).timestamp()) if text else ""
    except ValueError:
        return text


def described(one: Workload) -> dict[str, Any]:
    """What is known of it, without what is empty."""
    told = {
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
    return {name: value for name, value in told.items() if value not in (None, "", [], {})}
