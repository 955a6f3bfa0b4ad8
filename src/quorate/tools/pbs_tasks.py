"""Tasks of Proxmox Backup Servers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import Advice, tools
from quorate.homelab.homelab import Homelab
from quorate.operations.registry import Risk, Table, operation, page
from quorate.pbs.client import BackupTask, conflict_advice
from quorate.pbs.server import BackupServer, find_server, without_time
from quorate.pve.tasks import Report, TaskOutcome, TaskState, read_log_tail
from quorate.tools.backup_servers import Datastore, Server, ask_servers, failure_lines
from quorate.units import duration, moment

COLUMNS = ("started", "server", "type", "id", "user", "status", "took", "task")
READ_AT_ONCE = 500

TaskRef = Annotated[str, Meta(description="UPID")]
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
    type: Annotated[str, Meta(description="Part of it: backup, verify, prune, garbage, sync")] | None = None,
    limit: Annotated[int, Meta(ge=1, le=200)] = 20,
    offset: Annotated[int, Meta(ge=0)] = 0,
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
    table = page(COLUMNS, [_row(name, row) for name, row in rows], limit=limit, offset=offset)
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
    task: TaskRef,
    report: Report,
    server: Server | None = None,
    wait: Annotated[float, Meta(ge=0, le=50, description="Seconds to follow it")] = 0,
    log_lines: LogLines = 20,
) -> dict[str, Any]:
    """State and end of the log of one task of a backup server; follows it if asked to wait."""
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
