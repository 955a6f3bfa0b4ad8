"""Commands in the background, of guests and of hosts: list them, poll one for its output, stop one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import SNAPSHOT_ROLLBACK, Advice, Sentence, see
from quorate.inside.agent import AgentTransport
from quorate.inside.jobs import BackgroundJob, JobRegistry, no_job
from quorate.inside.kept_jobs import KeptJob, id_of
from quorate.inside.transport import Command, Job, Transport
from quorate.operations.commands import DIES_WITH_US, JOB_TOOLS, SHOWN, Noun, fault_of, output_facts
from quorate.operations.inside.parameters import needs_of
from quorate.operations.plan import Action, ActionResult, Plan, StepContext, Target
from quorate.operations.registry import Table, page
from quorate.operations.units import duration
from quorate.problems import BadArgument, NotFound, OutcomeUnknown
from quorate.pve.cluster import Cluster, Guest
from quorate.secret import Secret

LOST = "It ended without an exit code: the machine was restarted, or something killed it with its supervisor"
JobAction = Literal["list", "poll", "stop"]
Seconds = Annotated[float, Meta(ge=0, le=50, description="How long to wait for its end")]


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A job and the machine that it runs on, as far as the caller may see it."""

    handle: str
    noun: Noun
    job: Job
    known: BackgroundJob | None
    """None for a command of an agent that no server has recorded."""
    guest: Guest | None = None
    where: Cluster | None = None
    """The cluster of a machine of the homelab."""


@dataclass(frozen=True, slots=True)
class JobTool:
    """What `guest_job` and `host_job` share; how a job's machine is found differs."""

    jobs: JobRegistry
    noun: Noun
    find: Callable[[str], Awaitable[FoundJob]]
    """By its handle. Raises if there is none, or if its machine is hidden."""
    is_visible: Callable[[BackgroundJob], Awaitable[bool]]

    async def answer(self, action: JobAction, handle: str | None, seconds: float) -> dict[str, Any] | Table | Plan:
        if action == "list":
            return _table(
                self.jobs, self.noun, [one for one in await self.jobs.list_jobs() if await self.is_visible(one)]
            )
        if handle is None:
            jobs = JOB_TOOLS[self.noun](action="list")
            raise BadArgument(Sentence("{action} needs the job", action=action), next_step=see("List the jobs", jobs))
        found = await self.find(handle)
        return await _poll(self.jobs, found, seconds) if action == "poll" else _stop(self.jobs, found)


async def _poll(jobs: JobRegistry, found: FoundJob, seconds: float) -> dict[str, Any]:
    known = found.known
    async with _forget_lost_job(jobs, known):
        output = await found.job.wait(seconds)
    about = _job_facts(jobs, found.noun, known)
    if output is None:
        shown = output_facts(await found.job.partial_output(), ended=False)
        return {"job": found.handle, "state": "running", **about, **shown}
    if known is not None:
        await jobs.note_end(known)
    lost = output.exit_code is None and output.signal is None
    late = isinstance(found.job, KeptJob) and found.job.late
    result = fault_of(output, late=late, limit=known.record.timeout if known else None) or "done"
    state = {"state": "lost", "why": LOST} if lost else {"state": "ended", "result": result}
    facts = {"job": found.handle, **state, **about, **output_facts(output, ended=not lost)}
    if known is not None and known.record.back and output.exit_code != 0:
        how = (
            "Its outcome is unknown: check it first, then keep it or roll it back"
            if lost
            else "It failed: repair it, or roll it back"
        )
        facts["next"] = Advice(how, SNAPSHOT_ROLLBACK(**known.record.back))
    return facts


def _stop(jobs: JobRegistry, found: FoundJob) -> Plan:
    """Judged by the rules of the cluster that the machine belongs to, as its start was."""

    async def perform(context: StepContext) -> ActionResult:
        async with _forget_lost_job(jobs, found.known):
            await found.job.stop()
            output = await found.job.wait(min(context.wait, 1.0))
        if found.known is not None:
            await jobs.note_end(found.known)
        return ActionResult(
            output_facts(output) if output is not None else {"note": "It was asked to stop and is still running"}
        )

    handle, guest = found.handle, found.guest
    line = f"stop {handle}" + (f" ({found.known.record.line})" if found.known else "")
    target = Target.of_guest(guest) if guest is not None else _recorded_target(found.known)
    by_agent = found.known is None or found.known.record.transport_name == "agent"
    needs = needs_of(guest, AgentTransport(guest.cluster, guest, "posix")) if guest is not None and by_agent else ()
    step = Action("Stop it", line, perform, target, needs, found.where)
    return Plan(f"Stop the command {handle}", (step,), facts=_job_facts(jobs, found.noun, found.known))


def _recorded_target(known: BackgroundJob | None) -> Target | None:
    """The machine, where it cannot be looked up."""
    if known is None:
        return None
    one = known.record
    return Target(one.target_kind, one.target_id, one.target_name, one.target_id if one.target_kind == "node" else "")


def _table(jobs: JobRegistry, noun: Noun, known: list[BackgroundJob]) -> Table:
    now = jobs.keeper.clock.time()
    rows = [
        [
            one.record.handle,
            one.record.machine,
            one.record.line,
            one.record.transport,
            "ended" if one.record.ended else "started",
            duration(now - one.record.begun),
            "" if one.record.kept else DIES_WITH_US,
        ]
        for one in known
    ]
    columns = ("job", noun, "command", "way", "state", "age", "note")
    return page(columns, rows, limit=len(rows) or 1, offset=0)


def _job_facts(jobs: JobRegistry, noun: Noun, known: BackgroundJob | None) -> Mapping[str, Any]:
    if known is None:
        return {}
    one = known.record
    snapshot = {"snapshot": one.back["snapshot"]} if one.back else {}
    return {noun: one.machine, "command": one.line, "age": duration(jobs.keeper.clock.time() - one.begun), **snapshot}


def job_on(transport: Transport, known: BackgroundJob, password: Secret | None = None) -> Job:
    """The job, where this server follows it itself or its machine keeps it."""
    if known.job is not None:
        return known.job
    own = id_of(known.record.handle)
    if own is None:
        raise no_job(known.record.handle)
    return KeptJob(transport, own, Command((), user=known.record.user, password=password), known.record.keep or SHOWN)


@contextlib.asynccontextmanager
async def _forget_lost_job(jobs: JobRegistry, known: BackgroundJob | None) -> AsyncIterator[None]:
    """A command that has been forgotten does not block others."""
    try:
        yield
    except (NotFound, OutcomeUnknown):
        if known is not None and (known.job is None or not known.job.ended):  # else its output can still be polled
            await jobs.forget(known.record.handle)
        raise
