"""Commands on machines over any transport: checked against the rules, run, followed, and kept in the background."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta

from quorate.hints import NAMED, Advice, Sentence, ToolHint, see, tools
from quorate.inside.agent import AgentTransport
from quorate.inside.jobs import BackgroundJob, CannotKeep, JobRecord, JobRegistry, KeptJob, id_of, new_id, no_job
from quorate.inside.transport import Command, Job, Output, Transport, fault_of
from quorate.inside.transport_selection import select_transport
from quorate.inside.windows_files import shell_command
from quorate.operations.plan import Action, ActionResult, Call, Plan, StepContext, Target, guest_call
from quorate.operations.registry import Table, page
from quorate.problems import BadArgument, NotFound, OutcomeUnknown, Problem
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.tasks import for_each
from quorate.secret import Secret, shown_line, without_secrets
from quorate.units import count_of, duration, size

WayName = Annotated[Literal["agent", "pct", "ssh"], Meta(description="Transport")]
Path = Annotated[str, Meta(description="Absolute")]

Facts = TypeVar("Facts")


async def look_inside(
    pve: Cluster, guest: Guest, way: WayName | None, collect: Callable[[Transport, str], Awaitable[Facts]]
) -> tuple[str, Facts | Problem]:
    """Transport and facts that `collect` reads inside; or the Problem, if no transport was named and none works."""
    try:
        into = await select_transport(pve, guest, prefer=way)
        return into.description, await collect(into, guest.label)
    except Problem as problem:
        if way is not None:
            raise
        return "", problem


def needs_of(guest: Guest, transport: Transport, *, writes: bool = False) -> tuple[Call, ...]:
    """The API calls by which the agent runs a command and writes files; other transports make none."""
    if transport.name != "agent":
        return ()
    runs = guest_call(guest, "POST", "agent/exec", "Run a command inside", command=["true"])
    stores = guest_call(guest, "POST", "agent/file-write", "Write a file inside", file="/x", content="")
    return (runs, stores) if writes else (runs,)


LONGEST_KEPT = 4096
"""Characters of a command in the list of jobs."""
SHOWN = 32 * 1024
MOST_SHOWN = 1024 * 1024
LONGEST = 86_400
ENDS_WITH_SERVER = "ends_with_server"
"""In the result of a command that ends with this process, because it runs over its connection."""
DIES_WITH_US = "It ends when this server ends: the machine cannot keep it"
_POSIX_ENDS = ("TERM", "KILL")
_ENDED_BY_FORCE = (143, 137)

MaxOutput = Annotated[int, Meta(ge=1, le=MOST_SHOWN, description="Bytes")]
Timeout = Annotated[float, Meta(ge=1, le=LONGEST, description="Seconds until it is killed")]


Noun = Literal["guest", "host"]
JOB_TOOLS: Mapping[Noun, ToolHint] = {"guest": tools.guest_job, "host": tools.host_job}


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """The machine that a command is for."""

    transport: Transport
    machine: Target
    ref: str
    """A reference by which it is found again."""
    noun: Noun
    """The word for it; decides which tool follows the command."""
    cluster: str | None = None
    """The name of the cluster that a machine of the homelab belongs to."""


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """A command as the caller wants it."""

    command: str | list[str]
    stdin: str | None = None
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    user: str | None = None
    password: Secret | None = None
    timeout: float | None = None
    keep: int = SHOWN
    """Bytes of its output to keep."""

    def argv(self, system: str) -> tuple[str, ...]:
        if isinstance(self.command, list):
            return tuple(self.command)
        if not self.command.strip():
            raise BadArgument("The command is empty")
        return shell_command(self.command) if system == "windows" else ("/bin/sh", "-c", self.command)

    def judged_argv(self, system: str) -> tuple[str, ...]:
        """The form that the operator's patterns are matched against."""
        if isinstance(self.command, list):
            return tuple(self.command)
        return ("powershell", self.command) if system == "windows" else ("sh", "-c", self.command)


