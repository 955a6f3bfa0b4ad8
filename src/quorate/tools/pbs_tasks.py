"""Tasks of Proxmox Backup Servers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import Advice, see, tools
from quorate.homelab.homelab import Homelab
from quorate.operations.plan import Plan, Target
from quorate.operations.registry import Risk, Table, operation, page
from quorate.pbs.client import BackupTask, conflict_advice
from quorate.pbs.server import BackupNamespace, BackupServer, Group, find_server, without_time
from quorate.pbs.tasks import REPEATABLE, TaskSubject, type_filter
from quorate.problems import NotFound
from quorate.pve.targets import DATASTORE
from quorate.pve.tasks import Report, TaskOutcome, TaskState, read_log_tail
from quorate.tools.backup_servers import (
    Datastore,
    Server,
    ask_servers,
    failure_lines,
    objection_to,
    server_action,
    shows_to,
    visible_tasks,
)
from quorate.units import duration, moment

COLUMNS = ("started", "server", "type", "id", "user", "status", "took", "task")
READ_AT_ONCE = 500
NOT_FOUND_BY_STORE = ("reader", "sync")
STOP_SECONDS = 5.0

_NAMED_GROUP = re.compile(r"\b(vm|ct|host)/([A-Za-z0-9_][A-Za-z0-9._-]*)")
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
    type: Annotated[str, Meta(description="backup, verify, prune, gc, sync")] | None = None,
    limit: Annotated[int, Meta(ge=1, le=200)] = 20,
) -> Table:
    """Recent tasks of the backup servers, newest first."""
    filters: dict[str, Any] = {
        "limit": READ_AT_ONCE,
        "store": datastore,
        "typefilter": type_filter(type) if type else None,
    }
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

    async def ask(chosen: BackupServer) -> list[Mapping[str, Any]]:
        rows = await chosen.tasks(**filters)
        if datastore is not None:  # PBS finds only some types by their datastore
            others = [kind for kind in NOT_FOUND_BY_STORE if type_filter(type or "") in kind]
            for kind in others:
                everywhere = await chosen.tasks(**{**filters, "store": None, "typefilter": kind})
                rows += [row for row in everywhere if row["worker_type"] == kind and _is_in(chosen, row, datastore)]
        return await visible_tasks(homelab, chosen, rows)

    listed, silent = await ask_servers(homelab, server, ask)
    blank = await homelab.blanker()
    rows = sorted(
        ((name, row) for name, rows in listed.items() for row in rows), key=lambda each: -each[1]["starttime"]
    )
    table = page(COLUMNS, [_row(name, row, blank) for name, row in rows], limit=limit, offset=0)
    table.facts = {"no_answer": silent} if silent else {}
    return table


def _is_in(server: BackupServer, row: Mapping[str, Any], store: str) -> bool:
    subject = TaskSubject.of(server.name, row["worker_type"], str(row.get("worker_id") or ""))
    return any(place.store == store for place in subject.places)


def _row(server: str, row: Mapping[str, Any], blank: Callable[[str], str]) -> list[Any]:
    ended = row.get("endtime")
    return [
        moment(row["starttime"]),
        server,
        row["worker_type"],
        str(row.get("worker_id") or ""),
        row["user"],
        blank(str(row.get("status") or "")) if ended else "running",
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
    hides = homelab.hides is not None
    row = await find_task(homelab, chosen, upid) if hides else None
    state = await (chosen.follow(upid, wait=wait, report=None if hides else report) if wait else chosen.state_of(upid))
    log, total = await read_log_tail(chosen.client, upid, log_lines)
    state.log = [without_time(line) for line in log]
    if row is None:
        return _describe(chosen, state, total)
    state.log = await _visible_lines(homelab, chosen, row, state.log)
    state.exit = (await homelab.blanker())(state.exit or "") or None
    return _describe(chosen, state, len(state.log))


async def _visible_lines(
    homelab: Homelab, server: BackupServer, row: Mapping[str, Any], lines: Sequence[str]
) -> list[str]:
    """The log without lines about guests that rules hide; nothing of one that may be about hidden namespaces."""
    subject = TaskSubject.of(server.name, row["worker_type"], str(row.get("worker_id") or ""))
    blank = await homelab.blanker()
    shows = shows_to(homelab)
    for place in subject.places if subject.group is None else ():
        known = await server.namespaces(place.store) if place.store in await server.datastores() else []
        if not all(shows(replace(place, namespace=name)) for name in known):
            return ["The log is left out: it may name namespaces that rules hide"]
    place = subject.places[0] if subject.places else BackupNamespace(server.name, "*")
    visible = []
    for line in lines:
        groups = {Group(match[1], match[2]) for match in _NAMED_GROUP.finditer(line)}
        if not [group for group in groups if await objection_to(homelab, place, group)]:
            visible.append(blank(line))
    return visible


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
    row = await find_task(homelab, chosen, upid)
    subject = TaskSubject.of(chosen.name, row["worker_type"], str(row.get("worker_id") or ""))
    summary = f"Stop {row['worker_type']} {row.get('worker_id') or ''}".rstrip() + f" on {chosen.name}"
    if row.get("endtime"):
        return Plan(summary, unchanged=("The task has already ended",))
    loses = row["worker_type"] not in REPEATABLE
    places = subject.places or (BackupNamespace(chosen.name, "*"),)
    action = await server_action(
        homelab,
        chosen,
        places[0],
        summary,
        ("DELETE", upid.path, {}),
        group=subject.group,
        concerns=[Target(DATASTORE, str(place)) for place in places[1:]],
        risk=Risk.DESTROY if loses else None,
        because="what it has done so far is lost" if loses else "",
    )

    async def after() -> dict[str, Any]:
        state = await chosen.follow(upid, wait=STOP_SECONDS)
        return {"status": state.outcome, "exit": state.exit or ""}

    return Plan(summary, (action,), after=after)


async def find_task(homelab: Homelab, server: BackupServer, task: BackupTask) -> Mapping[str, Any]:
    """The task as the server lists it: PBS finds a running one by a part of its id, and believes the rest.

    Raises NotFound if the server lists none with exactly this id that the caller may see.
    """
    rows = await server.tasks(since=task.started - 1, until=task.started + 1, limit=0)
    row = next((row for row in rows if row["upid"] == task.text), None)
    if row is None or not await visible_tasks(homelab, server, [row]):
        raise NotFound(
            f"{server.name} lists no task {task.text} that {server.client.identity} may see",
            why="Without Sys.Audit on /system/tasks, PBS lists only the tasks of the token itself",
            next_step=see("Find its id among the recent tasks", tools.pbs_task_list(server=server.name)),
        )
    return row
