"""Storage replication: jobs, their state, and their runs at the scheduled times.

Nothing runs in the background: whoever looks makes up for the runs that were due since the last look.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from quorate.sim.calendar_events import parse_calendar_event
from quorate.sim.config_files import digest_of
from quorate.sim.disks import disks
from quorate.sim.guests import Guest, Value
from quorate.sim.refusals import failure
from quorate.sim.tasks import TaskError
from quorate.sim.world import World

DEFAULT_SCHEDULE = "*/15"
_RUN_SECONDS = 3.4
_RUNNER_PERIOD = 60  # PVE looks for due jobs every minute
_MOST_RUNS_AT_ONCE = 50


@dataclass(slots=True)
class ReplicationJob:
    """One job; `options` holds what was given beyond guest and target."""

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
    """The part of a world that keeps the jobs."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._jobs: dict[str, ReplicationJob] = {}
        self.run_seconds = _RUN_SECONDS

    @property
    def jobs(self) -> dict[str, ReplicationJob]:
        """All jobs, with everything done that was due by now."""
        now = self._world.clock.now()
        for job in list(self._jobs.values()):
            self._catch_up(job, now)
        return self._jobs

    def of_guest(self, vmid: int) -> list[ReplicationJob]:
        return [job for _, job in sorted(self.jobs.items()) if job.guest == vmid]

    def add(self, job: ReplicationJob) -> None:
        job.next_sync = next_run(self._schedule(job), self._world.clock.now())
        self._jobs[job.id] = job

    def run_soon(self, job: ReplicationJob) -> None:
        """The next look of the runner, not the schedule, decides when."""
        job.next_sync = _next_minute(self._world.clock.now())

    def schedule_now(self, job: ReplicationJob) -> None:
        """The last try is forgotten, which makes the job due; its last outcome stays."""
        if job.pid is not None:
            lock = f"/var/lock/pve-manager/pve-migrate-{job.guest}"
            raise failure(f"can't lock file '{lock}' - got timeout")
        job.last_try = 0
        self.run_soon(job)

    def reschedule(self, job: ReplicationJob) -> None:
        job.next_sync = next_run(self._schedule(job), self._world.clock.now())

    def remove(self, job_id: str) -> None:
        self._jobs.pop(job_id, None)

    def guest_moved(self, guest: Guest, source: str) -> None:
        """A guest that went to where it is replicated to is replicated back from there."""
        for job in self.of_guest(guest.vmid):
            if job.target == guest.node:
                job.target = source

    def digest(self) -> str:
        return digest_of(job.config() for job in self._jobs.values())

    @staticmethod
    def _schedule(job: ReplicationJob) -> str:
        return str(job.options.get("schedule", DEFAULT_SCHEDULE))

    def _catch_up(self, job: ReplicationJob, now: float) -> None:
        for _ in range(_MOST_RUNS_AT_ONCE):
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
        if target is None or not target.online:
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
    stamp = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"
    return [f"{stamp} {job.id}: {line}" for line in lines]


def replicatable_volumes(world: World, guest: Guest) -> list[str]:
    """The disks that would be replicated; a local disk that cannot be is an error."""
    found = []
    for drive in _replicated_drives(guest):
        storage = world.storages.get(drive[0])
        if storage is None or storage.shared:
            continue
        if storage.type != "zfspool":
            raise TaskError(f"missing replicate feature on volume '{drive[1]}'")
        found.append(drive[1])
    return found


def _replicated_drives(guest: Guest) -> Iterator[tuple[str, str]]:
    for drive in disks(guest.config):
        if "replicate=0" not in drive.text.split(","):
            yield drive.storage, drive.volid


def next_run(schedule: str, after: float) -> float:
    """The next time of a schedule; one that names no time to come waits for ever."""
    upcoming = parse_calendar_event(schedule).next_after(after)
    return math.inf if upcoming is None else float(upcoming)


def _next_minute(now: float) -> float:
    return float(int(now // _RUNNER_PERIOD + 1) * _RUNNER_PERIOD)
