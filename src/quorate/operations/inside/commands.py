"""Running commands inside guests, and following those that go on in the background."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import shlex
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.command_secrets import without_secrets
from quorate.inside.agent import AgentWay
from quorate.inside.jobs import Known, agent_place, jobs_of
from quorate.inside.reaching import agent_way, way_into
from quorate.inside.way import Command, Job, Output, Way
from quorate.inside.windows_launch import shell_command
from quorate.operations.inside.parameters import WayName, needs_of, target_of
from quorate.operations.plan import Action, Performed, Plan, Target
from quorate.operations.registry import GuestRef, Risk, Table, operation, page
from quorate.operations.units import duration, size
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.errors import BadArgument, NotFound, OutcomeUnknown, Problem, Refused
from quorate.pve.tasks import Report

SHOWN = 32 * 1024
MOST_SHOWN = 1024 * 1024
LONGEST = 86_400
_POSIX_ENDS = ("TERM", "KILL")
_ENDED_BY_FORCE = (143, 137)
_DIES_WITH_US = "It ends when this server ends"

MaxOutput = Annotated[int, Meta(ge=1, le=MOST_SHOWN, description="Most bytes of each output")]


@operation(risk=Risk.CHANGE, idempotent=False, unrecorded=("stdin", "env"))
async def guest_exec(
    pve: Cluster,
    guest: GuestRef,
    command: Annotated[
        str | list[str], Meta(description="A list is run as it is; a text by sh -c, in Windows by PowerShell")
    ],
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    stdin: str | None = None,
    user: Annotated[str, Meta(description="Default: root, or who logs in by SSH")] | None = None,
    timeout: Annotated[float, Meta(ge=1, le=LONGEST, description="Seconds until it is ended")] | None = None,
    max_output: MaxOutput = SHOWN,
    way: WayName | None = None,
) -> Plan:
    """Run a command inside a guest. One that outlasts `wait` goes on in the background; guest_job follows it."""
    found = await pve.guest(guest)
    into = await way_into(pve, found, prefer=way)
    wanted = Command(
        _argv(command, into), stdin=(stdin or "").encode(), env=env or {}, cwd=cwd or None, user=user or None
    )
    line = _line(command)
    if objection := pve.command_rules.objection(
        _judged_argv(command, into), command if isinstance(command, str) else None
    ):
        raise objection
    jobs_of(pve).ensure_room()

    async def perform(wait: float, report: Report | None) -> Performed:
        del report
        return await _perform(pve, found, into, wanted, line, wait=wait, timeout=timeout, keep=max_output)

    told = "".join(f" {name}={value}" for name, value in (("cwd", cwd), ("user", user), ("timeout", timeout)) if value)
    told += f" env={','.join(env)}" if env else ""
    told += f" stdin={len(wanted.stdin)} bytes" if wanted.stdin else ""
    return Plan(
        f"Run a command in {found}",
        (
            Action(
                f"Run it in {found}",
                f"{into.description}: {line}{told}",
                perform,
                target_of(found),
                needs_of(found, into),
            ),
        ),
        facts={"guest": found.label, "way": into.description},
    )


@operation(
    risk=Risk.CHANGE,
    least=Risk.LOOK_INSIDE,
    risk_of=lambda given: Risk.CHANGE if given.get("action") == "stop" else Risk.LOOK_INSIDE,
)
async def guest_job(
    pve: Cluster,
    action: Literal["list", "poll", "stop"] = "list",
    job: Annotated[str, Meta(description="As guest_exec named it")] | None = None,
    seconds: Annotated[float, Meta(ge=0, le=50, description="How long to wait for its end")] = 0,
    max_output: MaxOutput = SHOWN,
) -> dict[str, Any] | Table | Plan:
    """Commands in the background: list those of this server, poll one for its output, stop one."""
    if action == "list":
        return await _listed(pve)
    if job is None:
        raise BadArgument(f"guest_job action={action} needs the job", next_step="guest_job action=list shows them")
    known, running, guest = await _find(pve, job, max_output)
    if action == "stop":
        return _stopping(pve, job, known, running, guest)
    with _losing(pve, known):
        output = await running.wait(seconds)
    if output is not None:
        _note_end(pve, known)
        return {"job": job, "state": "ended", **_about(pve, known), **shown(output)}
    return {"job": job, "state": "running", **_about(pve, known), **shown(await running.so_far(), ended=False)}


# -- running -----------------------------------------------------------------------------------------------------------


async def _perform(
    pve: Cluster,
    guest: Guest,
    into: Way,
    command: Command,
    line: str,
    *,
    wait: float,
    timeout: float | None,
    keep: int,
) -> Performed:
    begun = pve.clock.monotonic()
    job = await into.start(command, limit=timeout, keep=keep)
    try:
        output = await job.wait(wait)
    except asyncio.CancelledError:  # the caller has given up: nobody would ever hear of it
        pve.ssh.pool.in_background(job.stop())
        raise
    if output is not None:
        spent = pve.clock.monotonic() - begun
        return Performed({**_overtime(output, spent, timeout), **shown(output)})
    jobs_of(pve).remember(job, guest=guest.label, line=line, way=into.description, begun=pve.clock.time())
    told = shown(await job.so_far(), ended=False)
    fate = {} if into.name == "agent" else {"note": _DIES_WITH_US}
    return Performed(
        {"job": job.handle, **told, **fate},
        running=True,
        next_step=f"guest_job action=poll job={job.handle} seconds=30 waits for its end, action=stop ends it",
    )


def _argv(command: str | list[str], into: Way) -> tuple[str, ...]:
    if isinstance(command, list):
        return tuple(command)
    if not command.strip():
        raise BadArgument("The command is empty")
    return shell_command(command) if into.system == "windows" else ("/bin/sh", "-c", command)


def _judged_argv(command: str | list[str], into: Way) -> tuple[str, ...]:
    """What the operator's patterns are held against."""
    if isinstance(command, list):
        return tuple(command)
    return ("powershell", command) if into.system == "windows" else ("sh", "-c", command)


