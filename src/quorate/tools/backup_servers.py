"""What the tools for Proxmox Backup Servers share: their arguments, reading several servers, and steps that change."""

from __future__ import annotations

import asyncio
import hashlib
import shlex
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from quorate.hints import see, tools
from quorate.homelab.homelab import Homelab
from quorate.operations.plan import Action, ActionResult, StepContext, Target
from quorate.operations.registry import Risk
from quorate.pbs.client import BackupTask, conflict_advice
from quorate.pbs.server import Backup, BackupNamespace, BackupServer, Group, Shows, explain_no_server, find_server
from quorate.pbs.tasks import TaskSubject
from quorate.problems import Problem, TaskFailed, answer_within
from quorate.pve.cluster import Cluster
from quorate.pve.lookup import Reference
from quorate.pve.targets import BACKUP, DATASTORE, Subject
from quorate.pve.tasks import TaskOutcome, TaskState
from quorate.pve.wire import encode, pairs
from quorate.units import count_of

Answer = TypeVar("Answer")

SERVER_SECONDS = 30.0
"""How long one backup server may delay the others."""
LOG_LINES = 8
FAILED_LIST = "Failed to verify the following"

Server = str
"""Only needed where several are configured, as the refusal says; like the datastore where there are several."""
Datastore = str
Namespace = str
BackupRef = Annotated[str, Meta(description="vm/100/2025-01-01T00:00:00Z")]
BackupOrGroup = Annotated[str, Meta(description="vm/100, or vm/100/2025-01-01T00:00:00Z")]


# -- reading -----------------------------------------------------------------------------------------------------------


async def ask_servers(
    homelab: Homelab, name: str | None, ask: Callable[[BackupServer], Awaitable[Answer]]
) -> tuple[dict[str, Answer], dict[str, str]]:
    """The answers of all servers or of the named one, and why others did not answer. Raises if none did."""
    if not homelab.backup_servers:
        raise explain_no_server()
    servers = [find_server(homelab.backup_servers, name)] if name else list(homelab.backup_servers)
    results = await asyncio.gather(*(answer_within(SERVER_SECONDS, server.name, ask(server)) for server in servers))
    answers: dict[str, Answer] = {}
    problems: dict[str, Problem] = {}
    for server, result in zip(servers, results, strict=True):
        if isinstance(result, Problem):
            problems[server.name] = result
        else:
            answers[server.name] = result
    if not answers:
        raise next(iter(problems.values()))
    return answers, {server: str(problem) for server, problem in problems.items()}


async def group_of_guest(homelab: Homelab, ref: int | str) -> list[Group]:
    """The groups that a guest's backups are in: by vmid or name, or as they are called, such as host/nas."""
    text = str(ref).strip()
    if text.split("/")[0] in ("vm", "ct", "host") and "/" in text:
        return [Group.parse(text)]
    if text.isascii() and text.isdigit():
        return [Group("vm", text), Group("ct", text)]
    for cluster in homelab.clusters:
        if matching := await cluster.inventory.matching(ref):
            return [Group("vm" if row.type == "qemu" else "ct", str(row.vmid)) for row in matching]
    return [Group("host", text)]


async def visible_backups(homelab: Homelab, backups: Sequence[Backup]) -> list[Backup]:
    """Without those of guests and datastores that rules hide from the caller."""
    hides = homelab.hides
    if hides is None:
        return list(backups)
    hidden: dict[tuple[str, int | None], bool] = {}
    for backup in backups:
        key = (str(backup.place), backup.group.vmid)
        if key not in hidden:
            subjects = [Subject(DATASTORE, key[0])]
            subjects += await homelab.find_guests(str(key[1])) if key[1] is not None else []
            hidden[key] = any(hides(subject) for subject in subjects)
    return [backup for backup in backups if not hidden[str(backup.place), backup.group.vmid]]


def shows_to(homelab: Homelab) -> Shows:
    """Whether rules let the caller see a datastore or namespace."""
    hides = homelab.hides
    return lambda place: hides is None or hides(Subject(DATASTORE, str(place))) is None


async def objection_to(homelab: Homelab, place: BackupNamespace, group: Group | None = None) -> Problem | None:
    """Why the caller must not see this, if rules hide it."""
    if homelab.hides is None:
        return None
    subjects = [Subject(DATASTORE, str(place))]
    if group is not None and group.vmid is not None:
        subjects += await homelab.find_guests(str(group.vmid))
    return next((refused for subject in subjects if (refused := homelab.hides(subject))), None)


