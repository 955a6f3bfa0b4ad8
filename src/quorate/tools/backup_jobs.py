"""Backup jobs: what PVE backs up on a schedule."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import NAMED, Advice, ArgumentHint, Sentence, either, see, tools
from quorate.operations.plan import Call, Plan, Target, create_or_change, unset_empty
from quorate.operations.registry import GuestRefs, Risk, Table, operation, page
from quorate.problems import BadArgument, Conflict, NotFound, ParameterRejected, PermissionMissing
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.inventory import Resource
from quorate.suggestions import similar
from quorate.tools.backups import Compress, Keep, Mode, Notes, describe_exclusions, escape_notes, retention
from quorate.tools.storages import require, storage_places
from quorate.tools.volumes import shorten_notes
from quorate.units import count_of, moment, yes_or_no

COLUMNS = ("job", "enabled", "schedule", "next_run", "guests", "storage", "mode", "keep", "node", "comment")
GUESTS_SHOWN = 12
GUESTS_PREVIEWED = 30
GUESTS_CHECKED = 200
JOBS = "/cluster/backup"

JobId = Annotated[str, Meta(description="As in backup_job_list")]

# Settings of a job that say when it runs and what it is called, not how it backs up.
_NOT_FOR_A_RUN = frozenset(
    {"id", "type", "enabled", "schedule", "starttime", "dow", "next-run", "comment", "repeat-missed", "node", "vmid"}
    | {"all", "exclude", "pool", "remove", "prune-backups", "digest"}
)
_OLD_OPTIONS = frozenset({"maxfiles", "notification-policy", "notification-target"})


async def read_jobs(pve: Cluster) -> list[dict[str, Any]]:
    return sorted(await pve.get(JOBS), key=lambda job: str(job["id"]))


async def find_job(pve: Cluster, name: str) -> dict[str, Any]:
    jobs = {str(job["id"]): job for job in await read_jobs(pve)}
    if name not in jobs:
        near = similar(name, jobs, 2) or list(jobs)[:4]
        hint = Advice(f"There is {', '.join(near)}") if near else Advice("Create it", tools.backup_job_set)
        raise NotFound(f"There is no backup job {name!r}", next_step=hint)
    return jobs[name]


def is_enabled(job: dict[str, Any]) -> bool:
    return bool(int(job.get("enabled", 1)))


def guests_of(job: dict[str, Any], guests: list[Resource]) -> list[Resource]:
    """The guests that a job covers, by PVE's rules."""
    on_node = [row for row in guests if not job.get("node") or row.node == job["node"]]
    if job.get("vmid"):
        named = {int(vmid) for vmid in str(job["vmid"]).split(",") if vmid}
        return [row for row in on_node if row.vmid in named]
    if job.get("pool"):
        # PVE looks at exclude only without a pool.
        return [row for row in on_node if row.pool == job["pool"]]
    excluded = {int(vmid) for vmid in str(job.get("exclude") or "").split(",") if vmid}
    if int(job.get("all") or 0) or excluded:
        return [row for row in on_node if row.vmid not in excluded]
    return []


# -- reading -----------------------------------------------------------------------------------------------------------


@operation(
    toolset="backups",
    risk=Risk.READ,
    search_words="backup schedules planned nightly weekly jobs set up",
)
async def backup_job_list(
    pve: Cluster, limit: Annotated[int, Meta(ge=1, le=200)] = 50, offset: Annotated[int, Meta(ge=0)] = 0
) -> Table:
    """Backup jobs: schedule, guests, storage, retention. Guests without a job: backup_coverage."""
    return page(COLUMNS, (_row(job) for job in await read_jobs(pve)), limit=limit, offset=offset)


