"""Scheduled backups."""

from __future__ import annotations

from typing import Any

from pve_simulator.cluster.config_files import encode_value, written_options
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import bad_parameters, existing, failure, flatten_errors
from pve_simulator.http.routing import Call, route
from pve_simulator.storage import backup_jobs
from pve_simulator.storage.backup_jobs import BackupJobs

_NOT_OPTIONS = frozenset({"id", "starttime", "dow", "delete"})
_NOT_DELETABLE = _NOT_OPTIONS | {"schedule", "enabled", "type"}


@route("GET /cluster/backup")
def list_jobs(call: Call) -> list[dict[str, Any]]:
    jobs = call.world.part(BackupJobs)
    return [jobs.row(job_id, with_next_run=True) for job_id in jobs.all()]


@route("POST /cluster/backup")
def create(call: Call) -> None:
    _check_privileges(call)
    schedule = backup_jobs.checked_schedule(call.params, required=True)
    options = {**_options(call), "schedule": schedule}
    jobs = call.world.part(BackupJobs)
    if call.params.get("id") in jobs.all():
        raise failure(f"Job '{call.params['id']}' already exists")
    with flatten_errors():
        backup_jobs.check_options(call.params)
    jobs.add(call.params.get("id"), options)


@route("GET /cluster/backup/{id}")
def read(call: Call) -> dict[str, Any]:
    return call.world.part(BackupJobs).row(call.values["id"])


@route("PUT /cluster/backup/{id}")
def update(call: Call) -> None:
    _check_privileges(call)
    schedule = backup_jobs.checked_schedule(call.params, required=False)
    jobs = call.world.part(BackupJobs)
    options = _options(call) | ({"schedule": schedule} if schedule is not None else {})
    deleted = split_list(call.params.get("delete"))
    if not options and not deleted:
        raise failure("no options specified")
    job = existing(jobs.all().get(call.values["id"]), "no such vzdump job")
    with flatten_errors():
        for name in deleted:
            if name not in call.endpoint.parameters or name in _NOT_DELETABLE:
                raise bad_parameters({"delete": f"unknown option '{name}'"})
        changed = backup_jobs.change(job, options, deleted)
        backup_jobs.check_options(changed)
    jobs.all()[call.values["id"]] = written_options(changed)


@route("DELETE /cluster/backup/{id}")
def delete(call: Call) -> None:
    with flatten_errors():
        call.world.part(BackupJobs).remove(call.values["id"])


@route("GET /cluster/backup/{id}/included_volumes")
def included_volumes(call: Call) -> dict[str, Any]:
    job = call.world.part(BackupJobs).get(call.values["id"])
    return backup_jobs.included_volumes(call.world, job)


@route("GET /cluster/backup-info/not-backed-up")
def not_backed_up(call: Call) -> list[dict[str, Any]]:
    rows = []
    for guest in backup_jobs.not_backed_up(call.world):
        row: dict[str, Any] = {"vmid": guest.vmid, "type": guest.kind}
        if guest.kind == "lxc" or "name" in guest.config:
            row["name"] = guest.name
        rows.append(row)
    return rows


def _check_privileges(call: Call) -> None:
    backup_jobs.check_privileges(call)
    backup_jobs.check_pool(call)
    if "storage" in call.params:
        call.require(f"/storage/{call.params['storage']}", "Datastore.Allocate")


def _options(call: Call) -> dict[str, Any]:
    return {name: encode_value(value) for name, value in call.params.items() if name not in _NOT_OPTIONS}
