"""Backup jobs: what is backed up when, and which guests nobody has thought of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.sim import archives, backup_selection, disks
from quorate.sim.calendar_events import calendar_error, parse_calendar_event
from quorate.sim.drives import new_uuid
from quorate.sim.guests import Guest, Kind
from quorate.sim.refusals import bad_parameters, failure
from quorate.sim.world import World

Options = dict[str, Any]
# The API shows these taken apart.
_PROPERTY_STRINGS = frozenset({"prune-backups", "fleecing", "performance"})
_SELECTIONS = ("vmid", "all", "pool")


class BackupJobs:
    """The part of a world that jobs.cfg holds, as far as backups go."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._jobs: dict[str, Options] = {}

    def all(self) -> dict[str, Options]:
        return self._jobs

    def get(self, job_id: str) -> Options:
        """The job, or PVE's complaint."""
        job = self._jobs.get(job_id)
        if job is None:
            raise bad_parameters({"id": f"No such job '{job_id}'"})
        return job

    def add(self, job_id: str | None, options: Options) -> None:
        if job_id is None:
            job_id = new_uuid(self._world, "backup job", len(self._jobs))
        if job_id in self._jobs:
            raise failure(f"Job '{job_id}' already exists")
        self._jobs[job_id] = {"enabled": 1, **options}

    def remove(self, job_id: str) -> None:
        self.get(job_id)
        del self._jobs[job_id]

    def forget_guest(self, vmid: int) -> None:
        """Take a guest out of every job that names it; a job that is left without any guest goes too."""
        for job_id, job in list(self._jobs.items()):
            for key in ("vmid", "exclude"):
                named = [part for part in str(job.get(key, "")).split(",") if part]
                if str(vmid) in named:
                    job[key] = ",".join(part for part in named if part != str(vmid))
                    if not job[key]:
                        del job[key]
            if not any(key in job for key in _SELECTIONS):
                del self._jobs[job_id]

    def row(self, job_id: str) -> dict[str, Any]:
        """The job as the API shows it."""
        job = self.get(job_id)
        shown = {key: _taken_apart(str(value)) if key in _PROPERTY_STRINGS else value for key, value in job.items()}
        row: dict[str, Any] = {"id": job_id, "type": "vzdump", **shown}
        if job.get("enabled") and "schedule" in job:
            upcoming = parse_calendar_event(str(job["schedule"])).next_after(self._world.clock.now())
            if upcoming is not None:
                row["next-run"] = upcoming
        return row


def checked_schedule(params: Mapping[str, Any], *, required: bool) -> str | None:
    """The schedule of a call, which older clients give as a time and days of the week."""
    schedule, start = params.get("schedule"), params.get("starttime")
    if schedule is not None:
        if start is not None:
            raise bad_parameters({"starttime": "'starttime' and 'schedule' cannot both be set"})
        problem = calendar_error(str(schedule))
        if problem is not None:
            raise bad_parameters({"schedule": problem})
        return str(schedule)
    if start is None:
        if required:
            raise bad_parameters({"schedule": "neither 'starttime' nor 'schedule' were set"})
        return None
    days = ",".join(part for part in str(params.get("dow", "")).replace(";", ",").split(",") if part)
    return f"{days} {start}" if days else str(start)


def change(job: Options, options: Options, deleted: list[str]) -> Options:
    """The job with other options; a new selection of guests replaces the old one."""
    merged = {key: value for key, value in job.items() if key not in deleted}
    chosen = next((name for name in _SELECTIONS if options.get(name)), None)
    if chosen is None and options.get("exclude") and not job.get("pool"):
        chosen = "all"
    if chosen is not None:
        for name in _SELECTIONS:
            merged.pop(name, None)
        if chosen == "vmid":
            merged.pop("exclude", None)
    merged.update(options)
    if merged.get("pool"):
        merged.pop("exclude", None)
    return merged


def _taken_apart(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(",") if part)
    return {key: value for key, _, value in pairs}


def included_volumes(world: World, job: Options) -> dict[str, Any]:
    """The tree of guests and disks that a job takes along."""
    guests = [
        _guest_leaf(world, vmid)
        for vmid in backup_selection.selected_vmids(world, job)
        if backup_selection.is_meant(world, job, vmid)
    ]
    return {"children": guests, "leaf": 0}


def _guest_leaf(world: World, vmid: int) -> dict[str, Any]:
    guest = world.guests.get(vmid)
    if guest is None:
        return {"id": vmid, "type": "unknown", "children": [], "leaf": 0}
    children = [_disk_leaf(guest.kind, drive) for drive in disks.all_drives(guest.config) if not drive.is_cdrom]
    return {"id": vmid, "name": guest.name, "type": guest.kind, "children": children, "leaf": 0}


def _disk_leaf(kind: Kind, drive: disks.Drive) -> dict[str, Any]:
    taken = archives.included(kind, drive) and not drive.is_bind_mount
    reason = "enabled" if taken else "disabled"
    if kind == "lxc" and drive.key == "rootfs":
        reason = "rootfs"
    elif drive.is_bind_mount:
        reason = "not a volume"
    return {"id": drive.key, "name": drive.volid, "included": int(taken), "reason": reason, "leaf": 1}


def not_backed_up(world: World) -> list[Guest]:
    """Guests that no job includes."""
    covered = {
        vmid
        for job in world.part(BackupJobs).all().values()
        for vmid in backup_selection.selected_vmids(world, job)
        if backup_selection.is_meant(world, job, vmid)
    }
    return [guest for vmid, guest in sorted(world.guests.items()) if vmid not in covered]
