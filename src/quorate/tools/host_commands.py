"""Commands, files and terminals on hosts."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import Advice, tools
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine, find_machine, require_visible
from quorate.homelab.selection import select
from quorate.homelab.shells import INVITED_SECONDS
from quorate.inside import files
from quorate.inside.agent import AgentTransport
from quorate.inside.entries import guest_path
from quorate.inside.jobs import BackgroundJob, JobRegistry, no_job, parse_agent_handle
from quorate.inside.ssh_transport import SshTransport
from quorate.inside.transport import Job
from quorate.operations.plan import Action, ActionResult, Plan, StepContext
from quorate.operations.registry import Owner, Risk, Table, operation, page
from quorate.problems import NotConfigured, NotFound, Problem
from quorate.pve.cluster import Cluster, Guest
from quorate.ssh.launcher import command_line
from quorate.state.passphrase import Passphrase
from quorate.tools.commands import (
    SHOWN,
    CommandRequest,
    FoundJob,
    JobAction,
    JobTool,
    MaxOutput,
    Seconds,
    Timeout,
    command_job,
    job_on,
)
from quorate.tools.hosts import HostRefs, Key, Password, Sudo, User, given_login
from quorate.tools.machines import (
    COLUMNS,
    READ_AT_ONCE,
    Encoding,
    FileWrite,
    command_target,
    content_bytes,
    entry_row,
    list_folder,
    machine_action,
    machine_label,
    read_file,
    write_action,
)
from quorate.tools.several_hosts import answer_each, plan_each


@operation(
    toolset="hosts",
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

    async def prepare(machine: Machine) -> Action:
        label = machine_label(machine)
        root, secret = ("root", machine.sudo_password) if sudo else (None, None)
        request = CommandRequest(command, stdin, env, cwd, root, secret, timeout, max_output)
        job = await command_job(JobRegistry(homelab, homelab.job_book, owner), command_target(machine), request)
        return machine_action(
            machine, f"Run it on {label}", job.described, job.perform, opens=not job.named, input=job.input
        )

    login = given_login(user, key, password)
    return await plan_each(
        homelab, host, "Run a command on", prepare, ("exit_code", "job", "stdout", "stderr"), login=login
    )


@operation(
    toolset="hosts",
    risk=Risk.CHANGE,
    least=Risk.LOOK_INSIDE,
    risk_of=lambda arguments: Risk.CHANGE if arguments.get("action") == "stop" else Risk.LOOK_INSIDE,
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
        background = await jobs.find(handle)
        if background is None:
            raise no_job(handle)
        cluster, guest = await _cluster_and_guest(homelab, background)
        return FoundJob(handle, "host", await _resolve_job(homelab, background), background, guest, cluster)

    return await JobTool(jobs, "host", find, partial(_is_visible, homelab)).answer(action, job, seconds)


async def _resolve_job(homelab: Homelab, background: BackgroundJob) -> Job:
    """The running job; if this process did not start it, it is found on its machine, which is looked up by name."""
    if background.job is not None:
        return background.job
    machine = await find_machine(homelab, background.record.ref)
    if background.record.transport_name == "agent":
        _, _, pid = parse_agent_handle(background.record.handle)
        assert isinstance(machine.transport, AgentTransport)
        return machine.transport.job(pid, background.record.keep)
    return job_on(machine.transport, background, machine.sudo_password)


async def _cluster_and_guest(homelab: Homelab, background: BackgroundJob) -> tuple[Cluster | None, Guest | None]:
    """The cluster and guest that a job runs in, if any; raises a Problem if the caller may not see them.

    A guest that no longer exists hides nothing.
    """
    kind, name = background.record.target_kind, background.record.target_id
    if background.record.cluster is None:
        await require_visible(homelab, name)
        return None, None
    cluster = next((cluster for cluster in homelab.clusters if cluster.name == background.record.cluster), None)
    if cluster is None:
        raise NotFound(f"There is no cluster {background.record.cluster!r}")
    try:
        return cluster, None if kind == "node" else await cluster.guest(int(name))
    except NotFound:
        return cluster, None


async def _is_visible(homelab: Homelab, background: BackgroundJob) -> bool:
    try:
        await _cluster_and_guest(homelab, background)
    except Problem:
        return False
    return True


SEVERAL_BYTES = 4096
"""The limit for each file where several hosts are asked."""
SEVERAL_ENTRIES = 100
"""The same for folders."""


@operation(
    toolset="hosts",
    risk=Risk.LOOK_INSIDE,
    search_words="read file on host server cat config list folder directory ls look at etc nas raspberry pi",
    example="host=nas path=/etc/hostname",
)
async def host_file(
    homelab: Homelab,
    host: HostRefs,
    path: Annotated[str, Meta(description="Absolute path of a file or folder")],
    offset: Annotated[int, Meta(ge=0, description="First byte or entry")] = 0,
    limit: Annotated[int, Meta(ge=1, le=READ_AT_ONCE, description="Maximum bytes")] = 64 * 1024,
    sudo: Sudo = False,
) -> dict[str, Any] | Table:
    """Read a file or list a folder on hosts."""
    chosen = await select(homelab, host)
    if not chosen.several:
        return await _read_one(_as(chosen.machines[0], sudo), path, offset, limit)
    contents: dict[str, str] = {}
    remarks: dict[str, str] = {}

    async def ask(machine: Machine) -> list[list[Any]]:
        into = _as(machine, sudo).transport
        entry = await files.stat_path(into, guest_path(path, into.system))
        if entry.type == "folder":
            entries, cut = await list_folder(into, path)
            shown = entries[offset : offset + SEVERAL_ENTRIES]
            if cut or len(shown) < len(entries) - offset:
                remarks[machine_label(machine)] = f"{len(shown)} of {len(entries)} entries are shown"
            return [entry_row(each) for each in shown]
        answer = await read_file(into, path, offset=offset, limit=min(limit, SEVERAL_BYTES))
        contents[machine_label(machine)] = answer.get("content") or answer.get("base64", "")
        if remark := answer.get("next") or ("it is base64" if answer.get("base64") else ""):
            remarks[machine_label(machine)] = remark
        return [entry_row(entry)]

    table = await answer_each(chosen, ask, COLUMNS)
    for name, facts in (("content", contents), ("notes", remarks)):
        if facts:
            table.facts[name] = dict(sorted(facts.items()))
    return table


async def _read_one(machine: Machine, path: str, offset: int, limit: int) -> dict[str, Any] | Table:
    into = machine.transport
    origin = {"host": machine_label(machine), "way": into.description}
    path = guest_path(path, into.system)
    if (await files.stat_path(into, path)).type != "folder":
        return origin | await read_file(into, path, offset=offset, limit=limit)
    entries, cut = await list_folder(into, path)
    table = page(COLUMNS, [entry_row(entry) for entry in entries], limit=min(limit, 1000), offset=offset)
    table.facts = {**origin, "path": path, **({"note": cut} if cut else {})}
    return table


@operation(
    toolset="hosts",
    risk=Risk.CHANGE,
    unrecorded=("content",),
    shown_by=("host_file", "host", "path", "sudo"),
    search_words="write file on host server edit change config create replace append save etc nas raspberry pi",
    example="host=nas path=/tmp/note.txt content='back on Monday'",
)
async def host_file_write(
    homelab: Homelab,
    host: HostRefs,
    path: Annotated[str, Meta(description="Absolute path")],
    content: str,
    encoding: Encoding = "text",
    append: bool = False,
    parents: Annotated[bool, Meta(description="Create missing folders")] = False,
    mode: Annotated[str, Meta(description="Default: as it was")] | None = None,
    owner: Annotated[str, Meta(description="user:group")] | None = None,
    sudo: Sudo = False,
) -> Plan:
    """Write a file on hosts, replacing it atomically, or append to it."""
    write = FileWrite(path, content_bytes(content, encoding), append, parents, mode, owner)

    async def prepare(machine: Machine) -> Action:
        return write_action(homelab.command_rules, _as(machine, sudo), write)

    verb = "Append to" if append else "Write"
    return await plan_each(homelab, host, f"{verb} {path} on", prepare, ("file",))


def _as(machine: Machine, sudo: bool) -> Machine:
    return machine.with_root() if sudo else machine


LOGIN_SHELL = ("/bin/sh", "-l")
"""The shell where the login names none, and the command that rules are checked against."""


@operation(
    toolset="host_admin",
    risk=Risk.CHANGE,
    idempotent=False,
    search_words="interactive shell terminal console web ssh session browser link for the person",
    example="host=pve1",
)
async def host_shell_open(
    homelab: Homelab,
    host: HostRefs,
    command: Annotated[list[str], Meta(description="Run this instead of a shell, such as ['htop']")] | None = None,
) -> Plan:
    """Create a link to a terminal on each host. Give it to the person, who opens it in a browser. It works once, within
    five minutes. You cannot use it."""
    homelab.shells.require_page()
    if homelab.shells.needs_passphrase():
        await Passphrase(homelab.store).ensure_set()
    argv = tuple(command or ())
    if objection := homelab.command_rules.objection(argv or LOGIN_SHELL):
        raise objection
    prepare = partial(_invitation, homelab, command=argv)
    return await plan_each(
        homelab, host, "Invite the person to terminals on", prepare, ("link", "terminal", "valid_seconds")
    )


async def _invitation(homelab: Homelab, machine: Machine, command: tuple[str, ...]) -> Plan:
    if not isinstance(machine.transport, SshTransport):
        raise NotConfigured(
            f"{machine} is reached by {machine.transport.description}, which has no terminal",
            next_step=Advice("Register it by the address of its SSH server", tools.host_register),
        )
    opens = not homelab.command_rules.allows(command or LOGIN_SHELL)
    target = machine.transport.target
    argv = command or (LOGIN_SHELL if target.enter else ())
    cluster = (machine.where or homelab).name

    async def perform(_: StepContext) -> ActionResult:
        link, terminal = homelab.shells.invite(str(machine), cluster, target, argv)
        facts = {"link": link, "terminal": terminal, "valid_seconds": INVITED_SECONDS}
        return ActionResult(facts, next_step="Give the link to the person; it works once")

    line = f"terminal: {command_line(argv) if argv else 'login shell'}"
    return Plan(
        f"Invite the person to a terminal on {machine}",
        (machine_action(machine, f"Make a link to a terminal on {machine}", line, perform, opens=opens),),
        facts={"way": machine.transport.description},
    )