def _row(job: dict[str, Any]) -> list[Any]:
    return [
        job["id"],
        yes_or_no(is_enabled(job)),
        job.get("schedule") or f"{job.get('dow', '')} {job.get('starttime', '')}".strip(),
        moment(job["next-run"]) if job.get("next-run") and is_enabled(job) else "",
        _selection(job),
        job.get("storage", ""),
        job.get("mode", "snapshot"),
        _property_string(job.get("prune-backups")).replace("keep-", ""),
        job.get("node", ""),
        shorten_notes(str(job.get("comment", ""))),
    ]


def _selection(job: dict[str, Any]) -> str:
    if job.get("vmid"):
        vmids = str(job["vmid"]).split(",")
        return ",".join(vmids[:GUESTS_SHOWN]) + (f" +{len(vmids) - GUESTS_SHOWN}" if len(vmids) > GUESTS_SHOWN else "")
    if job.get("pool"):
        return f"pool {job['pool']}"
    return f"all except {job['exclude']}" if job.get("exclude") else "all"


def _property_string(value: Any) -> str:
    """The property string of a setting that PVE shows as an object."""
    return (
        ",".join(f"{key}={setting}" for key, setting in value.items()) if isinstance(value, dict) else str(value or "")
    )


# -- changes -----------------------------------------------------------------------------------------------------------


def _job_risk(arguments: Mapping[str, Any]) -> Risk:
    """A job with a retention deletes the other backups of every guest after every run."""
    return Risk.DESTROY if arguments["keep"] is not None else Risk.CHANGE


@operation(
    toolset="backups",
    risk=Risk.DESTROY,
    risk_of=_job_risk,
    least=Risk.CHANGE,
    search_words=(
        "run backups often schedule plan nightly daily weekly automatic regular night everything retention keep "
        "disable enable pause time change job"
    ),
    example="job=nightly guest=docker01 storage=pbs schedule=02:30",
)
async def backup_job_set(
    pve: Cluster,
    job: Annotated[str, Meta(description="Id; omit for a new job")] | None = None,
    schedule: Annotated[str, Meta(description="21:00, sat 03:30, mon..fri 22:00, */6:00")] | None = None,
    guest: GuestRefs | None = None,
    pool: Annotated[str, Meta(description="Instead of guest: all of a pool")] | None = None,
    all: Annotated[bool, Meta(description="Instead of guest: all guests")] | None = None,
    exclude: Annotated[GuestRefs, Meta(description="With all: but not these")] | None = None,
    tag: Annotated[str, Meta(description="PVE has no jobs by tag; says what to do instead")] | None = None,
    storage: str | None = None,
    mode: Mode | None = None,
    compress: Compress | None = None,
    keep: Keep | None = None,
    notes: Notes | None = None,
    node: Annotated[str, Meta(description="Only guests on this node; empty: on any")] | None = None,
    enabled: bool | None = None,
    comment: str | None = None,
) -> Plan:
    """Create or change a backup job. Omitted settings stay as they are; keep needs access admin."""
    if tag is not None:
        raise await _no_job_by_tag(pve, tag)
    known = {str(stored["id"]): stored for stored in await read_jobs(pve)}
    existing = known.get(job or "")
    selection = await _guest_selection(pve, guest, pool, all, exclude, existing)
    if notes and storage is None and existing is not None:
        storage = existing.get("storage")  # PVE takes notes only together with the storage
    params = {
        "schedule": schedule,
        **selection,
        "storage": storage,
        "mode": mode,
        "compress": "0" if compress == "none" else compress,
        "prune-backups": retention(keep),
        "notes-template": None if notes is None else escape_notes(notes),
        "node": node,
        "enabled": None if enabled is None else int(enabled),
        "comment": comment,
    }
    settings = {key: value for key, value in params.items() if value is not None}
    await _check_places(pve, storage, node)
    await _check_schedule(pve, schedule)
    warnings = ("Backups beyond the retention are deleted after each run",) if keep and keep != "all" else ()
    if existing is None:
        new = job or f"backup-{uuid.uuid4().hex[:12]}"
        preview, more = await _preview(pve, settings)
        plan = _creation(pve, new, settings | _pruning(existing, keep), warnings + more, preview)
        return plan if job else replace(plan, chosen_names=(new,))
    if not settings:
        raise BadArgument("No changes were specified", next_step="Give the settings to change: schedule, storage, …")
    preview, more = await _preview(pve, _with_selection(existing, settings))
    return await _alteration(pve, existing, settings | _pruning(existing, keep), warnings + more, preview)