def _line(command: str | list[str]) -> str:
    """As it is shown and remembered: without the secrets that people write into commands."""
    return without_secrets(command if isinstance(command, str) else shlex.join(command))


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


# -- jobs --------------------------------------------------------------------------------------------------------------


async def _find(pve: Cluster, handle: str, keep: int) -> tuple[Known | None, Job, Guest | None]:
    known = jobs_of(pve).find(handle)
    if known is not None and not handle.startswith("agent:"):
        if problem := await _hidden(pve, known):
            raise problem
        return known, known.job, None
    _, vmid, pid = agent_place(handle)
    guest = await pve.guest(vmid)
    if known is not None:
        return known, known.job, guest
    if not guest.is_vm:
        raise NotFound(f"{guest} is a container and has no agent", next_step="guest_job action=list shows the jobs")
    return None, (await agent_way(pve, guest)).job(pid, keep), guest


def _stopping(pve: Cluster, handle: str, known: Known | None, job: Job, guest: Guest | None) -> Plan:
    async def perform(wait: float, report: Report | None) -> Performed:
        del report
        with _losing(pve, known):
            await job.stop()
            output = await job.wait(min(wait, 1.0))
        _note_end(pve, known)
        return Performed(shown(output) if output is not None else {"note": "It was told to end and has not ended yet"})

    line = f"stop {handle}" + (f" ({known.line})" if known else "")
    target = target_of(guest) if guest is not None else _target(known)
    needs = needs_of(guest, AgentWay(pve, guest, "posix")) if guest is not None else ()
    return Plan(
        f"Stop the command {handle}", (Action("Stop it", line, perform, target, needs),), facts=_about(pve, known)
    )


def _target(known: Known | None) -> Target | None:
    if known is None:
        return None
    kind, vmid, *name = known.guest.split(" ")
    return Target(kind, vmid, *name[:1])


@contextlib.contextmanager
def _losing(pve: Cluster, known: Known | None) -> Iterator[None]:
    """A command of which nobody knows any more does not keep others from running."""
    try:
        yield
    except (NotFound, OutcomeUnknown):
        if known is not None:
            jobs_of(pve).lose(known)
        raise


async def _hidden(pve: Cluster, known: Known) -> Problem | None:
    """Why the caller may not see the guest that it runs in. One that is gone hides nothing."""
    try:
        await pve.guest(int(known.guest.split(" ")[1]))
    except NotFound:
        return None
    except Refused as problem:
        return problem
    return None


async def _listed(pve: Cluster) -> Table:
    now = pve.clock.time()
    rows = [
        [one.job.handle, one.guest, one.line, one.way, "ended" if one.ended else "begun", duration(now - one.begun)]
        for one in jobs_of(pve).listed()
        if not await _hidden(pve, one)
    ]
    table = page(("job", "guest", "command", "way", "state", "age"), rows, limit=len(rows) or 1, offset=0)
    table.note = f"Those of this server. {_DIES_WITH_US}, unless it is a guest agent's"
    return table


def _note_end(pve: Cluster, known: Known | None) -> None:
    if known is not None and known.ended is None:
        known.ended = pve.clock.time()


def _about(pve: Cluster, known: Known | None) -> Mapping[str, Any]:
    if known is None:
        return {}
    return {"guest": known.guest, "command": known.line, "age": duration(pve.clock.time() - known.begun)}
