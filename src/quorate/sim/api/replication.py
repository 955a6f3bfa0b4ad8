"""Replication: the jobs of the cluster, and their state on the node that runs them."""

from __future__ import annotations

from typing import Any

from quorate.sim.calendar_events import calendar_error
from quorate.sim.config_files import check_digest, split_list, stored
from quorate.sim.refusals import Refusal, bad_parameters, failure, forbidden
from quorate.sim.replication import Replication, ReplicationJob, replicatable_volumes
from quorate.sim.routing import Answer, Call, route

_OPTIONS = ("comment", "disable", "rate", "remove_job", "schedule", "source")
_FIXED = ("id", "type", "target", "guest", "jobnum")
_NO_LOG = "unable to open file - No such file or directory"


@route("GET /cluster/replication")
def list_jobs(call: Call) -> list[dict[str, Any]]:
    jobs = sorted(_replication(call).jobs.items())
    return [job.config() for _, job in jobs if call.allowed(f"/vms/{job.guest}", "VM.Audit")]


@route("GET /cluster/replication/{id}")
def read_job(call: Call) -> dict[str, Any]:
    job = _existing(call)
    _require_audit(call, job)
    return job.config() | {"digest": _replication(call).digest()}


@route("POST /cluster/replication")
def create_job(call: Call) -> None:
    job_id, target, options = call.params["id"], call.params["target"], _given(call)
    vmid = int(job_id.partition("-")[0])
    _require_change(call, vmid)
    guest = call.world.guests.get(vmid)
    if guest is None:
        raise failure(f"Guest '{vmid}' does not exists.")
    if target not in call.world.nodes:
        raise failure(f"Target '{target}' does not exists.")
    if not replicatable_volumes(call.world, guest):
        raise failure("No replicatable volumes found")
    replication = _replication(call)
    if job_id in replication.jobs:
        raise failure(f"replication job '{job_id}' already exists")
    if any(job.target == target for job in replication.of_guest(vmid)):
        raise failure(f"replication job for guest '{vmid}' to target '{target}' already exists")
    replication.add(ReplicationJob(job_id, vmid, target, options))


@route("PUT /cluster/replication/{id}")
def change_job(call: Call) -> None:
    replication = _replication(call)
    job = _job(call, "no such job '{}'")
    _require_change(call, job.guest)
    check_digest(replication.digest(), call.params.get("digest"))
    job.options.update(_given(call))
    for name in split_list(call.params.get("delete")):
        if name in _FIXED:
            raise failure(f"unable to delete required option '{name}'")
        if name not in _OPTIONS:
            raise failure(f"no such option '{name}'")
        job.options.pop(name, None)
    if "schedule" in call.params:
        replication.reschedule(job)


@route("DELETE /cluster/replication/{id}")
def delete_job(call: Call) -> None:
    """The job is only marked; the runner cleans up and removes it at its next look."""
    replication = _replication(call)
    found = replication.jobs.get(call.params["id"])
    _require_change(call, int(call.params["id"].partition("-")[0]))
    if call.params.get("force"):
        if call.params.get("keep"):
            raise bad_parameters({"keep": "conflicts with parameter 'force'"})
        replication.remove(call.params["id"])
        return
    if found is None:
        raise failure(f"no such job '{call.params['id']}'")
    found.options["remove_job"] = "local" if call.params.get("keep") else "full"
    replication.run_soon(found)


@route("GET /nodes/{node}/replication")
def node_jobs(call: Call) -> list[dict[str, Any]]:
    wanted = call.params.get("guest")
    rows = []
    for _, job in sorted(_replication(call).jobs.items()):
        guest = call.world.guests.get(job.guest)
        here = guest is not None and guest.node == call.node and job.target != call.node
        if guest is not None and here and wanted in (None, job.guest) and call.allowed(f"/vms/{job.guest}", "VM.Audit"):
            rows.append(job.status(guest.kind))
    return rows


@route("GET /nodes/{node}/replication/{id}")
def job_index(_call: Call) -> list[dict[str, str]]:
    return [{"name": name} for name in ("schedule_now", "log", "status")]


@route("GET /nodes/{node}/replication/{id}/status")
def job_status(call: Call) -> dict[str, Any]:
    job = _existing(call)
    guest = call.world.guests.get(job.guest)
    if guest is None or guest.node != call.node or job.target == call.node:
        raise _no_such_job(job.id)
    _require_audit(call, job)
    return job.status(guest.kind)


@route("GET /nodes/{node}/replication/{id}/log")
def job_log(call: Call) -> Answer:
    job = _existing(call)
    if not call.allowed(f"/nodes/{call.node}", "Sys.Audit"):
        _require_audit(call, job)
    lines = job.log or [_NO_LOG]
    start, limit = call.params.get("start", 0), call.params.get("limit", 50) or len(lines)
    rows = [{"n": number, "t": text} for number, text in enumerate(lines, 1)]
    return Answer(rows[start : start + limit], total=len(lines))


@route("POST /nodes/{node}/replication/{id}/schedule_now")
def schedule_now(call: Call) -> None:
    job = _existing(call)
    _require_change(call, job.guest)
    _replication(call).schedule_now(job)


def _replication(call: Call) -> Replication:
    return call.world.part(Replication)


def _existing(call: Call) -> ReplicationJob:
    return _job(call, "no such replication job '{}'")


def _job(call: Call, missing: str) -> ReplicationJob:
    job = _replication(call).jobs.get(call.params["id"])
    if job is None:
        raise failure(missing.format(call.params["id"]))
    return job


def _no_such_job(job_id: str) -> Refusal:
    return failure(f"no such replication job '{job_id}'")


def _require_audit(call: Call, job: ReplicationJob) -> None:
    if not call.allowed(f"/vms/{job.guest}", "VM.Audit"):
        raise forbidden()


def _require_change(call: Call, vmid: int) -> None:
    """PVE 9 asks for a right on the guest; before, the declared right on storages was enough."""
    if call.world.version_at_least(9, 0):
        call.require(f"/vms/{vmid}", "VM.Replicate")


def _given(call: Call) -> dict[str, Any]:
    problem = calendar_error(call.params["schedule"]) if "schedule" in call.params else None
    if problem is not None:
        raise bad_parameters({"schedule": problem})
    return {name: stored(call.params[name]) for name in _OPTIONS if name in call.params}
