"""Commands on machines, whichever way leads there: judged, run, told, and found again in the background."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import shlex
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.command_secrets import shown_line
from quorate.inside.jobs import Known, jobs_of
from quorate.inside.way import Command, Job, Output, Way
from quorate.inside.windows_launch import shell_command
from quorate.operations.plan import Performed
from quorate.operations.registry import Table, page
from quorate.operations.units import duration, size
from quorate.pve.cluster import Cluster
from quorate.pve.errors import BadArgument, NotFound, OutcomeUnknown
from quorate.pve.tasks import Report
from quorate.secret import Secret

SHOWN = 32 * 1024
MOST_SHOWN = 1024 * 1024
LONGEST = 86_400
DIES_WITH_US = "It ends when this server ends"
_POSIX_ENDS = ("TERM", "KILL")
_ENDED_BY_FORCE = (143, 137)

MaxOutput = Annotated[int, Meta(ge=1, le=MOST_SHOWN, description="Most bytes of each output")]
Timeout = Annotated[float, Meta(ge=1, le=LONGEST, description="Seconds until it is ended")]
Seconds = Annotated[float, Meta(ge=0, le=50, description="How long to wait for its end")]


Noun = Literal["guest", "host"]


@dataclass(frozen=True, slots=True)
class Errand:
    """A command that may be run, on one machine."""

    home: Cluster
    """Where it is found again if it goes on in the background."""
    way: Way
    command: Command
    line: str
    """As it is shown and remembered: without the secrets that people write into commands."""
    label: str
    """The machine: `vm 102 docker01`, `host nas`"""
    cluster: str | None
    """The name of the cluster that the machine belongs to, where `home` is none itself."""
    noun: Noun
    """What callers call it; guest_job or host_job follows the command."""
    timeout: float | None
    keep: int

    @property
    def described(self) -> str:
        command = self.command
        given = (("cwd", command.cwd), ("user", command.user), ("timeout", self.timeout))
        told = "".join(f" {name}={value}" for name, value in given if value)
        told += f" env={','.join(command.env)}" if command.env else ""
        told += f" stdin={len(command.stdin)} bytes" if command.stdin else ""
        return f"{self.way.description}: {self.line}{told}"

    async def perform(self, wait: float, report: Report | None) -> Performed:
        del report
        clock = self.home.clock
        begun = clock.monotonic()
        job = await self.way.start(self.command, limit=self.timeout, keep=self.keep)
        try:
            output = await job.wait(wait)
        except asyncio.CancelledError:  # the caller has given up: nobody would ever hear of it
            self.home.ssh.pool.in_background(job.stop())
            raise
        if output is not None:
            return Performed({**_overtime(output, clock.monotonic() - begun, self.timeout), **shown(output)})
        jobs_of(self.home).remember(
            job, machine=self.label, line=self.line, way=self.way.description, begun=clock.time(), cluster=self.cluster
        )
        told = shown(await job.so_far(), ended=False)
        fate = {} if self.way.name == "agent" else {"note": DIES_WITH_US}
        return Performed(
            {"job": job.handle, **told, **fate},
            running=True,
            next_step=f"{self.noun}_job action=poll job={job.handle} seconds=30 waits for its end, action=stop ends it",
        )


def errand(
    home: Cluster,
    way: Way,
    command: str | list[str],
    *,
    label: str,
    noun: Noun,
    cluster: str | None = None,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    user: str | None = None,
    password: Secret | None = None,
    timeout: float | None = None,
    keep: int = SHOWN,
) -> Errand:
    """What the caller wants run, if the operator's patterns allow it and there is room for it."""
    argv = _argv(command, way)
    text = command if isinstance(command, str) else None
    if objection := home.command_rules.objection(_judged_argv(command, way), text):
        raise objection
    jobs_of(home).ensure_room()
    wanted = Command(argv, (stdin or "").encode(), env or {}, cwd or None, user or None, password)
    line = shown_line(command if isinstance(command, str) else shlex.join(command))
    return Errand(home, way, wanted, line, label, cluster, noun, timeout, keep)


def _argv(command: str | list[str], way: Way) -> tuple[str, ...]:
    if isinstance(command, list):
        return tuple(command)
    if not command.strip():
        raise BadArgument("The command is empty")
    return shell_command(command) if way.system == "windows" else ("/bin/sh", "-c", command)


def _judged_argv(command: str | list[str], way: Way) -> tuple[str, ...]:
    """What the operator's patterns are held against."""
    if isinstance(command, list):
        return tuple(command)
    return ("powershell", command) if way.system == "windows" else ("sh", "-c", command)


def _overtime(output: Output, spent: float, timeout: float | None) -> dict[str, Any]:
    forced = output.signal in _POSIX_ENDS or output.exit_code in _ENDED_BY_FORCE or output.exit_code == 1
    if timeout is None or spent < timeout or not forced:
        return {}
    return {"timed_out": f"It was ended after {duration(timeout)}, its time limit"}


# -- telling -----------------------------------------------------------------------------------------------------------


def shown(output: Output, *, ended: bool = True) -> dict[str, Any]:
    """Exit code and outputs, each apart and labelled: they are a stranger's words."""
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
    more = {f"{name}_cut": f"Only its first {size(len(data))}; max_output shows more"} if cut else {}
    if b"\0" in data:
        return {f"{name}_base64": base64.b64encode(data).decode(), **more}
    text = data.decode("utf-8", "replace")
    if cut:
        text = text.rstrip("�")
    if "�" in text and b"\xef\xbf\xbd" not in data:
        more[f"{name}_note"] = "It is not all UTF-8; what is not is shown as �"
    return {name: text, **more}


# -- in the background -------------------------------------------------------------------------------------------------


async def polled(
    home: Cluster, noun: Noun, handle: str, known: Known | None, job: Job, seconds: float
) -> dict[str, Any]:
    with losing(home, known):
        output = await job.wait(seconds)
    if output is not None:
        _note_end(home, known)
        return {"job": handle, "state": "ended", **about(home, noun, known), **shown(output)}
    return {"job": handle, "state": "running", **about(home, noun, known), **shown(await job.so_far(), ended=False)}


def stopping(home: Cluster, known: Known | None, job: Job) -> Callable[[float, Report | None], Awaitable[Performed]]:
    async def perform(wait: float, report: Report | None) -> Performed:
        del report
        with losing(home, known):
            await job.stop()
            output = await job.wait(min(wait, 1.0))
        _note_end(home, known)
        return Performed(shown(output) if output is not None else {"note": "It was told to end and has not ended yet"})

    return perform


def jobs_table(home: Cluster, noun: Noun, known: list[Known], note: str) -> Table:
    now = home.clock.time()
    rows = [
        [one.job.handle, one.machine, one.line, one.way, "ended" if one.ended else "begun", duration(now - one.begun)]
        for one in known
    ]
    table = page(("job", noun, "command", "way", "state", "age"), rows, limit=len(rows) or 1, offset=0)
    table.note = note
    return table


def about(home: Cluster, noun: Noun, known: Known | None) -> Mapping[str, Any]:
    if known is None:
        return {}
    return {noun: known.machine, "command": known.line, "age": duration(home.clock.time() - known.begun)}


@contextlib.contextmanager
def losing(home: Cluster, known: Known | None) -> Iterator[None]:
    """A command of which nobody knows any more does not keep others from running."""
    try:
        yield
    except (NotFound, OutcomeUnknown):
        if known is not None:
            jobs_of(home).lose(known)
        raise


def _note_end(home: Cluster, known: Known | None) -> None:
    if known is not None and known.ended is None:
        known.ended = home.clock.time()
