"""Proxmox Backup Servers as a whole: their datastores, and what keeps them in order."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from quorate.homelab.homelab import Homelab
from quorate.operations.registry import Risk, Table, operation, page
from quorate.pbs.client import BackupTask
from quorate.pbs.server import READS_AT_ONCE, Backup, BackupNamespace, BackupServer
from quorate.problems import AuthenticationFailed, Problem, TimedOut, Unreachable, catch_problem
from quorate.pve.tasks import gather_bounded
from quorate.tools.backup_servers import (
    Datastore,
    Server,
    ask_servers,
    choose_namespace,
    shows_to,
    visible_backups,
    visible_tasks,
)
from quorate.units import Quantity, duration, moment, percent, size

DAY = 86400
COLUMNS = (
    "server", "datastore", "size", "used", "share", "full_in", "dedup", "pending", "last_gc", "gc_state",
    "next_gc", "maintenance", "error",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServerState:
    """What one server says about itself."""

    server: BackupServer
    version: str
    stores: list[Mapping[str, Any]]
    usage: Mapping[str, Mapping[str, Any]]
    gc: Mapping[str, Mapping[str, Any]]
    failed: list[Mapping[str, Any]]
    """Tasks of the last day that failed."""


async def read_server(server: BackupServer) -> ServerState:
    """What a server says about itself. A datastore that cannot be read has its error instead of sizes."""
    since = int(server.clock.time()) - DAY
    version, stores = await asyncio.gather(server.version(), server.get("/admin/datastore"))
    if not stores:
        await server.refuse_blindness()
    names = sorted(str(row["store"]) for row in stores or ())
    usage, gc, failed = await asyncio.gather(
        read_each(server, names, "/status/datastore-usage", "status"),
        read_collections(server, names),
        server.tasks(since=since, statusfilter=["error"], limit=0),
    )
    return ServerState(server, version, sorted(stores or (), key=lambda row: str(row["store"])), usage, gc, failed)


async def read_collections(server: BackupServer, stores: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Garbage collection, by datastore."""
    return await read_each(server, stores, "/admin/gc", "gc")


async def read_each(server: BackupServer, stores: Sequence[str], path: str, part: str) -> dict[str, Mapping[str, Any]]:
    """A list about all datastores; if one makes it fail, each of them alone, with the `error` of those that do."""
    try:
        return {str(row["store"]): row for row in await server.get(path) or ()}
    except (Unreachable, TimedOut, AuthenticationFailed):
        raise
    except Problem:
        reads = [partial(catch_problem, server.get(f"/admin/datastore/{name}/{part}")) for name in stores]
        answers = await gather_bounded(READS_AT_ONCE, reads)
    return {
        name: {"store": name, "error": answer.what} if isinstance(answer, Problem) else answer or {}
        for name, answer in zip(stores, answers, strict=True)
    }


@operation(
    toolset="pbs",
    risk=Risk.READ,
    search_words=(
        "proxmox backup server datastore usage full space free deduplication garbage collection health namespaces "
        "groups counts verification state unverified"
    ),
)
async def pbs_status(
    homelab: Homelab, server: Server | None = None, datastore: Datastore | None = None
) -> Table | dict[str, Any]:
    """Datastores: space, days until full, garbage collection; or one in full."""
    if datastore is not None:
        return await _describe_datastore(homelab, server, datastore)
    states, silent = await ask_servers(homelab, server, read_server)
    visible = {
        name: [row for row in state.stores if shows_to(homelab)(BackupNamespace(name, str(row["store"])))]
        for name, state in states.items()
    }
    rows = [_row(states[name], store) for name, stores in visible.items() for store in stores]
    table = page(COLUMNS, rows, limit=len(rows) or 1, offset=0)
    failed_tasks = {name: await visible_tasks(homelab, state.server, state.failed) for name, state in states.items()}
    blank = await homelab.blanker()
    failed = [
        {
            "server": name,
            "type": task["worker_type"],
            "id": task.get("worker_id") or "",
            "status": blank(str(task.get("status") or "")),
        }
        for name, tasks in failed_tasks.items()
        for task in tasks
    ]
    table.facts = {
        "versions": {name: f"PBS {state.version}" for name, state in states.items()},
        **({"failed_tasks_of_24_hours": failed} if failed else {}),
        **({"no_answer": silent} if silent else {}),
    }
    return table


