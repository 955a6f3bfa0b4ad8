"""Run a plan: send each call once, follow its task to the end, record the result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from quorate.hints import Advice, see, tools
from quorate.operations.backend import Backend
from quorate.operations.plan import Action, Call, Plan, StepContext, in_wire_form
from quorate.pipeline.proof import SentCall, observe, prove
from quorate.pipeline.record import Step, StepLog, describe_outcome
from quorate.problems import OutcomeUnknown, Overtaken, Problem, TaskFailed
from quorate.pve.backups import BACKUP_TASK, describe_failed_backups
from quorate.pve.cluster import Cluster
from quorate.pve.effect import Trace
from quorate.pve.errors import NO_QUORUM, failure_advice, id_was_taken, lacks_quorum
from quorate.pve.tasks import OwnTasks, Report, TaskOutcome, TaskState, Upid, find_started, follow, gather_bounded
from quorate.state.journal import StepState

CALLS_AT_ONCE = 8
LOG_LINES_ON_FAILURE = 5
SETTLE_INTERVAL = 1.0
SETTLE_SECONDS = 600.0
"""How long to wait for another PVE service, such as the HA manager; then the step is reported as still running."""
RESTORING = ("qmrestore", "vzrestore")
"""Tasks that may start the guest in another task."""
STARTING = ("qmstart", "vzstart")
DELEGATING = ("ha", "qmreboot")  # qmreboot ends when the VM has stopped; another service starts it again
UPLOAD_SHARE = 0.9  # of the progress of an upload; the rest is PVE's copying


async def apply(
    backend: Backend, plan: Plan, steps: list[Step], log: StepLog, *, wait: float, report: Report | None
) -> None:
    """Run the plan's calls: lanes in parallel if they are independent, otherwise in order until one is not done.

    Results go into `steps` as they arrive, so they are known even if this is interrupted.
    """
    progress = _Progress(len(steps), report)
    deadline = backend.clock.monotonic() + wait
    try:

        async def run_in_order(part: Sequence[tuple[int, Step]]) -> bool:
            for number, step in part:
                await _run(backend, step, log, deadline, progress.part(number))
                if not step.state.is_done:
                    return False
            return True

        numbered = list(enumerate(steps))
        if await run_in_order(numbered[: plan.first] if plan.independent else numbered) and plan.independent:
            await gather_bounded(CALLS_AT_ONCE, [partial(run_in_order, lane) for lane in plan.lanes(numbered)])
    finally:
        for where, part in plan.parts():
            (where or backend).forget(_guests_of(part))


def _guests_of(plan: Plan) -> set[int]:
    return {int(target.id) for target in (call.target for call in plan.calls) if target and target.kind in ("vm", "ct")}


async def _run(backend: Backend, step: Step, log: StepLog, deadline: float, report: Report | None) -> None:
    begun = backend.clock.monotonic()
    try:
        await log.permit()
    except Problem as problem:
        step.problem = problem
        return
    step.state = StepState.SENT
    try:
        if isinstance(step.call, Action):
            await _perform(step, step.call, log, max(0.0, deadline - begun), report)
            await log.record_answer(step)
        else:
            await _send_and_follow(backend.api, step, step.call, log, deadline, report)
    except Problem as problem:
        step.state = StepState.UNKNOWN if isinstance(problem, OutcomeUnknown) else StepState.FAILED
        step.problem = problem
        await log.record_answer(step)
        at = step.call.where if isinstance(step.call, Action) else None
        step.problem = await (at or backend).explain(problem)
    step.seconds = backend.clock.monotonic() - begun


async def _perform(step: Step, action: Action, log: StepLog, wait: float, report: Report | None) -> None:
    own = log.within(step)
    performed = await action.perform(StepContext(wait, report, partial(_carry_out, own), own.permit, own.origin))
    step.state = StepState.RUNNING if performed.running else StepState.STARTED if performed.begun else StepState.DONE
    step.state = StepState.COMMAND_FAILED if performed.fault else step.state
    step.facts, step.next_step, step.fault = performed.facts, performed.next_step, performed.fault


async def _send_and_follow(
    cluster: Cluster, step: Step, call: Call, log: StepLog, deadline: float, report: Report | None
) -> None:
    sending, following = (None, report) if call.upload is None else _split(report, UPLOAD_SHARE)
    await _send(cluster, step, call, sending)
    if step.task is None:
        step.state = StepState.DONE
    await log.record_answer(step)
    if step.task is None:
        return
    left = max(0.0, deadline - cluster.clock.monotonic())
    try:
        state = await follow(cluster.client, step.task, clock=cluster.clock, wait=left, report=following, new=True)
    except Problem as problem:  # the task exists; not being able to see it is not its failure
        state = TaskState(step.task, running=True, trouble=problem)
    _judge(step, state)
    starts_later = step.task.type in RESTORING and call.arrived is not None
    if step.state is StepState.DONE and starts_later:
        await _follow_start(cluster, step, step.task, deadline)
    if step.state is StepState.DONE and (starts_later or step.task.type.startswith(DELEGATING)):
        await _settle(cluster, step, call, deadline)


async def _follow_start(cluster: Cluster, step: Step, restore: Upid, deadline: float) -> None:
    """The guest is there; the task that starts it can still fail. Without one, the HA manager may be starting it."""
    client, clock = cluster.client, cluster.clock
    try:
        task = await find_started(
            client,
            restore.node,
            types=STARTING,
            ids={restore.id},
            since=restore.started,
            clock=clock,
            known=cluster.own_tasks,
        )
        if task is None:
            return
        cluster.own_tasks.add(task.text)
        started = await follow(client, task, clock=clock, wait=max(0.0, deadline - clock.monotonic()))
    except Problem:
        return  # what is seen of the guest then decides
    if started.outcome is TaskOutcome.FAILED:
        step.state, step.log = StepState.FAILED, started.log[-LOG_LINES_ON_FAILURE:]
        step.problem = TaskFailed(
            f"It was restored but could not be started: {started.exit}",
            next_step=failure_advice(started.exit or "", started.log)
            or see("See the whole log", tools.task_get(task=task.text)),
        )


async def _carry_out(
    log: StepLog, cluster: Cluster, plan: Plan, wait: float, report: Report | None
) -> Mapping[str, Any]:
    """Run the plan of a cluster as part of a step, or raise its failure. Its calls were authorized as `needs`."""
    plan = await in_wire_form(cluster, plan)
    observed = await observe(cluster, plan.calls)
    steps = observed.attach_to([Step(call) for call in plan.calls])
    await apply(cluster, plan, steps, log, wait=wait, report=report)
    answer = describe_outcome(plan, steps)
    if all(step.state.is_done for step in steps):
        return {**answer, **(await plan.after() if plan.after else {})}
    unfinished = next(step for step in steps if not step.state.is_done)
    if unfinished.problem is not None:
        raise unfinished.problem
    raise TaskFailed(f"{unfinished.call.summary}: {unfinished.state}", next_step=answer.get("next"), facts=answer)


async def _send(cluster: Cluster, step: Step, call: Call, report: Report | None) -> None:
    """Send one write, once. If its answer is lost, look for its task or its effect; never send it again."""
    params = {**call.params, "digest": await call.digest()} if call.digest else call.params
    if step.observe_late:
        step.before = (await observe(cluster, [call])).before.get(1)
    sent = SentCall(
        call.method,
        call.path,
        call.params,
        cluster.clock.time(),
        cluster.client.measured_skew,
        step.before,
        call.task_id,
        uploads=call.upload is not None,
    )
    try:
        answer = await (
            cluster.client.request(call.method, call.path, params)
            if call.upload is None
            else cluster.client.upload(call.path, call.params, call.upload, report)
        )
    except OutcomeUnknown as unknown:
        await _recover(cluster, step, call, sent, unknown)
        return
    step.answer = answer.data
    if Upid.looks_like(answer.data):
        step.task = Upid.parse(answer.data)
    elif answer.data == "OK" and call.path.endswith("/vzdump"):  # what PVE says when it backs up nothing
        raise Overtaken(
            "PVE backed up nothing",
            why="None of the guests is on that node anymore",
            next_step="They have moved since; call again",
        )
    elif call.task_unnamed:
        step.task = await _unnamed_task(cluster, replace(sent, accepted=True))
    if step.task is not None:
        cluster.own_tasks.add(step.task.text)


async def _unnamed_task(cluster: Cluster, sent: SentCall) -> Upid | None:
    """The task that PVE did not name; None if it is gone but its effect is visible."""
    trace = await _prove_quietly(cluster, sent)
    if isinstance(trace, Upid):
        return trace
    if trace is Trace.PRESENT:
        return None
    raise Problem(
        "PVE accepted it but started no task for it",
        next_step=Advice("Look at the guest and its tasks", tools.guest_get, tools.task_list),
    )


async def _recover(cluster: Cluster, step: Step, call: Call, sent: SentCall, unknown: OutcomeUnknown) -> None:
    """After a lost answer, find the task or the effect; otherwise the outcome stays unknown: it may still come."""
    trace = await _prove_quietly(cluster, sent)
    if isinstance(trace, Upid):
        step.task = trace
        cluster.own_tasks.add(step.task.text)
        step.note = "The answer was lost; its task was found and followed."
    elif trace is Trace.PRESENT or await _holds(call.settled):
        step.note = "The answer was lost; the effect was found."
    else:
        unknown.why = f"{unknown.why} {_NOT_PROVEN[trace]}"
        raise unknown


_NOT_PROVEN = {
    Trace.NONE: "No task for it was found afterwards, and nothing shows its effect.",
    Trace.SEVERAL: "Several tasks were found afterwards that it may have started.",
    Trace.UNCLEAR: "No task for it was found afterwards, and nothing shows whether it was done.",
}


async def _prove_quietly(cluster: Cluster, sent: SentCall) -> Upid | Trace:
    """Failing to look is not a failure of the write."""

    async def own_tasks() -> OwnTasks:
        return cluster.own_tasks

    try:
        return await prove(cluster, sent, own_tasks)
    except Problem:
        return Trace.UNCLEAR


async def _holds(effect: Callable[[], Awaitable[bool]] | None, *, failing: type[Problem] | None = None) -> bool:
    """Whether the effect is visible. Failing to look is not a failure of the write; `failing` shows one, so it is."""
    try:
        return effect is not None and await effect()
    except Problem as problem:
        if failing is not None and isinstance(problem, failing):
            raise
        return False


def _judge(step: Step, state: TaskState) -> None:
    if state.trouble is not None:
        step.note = f"It was started; its current state is unknown. {state.trouble}"
    step.state = StepState.DONE if state.outcome is TaskOutcome.OK else StepState(state.outcome)
    if state.outcome is TaskOutcome.FAILED:
        whole_log = see("See its whole log", tools.task_get(task=state.upid.text))
        advice = failure_advice(state.exit or "", state.log) or whole_log
        why = NO_QUORUM if any(map(lacks_quorum, (state.exit or "", *state.log))) else None
        if why is None and state.upid.type == BACKUP_TASK:
            why = describe_failed_backups(state.log) or None
        step.problem = TaskFailed(f"The task failed: {state.exit}", why=why, next_step=advice)
        step.id_taken = id_was_taken(state.exit or "")
        earlier = [
            line for line in state.log[:-LOG_LINES_ON_FAILURE] if line.startswith("ERROR")
        ]  # of one guest among many
        step.log = [*earlier[-LOG_LINES_ON_FAILURE:], *state.log[-LOG_LINES_ON_FAILURE:]]
    elif state.outcome is TaskOutcome.WARNINGS:
        step.note = state.exit
        step.log = [line for line in state.log if "warn" in line.lower()][-LOG_LINES_ON_FAILURE:]


async def _settle(cluster: Cluster, step: Step, call: Call, deadline: float) -> None:
    """Wait for what the task only requested, from the HA manager or after the end of a VM."""
    there = call.arrived
    deadline = min(deadline, cluster.clock.monotonic() + SETTLE_SECONDS)
    while there is not None and not await _holds(there, failing=TaskFailed):
        if cluster.clock.monotonic() >= deadline or cluster.client.leaving:
            step.state, step.note = StepState.RUNNING, Advice("PVE is still working on it", tools.guest_get)
            return
        await cluster.clock.sleep(SETTLE_INTERVAL)


def _split(report: Report | None, share: float) -> tuple[Report | None, Report | None]:
    """One progress bar for two stages, the first of which takes `share` of it."""
    if report is None:
        return None, None

    async def first(done: float, whole: float | None, line: str) -> None:
        await report(share * done / (whole or 100.0), 1.0, line)

    async def second(done: float, whole: float | None, line: str) -> None:
        await report(share + (1 - share) * done / (whole or 100.0), 1.0, line)

    return first, second


class _Progress:
    """One progress bar for many calls that never goes back."""

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
