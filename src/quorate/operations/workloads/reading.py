"""Workloads on hosts: list them, look at one, read its log."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

from msgspec import Meta

from quorate.command_secrets import without_secrets
from quorate.homelab.home import Homelab
from quorate.homelab.machines import machine
from quorate.homelab.services.installed import place_of
from quorate.homelab.workloads.docker_shapes import shown_command
from quorate.homelab.workloads.engines import survey, with_workload
from quorate.homelab.workloads.model import Workload
from quorate.homelab.workloads.underway import Underway
from quorate.operations.hosts.parameters import HostRef
from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.units import When, moment, parse_moment, size
from quorate.operations.workloads.parameters import EngineChoice, Name
from quorate.problems import NotFound

COLUMNS = ("engine", "name", "state", "status", "image", "ports")
LABELS_SHOWN = 40


@operation(risk=Risk.LOOK_INSIDE)
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
        [one.engine, one.name, one.state, one.status, one.image, ", ".join(map(str, one.ports))]
        for each in there
        for one in await each.list()
    ]
    table = page(COLUMNS, rows, limit=limit, offset=offset)
    table.facts = {"host": host, "engines": {one.name: one.how for one in there}}
    table.facts |= {"no_answer": silent} if silent else {}
    return table


@operation(risk=Risk.LOOK_INSIDE)
async def workload_get(home: Homelab, host: HostRef, name: Name, engine: EngineChoice | None = None) -> dict[str, Any]:
    """One workload: state, health, ports, volumes, limits, restarts, image and its digest."""
    place = await machine(home, host)
    deployment = await Underway(home.store, place_of(place), name).told()
    beside = {"deployment": deployment} if deployment else {}
    try:
        _, found = await with_workload(place, home.clock, name, engine)
    except NotFound:
        if not deployment:
            raise
        return {"host": place.name, "name": name, "state": "not there", **beside}
    return {"host": place.name, **described(found), **beside}


@operation(risk=Risk.LOOK_INSIDE)
async def workload_logs(
    home: Homelab,
    host: HostRef,
    name: Name,
    lines: Annotated[int, Meta(ge=1, le=1000)] = 50,
    since: When | None = None,
    engine: EngineChoice | None = None,
) -> dict[str, Any]:
    """The last lines that a workload has printed; of LXD and Incus, what stands on its console."""
    place = await machine(home, host)
    begin = None if since is None else parse_moment(since, now=home.clock.time())
    found, one = await with_workload(place, home.clock, name, engine)
    told = (await found.logs(name, lines, begin)).splitlines()[-lines:]
    about = {"host": place.name, "name": name, "engine": found.name, "state": one.state}
    return about | ({"log": told} if told else {"note": "It has printed nothing"})


def _time(text: str) -> str:
    """The engine's own time, to the second; as it is if it cannot be read."""
    try:
        return moment(datetime.datetime.fromisoformat(text).timestamp()) if text else ""
    except ValueError:
        return text


def described(one: Workload) -> dict[str, Any]:
    """What is known of it; what is empty is left out."""
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
