"""Commands on machines over any transport: checked against the rules, run, and followed in the background."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shlex
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.command_secrets import shown_line, without_secrets
from quorate.hints import GUEST_JOB, HOST_JOB, NAMED, Advice, ToolHint, see
from quorate.inside.jobs import JobRecord, JobRegistry
from quorate.inside.kept_jobs import CannotKeep, KeptJob, new_id
from quorate.inside.powershell import shell_command
from quorate.inside.transport import Command, Job, Output, Transport
from quorate.operations.plan import ActionResult, StepContext, Target
from quorate.operations.units import duration, size
from quorate.problems import BadArgument, OutcomeUnknown, Problem
from quorate.secret import Secret

LONGEST_KEPT = 4096
"""Of a command, in the list of jobs."""
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
JOB_TOOLS: Mapping[Noun, ToolHint] = {"guest": GUEST_JOB, "host": HOST_JOB}


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """The machine that a command is for."""

    transport: Transport
    machine: Target
    ref: str
    """How to find it again."""
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
    """Bytes of its output."""

    def argv(self, system: str) -> tuple[str, ...]:
        if isinstance(self.command, list):
            return tuple(self.command)
        if not self.command.strip():
            raise BadArgument("The command is empty")
        return shell_command(self.command) if system == "windows" else ("/bin/sh", "-c", self.command)

    def judged_argv(self, system: str) -> tuple[str, ...]:
        """What the operator's patterns are matched against."""
        if isinstance(self.command, list):
            return tuple(self.command)
        return ("powershell", self.command) if system == "windows" else ("sh", "-c", self.command)


@dataclass(frozen=True, slots=True)
class CommandJob:
    """A command that may be run, on one machine."""

    jobs: JobRegistry
    """Where to find it if it continues in the background."""
    target: CommandTarget
    command: Command
    line: str
    """As it is shown and recorded: without the secrets that people put into commands."""
    timeout: float | None
    keep: int
    named: bool
    """The operator's patterns allow exactly this command."""
    back: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the snapshot_rollback that undoes it, if any does."""

    @property
    def described(self) -> str:
        command = self.command
        given = (("cwd", command.cwd), ("user", command.user), ("timeout", self.timeout))
        options = "".join(f" {name}={value}" for name, value in given if value)
        options += f" env={','.join(command.env)}" if command.env else ""
        options += f" stdin={len(command.stdin)} bytes" if command.stdin else ""
        return f"{self.target.transport.description}: {self.line}{options}"

    @property
    def input(self) -> str:
        """Its variables and standard input, for the person who approves."""
        stdin = {"stdin": self.command.stdin.decode("utf-8", "replace")} if self.command.stdin else {}
        given = {**self.command.env, **stdin}
        return shown_line(" ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in given.items()))

    async def perform(self, context: StepContext) -> ActionResult:
        """On POSIX the machine keeps the command if it can, so that it outlives this process. An agent always does."""
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
        await self.jobs.remember(
            self._record(job.handle, kept=True), job
        )  # before it starts, because this process may die while it runs
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
    """The requested command, if the operator's patterns allow it and there is room for it."""
    rules, system, command = jobs.keeper.command_rules, target.transport.system, request.command
    argv, judged = request.argv(system), request.judged_argv(system)
    text = command if isinstance(command, str) else None
    if objection := rules.objection(judged, text, env=request.env or (), cwd=request.cwd):
        raise objection
    await jobs.ensure_room()
    stdin = (request.stdin or "").encode()
    wanted = Command(argv, stdin, request.env or {}, request.cwd or None, request.user or None, request.password)
    line = shown_line(command if isinstance(command, str) else shlex.join(command))
    named = rules.allows(judged, text, cwd=request.cwd)
    return CommandJob(jobs, target, wanted, line, request.timeout, request.keep, named)


def _was_stopped(output: Output, spent: float, timeout: float | None) -> bool:
    """Whether it ended because its time was up."""
    forced = output.signal in _POSIX_ENDS or output.exit_code in _ENDED_BY_FORCE or output.exit_code == 1
    return timeout is not None and spent >= timeout and forced


# -- results -----------------------------------------------------------------------------------------------------------


def fault_of(output: Output, *, late: bool = False, limit: float | None = None) -> str:
    """How a command that has ended failed; empty if it succeeded."""
    if late:
        return f"stopped after {limit:g} s" if limit else "stopped at its time limit"
    if output.signal is not None:
        return f"command failed (signal {output.signal})"
    if output.exit_code is None:
        return "command failed (no exit code)"
    return f"command failed (exit {output.exit_code})" if output.exit_code else ""


def is_fault(text: object) -> bool:
    """Whether the result or the state of a command says that it failed."""
    return str(text).startswith(("command failed", "stopped after", "stopped at"))


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


def _cut_remark(shown: int) -> Advice:
    first = Advice(f"Only its first {size(shown)}")
    return first.then(Advice("{max_output} shows more", max_output=NAMED), "; ")


def _text(name: str, data: bytes, cut: bool) -> dict[str, Any]:
    if not data and not cut:
        return {}
    more: dict[str, Any] = {f"{name}_cut": _cut_remark(len(data))} if cut else {}
    if b"\0" in data:
        return {f"{name}_base64": base64.b64encode(data).decode(), **more}
    text = data.decode("utf-8", "replace")
    if cut:
        text = text.rstrip("�")
    if "�" in text and b"\xef\xbf\xbd" not in data:
        more[f"{name}_note"] = "It is not valid UTF-8; invalid bytes are shown as �"
    return {name: text, **more}
