"""/admin/verify, /admin/prune, /admin/sync and /admin/gc: jobs with their state; /pull and /push: one-off syncs."""

from __future__ import annotations

from typing import Any

from pve_simulator.pbs import jobs, maintenance
from pve_simulator.pbs.datastores import Datastore
from pve_simulator.pbs.refusals import Refusal
from pve_simulator.pbs.routes.config import jobs_digest, visible_jobs
from pve_simulator.pbs.routing import Call, Payload, route
from pve_simulator.pbs.tasks import Task, TaskFailure

_RUN = {
    "verify": ("Datastore.Verify",),
    "prune": ("Datastore.Modify", "Datastore.Prune"),
    "sync": ("Datastore.Backup",),
}


def refuse_without(call: Call, path: str, *privileges: str) -> None:
    """Some endpoints refuse with 400 and in other words."""
    if not call.holds(*privileges, path=path):
        raise Refusal(f"missing permissions '{'|'.join(privileges)}' on '{path}'")


def _declare(kind: str) -> None:
    @route("GET", f"/admin/{kind}")
    def list_states(call: Call) -> Any:
        rows = [
            {**job, **jobs.state_of(call.server, kind, job_id, job.get("schedule"))}
            for job_id, job in visible_jobs(call, kind).items()
        ]
        return Payload(rows, jobs_digest(call, kind))

    @route("POST", f"/admin/{kind}/{{id}}/run")
    def run_job(call: Call) -> Any:
        job = call.server.sections[kind].get(str(call["id"]))
        if job is None:
            raise Refusal(f"no such {jobs.NOUNS[kind]} '{call['id']}'")
        refuse_without(call, f"/datastore/{job['store']}", *_RUN[kind])
        return jobs.start_job(call.server, kind, str(call["id"]), call.auth_id)


for _kind in jobs.NOUNS:
    _declare(_kind)


# -- garbage collection ------------------------------------------------------------------------------------------------


def gc_row(call: Call, store: Datastore) -> dict[str, Any]:
    if store.broken:
        raise Refusal(store.broken)
    row: dict[str, Any] = {**store.gc.as_row(), "store": store.name}
    schedule = store.config.get("gc-schedule")
    state = jobs.state_of(call.server, "gc", store.name, schedule)
    if schedule is not None:
        row |= {"schedule": schedule, "next-run": state.get("next-run")}
    if store.gc.last_end is not None and call.server.tasks.find(str(store.gc.upid)) is None:
        row |= {"last-run-state": store.gc.last_state, "last-run-endtime": int(store.gc.last_end)}
    return row


@route("GET", "/admin/gc", "/admin/gc/{store}")
def list_gc_states(call: Call) -> Any:
    return [
        gc_row(call, store)
        for store in call.server.datastores.values()
        if call.params.get("store", store.name) == store.name
        and call.holds("Datastore.Audit", path=f"/datastore/{store.name}")
    ]


@route("GET", "/admin/datastore/{store}/gc")
def read_gc_state(call: Call) -> Any:
    return gc_row(call, call.datastore())


@route("POST", "/admin/datastore/{store}/gc")
async def start_gc(call: Call) -> Any:
    """A second start waits for the first."""
    store = call.datastore(write=True)
    running = call.server.job_states.get(("gc", store.name))
    task = None if running is None else call.server.tasks.find(running)
    while task is not None and task.end is None:
        await call.server.clock.sleep(0.2)
    return jobs.start_gc(call.server, store.name, call.auth_id)


# -- one-off synchronization -------------------------------------------------------------------------------------------


@route("POST", "/pull")
def pull(call: Call) -> Any:
    store = call.datastore(write=True)
    server, remote = call.server, call.params.get("remote")
    call.server.access.require(call.auth_id, call.path(), ["Datastore.Backup"])
    source = f"{remote}/{call['remote-store']}" if remote else str(call["remote-store"])

    def work(task: Task) -> None:
        task.log(f"pull datastore '{store.name}' from '{source}'")
        try:
            other = (
                maintenance.remote_store(server, str(remote), str(call["remote-store"]))
                if remote
                else server.datastore(str(call["remote-store"]))
            )
        except Refusal as refusal:
            raise TaskFailure(refusal.text.rpartition(" - ")[2]) from refusal
        maintenance.sync_groups(task, other, store, call.params, owner=call.auth_id, now=server.clock.now())
        task.log(f"pull datastore '{store.name}' end")

    return call.start_task("sync", store.name, work)
