"""Backup jobs: selection of guests, schedules and exclusions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pve_schema.calendar_events import parse_calendar_event
from pve_simulator.cluster.config_files import written_options
from pve_simulator.guests import drives
from pve_simulator.guests.drives import new_uuid
from pve_simulator.guests.guest import Guest
from pve_simulator.http.parameters import split_list, split_pairs
from pve_simulator.http.refusals import bad_parameters, existing, failure, forbidden
from pve_simulator.http.routing import Call
from pve_simulator.storage import archives
from pve_simulator.world import World

_CONFLICT = "option conflicts with option 'vmid'"
_ROOT_ONLY = ("tmpdir", "dumpdir", "script", "job-id")
_NOTE_VARIABLES = ("cluster", "guestname", "node", "vmid")
_NEEDS_SYSTEM_PRIVILEGES = ("bwlimit", "ionice", "performance")


def vmid_list(text: Any) -> list[str]:
    """The guests of a `vmid` or `exclude` option, each once and in order."""
    return sorted(dict.fromkeys(split_list(text)), key=int)


def check_privileges(call: Call) -> None:
    """Check options that need more than the privilege to back up."""
    params = call.params
    if call.is_root:
        return
    for name in _ROOT_ONLY:
        if name in params:
            raise bad_parameters({name: "Only root may set this option."})
    if any(name in params for name in _NEEDS_SYSTEM_PRIVILEGES):
        call.require("/", "Sys.Modify")
    if "prune-backups" in params and "storage" in params:
        call.require(f"/storage/{params['storage']}", "Datastore.Allocate")


def check_pool(call: Call) -> None:
    """Require the privilege to back up the guests of a pool."""
    pool = call.params.get("pool")
    if pool:
        if pool not in call.world.access.pools:
            raise forbidden(f"pool '{pool}' does not exist")
        call.require(f"/pool/{pool}", "VM.Backup")


def check_options(params: Mapping[str, Any], *, complete: bool = True) -> None:
    """Refuse contradictory options, and with `complete` an empty selection."""
    if params.get("vmid"):
        for name in ("all", "exclude", "pool"):
            if params.get(name):
                raise bad_parameters({name: _CONFLICT})
    problem = _notes_problem(str(params.get("notes-template", "")))
    if problem is not None:
        raise bad_parameters({"notes-template": problem})
    takes_all = params.get("all") or ("exclude" in params and not params.get("pool"))
    if complete and not (takes_all or params.get("stop") or params.get("pool") or params.get("vmid")):
        raise bad_parameters({"vmid": "property is missing"})


def _notes_problem(template: str) -> str | None:
    if "\n" in template:
        return "contains a line feed\n"
    unknown = [
        f"escape sequence '{match[0]}' at char {match.start()}"
        for match in re.finditer(r"\\(.)", template)
        if match[1] not in ("n", "\\")
    ]
    unknown += [
        f"variable '{match[1]}' at char {match.end() - len(match[1])}"
        for match in re.finditer(r"\{\{([^\s{}]+)\}\}", template)
        if match[1] not in _NOTE_VARIABLES
    ]
    return f"found unknown: {', '.join(unknown)}\n" if unknown else None


def selected_vmids(world: World, params: Mapping[str, Any]) -> list[int]:
    """The vmids of the selected guests on all nodes; explicitly listed vmids are kept even if unknown."""
    if params.get("vmid"):
        return [int(vmid) for vmid in vmid_list(params["vmid"])]
    pool = params.get("pool")
    if pool:  # `exclude` does not apply to a pool
        return sorted(world.access.pools[pool].vms) if pool in world.access.pools else []
    if params.get("all") or "exclude" in params:
        excluded = {int(vmid) for vmid in split_list(params.get("exclude"))}
        return sorted(vmid for vmid in world.guests if vmid not in excluded)
    return []


def is_selected(world: World, params: Mapping[str, Any], vmid: int) -> bool:
    """Whether a job includes this guest, limited to the job's node if it has one."""
    guest = world.guests.get(vmid)
    node = params.get("node")
    if node and guest is not None and guest.node != node:
        return False
    return vmid in selected_vmids(world, params)


Options = dict[str, Any]
# The API shows these as objects.
_PROPERTY_STRINGS = frozenset({"prune-backups", "fleecing", "performance"})
_SELECTIONS = ("vmid", "all", "pool")