@dataclass(frozen=True, slots=True)
class CommandJob:
    """A permitted command on a machine."""

    jobs: JobRegistry
    """The registry in which it is found if it continues in the background."""
    target: CommandTarget
    command: Command
    line: str
    """The command as shown and recorded, without the secrets that people put into commands."""
    timeout: float | None
    keep: int
    named: bool
    """The operator's patterns allow exactly this command."""
    back: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the snapshot_rollback that undoes it, if any does."""

    @property
    def described(self) -> str:
        command = self.command
        settings = (("cwd", command.cwd), ("user", command.user), ("timeout", self.timeout))
        options = "".join(f" {name}={value}" for name, value in settings if value)
        options += f" env={','.join(command.env)}" if command.env else ""
        options += f" stdin={count_of(len(command.stdin), 'byte')}" if command.stdin else ""
        return f"{self.target.transport.description}: {self.line}{options}"

    @property
    def input(self) -> str:
        """Its variables and standard input, for the person who approves."""
        stdin = {"stdin": self.command.stdin.decode("utf-8", "replace")} if self.command.stdin else {}
        inputs = {**self.command.env, **stdin}
        return shown_line(" ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in inputs.items()))

    async def perform(self, context: StepContext) -> ActionResult:
        """Run the command. If the machine can keep it, it outlives this process; an agent always can."""
        transport, clock = self.target.transport, self.jobs.keeper.clock
        if transport.name != "agent":
            with contextlib.suppress(CannotKeep):
                return await self._keep(context)
        begun = clock.monotonic()
        job = await transport.start(self.command, limit=self.timeout, keep=self.keep)
        output = await self._await_or_stop(job, job.wait(context.wait))
        if output is not None:
            late = _was_stopped(output, clock.monotonic() - begun, self.timeout)
            return self._report_end(output, late=late)
        job.leave()
        by_agent = transport.name == "agent"
        await self.jobs.remember(self._record(job.handle, kept=by_agent), job)
        return await self._running(job, **({} if by_agent else {ENDS_WITH_SERVER: True, "note": DIES_WITH_US}))

    async def _keep(self, context: StepContext) -> ActionResult:
        job = KeptJob(self.target.transport, new_id(), self.command, self.keep)
        # Before it starts, because this process may die while it runs.
        await self.jobs.remember(self._record(job.handle, kept=True), job)
        try:
            output = await self._await_or_stop(job, job.begin(self.command, self.timeout, context.wait))
        except (CannotKeep, Problem) as problem:
            if not isinstance(problem, OutcomeUnknown):
                await self.jobs.forget(job.handle)
            raise
        if output is None:
            return await self._running(job)
        await self.jobs.forget(job.handle)
        return self._report_end(output, late=job.late)

    def _report_end(self, output: Output, *, late: bool) -> ActionResult:
        killed = {"timed_out": f"It was killed after {duration(self.timeout or 0)}, its time limit"} if late else {}
        return ActionResult({**killed, **output_facts(output)}, fault=fault_of(output, late=late, limit=self.timeout))

    async def _await_or_stop(self, job: Job, waiting: Awaitable[Output | None]) -> Output | None:
        try:
            return await waiting
        except asyncio.CancelledError:  # the caller is gone, so nobody would see the result
            self.jobs.keeper.ssh.pool.in_background(job.stop())
            raise

    def _record(self, handle: str, *, kept: bool) -> JobRecord:
        return self.jobs.new(
            handle,
            machine=str(self.target.machine),
            target_kind=self.target.machine.kind,
            target_id=self.target.machine.id,
            target_name=self.target.machine.name,
            line=without_secrets(self.line)[:LONGEST_KEPT],
            transport=self.target.transport.description,
            transport_name=self.target.transport.name,
            ref=self.target.ref,
            cluster=self.target.cluster,
            user=self.command.user,
            keep=self.keep,
            kept=kept,
            back=dict(self.back),
            timeout=self.timeout,
        )

    async def _running(self, job: Job, **note: object) -> ActionResult:
        follow = JOB_TOOLS[self.target.noun]
        return ActionResult(
            {"job": job.handle, **output_facts(await job.partial_output(), ended=False), **note},
            running=True,
            next_step=see(
                "See how it ends, or stop it",
                follow(action="poll", job=job.handle, seconds=30),
                follow(action="stop", job=job.handle),
            ),
        )


async def command_job(jobs: JobRegistry, target: CommandTarget, request: CommandRequest) -> CommandJob:
    """The job for a request. Raises if the operator's patterns forbid it or too many jobs are running."""
    rules, system, command = jobs.keeper.command_rules, target.transport.system, request.command
    argv, judged = request.argv(system), request.judged_argv(system)
    text = command if isinstance(command, str) else None
    if objection := rules.objection(judged, text, env=request.env or (), cwd=request.cwd):
        raise objection
    await jobs.ensure_room()
    stdin = (request.stdin or "").encode()
    runnable = Command(argv, stdin, request.env or {}, request.cwd or None, request.user or None, request.password)
    line = shown_line(command if isinstance(command, str) else shlex.join(command))
    named = rules.allows(judged, text, cwd=request.cwd)
    return CommandJob(jobs, target, runnable, line, request.timeout, request.keep, named)


