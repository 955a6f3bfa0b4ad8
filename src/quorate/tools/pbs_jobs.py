"""Jobs of Proxmox Backup Servers: verification, prune, synchronization and garbage collection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from quorate.hints import NAMED, Advice, see, tools
from quorate.homelab.homelab import Homelab
from quorate.operations.plan import Plan, Target
from quorate.operations.registry import Risk, Table, operation, page
from quorate.pbs.server import BackupNamespace, BackupServer, find_server
from quorate.problems import BadArgument, Conflict, NotFound
from quorate.pve.targets import DATASTORE
from quorate.tools.backup_servers import (
    Datastore,
    Namespace,
    Server,
    ask_servers,
    choose_namespace,
    require_visible,
    server_action,
    shows_to,
)
from quorate.tools.pbs import read_collections
from quorate.tools.pbs_maintenance import (
    CHANGED,
    SHOWN,
    backups_below,
    describe_prunes,
    names_of_prunes,
    parse_keep,
    preview_prunes,
    targets_below,
)
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
    servers = {each.name: each for each in homelab.backup_servers}
    shows = shows_to(homelab)
    blank = await homelab.blanker()
    rows = [
        _row(name, job_kind, {**job, "last-run-state": blank(str(job.get("last-run-state") or ""))}, stores)
        for name, (jobs, stores) in listed.items()
        for job_kind, job in jobs
        if kind in (None, job_kind)
        and datastore in (None, job["store"])
        and all(map(shows, places_of_job(servers[name], job_kind, job)))
    ]
    table = page(COLUMNS, rows, limit=len(rows) or 1, offset=0)
    table.facts = {"no_answer": silent} if silent else {}
    return table


async def list_jobs(server: BackupServer) -> tuple[list[tuple[str, Mapping[str, Any]]], set[str]]:
    """The jobs by kind, and the names of the datastores."""
    stores = await server.datastores()
    verify, prune, sync, gc = await asyncio.gather(
        server.get("/admin/verify"),
        server.get("/admin/prune"),
        server.get("/admin/sync", **{"sync-direction": "all"}),  # otherwise push jobs are left out
        read_collections(server, stores),
    )
    jobs = [
        (kind, job)
        for kind, rows in (("verify", verify), ("prune", prune), ("sync", sync))
        for job in sorted(rows or (), key=lambda row: str(row["id"]))
    ]
    collections = [{**row, "store": store} for store, row in sorted(gc.items()) if row.get("schedule")]
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

SENDS = "it sends backups to another server"
REPLACES = "a job that already protects something would do less or something else"
REMOVES = "it removes backups"
Schedule = Annotated[str, Meta(description="daily, sun 03:00; empty: none")]


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What a caller wants of a job, in the words of PBS; None leaves it as it is."""

    kind: Kind
    values: Mapping[str, Any]

    @property
    def values_set(self) -> dict[str, Any]:
        return {name: value for name, value in self.values.items() if value is not None}

    def differences(self, current: Mapping[str, Any]) -> dict[str, Any]:
        defaults = {"disable": False, "ignore-verified": True, "remove-vanished": False, "comment": "", "ns": ""}
        return {
            name: value
            for name, value in self.values.items()
            if value is not None and value != current.get(name, defaults.get(name))
        }


def _danger_of(kind: str, job: Mapping[str, Any]) -> str:
    """Why each run of a job with these settings is destructive; empty if it is not."""
    if job.get("sync-direction") == "push":
        return SENDS
    return REMOVES if kind == "prune" or job.get("remove-vanished") else ""


def _job_risk(arguments: Mapping[str, Any]) -> Risk:
    grave = arguments["kind"] == "prune" or arguments["remove_vanished"]
    return Risk.DESTROY if grave else Risk.CHANGE


