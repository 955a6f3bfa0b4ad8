"""Replication jobs and their runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from pve_schema.calendar_events import parse_calendar_event
from pve_simulator.clock import log_time
from pve_simulator.cluster.config_files import check_digest, digest_of, encode_value
from pve_simulator.guests.drives import disks
from pve_simulator.guests.guest import Guest, Value
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import bad_parameters, existing, failure, forbidden
from pve_simulator.http.routing import Call, Payload, route
from pve_simulator.nodes.tasks import TaskError
from pve_simulator.world import World

DEFAULT_SCHEDULE = "*/15"
_RUN_SECONDS = 3.4
_RUNNER_PERIOD = 60  # PVE looks for due jobs every minute
_MAX_CATCH_UP_RUNS = 50


@dataclass(slots=True)
class ReplicationJob:
    """One job; `options` holds everything but guest and target."""

    id: str
    guest: int
    target: str
    options: dict[str, Value] = field(default_factory=dict)
    next_sync: float = 0.0
    last_sync: int = 0
    last_try: int = 0
    fail_count: int = 0
    error: str | None = None
    duration: float | None = None
    pid: int | None = None
    run_ends: float = 0.0
    log: list[str] = field(default_factory=list)

    @property
    def number(self) -> int:
        return int(self.id.rpartition("-")[2])

    @property
    def enabled(self) -> bool:
        return not self.options.get("disable")

    def config(self) -> dict[str, Any]:
        """The job as its configuration shows it."""
        return {
            "id": self.id,
            "type": "local",
            "guest": self.guest,
            "jobnum": self.number,
            "target": self.target,
            **self.options,
        }

    def status(self, kind: str) -> dict[str, Any]:
        """The job as the node that runs it shows it; error and duration are those of the last run that ended."""
        row = self.config() | {
            "vmtype": kind,
            "last_sync": self.last_sync,
            "last_try": self.last_try,
            "fail_count": self.fail_count,
            "next_sync": 0 if math.isinf(self.next_sync) else int(self.next_sync),
        }
        known = {"error": self.error, "duration": self.duration, "pid": self.pid}
        return row | {key: value for key, value in known.items() if value is not None}


class Replication:
    """The replication jobs of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._jobs: dict[str, ReplicationJob] = {}
        self.run_seconds = _RUN_SECONDS

    @property
    def jobs(self) -> dict[str, ReplicationJob]:
        """All jobs, after running those that are due."""
        now = self._world.clock.now()
        for job in list(self._jobs.values()):
            self._run_due_jobs(job, now)
        return self._jobs

    def of_guest(self, vmid: int) -> list[ReplicationJob]:
        return [job for _, job in sorted(self.jobs.items()) if job.guest == vmid]

    def add(self, job: ReplicationJob) -> None:
        job.next_sync = next_run(self._schedule(job), self._world.clock.now())
        self._jobs[job.id] = job

    def run_soon(self, job: ReplicationJob) -> None:
        """Run the job at the runner's next cycle, not by its schedule."""
        job.next_sync = float(int(self._world.clock.now() // _RUNNER_PERIOD + 1) * _RUNNER_PERIOD)

    def schedule_now(self, job: ReplicationJob) -> None:
        """Forget the last try, which makes the job due; keep its last outcome."""
        if job.pid is not None:
            lock = f"/var/lock/pve-manager/pve-migrate-{job.guest}"
            raise failure(f"can't lock file '{lock}' - got timeout")
        job.last_try = 0
        self.run_soon(job)

    def reschedule(self, job: ReplicationJob) -> None:
        job.next_sync = next_run(self._schedule(job), self._world.clock.now())

    def remove(self, job_id: str) -> None:
        self._jobs.pop(job_id, None)

    def switch_job_target(self, guest: Guest, source: str) -> None:
        """After a migration to the replication target, replicate back to the source."""
        for job in self.of_guest(guest.vmid):
            if job.target == guest.node:
                job.target = source

    def digest(self) -> str:
        return digest_of(job.config() for job in self._jobs.values())

    @staticmethod
    def _schedule(job: ReplicationJob) -> str:
        return str(job.options.get("schedule", DEFAULT_SCHEDULE))

    def _run_due_jobs(self, job: ReplicationJob, now: float) -> None:
        for _ in range(_MAX_CATCH_UP_RUNS):
            if job.pid is not None:
                if job.run_ends > now:
                    return
                self._end(job)
            if job.next_sync > now:
                return
            if "remove_job" in job.options:
                self.remove(job.id)
                return
            if not job.enabled:
                return
            self._begin(job)
        job.next_sync = next_run(self._schedule(job), now)

    def _begin(self, job: ReplicationJob) -> None:
        at = job.next_sync
        guest = self._world.guests.get(job.guest)
        job.next_sync = next_run(self._schedule(job), at)
        if guest is None or guest.node == job.target:
            return
        job.last_try = int(at)
        job.pid, job.run_ends = self._world.nodes[guest.node].next_pid(), at + self.run_seconds
        job.log = _log(job, at, ["start replication job"])

    def _end(self, job: ReplicationJob) -> None:
        at = job.last_try
        guest = self._world.guests.get(job.guest)
        target = self._world.nodes.get(job.target)
        job.pid, job.duration = None, self.run_seconds
        if guest is None:
            return
        if target is None or not target.online or target.was_off(at):
            job.fail_count += 1
            job.error = f"command '/usr/bin/ssh root@{job.target} -- /usr/bin/true' failed: exit code 255"
            if "remove_job" not in job.options:
                job.next_sync = at + 300 * min(job.fail_count, 6)
            job.log = _log(job, at, ["start replication job", f"end replication job with error: {job.error}"])
            return
        job.fail_count, job.error, job.last_sync = 0, None, at
        job.log = _log(job, at, _run_lines(job, guest, at))


def _run_lines(job: ReplicationJob, guest: Guest, at: float) -> list[str]:
    snapshot = f"__replicate_{job.id}_{int(at)}__"
    volids = [drive.volid for drive in disks(guest.config)]
    return [
        "start replication job",
        f"guest => {guest.word} {guest.vmid}, running => {guest.pid}",
        f"volumes => {','.join(volids)}",
        *(f"create snapshot '{snapshot}' on {volid}" for volid in volids),
        *(f"incremental sync '{volid}' ({snapshot})" for volid in volids),
        "end replication job",
    ]


def _log(job: ReplicationJob, at: float, lines: list[str]) -> list[str]:
    return [f"{log_time(at)} {job.id}: {line}" for line in lines]


def replicatable_volumes(world: World, guest: Guest) -> list[str]:
    """The disks to replicate; a local disk that does not support it is an error."""
    volids = []
    for drive in disks(guest.config):
        storage = world.storages.get(drive.storage)
        if storage is None or storage.shared or "replicate=0" in drive.text.split(","):
            continue
        if storage.type != "zfspool":
            raise TaskError(f"missing replicate feature on volume '{drive.volid}'")
        volids.append(drive.volid)
    return volids


def next_run(schedule: str, after: float) -> float:
    """The next time of a schedule; a schedule without one never runs."""
    upcoming = parse_calendar_event(schedule).next_after(after)
    return math.inf if upcoming is None else float(upcoming)


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
    job_id, target, options = call.params["id"], call.params["target"], _read_options(call)
    vmid = int(job_id.partition("-")[0])
    _require_change(call, vmid)
    guest = existing(call.world.guests.get(vmid), f"Guest '{vmid}' does not exists.")
    if target not in call.world.nodes or call.world.standalone:  # a standalone node has no members
        raise failure(f"Target '{target}' does not exists.")
    if target == guest.node:
        raise failure("Source and target must not be identical")
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
    job.options.update(_read_options(call))
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
    """Mark the job; the runner cleans up and removes it in its next cycle."""
    replication = _replication(call)
    job = replication.jobs.get(call.params["id"])
    _require_change(call, int(call.params["id"].partition("-")[0]))
    if call.params.get("force"):
        if call.params.get("keep"):
            raise bad_parameters({"keep": "conflicts with parameter 'force'"})
        replication.remove(call.params["id"])
        return
    if job is None:
        raise failure(f"no such job '{call.params['id']}'")
    job.options["remove_job"] = "local" if call.params.get("keep") else "full"
    replication.run_soon(job)


@route("GET /nodes/{node}/replication")
def node_jobs(call: Call) -> list[dict[str, Any]]:
    vmid = call.params.get("guest")
    rows = []
    for _, job in sorted(_replication(call).jobs.items()):
        guest = call.world.guests.get(job.guest)
        here = guest is not None and guest.node == call.node and job.target != call.node
        if guest is not None and here and vmid in (None, job.guest) and call.allowed(f"/vms/{job.guest}", "VM.Audit"):
            rows.append(job.status(guest.kind))
    return rows


@route("GET /nodes/{node}/replication/{id}/status")
def job_status(call: Call) -> dict[str, Any]:
    job = _existing(call)
    guest = call.world.guests.get(job.guest)
    if guest is None or guest.node != call.node or job.target == call.node:
        raise failure(f"no such replication job '{job.id}'")
    _require_audit(call, job)
    return job.status(guest.kind)


@route("GET /nodes/{node}/replication/{id}/log")
def job_log(call: Call) -> Payload:
    job = _existing(call)
    if not call.allowed(f"/nodes/{call.node}", "Sys.Audit"):
        _require_audit(call, job)
    return Payload.of_lines(job.log or [_NO_LOG], call.params)


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
    return existing(_replication(call).jobs.get(call.params["id"]), missing.format(call.params["id"]))


def _require_audit(call: Call, job: ReplicationJob) -> None:
    if not call.allowed(f"/vms/{job.guest}", "VM.Audit"):
        raise forbidden()


def _require_change(call: Call, vmid: int) -> None:
    """PVE 9 requires a privilege on the guest; before, the declared one on storages was enough."""
    if call.world.version_at_least(9, 0):
        call.require(f"/vms/{vmid}", "VM.Replicate")


def _read_options(call: Call) -> dict[str, Any]:
    return {name: encode_value(call.params[name]) for name in _OPTIONS if name in call.params}