def _was_stopped(output: Output, spent: float, timeout: float | None) -> bool:
    """True if it was killed at its time limit."""
    forced = output.signal in _POSIX_ENDS or output.exit_code in _ENDED_BY_FORCE or output.exit_code == 1
    return timeout is not None and spent >= timeout and forced


# -- results -----------------------------------------------------------------------------------------------------------


def output_facts(output: Output, *, ended: bool = True) -> dict[str, Any]:
    """Exit code and outputs, separate and labeled: they are untrusted text."""
    facts: dict[str, Any] = {}
    if ended:
        facts |= {"exit_code": output.exit_code} if output.signal is None else {"signal": output.signal}
    for name, data, cut in (
        ("stdout", output.stdout, output.stdout_cut),
        ("stderr", output.stderr, output.stderr_cut),
    ):
        facts |= _text(name, data, cut)
    return facts


def _text(name: str, data: bytes, cut: bool) -> dict[str, Any]:
    if not data and not cut:
        return {}
    more: dict[str, Any] = {}
    if cut:
        rest = Advice("{max_output} shows more", max_output=NAMED)
        more[f"{name}_cut"] = Advice(f"Only its first {size(len(data))}").then(rest, "; ")
    if b"\0" in data:
        return {f"{name}_base64": base64.b64encode(data).decode(), **more}
    text = data.decode("utf-8", "replace")
    if cut:
        text = text.rstrip("�")
    if "�" in text and b"\xef\xbf\xbd" not in data:
        more[f"{name}_note"] = "It is not valid UTF-8; invalid bytes are shown as �"
    return {name: text, **more}


