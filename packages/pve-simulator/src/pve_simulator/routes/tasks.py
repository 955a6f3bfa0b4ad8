"""Tasks: lists of the cluster and of a node, status, log, and stopping one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import bad_parameters, existing, failure
from pve_simulator.http.routing import Call, Payload, Text, route
from pve_simulator.nodes.tasks import Task, Upid, parse_upid

_RECENT_PER_NODE = 25
_DEFAULT_LIMIT = 50
_NO_LOG_FILE = "unable to open file - No such file or directory"


@route("GET /cluster/tasks")
def recent(call: Call) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for node in call.world.nodes.values():
        tasks = sorted(call.world.tasks.newest_first(node.name), key=lambda task: not task.running)
        sees_all = _sees_all(call, node.name)
        rows += [
            {**_row(task, with_process=False), "saved": "0" if task.running else "1"}
            for task in tasks[:_RECENT_PER_NODE]
            if sees_all or _is_own(call, task.upid)
        ]
    return sorted(rows, key=lambda row: -row["starttime"])


@route("GET /nodes/{node}/tasks")
def of_node(call: Call) -> Payload:
    tasks = [task for task in _from_source(call) if _passes_filters(call, task)]
    start = call.params.get("start", 0)
    limit = call.params.get("limit", _DEFAULT_LIMIT)
    shown = tasks[start : start + limit]
    return Payload([_list_row(task) for task in shown], total=len(tasks))


def _from_source(call: Call) -> Iterator[Task]:
    source = call.params.get("source", "archive")
    sees_all = _sees_all(call, call.node)
    for task in call.world.tasks.newest_first(call.node):
        listed = task.running if source == "active" else not task.running and call.world.tasks.is_archived(task)
        from_source = source == "all" or listed
        if from_source and (sees_all or _is_own(call, task.upid)):
            yield task


def _passes_filters(call: Call, task: Task) -> bool:
    params, upid = call.params, task.upid
    statuses = set(split_list(params.get("statusfilter")))
    return (
        (not params.get("errors") or task.failed)
        and params.get("typefilter") in (None, upid.type)
        and ("vmid" not in params or upid.id == str(params["vmid"]))
        and params.get("userfilter", "").lower() in upid.user.lower()
        and upid.starttime >= params.get("since", 0)
        and upid.starttime <= params.get("until", upid.starttime)
        and (not statuses or _status_type(task) in statuses)
    )


def _status_type(task: Task) -> str:
    match task.exitstatus:
        case None | "unexpected status":
            return "unknown"
        case "OK":
            return "ok"
        case text if text.startswith("WARNINGS: "):
            return "warning"
        case _:
            return "error"


@route("GET /nodes/{node}/tasks/{upid}/status")
def task_status(call: Call) -> dict[str, Any]:
    task = _existing(call)
    if not _is_own(call, task.upid):
        call.require(f"/nodes/{call.node}", "Sys.Audit")
    row = {**_identity(task.upid), "status": "running" if task.running else "stopped"}
    return row if task.running else row | {"exitstatus": task.exitstatus}


@route("GET /nodes/{node}/tasks/{upid}/log")
def task_log(call: Call) -> Payload | Text:
    upid = _parse_upid(call)
    if call.params.get("download") and {"start", "limit"} & call.params.keys():
        raise failure("'download' cannot be used together with 'start' or 'limit' parameters")
    if not _is_own(call, upid):
        call.require(f"/nodes/{call.node}", "Sys.Audit")
    task = call.world.tasks.find(call.values["upid"])
    lines = [_NO_LOG_FILE] if task is None else task.log or ["no content"]
    if call.params.get("download"):
        return Text("".join(f"{line}\n" for line in lines), f"task-{upid.node}-{upid.type}-{upid.starttime}.log")
    return Payload.of_lines(lines, call.params)


@route("DELETE /nodes/{node}/tasks/{upid}", needs_quorum=False)
async def stop_task(call: Call) -> None:
    task = _existing(call)
    if not _is_own(call, task.upid):
        call.require(f"/nodes/{call.node}", "Sys.Modify")
    await call.world.tasks.cancel(call.values["upid"])


def _parse_upid(call: Call) -> Upid:
    return existing(parse_upid(call.values["upid"]), bad_parameters({"upid": "unable to parse worker upid"}))


def _existing(call: Call) -> Task:
    """The task, which exists only on the node in its UPID."""
    upid = _parse_upid(call)
    task = call.world.tasks.find(call.values["upid"])
    if task is None or upid.node != call.node:
        raise bad_parameters({"upid": "no such task"})
    return task


def _sees_all(call: Call, node: str) -> bool:
    return call.is_root or call.allowed(f"/nodes/{node}", "Sys.Audit")


def _is_own(call: Call, upid: Upid) -> bool:
    """A user owns the tasks of its tokens too, a token only its own."""
    return call.authid in (upid.user, upid.owner)


def _identity(upid: Upid) -> dict[str, Any]:
    row: dict[str, Any] = {
        "upid": str(upid), "node": upid.node, "pid": upid.pid, "pstart": upid.pstart, "starttime": upid.starttime,
        "type": upid.type, "id": upid.id, "user": upid.owner,
    }  # fmt: skip
    return row | ({"tokenid": upid.tokenid} if upid.tokenid else {})


def _row(task: Task, *, with_process: bool) -> dict[str, Any]:
    row = _identity(task.upid)
    if not with_process:
        del row["pid"], row["pstart"]
    if task.endtime is not None:
        row |= {"endtime": int(task.endtime), "status": task.exitstatus}
    return row


def _list_row(task: Task) -> dict[str, Any]:
    """Running tasks come from another file, in which user and token are one field."""
    row = _row(task, with_process=True)
    if task.running:
        row |= {"status": "RUNNING", "saved": "0", "user": task.upid.user}
        row.pop("tokenid", None)
    return row