class BackupJobs:
    """The backup jobs in jobs.cfg."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._jobs: dict[str, Options] = {}

    def all(self) -> dict[str, Options]:
        return self._jobs

    def get(self, job_id: str) -> Options:
        """The job, or PVE's refusal."""
        return existing(self._jobs.get(job_id), bad_parameters({"id": f"No such job '{job_id}'"}))

    def add(self, job_id: str | None, options: Options) -> None:
        if job_id is None:
            job_id = new_uuid(self._world, "backup job", len(self._jobs))
        if job_id in self._jobs:
            raise failure(f"Job '{job_id}' already exists")
        self._jobs[job_id] = written_options({"enabled": 1, **options})

    def remove(self, job_id: str) -> None:
        self.get(job_id)
        del self._jobs[job_id]

    def forget_guest(self, vmid: int) -> None:
        """Remove a guest from every job that lists it, and jobs that become empty."""
        for job_id, job in list(self._jobs.items()):
            for key in ("vmid", "exclude"):
                named = [part for part in str(job.get(key, "")).split(",") if part]
                if str(vmid) in named:
                    job[key] = ",".join(part for part in named if part != str(vmid))
                    if not job[key]:
                        del job[key]
            if not any(key in job for key in _SELECTIONS):
                del self._jobs[job_id]

    def row(self, job_id: str, *, with_next_run: bool = False) -> dict[str, Any]:
        """The job as the API shows it; only lists include the next run."""
        job = self.get(job_id)
        shown = {key: split_pairs(str(value)) if key in _PROPERTY_STRINGS else value for key, value in job.items()}
        row: dict[str, Any] = {"id": job_id, "type": "vzdump", **shown}
        if with_next_run and "schedule" in job:  # also while it is disabled
            upcoming = parse_calendar_event(str(job["schedule"])).next_after(self._world.clock.now())
            if upcoming is not None:
                row["next-run"] = upcoming
        return row


def checked_schedule(params: Mapping[str, Any], *, required: bool) -> str | None:
    """The schedule of a call; older clients pass a time and days of the week."""
    schedule, start = params.get("schedule"), params.get("starttime")
    if schedule is not None:
        if start is not None:
            raise bad_parameters({"starttime": "'starttime' and 'schedule' cannot both be set"})
        return str(schedule)
    if start is None:
        if required:
            raise bad_parameters({"schedule": "neither 'starttime' nor 'schedule' were set"})
        return None
    days = ",".join(part for part in str(params.get("dow", "")).replace(";", ",").split(",") if part)
    return f"{days} {start}" if days else str(start)


def change(job: Options, options: Options, deleted: list[str]) -> Options:
    """Change the options of a job; a new selection of guests replaces the old one."""
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


def included_volumes(world: World, job: Options) -> dict[str, Any]:
    """The tree of guests and disks that a job includes."""
    guests = [_guest_leaf(world, vmid) for vmid in selected_vmids(world, job) if is_selected(world, job, vmid)]
    return {"children": guests}


def _guest_leaf(world: World, vmid: int) -> dict[str, Any]:
    guest = world.guests.get(vmid)
    if guest is None:
        return {"id": vmid, "type": "unknown", "children": [], "leaf": 0}
    children = [_disk_leaf(guest, drive) for drive in drives.all_drives(guest.config) if not drive.is_cdrom]
    name = guest.config.get("name" if guest.kind == "qemu" else "hostname")
    return {"id": vmid, "name": name, "type": guest.kind, "children": children, "leaf": 0}


def _disk_leaf(guest: Guest, drive: drives.Drive) -> dict[str, Any]:
    kind = guest.kind
    is_included = archives.included(kind, drive) and not drive.is_bind_mount
    reason = "enabled" if is_included else "disabled"
    if kind == "qemu":
        reason = f"backup={'yes' if is_included else 'no'}"
    if kind == "lxc" and drive.key == "rootfs":
        reason = "rootfs"
    elif drive.is_bind_mount:
        reason = "not a volume"
    return {
        "id": f"{guest.vmid}:{drive.key}",
        "name": drive.volid,
        "included": int(is_included),
        "reason": reason,
        "leaf": 1,
    }


def not_backed_up(world: World) -> list[Guest]:
    """Guests that no job includes."""
    covered = {
        vmid
        for job in world.part(BackupJobs).all().values()
        for vmid in selected_vmids(world, job)
        if is_selected(world, job, vmid)
    }
    return [guest for vmid, guest in sorted(world.guests.items()) if vmid not in covered]