async def _no_job_by_tag(pve: Cluster, tag: str) -> BadArgument:
    """A job that lists the guests of a tag would silently miss those that get it later."""
    rows = [row for row in await pve.inventory.guests() if tag.lower() in (own.lower() for own in row.tag_list)]
    vmids = sorted(row.vmid for row in rows)
    pooled = sorted({f"{row.vmid} ({row.pool})" for row in rows if row.pool})
    other_pools = f". A guest is in one pool only, and these are in another: {', '.join(pooled)}" if pooled else ""
    return BadArgument(
        "PVE has no backup jobs by tag",
        why=f"A job has guests, a pool or all guests. The tag {tag!r} is on {vmids or 'no guest'}",
        next_step=either(
            Advice("Put them into a pool and give {pool}", tools.pool_set(pool=tag, add_guests=vmids), pool=tag),
            Advice(f"name them with {{guest}}, without those that get the tag later{other_pools}", guest=vmids),
            Advice(
                "run this from a timer of this machine with `quorate call`",
                tools.guest_bulk(action="backup", tag=tag),
            ),
        ),
    )


def _with_selection(existing: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The job as it will be. PVE drops the former selection if another one is set."""
    replaced = {"vmid": ("pool", "all", "exclude"), "pool": ("vmid", "all", "exclude"), "all": ("vmid", "pool")}
    gone = {name for way in replaced if settings.get(way) for name in replaced[way]}
    return {**{name: value for name, value in existing.items() if name not in gone}, **settings}


async def _preview(pve: Cluster, job: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The guests of the next run, what their backups will not hold, and what to warn of."""
    rows = sorted(guests_of(job, await pve.inventory.guests()), key=lambda row: row.vmid)
    if not rows:
        return {"covers": "no guest"}, ("The job covers no guest at the moment",)
    shown = [Guest(pve, row).label for row in rows[:GUESTS_PREVIEWED]]
    more = [f"and {len(rows) - len(shown)} more"] if len(rows) > len(shown) else []
    guests = [Guest(pve, row) for row in rows if not row.node_is_offline][:GUESTS_CHECKED]
    left_out = await describe_exclusions(pve, guests)
    warnings = []
    if left_out:
        count = count_of(len(left_out["not_included"]), "guest")
        warnings.append(f"Parts of {count} are in no backup of this job: see not_included")
    if len(guests) < len(rows):
        warnings.append(f"For {count_of(len(rows) - len(guests), 'guest')} it was not checked what a backup leaves out")
    return {"covers": [*shown, *more], **left_out}, tuple(warnings)


def _pruning(existing: dict[str, Any] | None, keep: str | None) -> dict[str, Any]:
    """By default PVE prunes, by the storage's retention if the job has none. Here a job prunes only with `keep`."""
    pruned = existing is not None and str(existing.get("remove", 1)) != "0"
    if keep is None:
        return {} if pruned else {"remove": 0}
    return {} if pruned or existing is None else {"remove": 1}


async def _check_schedule(pve: Cluster, schedule: str | None) -> None:
    """Refuse a schedule that PVE cannot read, also in a dry run. Without the privilege to ask, the change shows it."""
    if not schedule:
        return
    try:
        await pve.get("/cluster/jobs/schedule-analyze", schedule=schedule, iterations=1)
    except ParameterRejected:
        raise BadArgument(
            f"PVE cannot read the schedule {schedule!r}",
            next_step="Write 02:00 for every day, sat 03:30, mon..fri 22:00, or */6:00 for every six hours",
        ) from None
    except (NotFound, PermissionMissing):
        return


async def _guest_selection(
    pve: Cluster,
    guest: int | str | list[int | str] | None,
    pool: str | None,
    every: bool | None,
    exclude: int | str | list[int | str] | None,
    existing: dict[str, Any] | None,
) -> dict[str, Any]:
    """The parameters that select the guests; only one kind of selection."""
    ways = [name for name, value in (("guest", guest), ("pool", pool), ("all", every)) if value]
    if len(ways) > 1:
        raise BadArgument(f"{' and '.join(ways)} cannot be combined", next_step="Give one of guest, pool and all")
    if guest is not None and exclude is not None:
        raise BadArgument(
            "exclude cannot be combined with guest", next_step="Leave it out: the job includes only the guests you name"
        )
    if exclude is not None and (pool or (not ways and existing is not None and existing.get("pool"))):
        raise BadArgument(
            "exclude cannot be combined with pool",
            why="PVE ignores exclude for the jobs of a pool and would back these guests up anyway",
            next_step=either(
                "Remove the guests from the pool", Advice("name the guests to include with {guest}", guest=NAMED)
            ),
        )
    if exclude is not None and not ways and (existing is None or existing.get("vmid")):
        raise BadArgument(
            Sentence("{exclude} needs {all}", exclude=NAMED, all=True),
            next_step="Say what the guests are excluded from",
        )
    if not ways and existing is None:
        raise BadArgument(
            "A new job needs guests",
            next_step=either(
                Advice("Give {guest}", guest=NAMED),
                Advice("{pool}", pool=NAMED),
                Advice("{all}", all=True),
                conjunction=" or ",
            ),
        )
    return {
        "vmid": await _vmids(pve, guest),
        "pool": pool,
        "all": 1 if every else None,
        "exclude": await _vmids(pve, exclude),
    }


async def _vmids(pve: Cluster, refs: int | str | list[int | str] | None) -> str | None:
    if refs is None:
        return None
    rows = [await pve.inventory.guest(ref) for ref in (refs if isinstance(refs, list) else [refs])]
    return ",".join(str(vmid) for vmid in sorted({row.vmid for row in rows}))


async def _check_places(pve: Cluster, storage: str | None, node: str | None) -> None:
    if node:
        await pve.inventory.node(node)
    if storage is None:
        return
    if not await storage_places(pve, storages=[storage], node=node or None, content=["backup"]):
        raise BadArgument(
            f"Storage {storage} does not hold backups",
            next_step=see("See those that do", tools.storage_list(content="backup")),
        )
    await require(pve, f"let a job write to {storage}", f"/storage/{storage}", "Datastore.Allocate")


def _creation(
    pve: Cluster, job: str, settings: dict[str, Any], warnings: tuple[str, ...], preview: dict[str, Any]
) -> Plan:
    for needed in ("schedule", "storage"):
        if needed not in settings:
            raise BadArgument(
                f"A new job needs a {needed}",
                why=f"There is no job {job!r} yet",
                next_step=either(
                    Advice("Give {needed}", needed=ArgumentHint(needed, "")),
                    Advice("the name of a job that exists", tools.backup_job_list),
                ),
            )
    usual = {"id": job, "mode": "snapshot", "compress": "zstd", "notes-template": "{{guestname}}"}
    params = {key: value for key, value in {**usual, **settings}.items() if value != ""}

    summary = f"Create backup job {job}: {_selection(params)} to {params['storage']} at {params['schedule']}"
    call = Call(summary, "POST", JOBS, params, Target("backup job", job))
    kept = (
        {"retention": Sentence("every backup is kept; {keep} lets the job delete old ones", keep="")}
        if "remove" in params
        else {}
    )
    facts = {"job": job, **kept, **preview}
    return Plan(summary, (call,), facts=facts, warnings=warnings, after=lambda: _next_run(pve, job))


async def _alteration(
    pve: Cluster,
    existing: dict[str, Any],
    settings: dict[str, Any],
    warnings: tuple[str, ...],
    preview: dict[str, Any],
) -> Plan:
    job = str(existing["id"])
    summary = f"Change backup job {job}"
    params = unset_empty({key: value for key, value in settings.items() if value != "" or key in existing})
    call = Call(summary, "PUT", f"{JOBS}/{job}", params, Target("backup job", job))
    edit = await create_or_change(pve, existing, call, call, whole=True)
    if edit.call is None:
        return edit.plan(f"Backup job {job} already has these settings")
    summary = f"{summary}: {', '.join(sorted(edit.changed))}"
    call = replace(edit.call, summary=summary)
    facts = {"job": job, **preview}
    return Plan(summary, (call,), facts=facts, warnings=warnings, after=lambda: _next_run(pve, job))


async def _next_run(pve: Cluster, job: str) -> dict[str, Any]:
    stored = await find_job(pve, job)  # in the list of jobs: PVE omits it where it shows a single job
    if not is_enabled(stored):
        return {"next_run": "never: it is disabled"}
    return {"next_run": moment(stored["next-run"])} if stored.get("next-run") else {}


@operation(
    toolset="backups",
    risk=Risk.DESTROY,
    search_words="stop remove end nightly scheduled backup no longer",
    example="job=nightly",
)
async def backup_job_delete(pve: Cluster, job: JobId) -> Plan:
    """Delete a backup job. Its backups stay, but its guests are no longer backed up."""
    stored = await find_job(pve, job)

    summary = f"Delete backup job {job} ({_selection(stored)} to {stored.get('storage', '?')})"
    call = Call(summary, "DELETE", f"{JOBS}/{job}", {}, Target("backup job", job))
    return Plan(summary, (call,), next_step=see("See which guests no job covers now", tools.backup_coverage))


@operation(
    toolset="backups",
    risk=Risk.CHANGE,
    search_words="start trigger nightly scheduled job hand now",
    example="job=nightly",
)
async def backup_job_run(pve: Cluster, job: JobId) -> Plan:
    """Run a backup job now, even a disabled one. Only scheduled runs prune older backups."""
    stored = await find_job(pve, job)
    pve.inventory.forget()  # a guest that was made a moment ago is backed up as well
    guests = guests_of(stored, await pve.inventory.guests())
    if not guests:
        raise Conflict(
            f"Backup job {job} covers no guest", next_step=Advice("Change it", tools.backup_job_set(job=job))
        )
    nodes = {row.node: row.status for row in await pve.inventory.of_type("node")}
    offline = sorted({row.node for row in guests if nodes.get(row.node) != "online"})
    by_node: dict[str, list[Resource]] = {}
    for row in sorted(guests, key=lambda row: row.vmid):
        if row.node not in offline:
            by_node.setdefault(row.node, []).append(row)
    if not by_node:
        raise Conflict(f"No guest of backup job {job} can be reached", why=f"{', '.join(offline)} is offline")
    for row in guests:
        await require(pve, f"back up {row}", f"/vms/{row.vmid}", "VM.Backup")
    options = {
        key: _property_string(value) if isinstance(value, dict) else value
        for key, value in stored.items()
        if key not in _NOT_FOR_A_RUN | _OLD_OPTIONS
    }
    return Plan(
        f"Run backup job {job}: {count_of(len(guests), 'guest')}",
        tuple(_run_call(node, rows, {**options, "remove": 0}) for node, rows in by_node.items()),
        independent=True,
        warnings=tuple(f"Node {node} is offline; its guests are left out" for node in offline),
    )


def _run_call(node: str, rows: list[Resource], options: dict[str, Any]) -> Call:
    return Call(
        f"Back up {count_of(len(rows), 'guest')} on {node}",
        "POST",
        f"/nodes/{node}/vzdump",
        {"vmid": ",".join(str(row.vmid) for row in rows), **options},
        Target("node", node, node=node),
        task_id=str(rows[0].vmid) if len(rows) == 1 else "",
    )
