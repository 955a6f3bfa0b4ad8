"""Tasks of Proxmox Backup Servers."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import Advice, tools
from quorate.homelab.homelab import Homelab
from quorate.operations.plan import Plan
from quorate.operations.registry import Risk, Table, operation, page
from quorate.pbs.client import BackupTask, conflict_advice
from quorate.pbs.server import BackupNamespace, BackupServer, Group, find_server, without_time
from quorate.pve.tasks import Report, TaskOutcome, TaskState, read_log_tail
from quorate.tools.backup_servers import Datastore, Server, ask_servers, failure_lines, server_action
from quorate.units import duration, moment

COLUMNS = ("started", "server", "type", "id", "user", "status", "took", "task")
READ_AT_ONCE = 500
STOP_SECONDS = 5.0

LogLines = Annotated[int, Meta(ge=0, le=500)]


@operation(
    toolset="pbs",
    risk=Risk.READ,
    search_words="proxmox backup server running recent failed jobs log verify prune garbage collection sync history",
)
async def pbs_task_list(
    homelab: Homelab,
    server: Server | None = None,
    datastore: Datastore | None = None,
    status: Literal["running", "failed", "ok"] | None = None,
    type: Annotated[str, Meta(description="backup, verify, prune, garbage, sync")] | None = None,
    limit: Annotated[int, Meta(ge=1, le=200)] = 20,
) -> Table:
    """Recent tasks of the backup servers, newest first."""
    filters: dict[str, Any] = {"limit": READ_AT_ONCE, "store": datastore, "typefilter": type}
    filters |= {"running": True} if status == "running" else {}
    filters |= (
        {"statusfilter": {"failed": ["error", "unknown"], "ok": ["ok", "warning"]}[status]}
        if status
        in (
            "failed",
            "ok",
        )
        else {}
    )

    async def ask(chosen: BackupServer) -> list[dict[str, Any]]:
        return await chosen.tasks(**filters)

    listed, silent = await ask_servers(homelab, server, ask)
    rows = sorted(
        ((name, row) for name, rows in listed.items() for row in rows), key=lambda each: -each[1]["starttime"]
    )
    table = page(COLUMNS, [_row(name, row) for name, row in rows], limit=limit, offset=0)
    table.facts = {"no_answer": silent} if silent else {}
    return table


def _row(server: str, row: dict[str, Any]) -> list[Any]:
    ended = row.get("endtime")
    return [
        moment(row["starttime"]),
        server,
        row["worker_type"],
        str(row.get("worker_id") or ""),
        row["user"],
        str(row.get("status") or "") if ended else "running",
        duration(ended - row["starttime"]) if ended else "",
        row["upid"],
    ]


@operation(
    toolset="pbs",
    risk=Risk.READ,
    search_words="proxmox backup server task log why failed progress wait follow result",
    example=r"task=UPID:pbs:00000FA1:000186A1:00000001:6723A1B2:verify:store1:root@pam:",
)
async def pbs_task_get(
    homelab: Homelab,
    task: str,
    report: Report,
    server: Server | None = None,
    wait: Annotated[float, Meta(ge=0, le=50, description="Seconds to follow it")] = 0,
    log_lines: LogLines = 20,
) -> dict[str, Any]:
    """State and log of a task of a backup server."""
    chosen, upid = find_server(homelab.backup_servers, server), BackupTask.parse(task)
    state = await (chosen.follow(upid, wait=wait, report=report) if wait else chosen.state_of(upid))
    log, total = await read_log_tail(chosen.client, upid, log_lines)
    state.log = [without_time(line) for line in log]
    return _describe(chosen, state, total)


def _describe(server: BackupServer, state: TaskState, log_total: int) -> dict[str, Any]:
    upid = state.upid
    failed = state.outcome is TaskOutcome.FAILED
    advice = conflict_advice(state.exit or "") if failed else None
    if state.running:
        advice = Advice("Follow it", tools.pbs_task_get(server=server.name, task=upid.text, wait=45))
    return {
        "task": upid.text,
        "server": server.name,
        "type": upid.type,
        "id": upid.id,
        "user": upid.user,
        "started": moment(upid.started),
        "status": state.outcome,
        "exit": state.exit or "",
        **({"percent": state.percent} if state.percent is not None and state.running else {}),
        **({"cause": cause} if failed and (cause := failure_lines(state)) else {}),
        "log": state.log,
        **({"log_lines_in_all": log_total} if log_total > len(state.log) else {}),
        **({"next": advice} if advice else {}),
    }


REPEATABLE = ("verify", "prune", "garbage", "sync")
"""Tasks that can be started again without a loss."""


@operation(
    toolset="pbs",
    risk=Risk.CHANGE,
    idempotent=True,
    search_words="proxmox backup server stop abort cancel running task verify sync garbage collection",
    example=r"task=UPID:pbs:00000FA1:000186A1:00000001:6723A1B2:verify:store1:root@pam:",
)
async def pbs_task_stop(homelab: Homelab, task: str, server: Server | None = None) -> Plan:
    """Stop a task of a backup server."""
    chosen, upid = find_server(homelab.backup_servers, server), BackupTask.parse(task)
    summary = f"Stop {upid.type} {upid.id} on {chosen.name}"
    if not (await chosen.state_of(upid)).running:
        return Plan(summary, unchanged=("The task has already ended",))
    store, _, rest = upid.id.partition(":")
    place = BackupNamespace(chosen.name, store)
    loses = not any(word in upid.type for word in REPEATABLE)
    action = await server_action(
        homelab,
        chosen,
        place,
        summary,
        ("DELETE", upid.path, {}),
        group=_group_in(rest),
        risk=Risk.DESTROY if loses else None,
        because="what it has done so far is lost" if loses else "",
    )

    async def after() -> dict[str, Any]:
        state = await chosen.follow(upid, wait=STOP_SECONDS)
        return {"status": state.outcome, "exit": state.exit or ""}

    return Plan(summary, (action,), after=after)


def _group_in(text: str) -> Group | None:
    """The backups that a task works on, by the end of its id: `vm/100`, `prod/web:ct/101/67B67080`."""
    match = re.search(r"(?:^|[:/])(vm|ct|host)/([A-Za-z0-9_][A-Za-z0-9._-]*)(?:/[0-9A-F]+)?$", text)
    return Group(match[1], match[2]) if match else None
