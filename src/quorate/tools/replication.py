"""Storage replication: copies of a guest's ZFS disks on another node, renewed by a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import Advice, see, tools
from quorate.operations.plan import Call, Plan, Target, create_or_change
from quorate.operations.registry import GuestRef, Risk, Table, operation, page
from quorate.problems import BadArgument, Conflict, NotFound, Problem, TaskFailed
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.lookup import Resource
from quorate.tools.tasks import comes_true
from quorate.units import duration, moment

JOBS = "/cluster/replication"
COLUMNS = ("job", "guest", "source", "target", "schedule", "enabled", "last", "took", "next", "failures", "error")

JobRef = Annotated[str, Meta(description="Job such as 100-0; see replication_list")]


@operation(
    toolset="ha",
    risk=Risk.READ,
    search_words="replication work fail last sync zfs errors state replicas",
)
async def replication_list(
    pve: Cluster,
    guest: GuestRef | None = None,
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Replication jobs with their last run and last error."""
    vmid = None if guest is None else (await pve.guest(guest)).vmid
    jobs = [job for job in await pve.get(JOBS) if vmid in (None, int(job["guest"]))]
    states = await _states(pve)
    names = {row.vmid: row.name for row in await pve.inventory.guests()}
    rows = [_row(job, states.get(job["id"], {}), names.get(int(job["guest"]), "")) for job in jobs]
    return page(COLUMNS, rows, limit=limit, offset=offset)


async def _states(pve: Cluster) -> dict[str, dict[str, Any]]:
    """The state of the jobs, from the nodes that run them; an offline node reports nothing."""
    states: dict[str, dict[str, Any]] = {}
    for node in await pve.inventory.of_type("node"):
        if node.status == "online":
            try:
                rows = await pve.get(f"/nodes/{node.node}/replication")
            except Problem:
                continue
            states |= {row["id"]: {**row, "source": node.node} for row in rows}
    return states


def _row(job: Mapping[str, Any], state: Mapping[str, Any], name: str) -> list[Any]:
    return [
        job["id"],
        f"{job['guest']} {name}".strip(),
        state.get("source", ""),
        job["target"],
        job.get("schedule", "*/15"),
        "being removed" if job.get("remove_job") else "no" if job.get("disable") else "yes",
        moment(state["last_sync"]) if state.get("last_sync") else "never",
        "running" if "pid" in state else duration(state["duration"]) if state.get("duration") is not None else "",
        moment(state["next_sync"]) if state.get("next_sync") else "",
        state.get("fail_count") or "",
        state.get("error", ""),
    ]


@operation(
    toolset="ha",
    risk=Risk.CHANGE,
    idempotent=True,
    search_words="copy sync replicate disks guest other node minutes hours schedule zfs",
    example="guest=docker01 target=pve2",
)
async def replication_set(
    pve: Cluster,
    guest: GuestRef,
    target: Annotated[str, Meta(description="Node that gets the copies")],
    schedule: Annotated[str, Meta(description="Calendar event such as */15 or 02:00")] | None = None,
    rate: Annotated[float, Meta(ge=1, description="Maximum MB/s")] | None = None,
    enabled: bool | None = None,
    comment: str | None = None,
) -> Plan:
    """Create or change the replication of a guest's disks to a node. All local disks must be on ZFS."""
    source = await pve.guest(guest)
    await pve.inventory.node(target)
    if source.row.node == target:
        raise BadArgument(f"{source} itself is on {target}", next_step=Advice("Choose another node", tools.node_list))
    requested = {
        "schedule": schedule,
        "rate": rate,
        "disable": None if enabled is None else not enabled,
        "comment": comment,
    }
    settings = {key: value for key, value in requested.items() if value is not None}
    jobs = [job for job in await pve.get(JOBS) if int(job["guest"]) == source.vmid]
    stored = next((job for job in jobs if job["target"] == target), None)
    if stored is None:
        await _refuse_unreplicable(pve, source)
    numbers = {int(str(job["id"]).partition("-")[2]) for job in jobs}
    free = next(number for number in range(len(numbers) + 1) if number not in numbers)
    job = f"{source.vmid}-{free}" if stored is None else str(stored["id"])
    creation = f"Replicate {source} from {source.row.node} to {target}"
    change = f"Change the replication {job} of {source} to {target}"
    params = {"id": job, "type": "local", "target": target, **settings}
    edit = await create_or_change(
        pve,
        stored,
        Call(creation, "POST", JOBS, params, Target.of_guest(source)),
        Call(change, "PUT", f"{JOBS}/{job}", settings, Target.of_guest(source)),
        defaults={"disable": False},
    )
    return edit.plan(f"The job {job} already has these settings", facts={"job": job})