async def visible_tasks(
    homelab: Homelab, server: BackupServer, rows: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The tasks that work on nothing that rules hide from the caller."""
    if homelab.hides is None:
        return list(rows)
    visible = []
    for row in rows:
        subject = TaskSubject.of(server.name, row["worker_type"], str(row.get("worker_id") or ""))
        if not [place for place in subject.places if await objection_to(homelab, place, subject.group)]:
            visible.append(row)
    return visible


async def require_visible(homelab: Homelab, place: BackupNamespace, group: Group | None = None) -> None:
    """Refuse what rules hide from the caller."""
    if refused := await objection_to(homelab, place, group):
        raise refused


async def choose_namespace(
    homelab: Homelab, server: str | None, datastore: str | None, namespace: str
) -> tuple[BackupServer, BackupNamespace]:
    """The server and the namespace that arguments name."""
    chosen = find_server(homelab.backup_servers, server)
    store = await chosen.choose_datastore(datastore, shows_to(homelab))
    place = BackupNamespace(chosen.name, store, namespace.strip().strip("/"))
    await require_visible(homelab, place)
    return chosen, place


# -- changing ----------------------------------------------------------------------------------------------------------


async def cluster_of(homelab: Homelab, group: Group | None) -> Cluster | None:
    """The only cluster that has the guest of these backups: its own rules and limits apply to them as well."""
    if group is None or group.vmid is None:
        return None
    having = []
    for cluster in homelab.every_cluster:
        try:
            rows = (await cluster.inventory.complete_view()).matching(Reference.parse(group.vmid))
        except Problem:
            if cluster.name in {guarded.name for guarded in homelab.guarded}:
                raise
            continue
        having += [cluster] if rows else []
    return having[0] if len(having) == 1 else None


async def server_action(
    homelab: Homelab,
    server: BackupServer,
    place: BackupNamespace,
    summary: str,
    request: tuple[str, str, Mapping[str, Any]],
    *,
    group: Group | None = None,
    concerns: Iterable[Backup | Target] = (),
    removes: Collection[str] = (),
    based_on: Collection[str] = (),
    risk: Risk | None = None,
    because: str = "",
    check: Callable[[], Awaitable[None]] | None = None,
    result: Callable[[Any], Mapping[str, Any]] | None = None,
) -> Action:
    """One write to a backup server as a step of a plan.

    `concerns` are backups of guests and datastores to which rules apply although the request does not name them;
    `removes` are the backups that it would delete, and `based_on` is what else decides its effect, so that an approval
    covers no other. `check` refuses if what was planned on has changed; `result` turns the answer into facts. A task is
    followed.
    """
    method, path, params = request

    async def perform(context: StepContext) -> ActionResult:
        if check is not None:
            await check()
        answer = await server.write(method, path, params)
        if BackupTask.looks_like(answer):
            return await follow_task(server, BackupTask.parse(answer), context)
        return ActionResult(dict(result(answer)) if result is not None else {})

    arguments = " ".join(f"{name}={shlex.quote(value)}" for name, value in pairs(encode(params)))
    target = Target(DATASTORE, str(place)) if group is None else Target(BACKUP, f"{place}:{group}")
    return Action(
        summary,
        f"{server.name}: {method} {path} {arguments}".rstrip()
        + _mark_removed(removes)
        + (f" [as read: {_digest(based_on)}]" if based_on else ""),
        perform,
        target,
        concerns=tuple(
            dict.fromkeys(
                backup_target(each.place, each.group) if isinstance(each, Backup) else each for each in concerns
            )
        ),
        where=await cluster_of(homelab, group),
        risk=risk,
        risk_because=because,
    )


def _mark_removed(names: Collection[str]) -> str:
    """How many backups a step removes, and a short digest of which."""
    if not names:
        return ""
    return f" [removes {count_of(len(names), 'backup')}, {_digest(names)}]"


def _digest(texts: Collection[str]) -> str:
    return hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()[:8]


def backup_target(place: BackupNamespace, group: Group) -> Target:
    """All backups of a guest or host in a namespace."""
    return Target(BACKUP, f"{place}:{group.name}")


async def follow_task(server: BackupServer, task: BackupTask, context: StepContext) -> ActionResult:
    """Follow the task of a write; if it outlasts the caller's patience, say how to follow it."""
    state = await server.follow(task, wait=context.wait, report=context.report, new=True)
    named = {"task": task.text}
    later = tools.pbs_task_get(server=server.name, task=task.text)
    if state.running:
        return ActionResult(named, running=True, next_step=see("See its progress", later))
    if state.outcome is TaskOutcome.FAILED:
        raise TaskFailed(
            f"The task failed: {state.exit}",
            why="; ".join(cause) if (cause := failure_lines(state)) else None,
            next_step=conflict_advice(state.exit or "") or see("See its log", later),
            facts=named,
        )
    warned = {"warnings": state.exit} if state.outcome is TaskOutcome.WARNINGS else {}
    return ActionResult({**named, **warned})


def failure_lines(state: TaskState) -> list[str]:
    """The lines of a failed task's log that name the cause: PBS often says only to look there."""
    lines = [line.strip() for line in state.log if line.strip() and not line.startswith("TASK ")]
    named = next((number for number, line in enumerate(lines) if line.startswith(FAILED_LIST)), None)
    if named is not None:
        return lines[named : named + LOG_LINES]
    return [line for line in lines if "error" in line.lower() or "fail" in line.lower()][-3:]
