"""The health of each node: failed tasks, updates, certificates."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from quorate.hints import tools
from quorate.problems import Problem, catch_problem
from quorate.pve.backups import explain_failed_task
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource
from quorate.pve.tasks import gather_bounded
from quorate.tools.health_findings import Finding, explained_finding, names, pve_time, read_in_time
from quorate.units import count_of, moment

NODES_AT_ONCE = 8
DAY = 86400
TASKS_READ = 200
CERTIFICATE_DAYS = 30
REASON_LENGTH = 120


async def _of_every_node(
    pve: Cluster, rows: list[Resource], area: str, read: Callable[[str], Awaitable[Any]]
) -> tuple[dict[str, Any], list[Finding]]:
    """The answer of each online node, and findings about those that did not answer."""
    online = sorted(row.node for row in rows if row.type == "node" and row.status == "online")
    answers: list[tuple[str, Any]] = await gather_bounded(
        NODES_AT_ONCE, [partial(_answer_or_problem, node, read) for node in online]
    )
    failed: dict[str, list[tuple[str, Problem]]] = {}
    for node, answer in answers:
        if isinstance(answer, Problem):
            failed.setdefault(answer.code, []).append((node, answer))
    findings = []
    for each in failed.values():
        node, problem = each[0]
        problem = problem if len(each) == 1 else await _widen_grant(pve, problem)
        where = f" at {names(name for name, _ in each)}"
        findings.append(await explained_finding(pve, area, problem, tools.node_get(node=node), where))
    return {node: answer for node, answer in answers if not isinstance(answer, Problem)}, findings


async def _answer_or_problem(node: str, read: Callable[[str], Awaitable[Any]]) -> tuple[str, Any]:
    try:
        return node, await read_in_time(read(node))
    except Problem as problem:
        return node, problem


async def _widen_grant(pve: Cluster, problem: Problem) -> Problem:
    """Suggest one grant for all nodes, unless there is one and the nodes' own entries override it."""
    if not str(problem.facts.get("path")).startswith("/nodes/"):
        return problem
    privileges = problem.facts["privileges"]
    with suppress(Problem):
        if not all([await pve.may("/nodes", privilege) for privilege in privileges]):
            return await pve.refusal(problem.facts["request"], "/nodes", privileges, any_of=len(privileges) > 1)
    return problem


async def failed_tasks(pve: Cluster, rows: list[Resource]) -> list[Finding]:
    """Failed tasks of the last day, grouped by kind and node, each with the newest."""
    since = int(pve_time(pve)) - DAY
    answers, findings = await _of_every_node(
        pve,
        rows,
        "tasks",
        lambda node: pve.get(f"/nodes/{node}/tasks", errors=1, since=since, limit=TASKS_READ),
    )
    for node, tasks in answers.items():
        groups: dict[str, list[dict[str, Any]]] = {}
        for task in tasks:
            if has_failed(task):
                groups.setdefault(task["type"], []).append(task)
        for kind, group in sorted(groups.items()):
            newest = max(group, key=lambda task: task["starttime"])
            explained = await catch_problem(read_in_time(explain_failed_task(pve.client, newest)))
            if not isinstance(explained, Problem):
                group = [*(task for task in group if task is not newest), explained]
            findings.append(failure_of(node, kind, group))
    return findings


def has_failed(task: dict[str, Any]) -> bool:
    """PVE counts warnings among the errors."""
    return bool(task.get("endtime")) and not str(task.get("status", "")).startswith(("OK", "WARNINGS"))


def failure_of(node: str, kind: str, tasks: list[dict[str, Any]]) -> Finding:
    newest = max(tasks, key=lambda task: task["starttime"])
    of = names(dict.fromkeys(str(task.get("id") or "") for task in tasks if task.get("id")))
    what = f"{count_of(len(tasks), 'task', 'tasks')} {kind} failed on {node}" + (f" (of {of})" if of else "")
    reason = f"; the newest at {moment(newest['starttime'])}: {str(newest.get('status', ''))[:REASON_LENGTH]}"
    next_call = tools.task_get(task=newest["upid"])
    return Finding("warning", "tasks", what + reason, next_call, "task-failing", f"{kind} on {node}")


async def updates(pve: Cluster, rows: list[Resource]) -> list[Finding]:
    """Pending updates, as of the last refresh of each node's package lists."""
    answers, findings = await _of_every_node(pve, rows, "updates", lambda node: pve.get(f"/nodes/{node}/apt/update"))
    return findings + waiting_updates(answers)


def waiting_updates(answers: dict[str, list[dict[str, Any]]]) -> list[Finding]:
    """Group nodes that wait for the same packages."""
    findings = []
    alike: dict[tuple[str, ...], list[str]] = {}
    for node, packages in answers.items():
        if packages:
            alike.setdefault(tuple(sorted(str(each.get("Package", "?")) for each in packages)), []).append(node)
    for listed, nodes in alike.items():
        what = f"{count_of(len(listed), 'update waits', 'updates wait')} on {names(nodes)}: {names(listed)}"
        findings.append(Finding("info", "updates", what, tools.node_inspect(node=nodes[0], aspect="updates")))
    return findings


async def certificates(pve: Cluster, rows: list[Resource]) -> list[Finding]:
    answers, findings = await _of_every_node(
        pve, rows, "certificates", lambda node: pve.get(f"/nodes/{node}/certificates/info")
    )
    return findings + ending_certificates(answers, pve_time(pve))


def ending_certificates(answers: dict[str, list[dict[str, Any]]], now: float) -> list[Finding]:
    ending: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for node, listed in answers.items():
        for each in listed:
            if each.get("notafter") and int(each["notafter"]) - now < CERTIFICATE_DAYS * DAY:
                _, nodes = ending.setdefault(str(each.get("fingerprint")), (each, []))  # the CA is on all nodes
                nodes.append(node)
    return [_ending(each, nodes, now) for each, nodes in ending.values()]


def _ending(certificate: dict[str, Any], nodes: list[str], now: float) -> Finding:
    left = int(certificate["notafter"]) - now
    where = f"Certificate {certificate.get('filename')} of {names(nodes)}"
    next_call = tools.node_inspect(node=nodes[0], aspect="certificates")
    about = ("certificate-ending", f"{certificate.get('filename')} of {nodes[0]}", tuple(nodes))
    if left <= 0:
        ended = moment(int(certificate["notafter"]))
        return Finding("critical", "certificates", f"{where} expired at {ended}", next_call, *about)
    what = f"{where} expires in {count_of(int(left // DAY), 'day', 'days')}"
    return Finding("warning", "certificates", what, next_call, *about)