LOST = "It ended without an exit code: the machine was restarted, or something killed it with its supervisor"
LOOKS_AT_ONCE, LOOK_SECONDS = 8, 5.0
"""How many jobs a list asks for their state, and how long each."""
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
    """The part that `guest_job` and `host_job` share; how a job's machine is found differs."""

    jobs: JobRegistry
    noun: Noun
    find: Callable[[str], Awaitable[FoundJob]]
    """Find a job by its handle. Raises if there is none, or if its machine is hidden."""
    is_visible: Callable[[BackgroundJob], Awaitable[bool]]

    async def answer(self, action: JobAction, handle: str | None, seconds: float) -> dict[str, Any] | Table | Plan:
        if action == "list":
            visible = [job for job in await self.jobs.list_jobs() if await self.is_visible(job)]
            await for_each(LOOKS_AT_ONCE, [job for job in visible if job.record.ended is None], self._note_end)
            return _table(self.jobs, self.noun, visible)
        if handle is None:
            jobs = JOB_TOOLS[self.noun](action="list")
            raise BadArgument(Sentence("{action} needs the job", action=action), next_step=see("List the jobs", jobs))
        job = await self.find(handle)
        return await _poll(self.jobs, job, seconds) if action == "poll" else _stop(self.jobs, job)

    async def _note_end(self, known: BackgroundJob) -> None:
        """Note that a job has ended, if its machine says so soon.

        An agent gives the output only once, so it is asked only for a job of this server, which keeps the output.
        """
        if known.job is None and id_of(known.record.handle) is None:
            return
        with contextlib.suppress(Problem, TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                job = known.job or (await self.find(known.record.handle)).job
                if await job.wait(0) is not None:
                    await self.jobs.note_end(known)


async def _poll(jobs: JobRegistry, tracked: FoundJob, seconds: float) -> dict[str, Any]:
    known = tracked.known
    async with _forget_lost_job(jobs, known):
        output = await tracked.job.wait(seconds)
    about = _job_facts(jobs, tracked.noun, known)
    if output is None:
        shown = output_facts(await tracked.job.partial_output(), ended=False)
        return {"job": tracked.handle, "state": "running", **about, **shown}
    if known is not None:
        await jobs.note_end(known)
    lost = output.exit_code is None and output.signal is None
    late = isinstance(tracked.job, KeptJob) and tracked.job.late
    result = fault_of(output, late=late, limit=known.record.timeout if known else None) or "done"
    state = {"state": "lost", "why": LOST} if lost else {"state": "ended", "result": result}
    facts = {"job": tracked.handle, **state, **about, **output_facts(output, ended=not lost)}
    if known is not None and known.record.back and output.exit_code != 0:
        how = (
            "Its outcome is unknown: check it first, then keep it or roll it back"
            if lost
            else "It failed: repair it, or roll it back"
        )
        facts["next"] = Advice(how, tools.snapshot_rollback(**known.record.back))
    return facts


def _stop(jobs: JobRegistry, tracked: FoundJob) -> Plan:
    """Plan to stop a job, under the rules of the cluster that its machine belongs to."""

    async def perform(context: StepContext) -> ActionResult:
        async with _forget_lost_job(jobs, tracked.known):
            await tracked.job.stop()
            output = await tracked.job.wait(min(context.wait, 1.0))
        if tracked.known is not None:
            await jobs.note_end(tracked.known)
        return ActionResult(
            output_facts(output) if output is not None else {"note": "It was asked to stop and is still running"}
        )

    handle, guest = tracked.handle, tracked.guest
    line = f"stop {handle}" + (f" ({tracked.known.record.line})" if tracked.known else "")
    target = Target.of_guest(guest) if guest is not None else _recorded_target(tracked.known)
    by_agent = tracked.known is None or tracked.known.record.transport_name == "agent"
    needs = needs_of(guest, AgentTransport(guest.cluster, guest, "posix")) if guest is not None and by_agent else ()
    step = Action("Stop it", line, perform, target, needs, tracked.where)
    return Plan(f"Stop the command {handle}", (step,), facts=_job_facts(jobs, tracked.noun, tracked.known))


def _recorded_target(known: BackgroundJob | None) -> Target | None:
    """The machine as recorded, for jobs whose machine cannot be looked up."""
    if known is None:
        return None
    record = known.record
    return Target(
        record.target_kind,
        record.target_id,
        record.target_name,
        record.target_id if record.target_kind == "node" else "",
    )


def _table(jobs: JobRegistry, noun: Noun, known: list[BackgroundJob]) -> Table:
    now = jobs.keeper.clock.time()
    rows = [
        [
            job.record.handle,
            job.record.machine,
            job.record.line,
            job.record.transport,
            "ended" if job.record.ended else "started",
            duration(now - job.record.begun),
            "" if job.record.kept else DIES_WITH_US,
        ]
        for job in known
    ]
    columns = ("job", noun, "command", "way", "state", "age", "note")
    return page(columns, rows, limit=len(rows) or 1, offset=0)


def _job_facts(jobs: JobRegistry, noun: Noun, known: BackgroundJob | None) -> Mapping[str, Any]:
    if known is None:
        return {}
    record = known.record
    snapshot = {"snapshot": record.back["snapshot"]} if record.back else {}
    return {
        noun: record.machine,
        "command": record.line,
        "age": duration(jobs.keeper.clock.time() - record.begun),
        **snapshot,
    }


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
    """Forget a job that its machine no longer knows, so that it does not take up room."""
    try:
        yield
    except (NotFound, OutcomeUnknown):
        if known is not None and (known.job is None or not known.job.ended):  # else its output can still be polled
            await jobs.forget(known.record.handle)
        raise