def _row(state: ServerState, store: Mapping[str, Any]) -> list[Any]:
    name = str(store["store"])
    usage, gc = state.usage.get(name, {}), state.gc.get(name, {})
    collected = usage.get("gc-status") or gc
    total, used = int(usage.get("total") or 0), int(usage.get("used") or 0)
    now = state.server.clock.time()
    full_at, ended = usage.get("estimated-full-date"), gc.get("last-run-endtime") or last_collection(gc)
    return [
        state.server.name,
        name,
        size(total) if total else "",
        size(used) if total else "",
        percent(used / total) if total else "",
        _days(full_at - now) if full_at else "",
        dedup_factor(collected) or "",
        size(pending) if (pending := collected.get("pending-bytes")) else "",
        moment(ended) if ended else "",
        str(gc.get("last-run-state") or ""),
        moment(gc["next-run"]) if gc.get("next-run") else "",
        str(store.get("maintenance") or ""),
        str(usage.get("error") or gc.get("error") or ""),
    ]


def last_collection(gc: Mapping[str, Any]) -> int | None:
    """When garbage was last collected, by the task: the end of a run is not always listed."""
    return BackupTask.parse(gc["upid"]).started if BackupTask.looks_like(gc.get("upid")) else None


def _days(seconds: float) -> Quantity:
    return Quantity(f"{max(0, int(seconds // DAY))}d", max(0, int(seconds)))


def dedup_factor(collected: Mapping[str, Any]) -> float | None:
    """How many times smaller the backups are on disk than their sizes add up to; None before the first collection."""
    logical, disk = collected.get("index-data-bytes"), collected.get("disk-bytes")
    return round(logical / disk, 1) if logical and disk else None


async def _describe_datastore(homelab: Homelab, server: str | None, datastore: str) -> dict[str, Any]:
    """One datastore: space, namespaces with their groups and verification, garbage collection, settings."""
    chosen, place = await choose_namespace(homelab, server, datastore, "")
    status, gc, config, found = await asyncio.gather(
        chosen.get(f"{place.path}/status"),
        chosen.get(f"{place.path}/gc"),
        chosen.get(f"/config/datastore/{place.store}"),
        chosen.find_backups(place.store, shows=shows_to(homelab)),
    )
    backups = await visible_backups(homelab, found.backups)
    now = chosen.clock.time()
    return {
        "server": chosen.name,
        "datastore": place.store,
        "size": size(status.get("total") or 0),
        "used": size(status.get("used") or 0),
        "available": size(status.get("avail") or 0),
        "dedup": dedup_factor(gc),
        "gc": _describe_gc(gc),
        "settings": {name: value for name, value in (config or {}).items() if name != "name"},
        "namespaces": {
            each.namespace or "(root)": {"not_read": str(found.not_read[str(each)])}
            if str(each) in found.not_read
            else describe_backups([backup for backup in backups if backup.place == each], now)
            for each in found.places
        },
    }


def _describe_gc(gc: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {
        "disk-bytes": "on_disk",
        "index-data-bytes": "logical",
        "pending-bytes": "pending",
        "removed-bytes": "removed",
    }
    times = {"last-run-endtime": "last_run", "next-run": "next_run"}
    return {
        **{shown: size(gc[name]) for name, shown in sizes.items() if gc.get(name) is not None},
        **{shown: moment(gc[name]) for name, shown in times.items() if gc.get(name)},
        **({"last_state": gc["last-run-state"]} if gc.get("last-run-state") else {}),
        **({"took": duration(gc["duration"])} if gc.get("duration") else {}),
        **({"schedule": gc["schedule"]} if gc.get("schedule") else {"schedule": "none: it runs only when started"}),
        **({"bad_chunks": gc["still-bad"]} if gc.get("still-bad") else {}),
    }


def describe_backups(backups: list[Backup], now: float) -> dict[str, Any]:
    """How many there are, how old, and how many were verified."""
    groups = {backup.group.name for backup in backups}
    states = {
        "verified": sum(backup.verified == "ok" for backup in backups),
        "verification_failed": sum(backup.verified == "failed" for backup in backups),
        "never_verified": sum(not backup.verified for backup in backups),
        "protected": sum(backup.protected for backup in backups),
        "encrypted": sum(backup.crypt_mode == "encrypt" for backup in backups),
    }
    newest = max((backup.time for backup in backups), default=None)
    return {
        "groups": len(groups),
        "backups": len(backups),
        **{name: count for name, count in states.items() if count},
        **({"newest": duration(max(0.0, now - newest))} if newest else {}),
    }
