"""Running commands on hosts, and following those that continue in the background."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine, find_machine, require_visible
from quorate.inside.agent import AgentTransport
from quorate.inside.jobs import BackgroundJob, JobRegistry, no_job, parse_agent_handle
from quorate.inside.transport import Job
from quorate.operations.command_jobs import FoundJob, JobAction, JobTool, Seconds, job_on
from quorate.operations.commands import SHOWN, CommandRequest, MaxOutput, Timeout, command_job
from quorate.operations.hosts.parameters import HostRefs, Key, Password, Sudo, User, given_login
from quorate.operations.hosts.several import plan_each
from quorate.operations.machine import command_target, machine_action, machine_label
from quorate.operations.plan import Action, Plan
from quorate.operations.registry import Owner, Risk, Table, operation
from quorate.problems import NotFound, Problem
from quorate.pve.cluster import Cluster, Guest


@operation(
    risk=Risk.CHANGE,
    idempotent=False,
    unrecorded=("stdin", "env"),
    search_words="run command on host server nas raspberry pi over ssh shell sudo as root execute df uptime bash",
    example="host=pve1 command='uptime'",
)
async def host_exec(
    homelab: Homelab,
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
        wanted = await command_job(JobRegistry(homelab, homelab.job_book, owner), command_target(one), request)
        return machine_action(
            one, f"Run it on {label}", wanted.described, wanted.perform, opens=not wanted.named, input=wanted.input
        )

    login = given_login(user, key, password)
    return await plan_each(
        homelab, host, "Run a command on", prepare, ("exit_code", "job", "stdout", "stderr"), login=login
    )


@operation(
    risk=Risk.CHANGE,
    least=Risk.LOOK_INSIDE,
    risk_of=lambda given: Risk.CHANGE if given.get("action") == "stop" else Risk.LOOK_INSIDE,
    search_words="long running command host background done yet finished output exit code stop kill",
)
async def host_job(
    homelab: Homelab,
    action: JobAction = "list",
    job: Annotated[str, Meta(description="As host_exec named it")] | None = None,
    seconds: Seconds = 0,
    *,
    owner: Owner,
) -> dict[str, Any] | Table | Plan:
    """Your background commands from host_exec: list them, poll one for its output, or stop one."""
    jobs = JobRegistry(homelab, homelab.job_book, owner)

    async def find(handle: str) -> FoundJob:
        known = await jobs.find(handle)
        if known is None:
            raise no_job(handle)
        where, guest = await _place(homelab, known)
        return FoundJob(handle, "host", await _job(homelab, known), known, guest, where)

    return await JobTool(jobs, "host", find, partial(_is_seen, homelab)).answer(action, job, seconds)


async def _job(homelab: Homelab, known: BackgroundJob) -> Job:
    """Find a job, wherever it was started: its machine is looked up by name."""
    if known.job is not None:
        return known.job
    one = await find_machine(homelab, known.record.ref)
    if known.record.transport_name == "agent":
        _, _, pid = parse_agent_handle(known.record.handle)
        assert isinstance(one.transport, AgentTransport)
        return one.transport.job(pid, known.record.keep)
    return job_on(one.transport, known, one.sudo_password)


async def _place(homelab: Homelab, known: BackgroundJob) -> tuple[Cluster | None, Guest | None]:
    """The cluster and guest that it runs in, as far as it does; a Problem where the caller may not see them.

    A guest that is gone hides nothing.
    """
    kind, name = known.record.target_kind, known.record.target_id
    if known.record.cluster is None:
        await require_visible(homelab, name)
        return None, None
    where = next((one for one in homelab.clusters if one.name == known.record.cluster), None)
    if where is None:
        raise NotFound(f"There is no cluster {known.record.cluster!r}")
    try:
        return where, None if kind == "node" else await where.guest(int(name))
    except NotFound:
        return where, None


async def _is_seen(homelab: Homelab, known: BackgroundJob) -> bool:
    try:
        await _place(homelab, known)
    except Problem:
        return False
    return True
