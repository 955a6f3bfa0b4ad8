"""Running commands on hosts, and following those that continue in the background."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import HOST_JOB, Advice
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine, machine, require_seen
from quorate.inside.agent import AgentTransport
from quorate.inside.jobs import BackgroundJob, JobRegistry, no_job, parse_agent_handle
from quorate.inside.transport import Job
from quorate.operations.commands import (
    SHOWN,
    CommandRequest,
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
from quorate.operations.hosts.parameters import HostRefs, Key, Password, Sudo, User, given_login
from quorate.operations.hosts.several import plan_each
from quorate.operations.inside.parameters import needs_of, target_of
from quorate.operations.machine import command_target, machine_action, machine_label
from quorate.operations.plan import Action, Plan, Target
from quorate.operations.registry import Owner, Risk, Table, operation
from quorate.problems import BadArgument, NotFound, Problem
from quorate.pve.cluster import Cluster, Guest


@operation(
    risk=Risk.CHANGE,
    idempotent=False,
    unrecorded=("stdin", "env"),
    search_words="run command on host server nas raspberry pi over ssh shell sudo as root execute df uptime bash",
    example="host=pve1 command='uptime'",
)
async def host_exec(
    home: Homelab,
    host: HostRefs,
    command: Annotated[str | list[str], Meta(description="A string is run by sh -c")],
    sudo: Sudo = False,
    user: User | None = None,
    key: Key | None = None,
    password: Password | None = None,
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    stdin: str | None = None,
    timeout: Timeout | None = None,
    max_output: MaxOutput = SHOWN,
    *,
    owner: Owner,
) -> Plan:
    """Run a command on hosts. One that outlasts `wait` continues in the background: see host_job."""

    async def prepare(one: Machine) -> Action:
        label = machine_label(one)
        root, secret = ("root", one.sudo_password) if sudo else (None, None)
        request = CommandRequest(command, stdin, env, cwd, root, secret, timeout, max_output)
        wanted = await command_job(JobRegistry(home, owner), command_target(one), request)
        return machine_action(
            one, f"Run it on {label}", wanted.described, wanted.perform, opens=not wanted.named, input=wanted.input
        )

    login = given_login(user, key, password)
    return await plan_each(
        home, host, "Run a command on", prepare, ("exit_code", "job", "stdout", "stderr"), login=login
    )


@operation(
    risk=Risk.CHANGE,
    least=Risk.LOOK_INSIDE,
    risk_of=lambda given: Risk.CHANGE if given.get("action") == "stop" else Risk.LOOK_INSIDE,
    search_words="long running command host background done yet finished output exit code stop kill",
)
async def host_job(
    home: Homelab,
    action: Literal["list", "poll", "stop"] = "list",
    job: Annotated[str, Meta(description="As host_exec named it")] | None = None,
    seconds: Seconds = 0,
    *,
    owner: Owner,
) -> dict[str, Any] | Table | Plan:
    """Your commands of host_exec in the background: list them, poll one for its output, stop one."""
    jobs = JobRegistry(home, owner)
    if action == "list":
        return jobs_table(jobs, "host", [one for one in await jobs.listed() if await _is_seen(home, one)])
    if job is None:
        raise BadArgument(f"action={action} needs the job", next_step=Advice("List the jobs", HOST_JOB(action="list")))
    known = await jobs.find(job)
    if known is None:
        raise no_job(job)
    where, guest = await _place(home, known)
    found = await _job(home, known)
    if action == "poll":
        return await polled(jobs, "host", job, known, found, seconds)
    step = _stop(jobs, known, found, where, guest)
    return Plan(f"Stop the command {job}", (step,), facts=about(jobs, "host", known))


async def _job(home: Homelab, known: BackgroundJob) -> Job:
    """Wherever it was started: its machine is found again by its name."""
    if known.job is not None:
        return known.job
    one = await machine(home, known.record.ref)
    if known.record.handle.startswith("agent:"):
        _, _, pid = parse_agent_handle(known.record.handle)
        assert isinstance(one.transport, AgentTransport)
        return one.transport.job(pid, known.record.keep)
    return job_on(one.transport, known, one.sudo_password)


def _stop(jobs: JobRegistry, known: BackgroundJob, job: Job, where: Cluster | None, guest: Guest | None) -> Action:
    """Judged by the rules of the cluster that the machine belongs to, as its start was."""
    handle = known.record.handle
    line = f"stop {handle} ({known.record.line})"
    perform = stopping(jobs, known, job)
    if where is not None and guest is not None:
        needs = needs_of(guest, AgentTransport(where, guest, "posix")) if handle.startswith("agent:") else ()
        return Action("Stop it", line, perform, target_of(guest), needs, where)
    kind, name = known.record.machine.split(" ")[:2]
    return Action("Stop it", line, perform, Target(kind, name, node=name if kind == "node" else ""), (), where)


async def _place(home: Homelab, known: BackgroundJob) -> tuple[Cluster | None, Guest | None]:
    """The cluster and guest that it runs in, as far as it does; a Problem where the caller may not see them.

    A guest that is gone hides nothing.
    """
    kind, name = known.record.machine.split(" ")[:2]
    if known.record.cluster is None:
        await require_seen(home, name)
        return None, None
    where = next((one for one in home.clusters if one.name == known.record.cluster), None)
    if where is None:
        raise NotFound(f"There is no cluster {known.record.cluster!r}")
    try:
        return where, None if kind == "node" else await where.guest(int(name))
    except NotFound:
        return where, None


async def _is_seen(home: Homelab, known: BackgroundJob) -> bool:
    try:
        await _place(home, known)
    except Problem:
        return False
    return True
