"""Jobs of a Proxmox Backup Server: what runs on a schedule, and what a run does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pve_schema.calendar_events import Unparsable, parse_calendar_event
from pve_simulator.pbs import maintenance
from pve_simulator.pbs.access import ROOT
from pve_simulator.pbs.refusals import Refusal
from pve_simulator.pbs.tasks import Task, TaskFailure

if TYPE_CHECKING:
    from pve_simulator.pbs.server import BackupServer

NOUNS = {"verify": "verification", "prune": "prune", "sync": "sync"}
_LOOK_SECONDS = 60.0
_RUN_SECONDS = 0.05


async def run_schedules(server: BackupServer) -> None:
    """Start what is due, once a minute."""
    looked_at = server.clock.now()
    while True:
        await server.clock.sleep(_LOOK_SECONDS)
        now = server.clock.now()
        for kind, jobs in server.sections.items():
            for job_id, job in list(jobs.items()) if kind in NOUNS else ():
                due = next_run(job.get("schedule"), looked_at)
                if due is not None and due <= now and not job.get("disable") and job["store"] in server.datastores:
                    start_job(server, kind, job_id, ROOT)
        for store in list(server.datastores.values()):
            due = next_run(store.config.get("gc-schedule"), looked_at)
            if due is not None and due <= now and not store.maintenance:
                start_gc(server, store.name, ROOT)
        looked_at = now


def next_run(schedule: object, now: float) -> int | None:
    if not schedule:
        return None
    try:
        return parse_calendar_event(str(schedule)).next_after(now)
    except Unparsable:
        return None


def state_of(server: BackupServer, kind: str, job_id: str, schedule: object) -> dict[str, Any]:
    """How the last run of a job ended, and when the next one is due."""
    row: dict[str, Any] = {}
    upid = server.job_states.get((kind, job_id))
    task = None if upid is None else server.tasks.find(upid)
    if task is not None:
        row["last-run-upid"] = task.upid
        if task.end is not None:
            row |= {"last-run-state": task.status, "last-run-endtime": int(task.end)}
    due = next_run(schedule, server.clock.now())
    return row if due is None else {**row, "next-run": due}


def start_gc(server: BackupServer, store_name: str, auth_id: str) -> str:
    store = server.datastore(store_name)
    task = server.tasks.start(
        "garbage_collection",
        store_name,
        auth_id,
        lambda task: maintenance.collect_garbage(task, store, server.clock.now()),
        1.0,
    )
    server.job_states["gc", store_name] = task.upid
    return task.upid


def start_job(server: BackupServer, kind: str, job_id: str, auth_id: str) -> str:
    """Run a job now; returns the id of its task."""
    job = server.sections[kind].get(job_id)
    if job is None:
        raise Refusal(f"no such {NOUNS[kind]} '{job_id}'")
    run = {"verify": _verify, "prune": _prune, "sync": _sync}[kind]
    worker_type, worker_id = _worker(kind, job_id, job)

    def work(task: Task) -> None:
        try:
            run(server, task, job_id, job)
        except Refusal as refusal:
            raise TaskFailure(refusal.text) from refusal

    upid = server.tasks.start(worker_type, worker_id, auth_id, work, _RUN_SECONDS).upid
    server.job_states[kind, job_id] = upid
    return upid


def _worker(kind: str, job_id: str, job: dict[str, Any]) -> tuple[str, str]:
    if kind == "sync":
        local, remote = str(job["store"]), str(job["remote-store"])
        return "syncjob", f"{job.get('remote', '-')}:{remote}:{local}:{job.get('ns', '')}:{job_id}"
    return ("verificationjob" if kind == "verify" else "prunejob"), f"{job['store']}:{job_id}"


def _verify(server: BackupServer, task: Task, job_id: str, job: dict[str, Any]) -> None:
    store = server.datastore(str(job["store"]))
    task.log(f"Starting datastore verify job '{store.name}:{job_id}'")
    task.log(f"verify datastore {store.name}")
    namespaces = store.below(str(job.get("ns", "")), job.get("max-depth"))
    groups = [(namespace, group) for namespace, group in store.everything() if namespace in namespaces]
    maintenance.verify_all(task, store, groups, job, server.clock.now())


def _prune(server: BackupServer, task: Task, job_id: str, job: dict[str, Any]) -> None:
    store = server.datastore(str(job["store"]))
    store.refuse_maintenance(write=True)
    task.log(f"Starting datastore prune on datastore '{store.name}' ({job_id})")
    namespaces = store.below(str(job.get("ns", "")), job.get("max-depth"))
    groups = [(namespace, group) for namespace, group in store.everything() if namespace in namespaces]
    maintenance.prune_datastore(task, store, groups, job, server.clock.now())


def _sync(server: BackupServer, task: Task, job_id: str, job: dict[str, Any]) -> None:
    name = _worker("sync", job_id, job)[1]
    local, remote = str(job["store"]), job.get("remote")
    other = f"{remote}/{job['remote-store']}" if remote else str(job["remote-store"])
    pushes = job.get("sync-direction") == "push"
    task.log(f"Starting datastore sync job '{name}'")
    task.log(f"sync datastore '{local}' {'to' if pushes else 'from'} '{other}'")
    store = server.datastore(local)
    peer_store = (
        maintenance.remote_store(server, str(remote), str(job["remote-store"]))
        if remote
        else server.datastore(str(job["remote-store"]))
    )
    now = server.clock.now()
    if pushes:
        swapped = {**job, "ns": job.get("remote-ns", ""), "remote-ns": job.get("ns", "")}
        maintenance.sync_groups(
            task, store, peer_store, swapped, owner=_remote_owner(server, remote), now=now, pushes=True
        )
    else:
        maintenance.sync_groups(task, peer_store, store, job, owner=str(job.get("owner", ROOT)), now=now)
    task.log(f"sync job '{name}' end")


def _remote_owner(server: BackupServer, remote: object) -> str:
    return str(server.sections["remote"].get(str(remote), {}).get("auth-id", ROOT))
