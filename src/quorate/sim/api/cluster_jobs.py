"""Scheduled jobs of the cluster: what a schedule means, and the syncing of realms."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from quorate.sim.calendar_events import calendar_error, parse_calendar_event
from quorate.sim.datacenter import Datacenter
from quorate.sim.refusals import bad_parameters, failure
from quorate.sim.routing import Call, route
from quorate.sim.sections import Section, SectionFile, options_of

_ONE = "/cluster/jobs/realm-sync/{id}"


def _check_schedule(call: Call) -> None:
    problem = calendar_error(call.params["schedule"])
    if problem is not None:
        raise bad_parameters({"schedule": problem})


@route("GET /cluster/jobs/schedule-analyze")
def analyze_schedule(call: Call) -> list[dict[str, Any]]:
    """The next times at which a schedule would run."""
    _check_schedule(call)
    event = parse_calendar_event(call.params["schedule"])
    moment = float(call.params.get("starttime", call.world.clock.now()))
    rows: list[dict[str, Any]] = []
    for _ in range(call.params.get("iterations", 10)):
        following = event.next_after(moment)
        if following is None:
            break
        utc = datetime.fromtimestamp(following, UTC).strftime("%a %b %e %H:%M:%S %Y")
        rows.append({"timestamp": int(following), "utc": utc})
        moment = following
    return rows


def _file(call: Call) -> SectionFile:
    return call.world.part(Datacenter).realm_sync_jobs


@route("GET /cluster/jobs/realm-sync")
def list_jobs(call: Call) -> list[Section]:
    now = call.world.clock.now()
    rows = []
    for name, job in _file(call).sections.items():
        following = parse_calendar_event(job["schedule"]).next_after(now)
        rows.append({"id": name, **job, **({"next-run": int(following)} if following else {})})
    return rows


@route(f"GET {_ONE}")
def one_job(call: Call) -> Section:
    return _existing(call)


@route(f"POST {_ONE}")
def create_job(call: Call) -> None:
    """Errors inside PVE's lock of this file keep no prefix, but lose their form."""
    _check_schedule(call)
    file, name, realms = _file(call), call.values["id"], call.world.access.realms
    if name in file.sections:
        raise failure(f"Job '{name}' already exists")
    given = file.new_section("realm-sync", options_of(call.params, "id"))
    realm = given.get("realm", "")
    if realm not in realms:
        raise failure(f"400 Parameter verification failed.\nrealm: No such realm '{realm}'")
    if realms[realm].type not in ("ldap", "ad"):
        raise failure("400 Parameter verification failed.\nrealm: Only LDAP/AD realms can be synced.")
    file.sections[name] = given


@route(f"PUT {_ONE}")
def update_job(call: Call) -> None:
    _check_schedule(call)
    file, name = _file(call), call.values["id"]
    if name not in file.sections:
        raise failure("no such realm-sync job")
    file.change(file.sections[name], options_of(call.params, "id", "delete"), call.params.get("delete"))


@route(f"DELETE {_ONE}")
def delete_job(call: Call) -> None:
    name = call.values["id"]
    if name not in _file(call).sections:
        raise failure(f"400 Parameter verification failed.\nid: No such job '{name}'")
    del _file(call).sections[name]


def _existing(call: Call) -> Section:
    name = call.values["id"]
    job = _file(call).sections.get(name)
    if job is None:
        raise bad_parameters({"id": f"No such job '{name}'"})
    return job
