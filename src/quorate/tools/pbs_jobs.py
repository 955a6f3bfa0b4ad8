"""Jobs of Proxmox Backup Servers: verification, prune, synchronization and garbage collection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from quorate.hints import NAMED, Advice, see, tools
from quorate.homelab.homelab import Homelab
from quorate.operations.plan import Plan
from quorate.operations.registry import Risk, Table, operation, page
from quorate.pbs.server import Backup, BackupNamespace, BackupServer, find_server
from quorate.problems import BadArgument, Conflict, NotFound
from quorate.tools.backup_servers import (
    Datastore,
    Namespace,
    Server,
    ask_servers,
    choose_namespace,
    require_visible,
    server_action,
)
from quorate.tools.pbs_maintenance import describe_prunes, parse_keep, preview_prunes
from quorate.units import moment

COLUMNS = ("server", "kind", "id", "datastore", "schedule", "what", "last_run", "last_state", "next_run", "trouble")
Kind = Literal["verify", "prune", "sync", "gc"]
KEEPS: Final = ("keep-last", "keep-hourly", "keep-daily", "keep-weekly", "keep-monthly", "keep-yearly")


@operation(
    toolset="pbs",
    risk=Risk.READ,
    search_words="proxmox backup server jobs schedule verify prune sync garbage collection last next run failed late",
)
async def pbs_job_list(
    homelab: Homelab, server: Server | None = None, datastore: Datastore | None = None, kind: Kind | None = None
) -> Table:
    """Verify, prune, sync and gc jobs, and what stops them."""
    listed, silent = await ask_servers(homelab, server, list_jobs)
    rows = [
        _row(name, job_kind, job, stores)
        for name, (jobs, stores) in listed.items()
        for job_kind, job in jobs
        if kind in (None, job_kind) and datastore in (None, job["store"])
    ]
    table = page(COLUMNS, rows, limit=len(rows) or 1, offset=0)
    table.facts = {"no_answer": silent} if silent else {}
    return table


async def list_jobs(server: BackupServer) -> tuple[list[tuple[str, Mapping[str, Any]]], set[str]]:
    """The jobs by kind, and the names of the datastores."""
    stores, verify, prune, sync, gc = await asyncio.gather(
        server.datastores(),
        server.get("/admin/verify"),
        server.get("/admin/prune"),
        server.get("/admin/sync", **{"sync-direction": "all"}),  # otherwise push jobs are left out
        server.get("/admin/gc"),
    )
    jobs = [
        (kind, job)
        for kind, rows in (("verify", verify), ("prune", prune), ("sync", sync))
        for job in sorted(rows or (), key=lambda row: str(row["id"]))
    ]
    collections = sorted((row for row in gc or () if row.get("schedule")), key=lambda row: str(row["store"]))
    return [*jobs, *(("gc", row) for row in collections)], set(stores)


def _row(server: str, kind: str, job: Mapping[str, Any], stores: set[str]) -> list[Any]:
    ended, due = job.get("last-run-endtime"), job.get("next-run")
    return [
        server,
        kind,
        str(job.get("id") or ""),
        str(job["store"]) + (f"/{job['ns']}" if job.get("ns") else ""),
        str(job.get("schedule") or "none"),
        describe_job(kind, job),
        moment(ended) if ended else "never" if kind != "gc" else "",
        str(job.get("last-run-state") or ""),
        moment(due) if due and not job.get("disable") else "",
        trouble_of(job, stores),
    ]


def describe_job(kind: str, job: Mapping[str, Any]) -> str:
    """What a job does, in a few words."""
    if kind == "prune":
        kept = " ".join(f"{name.removeprefix('keep-')}={job[name]}" for name in KEEPS if job.get(name))
        return f"keep {kept}" if kept else "keep everything"
    if kind == "sync":
        source = f"{job['remote']}:{job.get('remote-store')}" if job.get("remote") else str(job.get("remote-store"))
        direction = "push to" if job.get("sync-direction") == "push" else "pull from"
        return f"{direction} {source}" + (", removes what is gone there" if job.get("remove-vanished") else "")
    if kind == "verify":
        days = job.get("outdated-after")
        again = f"again after {days} days" if days else "each backup once"
        return again if job.get("ignore-verified", True) else "everything each time"
    return ""


def trouble_of(job: Mapping[str, Any], stores: set[str]) -> str:
    """Why a job can do nothing: PBS accepts jobs for datastores that do not exist."""
    if job["store"] not in stores:
        return "its datastore does not exist, or is hidden from this token"
    return "it is disabled" if job.get("disable") else ""


# -- changing ----------------------------------------------------------------------------------------------------------

SENDS = "it would send backups to another server"
REPLACES = "a job that already protects something would do less or something else"
REMOVES = "it removes backups on its schedule"
Schedule = Annotated[str, Meta(description="daily, sun 03:00; empty: none")]


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What a caller wants of a job, in the words of PBS; None leaves it as it is."""

    kind: Kind
    values: Mapping[str, Any]

    def differences(self, current: Mapping[str, Any]) -> dict[str, Any]:
        defaults = {"disable": False, "ignore-verified": True, "remove-vanished": False, "comment": "", "ns": ""}
        return {
            name: value
            for name, value in self.values.items()
            if value is not None and value != current.get(name, defaults.get(name))
        }


