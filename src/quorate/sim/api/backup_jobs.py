"""Backup jobs of the cluster, and guests without one."""

from __future__ import annotations

from typing import Any

from quorate.sim import backup_jobs, backup_selection
from quorate.sim.backup_jobs import BackupJobs
from quorate.sim.config_files import split_list, stored
from quorate.sim.refusals import bad_parameters
from quorate.sim.routing import Call, route

_NOT_OPTIONS = frozenset({"id", "starttime", "dow", "delete"})


@route("GET /cluster/backup")
def list_jobs(call: Call) -> list[dict[str, Any]]:
    jobs = call.world.part(BackupJobs)
    return [jobs.row(job_id) for job_id in jobs.all()]


@route("POST /cluster/backup")
def create(call: Call) -> None:
    schedule = backup_jobs.checked_schedule(call.params, required=True)
    _check(call, call.params, complete=True)
    options = {**_options(call), "schedule": schedule}
    call.world.part(BackupJobs).add(call.params.get("id"), options)


@route("GET /cluster/backup/{id}")
def read(call: Call) -> dict[str, Any]:
    return call.world.part(BackupJobs).row(call.values["id"])


@route("PUT /cluster/backup/{id}")
def update(call: Call) -> None:
    schedule = backup_jobs.checked_schedule(call.params, required=False)
    _check(call, call.params, complete=False)
    jobs = call.world.part(BackupJobs)
    job = jobs.get(call.values["id"])
    options = _options(call) | ({"schedule": schedule} if schedule is not None else {})
    deleted = split_list(call.params.get("delete"))
    for name in deleted:
        if name in options:
            raise bad_parameters({name: "cannot be set and deleted at the same time"})
    changed = backup_jobs.change(job, options, deleted)
    backup_selection.check_options(changed)
    jobs.all()[call.values["id"]] = changed


@route("DELETE /cluster/backup/{id}")
def delete(call: Call) -> None:
    call.world.part(BackupJobs).remove(call.values["id"])


@route("GET /cluster/backup/{id}/included_volumes")
def included_volumes(call: Call) -> dict[str, Any]:
    job = call.world.part(BackupJobs).get(call.values["id"])
    return backup_jobs.included_volumes(call.world, job)


@route("GET /cluster/backup-info")
def info_index(_call: Call) -> list[dict[str, str]]:
    return [{"subdir": "not-backed-up"}]


@route("GET /cluster/backup-info/not-backed-up")
def not_backed_up(call: Call) -> list[dict[str, Any]]:
    rows = []
    for guest in backup_jobs.not_backed_up(call.world):
        row: dict[str, Any] = {"vmid": guest.vmid, "type": guest.kind}
        if guest.kind == "lxc" or "name" in guest.config:
            row["name"] = guest.name
        rows.append(row)
    return rows


def _check(call: Call, params: dict[str, Any], *, complete: bool) -> None:
    backup_selection.check_rights(call)
    backup_selection.check_options(params, complete=complete)
    if "storage" in params:
        call.require(f"/storage/{params['storage']}", "Datastore.Allocate")


def _options(call: Call) -> dict[str, Any]:
    return {name: stored(value) for name, value in call.params.items() if name not in _NOT_OPTIONS}