@operation(
    toolset="pbs",
    risk=Risk.DESTROY,
    risk_of=_job_risk,
    least=Risk.CHANGE,
    idempotent=True,
    shown_by=("pbs_job_list", "datastore", "kind", "server"),
    search_words="proxmox backup server schedule job verify weekly prune retention sync pull remote garbage collection",
    example="kind=verify job=weekly schedule='sun 03:00' again_after=30",
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
    own = {
        "prune": ("enabled", "keep"),
        "verify": ("again_after",),
        "sync": ("remote", "remote_datastore", "remove_vanished"),
    }
    specific = {
        "enabled": enabled,
        "keep": keep,
        "again_after": again_after,
        "remote": remote,
        "remote_datastore": remote_datastore,
        "remove_vanished": remove_vanished,
    }
    if foreign := [name for name, value in specific.items() if value is not None and name not in own[kind]]:
        raise BadArgument(f"{', '.join(foreign)} does not apply to a {kind} job")
    settings = JobSettings(
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
    return await _create_or_change(homelab, chosen, place, job, settings)


async def _create_or_change(
    homelab: Homelab, server: BackupServer, place: BackupNamespace, job: str, requested: JobSettings
) -> Plan:
    kind = requested.kind
    collection = f"/config/{kind}"
    if (current := await _find_job(homelab, server, kind, job, top="config")) is None:
        return await _create_job(homelab, server, place, job, requested)
    changed = {**current, **requested.values_set}
    await _require_visible_source(homelab, server, kind, changed)
    summary = f"Change the {kind} job {job} of {server.name}"
    changes = requested.differences(current)
    if keeps := {name for name in KEEPS if name in requested.values}:  # a retention replaces the old one as a whole
        dropped = [name for name in KEEPS if name not in keeps and current.get(name)]
    else:
        dropped = []
    if not changes and not dropped:
        return Plan(summary, unchanged=(f"The job {job} already has these settings",))
    emptied = [name for name in ("schedule", "comment", "ns") if changes.get(name) == "" and current.get(name)]
    params: dict[str, Any] = {name: value for name, value in changes.items() if value != ""}
    if deleted := [*dropped, *emptied]:
        params["delete"] = deleted
    grave = kind == "prune" or bool(dropped) or not {*changes} <= {"comment"}
    action = await server_action(
        homelab,
        server,
        place,
        summary,
        ("PUT", f"{collection}/{job}", params),
        concerns=[
            target for each in (current, changed) for target in await _targets_of_job(server, each, removes=grave)
        ],
        based_on=content_of_job(current),
        risk=Risk.DESTROY if grave else None,
        because=(_danger_of(kind, changed) or REPLACES) if grave else "",
        check=partial(_refuse_changed_job, homelab, server, kind, current, top="config"),
    )
    return Plan(summary, (action,), facts={"before": {name: current.get(name, "") for name in [*changes, *dropped]}})


async def _create_job(
    homelab: Homelab, server: BackupServer, place: BackupNamespace, job: str, requested: JobSettings
) -> Plan:
    kind, values = requested.kind, {name: value for name, value in requested.values.items() if value not in (None, "")}
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
    await _require_visible_source(homelab, server, kind, values)
    summary = f"Create the {kind} job {job} for {place}"
    danger = _danger_of(kind, values)
    action = await server_action(
        homelab,
        server,
        place,
        summary,
        ("POST", f"/config/{kind}", {"id": job, **values}),
        concerns=await _targets_of_job(server, values, removes=bool(danger)),
        risk=Risk.DESTROY if danger else None,
        because=danger,
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
    settings = await _find_job(homelab, chosen, kind, job)
    if settings is None:
        raise NotFound(
            f"{chosen.name} has no {kind} job {job!r} that {chosen.client.identity} may see",
            next_step=see("List the jobs", tools.pbs_job_list),
        )
    place = _place_of(chosen, settings)
    if trouble := trouble_of({**settings, "disable": False}, {*await chosen.datastores()}):
        raise Conflict(f"The job {job} cannot run: {trouble}")
    await _require_visible_source(homelab, chosen, kind, settings)
    danger = _danger_of(kind, settings)
    removals = await find_removals(chosen, kind, settings)

    async def check() -> None:
        await _refuse_changed_job(homelab, chosen, kind, settings)
        if (await find_removals(chosen, kind, settings)).names != removals.names:
            raise Conflict(CHANGED, next_step="The job was not run; call again to see what it would remove")

    action = await server_action(
        homelab,
        chosen,
        place,
        f"Run the {kind} job {job} of {place}",
        ("POST", f"/admin/{kind}/{job}/run", {}),
        concerns=await _targets_of_job(chosen, settings, removes=True),
        removes=() if danger == SENDS else removals.names,
        based_on=[*content_of_job(settings), *(removals.names if danger == SENDS else ())],
        risk=Risk.DESTROY if danger else None,
        because=danger,
        check=check,
    )
    return Plan(action.summary, (action,), facts={"does": describe_job(kind, settings), **removals.facts})


@dataclass(frozen=True, slots=True)
class Removals:
    """The backups that a run of a job removes, or decides by what it removes on another server."""

    names: frozenset[str] = frozenset()
    facts: Mapping[str, Any] = field(default_factory=dict)


async def find_removals(server: BackupServer, kind: str, job: Mapping[str, Any]) -> Removals:
    namespaces = await namespaces_of_job(server, job) if kind == "prune" or job.get("remove-vanished") else []
    if kind == "prune":
        keeps = {name: int(job[name]) for name in KEEPS if job.get(name)}
        if not keeps:
            return Removals(facts={"removes": []})
        prunes = await preview_prunes(server, namespaces, keeps)
        return Removals(names_of_prunes(prunes), describe_prunes(prunes))
    if not namespaces:
        return Removals()
    backups = await backups_below(server, _place_of(server, job), [each.namespace for each in namespaces])
    if job.get("sync-direction") == "push":  # what is gone here is removed there
        return Removals(
            frozenset(map(str, backups)), {"removes": f"on {job.get('remote')}: all but the backups that are here"}
        )
    copied = set() if job.get("remote") else await _backups_at_source(server, job)
    lost = [each for each in backups if not each.protected and (each.place.namespace, str(each.group)) not in copied]
    names = [str(backup) for backup in lost]
    may_remove = {"may_remove": names[:SHOWN], **({"may_remove_in_all": len(names)} if len(names) > SHOWN else {})}
    return Removals(frozenset(names), may_remove)


async def _backups_at_source(server: BackupServer, job: Mapping[str, Any]) -> set[tuple[str, str]]:
    """The backups in the datastore of this server that a job copies from: the namespace here, and their name."""
    source, target = str(job.get("remote-ns") or ""), str(job.get("ns") or "")
    place = BackupNamespace(server.name, str(job["remote-store"]), source)
    if place.store not in await server.datastores():
        return set()
    backups = await backups_below(server, place, await server.namespaces(place.store, source))
    return {
        ("/".join(filter(None, (target, each.place.namespace[len(source) :].strip("/")))), str(each.group))
        for each in backups
    }


# -- stored jobs -------------------------------------------------------------------------------------------------------


async def _find_job(
    homelab: Homelab, server: BackupServer, kind: str, job: str, *, top: Literal["admin", "config"] = "admin"
) -> Mapping[str, Any] | None:
    """A job that is not hidden from the caller."""
    every = {"sync-direction": "all"} if kind == "sync" else {}
    rows = await server.get(f"/{top}/{kind}", **every) or ()
    row = next((row for row in rows if str(row["id"]) == job), None)
    shows = shows_to(homelab)
    return row if row is not None and all(map(shows, places_of_job(server, kind, row))) else None


def content_of_job(job: Mapping[str, Any]) -> list[str]:
    """What a job is set to, without how it ran."""
    return [f"{name}={value}" for name, value in sorted(job.items()) if not name.startswith(("last-run", "next-run"))]


async def _refuse_changed_job(
    homelab: Homelab,
    server: BackupServer,
    kind: str,
    planned: Mapping[str, Any],
    *,
    top: Literal["admin", "config"] = "admin",
) -> None:
    now = await _find_job(homelab, server, kind, str(planned["id"]), top=top)
    if now is None or content_of_job(now) != content_of_job(planned):
        raise Conflict(
            f"The {kind} job {planned['id']} has changed since this was planned",
            next_step="Nothing was done; call again to see what would be",
        )


async def _require_visible_source(homelab: Homelab, server: BackupServer, kind: str, job: Mapping[str, Any]) -> None:
    """A job that copies from a hidden datastore would show it."""
    for place in places_of_job(server, kind, job)[1:]:
        await require_visible(homelab, place)


def places_of_job(server: BackupServer, kind: str, job: Mapping[str, Any]) -> list[BackupNamespace]:
    """Where a job works, and the datastore of the same server that it copies from."""
    place = _place_of(server, job)
    if kind != "sync" or job.get("remote") or not job.get("remote-store"):
        return [place]
    return [place, BackupNamespace(server.name, str(job["remote-store"]), str(job.get("remote-ns") or ""))]


def _place_of(server: BackupServer, job: Mapping[str, Any]) -> BackupNamespace:
    return BackupNamespace(server.name, str(job["store"]), str(job.get("ns") or ""))


async def namespaces_of_job(server: BackupServer, job: Mapping[str, Any]) -> list[BackupNamespace]:
    """The namespaces that a job covers."""
    top, depth = _place_of(server, job), job.get("max-depth")
    below = f"{top.namespace}/" if top.namespace else ""  # PBS also answers for one that does not exist
    names = [name for name in await server.namespaces(top.store) if name == top.namespace or name.startswith(below)]
    level = top.namespace.count("/") + 1 if top.namespace else 0
    near = [name for name in names if depth is None or (name.count("/") + 1 if name else 0) - level <= int(depth)]
    return [replace(top, namespace=name) for name in near]


async def _targets_of_job(server: BackupServer, job: Mapping[str, Any], *, removes: bool) -> list[Target]:
    """What a job acts on: its datastore, the namespaces that it covers, and the backups in them.

    Where its datastore is offline, what is in it cannot be judged: only a job that removes nothing is set then.
    """
    place = _place_of(server, job)
    if place.store not in (await server.datastores() if removes else await server.open_datastores()):
        return [Target(DATASTORE, str(place))]
    names = [each.namespace for each in await namespaces_of_job(server, job)]
    return [Target(DATASTORE, str(place)), *await targets_below(server, place, names)]