def _job_risk(arguments: Mapping[str, Any]) -> Risk:
    grave = arguments["kind"] == "prune" or arguments["remove_vanished"] or arguments["enabled"] is False
    return Risk.DESTROY if grave else Risk.CHANGE


@operation(
    toolset="pbs",
    risk=Risk.DESTROY,
    risk_of=_job_risk,
    least=Risk.CHANGE,
    idempotent=True,
    shown_by=("pbs_job_list", "datastore", "kind", "server"),
    search_words="proxmox backup server schedule job verify weekly prune retention sync pull remote garbage collection",
    example="kind=verify job=weekly datastore=store1 schedule='sun 03:00' again_after=30",
)
async def pbs_job_set(
    homelab: Homelab,
    kind: Kind,
    datastore: Datastore | None = None,
    job: Annotated[str, Meta(description="Id; not for gc")] | None = None,
    schedule: Schedule | None = None,
    enabled: bool | None = None,
    namespace: Namespace | None = None,
    keep: Annotated[str, Meta(description="prune: last=3,daily=7")] | None = None,
    again_after: Annotated[int, Meta(ge=1, description="verify: days")] | None = None,
    remote: Annotated[str, Meta(description="sync: default is this server")] | None = None,
    remote_datastore: str | None = None,
    remove_vanished: bool | None = None,
    comment: str | None = None,
    server: Server | None = None,
) -> Plan:
    """Create or change a job or the gc schedule. Less protection needs access admin."""
    chosen, place = await choose_namespace(homelab, server, datastore, namespace or "")
    if kind == "gc":
        return await _set_gc_schedule(homelab, chosen, place, schedule)
    if not job:
        raise BadArgument("The job has no id", next_step=Advice("Give {job}, such as weekly", job=NAMED))
    own = {"prune": ("keep",), "verify": ("again_after",), "sync": ("remote", "remote_datastore", "remove_vanished")}
    given = {
        "keep": keep,
        "again_after": again_after,
        "remote": remote,
        "remote_datastore": remote_datastore,
        "remove_vanished": remove_vanished,
    }
    if foreign := [name for name, value in given.items() if value is not None and name not in own[kind]]:
        raise BadArgument(f"{', '.join(foreign)} does not apply to a {kind} job")
    wanted = JobSettings(
        kind,
        {
            "store": place.store,
            "ns": place.namespace if namespace is not None else None,
            "schedule": schedule,
            "disable": None if enabled is None else not enabled,
            "comment": comment,
            **(parse_keep(keep) if keep else {}),
            **({"outdated-after": again_after, "ignore-verified": True} if again_after else {}),
            "remote": remote,
            "remote-store": remote_datastore,
            "remove-vanished": remove_vanished,
        },
    )
    return await _create_or_change(homelab, chosen, place, job, wanted)


