"""Running commands inside guests, and following those that go on in the background."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.inside.agent import AgentWay
from quorate.inside.jobs import Known, agent_place, jobs_of
from quorate.inside.reaching import agent_way, way_into
from quorate.inside.way import Job
from quorate.operations.inside.parameters import WayName, needs_of, target_of
from quorate.operations.plan import Action, Plan, Target
from quorate.operations.registry import GuestRef, Risk, Table, operation
from quorate.operations.running import (
    DIES_WITH_US,
    SHOWN,
    MaxOutput,
    Seconds,
    Timeout,
    about,
    errand,
    jobs_table,
    polled,
    stopping,
)
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.errors import BadArgument, NotFound, Problem, Refused


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
    timeout: Timeout | None = None,
    max_output: MaxOutput = SHOWN,
    way: WayName | None = None,
) -> Plan:
    """Run a command inside a guest. One that outlasts `wait` goes on in the background; guest_job follows it."""
    found = await pve.guest(guest)
    into = await way_into(pve, found, prefer=way)
    wanted = errand(
        pve, into, command, label=found.label, noun="guest",
        stdin=stdin, env=env, cwd=cwd, user=user, timeout=timeout, keep=max_output,
    )  # fmt: skip
    return Plan(
        f"Run a command in {found}",
        (Action(f"Run it in {found}", wanted.described, wanted.perform, target_of(found), needs_of(found, into)),),
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
    seconds: Seconds = 0,
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
    return await polled(pve, "guest", job, known, running, seconds)


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
    line = f"stop {handle}" + (f" ({known.line})" if known else "")
    target = target_of(guest) if guest is not None else _target(known)
    needs = needs_of(guest, AgentWay(pve, guest, "posix")) if guest is not None else ()
    step = Action("Stop it", line, stopping(pve, known, job), target, needs)
    return Plan(f"Stop the command {handle}", (step,), facts=about(pve, "guest", known))


def _target(known: Known | None) -> Target | None:
    if known is None:
        return None
    kind, vmid, *name = known.machine.split(" ")
    return Target(kind, vmid, *name[:1])


async def _hidden(pve: Cluster, known: Known) -> Problem | None:
    """Why the caller may not see the guest that it runs in. One that is gone hides nothing."""
    try:
        await pve.guest(int(known.machine.split(" ")[1]))
    except NotFound:
        return None
    except Refused as problem:
        return problem
    return None


async def _listed(pve: Cluster) -> Table:
    seen = [one for one in jobs_of(pve).listed() if not await _hidden(pve, one)]
    return jobs_table(pve, "guest", seen, f"Those of this server. {DIES_WITH_US}, unless it is a guest agent's")
