"""Tasks: what PVE is doing and has done."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import Advice, tools
from quorate.operations.exemptions import REPEATABLE_TASK
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import GuestRef, Risk, Table, operation, page
from quorate.problems import Problem, catch_problem
from quorate.pve.backups import BACKUP_TASK, describe_failed_backups, read_failed_backups
from quorate.pve.cluster import Cluster
from quorate.pve.errors import failure_advice
from quorate.pve.tasks import Report, TaskOutcome, TaskState, Upid, follow, gather_bounded, read_log_tail, read_state
from quorate.units import count_of, duration, moment

COLUMNS = ("started", "node", "type", "id", "user", "status", "took", "task")

USERS_SHOWN = 10
TASKS_READ = 500
NODES_AT_ONCE = 8
_DESTROYS = ("qmdestroy", "vzdestroy")

STOP_SECONDS = 10.0

TaskRef = Annotated[str, Meta(description="UPID")]
LogLines = Annotated[int, Meta(ge=0, le=500)]


@operation(
    toolset="tasks",
    risk=Risk.READ,
    search_words="ran commands going on proxmox now jobs recent failed since yesterday backup night history",
)
async def task_list(
    pve: Cluster,
    node: Annotated[str, Meta(description="Only this node; reaches further back")] | None = None,
    guest: GuestRef | None = None,
    status: Literal["running", "failed", "ok"] | None = None,
    type: Annotated[str, Meta(description="Task type, such as qmstart or vzdump")] | None = None,
    user: str | None = None,
    limit: Annotated[int, Meta(ge=1, le=200)] = 20,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Recent tasks, newest first, with counts: of the whole cluster, of a node, or of a guest since it exists."""
    target = await pve.guest(guest) if guest is not None else None
    if node is not None:
        await pve.inventory.node(node)
    facts: dict[str, Any] = {}
    if node is None and target is None and user is None:
        rows = await pve.get("/cluster/tasks")
    else:
        rows, unread = await _read_nodes(pve, node, {"vmid": target.vmid} if target else {})
        facts |= {"not_read": unread} if unread else {}
    if target is not None:
        rows, earlier = _without_predecessor(rows)
        facts |= {"left_out": f"{count_of(earlier, 'task')} of an earlier guest {target.vmid}"} if earlier else {}
    chosen = [
        row
        for row in rows
        if type in (None, row["type"]) and (user is None or _is_by(user, row)) and status in (None, _outcome(row))
    ]
    chosen.sort(key=lambda row: -row["starttime"])
    table = page(COLUMNS, (_row(row) for row in chosen), limit=limit, offset=offset)
    table.keys = [-row["starttime"] for row in chosen[offset : offset + limit]]
    counts = {"outcomes": Counter(map(_outcome, chosen)), "users": Counter(map(_name_user, chosen))}
    table.facts = {**facts, **{name: dict(count.most_common(USERS_SHOWN)) for name, count in counts.items() if count}}
    return table


async def _read_nodes(
    pve: Cluster, node: str | None, about: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[str]]:
    """The tasks of a node, or of all nodes because guests move and tasks stay; and why some could not be read."""
    known = await pve.inventory.of_type("node")
    nodes = [node] if node else sorted(row.node for row in known if row.status == "online")
    reads = [partial(pve.get, f"/nodes/{name}/tasks", source="all", limit=TASKS_READ, **about) for name in nodes]
    if node is not None:
        return await reads[0](), []
    answers = await gather_bounded(NODES_AT_ONCE, [partial(_read_or_explain, read) for read in reads])
    unread = [f"{row.node} is offline" for row in known if row.node not in nodes]
    unread += [
        f"{name}: {answer.what}" for name, answer in zip(nodes, answers, strict=True) if isinstance(answer, Problem)
    ]
    return [row for answer in answers if not isinstance(answer, Problem) for row in answer], unread


async def _read_or_explain(read: Callable[[], Awaitable[Any]]) -> Any:
    return await catch_problem(read())


