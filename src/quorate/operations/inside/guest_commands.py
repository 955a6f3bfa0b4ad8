"""Running commands inside guests, and following those that continue in the background."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import GUEST_JOB, Advice
from quorate.inside.agent import AgentTransport
from quorate.inside.jobs import BackgroundJob, JobRegistry, no_job, parse_agent_handle
from quorate.inside.transport import Job
from quorate.inside.transport_selection import agent_transport, select_transport
from quorate.operations.commands import (
    SHOWN,
    CommandRequest,
    CommandTarget,
    MaxOutput,
    Seconds,
    Timeout,
    about,
    command_job,
    job_on,
    jobs_table,
    polled,
    stopping,
)
from quorate.operations.inside.parameters import WayName, needs_of, target_of
from quorate.operations.plan import Action, Plan, Target
from quorate.operations.registry import GuestRef, Owner, Risk, Table, operation
from quorate.problems import BadArgument, NotFound, Problem, Refused
from quorate.pve.cluster import Cluster, Guest


@operation(
    risk=Risk.CHANGE,
    idempotent=False,
    unrecorded=("stdin", "env"),
    search_words=(
        "df ls containers run execute command shell script ssh inside guest apt install upgrade security updates "
        "docker compose terminal top ping"
    ),
    example="guest=pihole command='uptime'",
)
async def guest_exec(
    pve: Cluster,
    guest: GuestRef,
    command: Annotated[
        str | list[str], Meta(description="A list is run as it is; a string by sh -c, on Windows by PowerShell")
    ],
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    stdin: str | None = None,
    user: Annotated[str, Meta(description="Default: root, or the SSH login")] | None = None,
    timeout: Timeout | None = None,
    max_output: MaxOutput = SHOWN,
    way: WayName | None = None,
    *,
    owner: Owner,
) -> Plan:
    """Run a command inside a guest. One that outlasts `wait` continues in the background; guest_job follows it."""
    found = await pve.guest(guest)
    into = await select_transport(pve, found, prefer=way)
    wanted = await command_job(
        JobRegistry(pve, owner),
        CommandTarget(into, found.label, str(found.vmid), "guest"),
        CommandRequest(command, stdin, env, cwd, user, timeout=timeout, keep=max_output),
    )
    return Plan(
        f"Run a command in {found}",
        (
            Action(
                f"Run it in {found}",
                wanted.described,
                wanted.perform,
                target_of(found),
                needs_of(found, into),
                opens=not wanted.named,
            ),
        ),
        facts={"guest": found.label, "way": into.description},
    )


@operation(
    risk=Risk.CHANGE,
    least=Risk.LOOK_INSIDE,
    risk_of=lambda given: Risk.CHANGE if given.get("action") == "stop" else Risk.LOOK_INSIDE,
    search_words="long running command guest background done yet finished output exit code started earlier",
)
async def guest_job(
    pve: Cluster,
    action: Literal["list", "poll", "stop"] = "list",
    job: Annotated[str, Meta(description="As guest_exec named it")] | None = None,
    seconds: Seconds = 0,
    max_output: MaxOutput = SHOWN,
    *,
    owner: Owner,
) -> dict[str, Any] | Table | Plan:
    """Your commands in the background: list them, poll one for its output, stop one."""
    jobs = JobRegistry(pve, owner)
    if action == "list":
        return jobs_table(jobs, "guest", [one for one in await jobs.listed() if not await _hidden(pve, one)])
    if job is None:
        raise BadArgument(f"action={action} needs the job", next_step=Advice("List the jobs", GUEST_JOB(action="list")))
    known, running, guest = await _find(pve, jobs, job, max_output)
    if action == "stop":
        return _stopping(pve, jobs, job, known, running, guest)
    return await polled(jobs, "guest", job, known, running, seconds)


# -- jobs --------------------------------------------------------------------------------------------------------------


async def _find(
    pve: Cluster, jobs: JobRegistry, handle: str, keep: int
) -> tuple[BackgroundJob | None, Job, Guest | None]:
    known = await jobs.find(handle)
    if known is not None and known.job is not None:
        if problem := await _hidden(pve, known):
            raise problem
        return known, known.job, None
    if known is not None and not handle.startswith("agent:"):
        guest = await pve.guest(int(known.record.ref))
        return known, job_on(await select_transport(pve, guest, prefer=_way(known)), known), guest
    _, vmid, pid = parse_agent_handle(handle)
    guest = await pve.guest(vmid)
    if known is None and await jobs.is_taken(handle):
        raise no_job(handle)
    if not guest.is_vm:
        raise NotFound(
            f"{guest} is a container and has no agent", next_step=Advice("List the jobs", GUEST_JOB(action="list"))
        )
    return known, (await agent_transport(pve, guest)).job(pid, keep), guest


def _way(known: BackgroundJob) -> str:
    return "pct" if known.record.transport.startswith("pct") else "ssh"


def _stopping(
    pve: Cluster, jobs: JobRegistry, handle: str, known: BackgroundJob | None, job: Job, guest: Guest | None
) -> Plan:
    line = f"stop {handle}" + (f" ({known.record.line})" if known else "")
    target = target_of(guest) if guest is not None else _target(known)
    by_agent = guest is not None and handle.startswith("agent:")
    needs = needs_of(guest, AgentTransport(pve, guest, "posix")) if guest is not None and by_agent else ()
    step = Action("Stop it", line, stopping(jobs, known, job), target, needs)
    return Plan(f"Stop the command {handle}", (step,), facts=about(jobs, "guest", known))


def _target(known: BackgroundJob | None) -> Target | None:
    if known is None:
        return None
    kind, vmid, *name = known.record.machine.split(" ")
    return Target(kind, vmid, *name[:1])


async def _hidden(pve: Cluster, known: BackgroundJob) -> Problem | None:
    """Why the caller may not see the guest that it runs in. One that is gone hides nothing."""
    try:
        await pve.guest(int(known.record.machine.split(" ")[1]))
    except NotFound:
        return None
    except Refused as problem:
        return problem
    return None
