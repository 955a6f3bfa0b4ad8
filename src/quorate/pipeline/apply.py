"""Carrying a plan out: send each call once, follow its task to the end, tell what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quorate.operations.plan import Action, Call, Plan
from quorate.operations.units import duration
from quorate.pve.cluster import Cluster
from quorate.pve.errors import (
    Conflict,
    NotFound,
    OutcomeUnknown,
    PermissionMissing,
    Problem,
    TaskFailed,
    conflict_advice,
)
from quorate.pve.tasks import Report, TaskState, Upid, find_started, follow, gather_bounded

CALLS_AT_ONCE = 8
LOG_LINES_ON_FAILURE = 5
SETTLE_INTERVAL = 1.0
HANDING_ON = ("ha", "qmreboot")  # qmreboot ends when the VM has stopped; another service starts it again
UPLOAD_SHARE = 0.9  # of the progress of an upload; the rest is PVE's copying


@dataclass(slots=True)
class Step:
    """One call of the plan and what became of it."""

    call: Call | Action
    state: str = "not tried"
    """done, warnings, running, failed, unknown (sent, and no answer came back) or not tried"""
    task: Upid | None = None
    problem: Problem | None = None
    note: str | None = None
    seconds: float = 0.0
    log: list[str] = field(default_factory=list)
    answer: Any = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    next_step: str | None = None

    def describe(self) -> dict[str, Any]:
        return {
            "step": self.call.says,
            "state": self.state,
            **({"task": self.task.text} if self.task else {}),
            **({"took": duration(self.seconds)} if self.task and self.state in ("done", "warnings", "failed") else {}),
            **({"why": str(self.problem)} if self.problem else {}),
            **({"log": self.log} if self.log else {}),
            **({"note": self.note} if self.note else {}),
            **self.facts,
        }


async def apply(cluster: Cluster, plan: Plan, steps: list[Step], *, wait: float, report: Report | None) -> None:
    """Run the plan's calls: side by side if they are independent, else in order up to the first that is not done.

    What becomes of them is written into `steps` as it happens, so that it is known even if this is interrupted.
    """
    progress = _Progress(len(steps), report)
    deadline = cluster.clock.monotonic() + wait
    try:
        if plan.independent:
            await gather_bounded(
                CALLS_AT_ONCE,
                [_job(cluster, step, deadline, progress.part(n)) for n, step in enumerate(steps)],
            )
        else:
            for number, step in enumerate(steps):
                await _run(cluster, step, deadline, progress.part(number))
                if step.state not in ("done", "warnings"):
                    break
    finally:
        for where, _ in plan.parts():
            (where or cluster).inventory.forget()


def _job(cluster: Cluster, step: Step, deadline: float, report: Report | None) -> Callable[[], Any]:
    return lambda: _run(cluster, step, deadline, report)


async def _run(cluster: Cluster, step: Step, deadline: float, report: Report | None) -> None:
    begun = cluster.clock.monotonic()
    try:
        if isinstance(step.call, Action):
            await _perform(step, step.call, max(0.0, deadline - begun), report)
        else:
            await _call(cluster, step, step.call, deadline, report)
    except Problem as problem:
        step.state, step.problem = "unknown" if isinstance(problem, OutcomeUnknown) else "failed", problem
        if isinstance(problem, PermissionMissing):
            cluster.forget_rights()
    step.seconds = cluster.clock.monotonic() - begun


async def _perform(step: Step, action: Action, wait: float, report: Report | None) -> None:
    performed = await action.perform(wait, report)
    step.state = "running" if performed.running else "done"
    step.facts, step.next_step = performed.facts, performed.next_step


async def _call(cluster: Cluster, step: Step, call: Call, deadline: float, report: Report | None) -> None:
    sending, following = (None, report) if call.upload is None else _split(report, UPLOAD_SHARE)
    await _send(cluster, step, call, sending)
    if step.task is None:
        step.state = "done"
        return
    left = max(0.0, deadline - cluster.clock.monotonic())
    try:
        state = await follow(cluster.client, step.task, clock=cluster.clock, wait=left, report=following)
    except Problem as problem:  # the task is there, whatever keeps us from seeing it: that is not a failure of the task
        state = TaskState(step.task, running=True, trouble=problem)
    _judge(step, state)
    if step.state == "done" and step.task.type.startswith(HANDING_ON):
        await _settle(cluster, step, call, deadline)


async def _send(cluster: Cluster, step: Step, call: Call, report: Report | None) -> None:
    """One write, once. If its answer is lost, the task it started is looked for; it is never sent again."""
    sent_at = cluster.clock.time()
    try:
        answer = await (
            cluster.client.request(call.method, call.path, call.params)
            if call.upload is None
            else cluster.client.upload(call.path, call.params, call.upload, report)
        )
    except OutcomeUnknown as unknown:
        await _find_out(cluster, step, call, sent_at, unknown)
        return
    step.answer = answer.data
    if Upid.looks_like(answer.data):
        step.task = Upid.parse(answer.data)
    elif answer.data == "OK" and call.path.endswith("/vzdump"):  # what PVE says when it backs up nothing
        raise Conflict(
            "PVE backed up nothing",
            why="None of the guests is on that node any more",
            next_step="They have moved meanwhile; call again",
        )
    elif call.task_unnamed:
        step.task = await _unnamed_task(cluster, call, sent_at)
    if step.task is not None:
        cluster.own_tasks.add(step.task.text)


async def _unnamed_task(cluster: Cluster, call: Call, sent_at: float) -> Upid | None:
    """The task that PVE has not named, None if it is over and gone but its effect is there."""
    task = await _lost_task(cluster, call, sent_at)
    if task is None and not await _seen(call.settled):
        raise Problem("PVE accepted it but started no task for it", next_step="Look at guest_get and task_list")
    return task


async def _find_out(cluster: Cluster, step: Step, call: Call, sent_at: float, unknown: OutcomeUnknown) -> None:
    """After a lost answer: the task that was started, or the effect itself. Else the fate stays unknown."""
    step.task = await _lost_task(cluster, call, sent_at)
    if step.task is not None:
        cluster.own_tasks.add(step.task.text)
        step.note = "The answer was lost; its task was found and followed."
    elif await _seen(call.settled):
        step.note = "The answer was lost; the effect was found to be there."
    else:
        unknown.why = f"{unknown.why} No task for it was found on the node afterwards."
        raise unknown


async def _seen(effect: Callable[[], Awaitable[bool]] | None) -> bool:
    """Whether the effect is known to be there. If looking fails, it is not known; the write itself has not failed."""
    try:
        return effect is not None and await effect()
    except Problem:
        return False


async def _lost_task(cluster: Cluster, call: Call, sent_at: float) -> Upid | None:
    match = (await cluster.facts()).find(call.method, call.path)
    if match is None or not match.endpoint.worker_types or "node" not in match.values:
        return None
    types = {*match.endpoint.worker_types, *(f"ha{word}" for word in ("start", "stop", "migrate"))}
    ids = {str(one) for one in (match.values.get("vmid"), call.params.get("vmid"), "") if one is not None}
    if call.task_id is not None:
        ids = {call.task_id}

    async def look(node: str) -> Upid | None:
        try:
            return await find_started(
                cluster.client,
                node,
                types=types,
                ids=ids,
                since=sent_at,
                clock=cluster.clock,
                known=cluster.own_tasks,
            )
        except Problem:
            return None  # the node is still away; the caller is told that the fate is unknown

    found = await asyncio.gather(*(look(node) for node in await _workplaces(cluster, call, match.values["node"])))
    return next((task for task in found if task is not None), None)


async def _workplaces(cluster: Cluster, call: Call, node: str) -> list[str]:
    """Where the task of a call may run: an upload is worked on by the node that received it, whichever that was."""
    try:
        rows = [] if call.upload is None else await cluster.inventory.of_type("node")
    except Problem:
        rows = []
    return [row.node for row in rows if row.status == "online"] or [node]


def _judge(step: Step, state: TaskState) -> None:
    if state.trouble is not None:
        step.note = f"It was begun; how it stands is not known. {state.trouble}"
    step.state = {"running": "running", "ok": "done", "warnings": "warnings", "failed": "failed"}[state.outcome]
    if state.outcome == "failed":
        advice = conflict_advice(state.exit or "") or f"task_get task={state.upid.text} shows its whole log"
        step.problem = TaskFailed(f"The task failed: {state.exit}", next_step=advice)
        earlier = [line for line in state.log[:-LOG_LINES_ON_FAILURE] if line.startswith("ERROR")]  # of one among many
        step.log = [*earlier[-LOG_LINES_ON_FAILURE:], *state.log[-LOG_LINES_ON_FAILURE:]]
    elif state.outcome == "warnings":
        step.note = state.exit
        step.log = [line for line in state.log if "warn" in line.lower()][-LOG_LINES_ON_FAILURE:]


async def _settle(cluster: Cluster, step: Step, call: Call, deadline: float) -> None:
    """The task has only told someone else what is wanted, the HA manager or the end of a VM; wait until it is done."""
    there = call.arrived or call.settled
    while there is not None and not await _seen(there):
        if cluster.clock.monotonic() >= deadline or cluster.client.leaving:
            step.state, step.note = "running", "PVE has taken it over and is still at it; see guest_get."
            return
        await cluster.clock.sleep(SETTLE_INTERVAL)


async def confirm_identity(cluster: Cluster, plan: Plan) -> None:
    """Before a DESTROY: the guests are still those that the plan speaks of."""
    for where, part in plan.parts():
        await _confirm_identity(where or cluster, part)


async def _confirm_identity(cluster: Cluster, plan: Plan) -> None:
    cluster.inventory.forget()
    for target in (call.target for call in plan.calls if call.target is not None and call.target.kind in ("vm", "ct")):
        try:
            now = await cluster.inventory.guest(int(target.id))
        except NotFound:
            raise Conflict(f"{target} is gone meanwhile", next_step="Nothing was done; see guest_list") from None
        if (now.kind, now.node) != (target.kind, target.node) or (now.name and target.name and now.name != target.name):
            raise Conflict(
                f"{target} has become {now} meanwhile",
                next_step="Nothing was done; look again and decide anew",
            )


def _split(report: Report | None, share: float) -> tuple[Report | None, Report | None]:
    """One bar for two stages, of which the first takes `share` of it."""
    if report is None:
        return None, None

    async def first(done: float, whole: float | None, line: str) -> None:
        await report(share * done / (whole or 100.0), 1.0, line)

    async def second(done: float, whole: float | None, line: str) -> None:
        await report(share + (1 - share) * done / (whole or 100.0), 1.0, line)

    return first, second


class _Progress:
    """Many calls, one bar that never goes back."""

    def __init__(self, parts: int, report: Report | None) -> None:
        self._report = report
        self._parts = [0.0] * parts
        self._shown = -1.0

    def part(self, number: int) -> Report | None:
        if self._report is None:
            return None

        async def tell(done: float, whole: float | None, line: str) -> None:
            self._parts[number] = done / (whole or 100.0)
            overall = round(100 * sum(self._parts) / len(self._parts), 1)
            if self._report is not None and overall > self._shown:
                self._shown = overall
                await self._report(overall, 100.0, line)

        return tell