def _without_predecessor(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """The tasks since a guest with this vmid was last destroyed: those before were about another guest."""
    destroyed = [row["starttime"] for row in rows if row["type"] in _DESTROYS and _outcome(row) == "ok"]
    own = [row for row in rows if row["starttime"] > max(destroyed, default=0)]
    return own, len(rows) - len(own)


def _outcome(row: dict[str, Any]) -> str:
    status = row.get("status")
    if not row.get("endtime"):
        return "running"
    return "ok" if status == "OK" or str(status).startswith("WARNINGS") else "failed"


def _is_by(user: str, row: dict[str, Any]) -> bool:
    """The user itself or one of its tokens, which PVE names within `user` or in a separate field."""
    who = _name_user(row)
    return who == user or who.startswith(f"{user}!")


def _name_user(row: dict[str, Any]) -> str:
    """The user, with the token if it was one: `root@pam!backup`."""
    return f"{row['user']}!{row['tokenid']}" if row.get("tokenid") else str(row["user"])


def _row(row: dict[str, Any]) -> list[Any]:
    ended = row.get("endtime")
    return [
        moment(row["starttime"]),
        row["node"],
        row["type"],
        str(row.get("id") or ""),
        _name_user(row),
        str(row.get("status") or "") if ended else "running",
        duration(ended - row["starttime"]) if ended else "",
        row["upid"],
    ]


@operation(
    toolset="tasks",
    risk=Risk.READ,
    search_words="fail error log job task details result output migration backup complain",
    example="task=UPID:pve1:00000504:1464B400:6AF9FEE0:aptupdate::root@pam:",
)
async def task_get(pve: Cluster, task: TaskRef, log_lines: LogLines = 20) -> dict[str, Any]:
    """State and end of the log of one task."""
    upid = Upid.parse(task)
    state, (log, total) = await asyncio.gather(read_state(pve.client, upid), read_log_tail(pve.client, upid, log_lines))
    state.log = log
    is_failed_backup = upid.type == BACKUP_TASK and state.outcome is TaskOutcome.FAILED
    return _describe(state, total, await read_failed_backups(pve.client, upid) if is_failed_backup else "")


@operation(
    toolset="tasks",
    risk=Risk.READ,
    search_words="finished done yet wait task clone progress far",
    example="task=UPID:pve1:00000504:1464B400:6AF9FEE0:aptupdate::root@pam:",
)
async def task_wait(
    pve: Cluster,
    task: TaskRef,
    report: Report,
    wait: Annotated[float, Meta(ge=0, le=50, description="Maximum seconds to wait")] = 45,
    log_lines: LogLines = 10,
) -> dict[str, Any]:
    """Follow a task until it ends; call again if it still runs."""
    state = await follow(pve.client, Upid.parse(task), clock=pve.clock, wait=wait, report=report, log=bool(log_lines))
    cause = describe_failed_backups(state.log) if state.upid.type == BACKUP_TASK else ""
    state.log = state.log[-log_lines:] if log_lines else []
    return _describe(state, state.lines_seen, cause)


@operation(
    toolset="tasks",
    risk=Risk.CHANGE,
    idempotent=True,
    exemptions=(REPEATABLE_TASK,),
    search_words="cancel abort kill stuck hanging task job migration backup running",
    example="task=UPID:pve1:00000504:1464B400:6AF9FEE0:aptupdate::root@pam:",
)
async def task_stop(pve: Cluster, task: TaskRef) -> Plan:
    """Interrupt a running task. Its work may be left half done."""
    upid = Upid.parse(task)
    summary = f"Stop {upid.type} {upid.id} on {upid.node}".replace("  ", " ")
    if not (await read_state(pve.client, upid)).running:
        return Plan(summary, unchanged=("The task has already ended",))

    async def after() -> dict[str, Any]:
        # PVE gives the worker five seconds to end before it is killed
        state = await follow(pve.client, upid, clock=pve.clock, wait=STOP_SECONDS)
        return {"status": state.outcome, "exit": state.exit or ""}

    call = Call(summary, "DELETE", upid.path, target=Target("task", upid.text, node=upid.node))
    return Plan(summary, (call,), after=after)


def _describe(state: TaskState, log_total: int, cause: str) -> dict[str, Any]:
    upid = state.upid
    return {
        "task": upid.text,
        "type": upid.type,
        "id": upid.id,
        "node": upid.node,
        "user": upid.user,
        "started": moment(upid.started),
        "status": state.outcome,
        "exit": state.exit or "",
        **({"cause": cause} if cause else {}),
        **({"percent": state.percent} if state.percent is not None and state.running else {}),
        "log": state.log,
        **({"log_lines_in_all": log_total} if log_total > len(state.log) else {}),
        **({"trouble": str(state.trouble)} if state.trouble else {}),
        **({"next": advice} if (advice := _next_step(state)) else {}),
    }


def _next_step(state: TaskState) -> Advice | None:
    if state.running:
        return Advice("Follow it", tools.task_wait(task=str(state.upid)))
    return failure_advice(state.exit or "", state.log) if state.outcome is TaskOutcome.FAILED else None


PATIENCE_SECONDS = 40.0
INTERVAL_SECONDS = 2.0


async def comes_true(pve: Cluster, condition: Callable[[], Awaitable[bool]]) -> bool:
    """Wait for the condition as long as a caller can be kept waiting; returns False if it does not come true."""
    deadline = pve.clock.monotonic() + PATIENCE_SECONDS
    while not await condition():
        if pve.clock.monotonic() >= deadline:
            return False
        await pve.clock.sleep(INTERVAL_SECONDS)
    return True
