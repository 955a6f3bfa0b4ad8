"""Running commands inside guests, and following those that continue in the background."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import GUEST_JOB, see
from quorate.inside.jobs import BackgroundJob, JobBook, JobRegistry, no_job, parse_agent_handle
from quorate.inside.transport_selection import agent_transport, select_transport
from quorate.operations.command_jobs import FoundJob, JobAction, JobTool, Seconds, job_on
from quorate.operations.commands import SHOWN, CommandRequest, CommandTarget, MaxOutput, Timeout, command_job
from quorate.operations.inside.parameters import WayName, needs_of
from quorate.operations.plan import Action, Plan, Target
from quorate.operations.registry import GuestRef, Owner, Risk, Table, operation
from quorate.problems import NotFound, Problem, Refused
from quorate.pve.cluster import Cluster


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
        JobRegistry(pve, pve.attachment(JobBook), owner),
        CommandTarget(into, Target.of_guest(found), str(found.vmid), "guest"),
        CommandRequest(command, stdin, env, cwd, user, timeout=timeout, keep=max_output),
    )
    return Plan(
        f"Run a command in {found}",
        (
            Action(
                f"Run it in {found}",
                wanted.described,
                wanted.perform,
                Target.of_guest(found),
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
    action: JobAction = "list",
    job: Annotated[str, Meta(description="As guest_exec named it")] | None = None,
    seconds: Seconds = 0,
    max_output: MaxOutput = SHOWN,
    *,
    owner: Owner,
) -> dict[str, Any] | Table | Plan:
    """Your background commands: list them, poll one for its output, or stop one."""
    jobs = JobRegistry(pve, pve.attachment(JobBook), owner)

    async def is_visible(known: BackgroundJob) -> bool:
        return await _visibility_problem(pve, known) is None

    find = partial(_find, pve, jobs, max_output)
    return await JobTool(jobs, "guest", find, is_visible).answer(action, job, seconds)


# -- jobs --------------------------------------------------------------------------------------------------------------


async def _find(pve: Cluster, jobs: JobRegistry, keep: int, handle: str) -> FoundJob:
    known = await jobs.find(handle)
    if known is not None and known.job is not None:
        if problem := await _visibility_problem(pve, known):
            raise problem
        return FoundJob(handle, "guest", known.job, known)
    if known is not None and known.record.transport_name != "agent":
        guest = await pve.guest(int(known.record.ref))
        transport = await select_transport(pve, guest, prefer=known.record.transport_name)
        return FoundJob(handle, "guest", job_on(transport, known), known, guest)
    _, vmid, pid = parse_agent_handle(handle)
    guest = await pve.guest(vmid)
    if known is None and await jobs.is_taken(handle):
        raise no_job(handle)
    if not guest.is_vm:
        raise NotFound(
            f"{guest} is a container and has no agent", next_step=see("List the jobs", GUEST_JOB(action="list"))
        )
    job = (await agent_transport(pve, guest)).job(pid, keep)
    return FoundJob(handle, "guest", job, known, guest)


async def _visibility_problem(pve: Cluster, known: BackgroundJob) -> Problem | None:
    """Why the caller may not see the guest that it runs in. One that is gone hides nothing."""
    try:
        await pve.guest(int(known.record.target_id))
    except NotFound:
        return None
    except Refused as problem:
        return problem
    return None