async def _create_or_change(
    homelab: Homelab, server: BackupServer, place: BackupNamespace, job: str, wanted: JobSettings
) -> Plan:
    kind = wanted.kind
    collection = f"/config/{kind}"
    every = {"sync-direction": "all"} if kind == "sync" else {}
    jobs = {str(row["id"]): row for row in await server.get(collection, **every) or ()}
    if (current := jobs.get(job)) is None:
        return await _create_job(homelab, server, place, job, wanted)
    summary = f"Change the {kind} job {job} of {server.name}"
    changes = wanted.differences(current)
    if keeps := {name for name in KEEPS if name in wanted.values}:  # a retention replaces the old one as a whole
        dropped = [name for name in KEEPS if name not in keeps and current.get(name)]
    else:
        dropped = []
    if not changes and not dropped:
        return Plan(summary, unchanged=(f"The job {job} already has these settings",))
    emptied = [name for name in ("schedule", "comment", "ns") if changes.get(name) == "" and current.get(name)]
    params: dict[str, Any] = {name: value for name, value in changes.items() if value != ""}
    if deleted := [*dropped, *emptied]:
        params["delete"] = deleted
    harmless = {*changes} <= {"comment", "disable"} and changes.get("disable", False) is False and not dropped
    grave = kind == "prune" or not harmless
    action = await server_action(
        homelab,
        server,
        place,
        summary,
        ("PUT", f"{collection}/{job}", params),
        concerns=await _backups_of_job(server, {**current, **changes}) if grave else (),
        risk=Risk.DESTROY if grave else None,
        because=(REMOVES if kind == "prune" else REPLACES) if grave else "",
    )
    return Plan(summary, (action,), facts={"before": {name: current.get(name, "") for name in [*changes, *dropped]}})


async def _create_job(
    homelab: Homelab, server: BackupServer, place: BackupNamespace, job: str, wanted: JobSettings
) -> Plan:
    kind, values = wanted.kind, {name: value for name, value in wanted.values.items() if value not in (None, "")}
    if kind == "prune" and not {*KEEPS} & {*values}:
        raise BadArgument("A prune job needs a retention", next_step=Advice("Give {keep}: last=3,daily=7", keep=NAMED))
    if kind == "sync" and "remote-store" not in values:
        raise BadArgument(
            "A sync job needs a source", next_step=Advice("Give {remote_datastore}", remote_datastore=NAMED)
        )
    if kind == "prune":
        values.setdefault("schedule", "daily")  # PBS requires one
    if (name := values.get("remote")) is not None:
        remotes = [str(row["name"]) for row in await server.get("/config/remote") or ()]
        if name not in remotes:
            raise NotFound(
                f"{server.name} has no remote {name!r} that {server.client.identity} may see",
                why="PBS would accept the job, and each of its runs would fail",
                next_step=f"The remotes are {', '.join(remotes)}" if remotes else "There is none",
            )
    summary = f"Create the {kind} job {job} for {place}"
    grave = kind == "prune" or bool(values.get("remove-vanished"))
    action = await server_action(
        homelab,
        server,
        place,
        summary,
        ("POST", f"/config/{kind}", {"id": job, **values}),
        concerns=await _backups_of_job(server, values) if grave else (),
        risk=Risk.DESTROY if grave else None,
        because=REMOVES if grave else "",
    )
    facts = {"schedule": values.get("schedule", "none: it runs only when started")}
    if kind != "prune":
        return Plan(summary, (action,), facts=facts)
    keeps: dict[str, int] = {name: int(values[name]) for name in KEEPS if name in values}
    prunes = await preview_prunes(server, await namespaces_of_job(server, values), keeps)
    now = {f"now_{name}": value for name, value in describe_prunes(prunes).items()}
    return Plan(summary, (action,), facts={**facts, **now})


