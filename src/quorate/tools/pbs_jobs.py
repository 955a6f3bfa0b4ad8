"""Jobs of Proxmox Backup Servers: verification, prune, synchronization and garbage collection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Literal

from quorate.homelab.homelab import Homelab
from quorate.operations.registry import Risk, Table, operation, page
from quorate.pbs.server import BackupServer
from quorate.tools.backup_servers import Datastore, Server, ask_servers
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
    """Verify, prune, sync and garbage collection jobs: schedule, last state, next run, and what stops them."""
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