@operation(
    toolset="ha",
    risk=Risk.DESTROY,
    search_words="stop end remove replication guest no more",
    example="job=202-0",
)
async def replication_delete(
    pve: Cluster,
    job: JobRef,
    keep: Annotated[bool, Meta(description="Keep the copies on the target")] = False,
) -> Plan:
    """End a replication and delete its copies on the target node."""
    known = await _existing(pve, job)
    guest = await pve.guest(int(known["guest"]))
    summary = f"End the replication {job} of {guest} to {known['target']}" + ("" if keep else " and delete the copies")

    async def gone() -> bool:
        return await _find(pve, job) is None

    async def after() -> dict[str, Any]:
        if await comes_true(pve, gone):
            return {}
        return {"result": "running", "next": Advice("PVE removes it within minutes", tools.replication_list)}

    params = {"keep": True} if keep else {}
    call = Call(summary, "DELETE", f"{JOBS}/{job}", params, Target.of_guest(guest))
    return Plan(summary, (call,), after=after)


@operation(
    toolset="ha",
    risk=Risk.CHANGE,
    idempotent=True,
    search_words="sync replicate replica now trigger",
    example="job=202-0",
)
async def replication_run(pve: Cluster, job: JobRef) -> Plan:
    """Run a replication job now."""
    known = await _existing(pve, job)
    guest = await pve.guest(int(known["guest"]))
    if known.get("disable"):
        raise Conflict(
            f"The job {job} is switched off", next_step=Advice("Enable it first", tools.replication_set(enabled=True))
        )
    before = await _state(pve, guest, job)
    if "pid" in before:
        raise Conflict(
            f"The job {job} has been running since {moment(before['last_try'])}",
            next_step=Advice("Run it again when it is done", tools.replication_list),
        )
    last = int(before.get("last_try", 0))
    summary = f"Run the replication {job} of {guest} to {known['target']}"

    async def was_requested() -> bool:
        """It has no task of its own: PVE forgets the last try so that the job is due; the next run is a new one."""
        return int((await _state(pve, guest, job)).get("last_try", 0)) != last

    async def ended() -> bool:
        state = await _state(pve, guest, job)
        return int(state.get("last_try", 0)) > last and "pid" not in state

    async def after() -> dict[str, Any]:
        if not await comes_true(pve, ended):
            return {"result": "running", "next": Advice("PVE looks for due jobs every minute", tools.replication_list)}
        return _outcome(job, await _state(pve, guest, job))

    path = f"/nodes/{guest.row.node}/replication/{job}/schedule_now"
    return Plan(summary, (Call(summary, "POST", path, {}, Target.of_guest(guest), settled=was_requested),), after=after)


def _outcome(job: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """The duration of the last run; it failed unless the last sync is the last try, as an error may be an older one."""
    if int(state.get("last_sync", 0)) < int(state.get("last_try", 0)):
        reason = state.get("error") or "it ended without a message"
        raise TaskFailed(
            f"The replication {job} failed: {reason}", next_step=see("See its state", tools.replication_list)
        )
    return {"took": duration(state["duration"])} if state.get("duration") is not None else {}


async def _state(pve: Cluster, guest: Guest, job: str) -> dict[str, Any]:
    rows = await pve.get(f"/nodes/{guest.row.node}/replication", guest=guest.vmid)
    return next((row for row in rows if row["id"] == job), {})


async def _find(pve: Cluster, job: str) -> dict[str, Any] | None:
    return next((row for row in await pve.get(JOBS) if row["id"] == job), None)


async def _existing(pve: Cluster, job: str) -> dict[str, Any]:
    known = await _find(pve, job)
    if known is None:
        jobs = ", ".join(str(row["id"]) for row in (await pve.get(JOBS))[:20])
        raise NotFound(f"There is no replication job {job!r}", next_step=f"There is {jobs}" if jobs else None)
    return known


async def _refuse_unreplicable(pve: Cluster, guest: Guest) -> None:
    """PVE replicates ZFS volumes only, and refuses the whole job for one local disk of another kind."""
    config = await guest.get("config")
    await pve.inventory.choose_storage(guest.row.node, lambda rows: _require_replicable(guest, config, rows))


def _require_replicable(guest: Guest, config: Mapping[str, Any], rows: list[Resource]) -> None:
    storages = {row.storage: row for row in rows}
    replicable = 0
    for key, value in config.items():
        if not values.is_disk(key, str(value)):
            continue
        parts = values.parse(str(value), "volume")
        storage = storages.get(parts.get("volume", "").partition(":")[0])
        if storage is None or storage.shared or parts.get("replicate") == "0":
            continue
        if storage.plugintype != "zfspool":
            raise Conflict(
                f"{key} of {guest} is on {storage.storage} ({storage.plugintype}), which cannot be replicated",
                next_step="Move the disk to a ZFS storage, or set replicate=0 on it",
            )
        replicable += 1
    if not replicable:
        raise Conflict(f"{guest} has no disk on a local ZFS storage", why="There is nothing to replicate")