async def _set_gc_schedule(
    homelab: Homelab, server: BackupServer, place: BackupNamespace, schedule: str | None
) -> Plan:
    if schedule is None:
        raise BadArgument("No changes were specified", next_step=Advice("Give {schedule}", schedule=NAMED))
    current = str((await server.get(f"/config/datastore/{place.store}")).get("gc-schedule", ""))
    summary = f"Set the schedule of garbage collection in {place}"
    if current == schedule:
        return Plan(summary, unchanged=(f"The schedule is already {schedule or 'empty'}",))
    params: dict[str, Any] = {"gc-schedule": schedule} if schedule else {"delete": ["gc-schedule"]}
    grave = not schedule
    action = await server_action(
        homelab,
        server,
        place,
        summary,
        ("PUT", f"/config/datastore/{place.store}", params),
        risk=Risk.DESTROY if grave else None,
        because="the datastore would fill up without garbage collection" if grave else "",
    )
    return Plan(summary, (action,), facts={"before": current or "none"})


@operation(
    toolset="pbs",
    risk=Risk.DESTROY,
    risk_of=lambda arguments: Risk.DESTROY if arguments["kind"] == "prune" else Risk.CHANGE,
    least=Risk.CHANGE,
    shown_by=("pbs_job_list", "kind", "server"),
    search_words="proxmox backup server run start job now verify prune sync pull",
    example="kind=verify job=weekly",
)
async def pbs_job_run(
    homelab: Homelab, kind: Literal["verify", "prune", "sync"], job: str, server: Server | None = None
) -> Plan:
    """Run a job now; removing needs access admin."""
    chosen = find_server(homelab.backup_servers, server)
    every = {"sync-direction": "all"} if kind == "sync" else {}
    jobs = {str(row["id"]): row for row in await chosen.get(f"/admin/{kind}", **every) or ()}
    if job not in jobs:
        raise NotFound(
            f"{chosen.name} has no {kind} job {job!r} that {chosen.client.identity} may see",
            next_step=see("List the jobs", tools.pbs_job_list),
        )
    settings = jobs[job]
    place = BackupNamespace(chosen.name, str(settings["store"]), str(settings.get("ns") or ""))
    if trouble := trouble_of({**settings, "disable": False}, {*await chosen.datastores()}):
        raise Conflict(f"The job {job} cannot run: {trouble}")
    await require_visible(homelab, place)
    removes = kind == "prune" or bool(settings.get("remove-vanished"))
    sends = settings.get("sync-direction") == "push"
    facts: dict[str, Any] = {"does": describe_job(kind, settings)}
    if kind == "prune":
        keeps = {name: int(settings[name]) for name in KEEPS if settings.get(name)}
        prunes = await preview_prunes(chosen, await namespaces_of_job(chosen, settings), keeps)
        facts |= describe_prunes(prunes) if keeps else {"removes": []}
    action = await server_action(
        homelab,
        chosen,
        place,
        f"Run the {kind} job {job} of {place}",
        ("POST", f"/admin/{kind}/{job}/run", {}),
        concerns=await _backups_of_job(chosen, settings) if removes else (),
        risk=Risk.DESTROY if removes or sends else None,
        because=SENDS if sends else REMOVES if removes else "",
    )
    return Plan(action.summary, (action,), facts=facts)


async def namespaces_of_job(server: BackupServer, job: Mapping[str, Any]) -> list[BackupNamespace]:
    """The namespaces that a job covers."""
    store, top, depth = str(job["store"]), str(job.get("ns") or ""), job.get("max-depth")
    names = await server.namespaces(store, top)
    level = top.count("/") + 1 if top else 0
    near = [name for name in names if depth is None or (name.count("/") + 1 if name else 0) - level <= int(depth)]
    return [BackupNamespace(server.name, store, name) for name in near]


async def _backups_of_job(server: BackupServer, job: Mapping[str, Any]) -> list[Backup]:
    return [backup for each in await namespaces_of_job(server, job) for backup in await server.backups_in(each)]
