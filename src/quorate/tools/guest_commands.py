"""Commands inside guests: run, follow, and wait until a guest accepts them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import Advice, see, tools
from quorate.inside.guest_addresses import read_interfaces, usable_addresses
from quorate.inside.jobs import BackgroundJob, JobBook, JobRegistry, no_job, parse_agent_handle
from quorate.inside.transport import Command
from quorate.inside.transport_selection import agent_transport, select_transport
from quorate.operations.plan import Action, Plan, Target
from quorate.operations.registry import GuestRef, Owner, Risk, Table, operation
from quorate.problems import BadArgument, Conflict, NotFound, Problem, Refused
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.tasks import Report
from quorate.tools.commands import (
    SHOWN,
    CommandRequest,
    CommandTarget,
    FoundJob,
    JobAction,
    JobTool,
    MaxOutput,
    Seconds,
    Timeout,
    WayName,
    command_job,
    job_on,
    needs_of,
)
from quorate.tools.guest_readiness import poll
from quorate.units import duration


@operation(
    toolset="inside",
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
    target = await pve.guest(guest)
    into = await select_transport(pve, target, prefer=way)
    job = await command_job(
        JobRegistry(pve, pve.attachment(JobBook), owner),
        CommandTarget(into, Target.of_guest(target), str(target.vmid), "guest"),
        CommandRequest(command, stdin, env, cwd, user, timeout=timeout, keep=max_output),
    )
    return Plan(
        f"Run a command in {target}",
        (
            Action(
                f"Run it in {target}",
                job.described,
                job.perform,
                Target.of_guest(target),
                needs_of(target, into),
                opens=not job.named,
            ),
        ),
        facts={"guest": target.label, "way": into.description},
    )


@operation(
    toolset="inside",
    risk=Risk.CHANGE,
    least=Risk.LOOK_INSIDE,
    risk_of=lambda arguments: Risk.CHANGE if arguments.get("action") == "stop" else Risk.LOOK_INSIDE,
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
    find, is_visible = partial(_find, pve, jobs, max_output), partial(_is_visible, pve)
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
            f"{guest} is a container and has no agent", next_step=see("List the jobs", tools.guest_job(action="list"))
        )
    job = (await agent_transport(pve, guest)).job(pid, keep)
    return FoundJob(handle, "guest", job, known, guest)


async def _is_visible(pve: Cluster, known: BackgroundJob) -> bool:
    return await _visibility_problem(pve, known) is None


async def _visibility_problem(pve: Cluster, known: BackgroundJob) -> Problem | None:
    """The reason to hide a job: the caller may not see its guest. A guest that is gone hides nothing."""
    try:
        await pve.guest(int(known.record.target_id))
    except NotFound:
        return None
    except Refused as problem:
        return problem
    return None


LONGEST_WAIT = 50.0

Until = Literal["agent", "ssh", "address"]
_GOALS: Mapping[Until, str] = {"agent": "the agent", "ssh": "SSH", "address": "an address"}


@operation(
    toolset="inside",
    risk=Risk.LOOK_INSIDE,
    search_words="wait until guest booted is up ready reachable ssh agent alive answers port open",
    example="guest=docker01",
)
async def guest_wait(
    pve: Cluster,
    guest: GuestRef,
    report: Report,
    until: Annotated[Until, Meta(description="Default: agent for a VM, address for a container")] | None = None,
    wait: Annotated[float, Meta(ge=0, le=LONGEST_WAIT, description="Maximum seconds to wait")] = 45,
) -> dict[str, Any]:
    """Wait until a guest's agent or SSH answers, or until it has an address."""
    target = await pve.guest(guest)
    until = until or ("agent" if target.is_vm else "address")
    await _refuse_hopeless(target, until)
    goal = f"{_GOALS[until]} of {target}"
    facts, spent, why = await poll(pve, partial(_probe, pve, target, until), goal, wait, report)
    if facts is None:
        return _not_yet(target, until, spent, why)
    return {"guest": target.label, "until": until, "reached": True, "waited": duration(spent), **facts}


async def _probe(pve: Cluster, guest: Guest, until: Until) -> dict[str, Any] | None:
    """The facts that show that the guest is reachable; None if it is not yet."""
    if until == "agent":
        answer = await guest.get("agent/get-host-name")
        return {"hostname": str((answer.get("result") or {}).get("host-name", ""))}
    if until == "ssh":
        into = await select_transport(pve, guest, prefer="ssh")
        await into.run(Command(("true",)), seconds=10.0)
        return {"way": into.description}
    addresses = usable_addresses(await read_interfaces(guest), await guest.get("config"))
    return {"addresses": addresses} if addresses else None


async def _refuse_hopeless(guest: Guest, until: Until) -> None:
    """Refuse what waiting cannot achieve."""
    if until == "agent" and not guest.is_vm:
        raise BadArgument(f"{guest} is a container and has no agent", next_step="Wait for its address or for ssh")
    status = await guest.get("status/current")
    if guest.row.template:
        raise BadArgument(
            f"{guest} is a template and never runs", next_step=Advice("Clone it", tools.guest_clone(guest=guest.vmid))
        )
    if status.get("status") != "running":
        raise Conflict(
            f"{guest} is not running",
            next_step=Advice("Start it first", tools.guest_power(guest=guest.vmid, action="start")),
        )
    needs_agent = until == "agent" or (until == "address" and guest.is_vm)
    if needs_agent and "agent" not in await guest.get("config"):
        raise Conflict(
            f"{guest} has no agent configured, so PVE cannot ask it",
            next_step=f"`qm set {guest.vmid} --agent 1` on {guest.row.node}, qemu-guest-agent inside, then a restart",
        )


def _not_yet(guest: Guest, until: Until, spent: float, why: str) -> dict[str, Any]:
    agent = guest.is_vm and until != "ssh"
    hint = "; if it never comes, check that qemu-guest-agent is installed and runs inside" if agent else ""
    return {
        "guest": guest.label,
        "until": until,
        "reached": False,
        "waited": duration(spent),
        "why": why,
        "next": Advice(f"Call again to keep waiting{hint}", tools.guest_wait(guest=guest.vmid)),
    }
