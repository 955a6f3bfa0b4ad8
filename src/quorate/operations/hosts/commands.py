"""Running commands on hosts, and following those that go on in the background."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.homelab.home import Homelab
from quorate.homelab.machines import machine, require_seen
from quorate.inside.agent import AgentWay
from quorate.inside.jobs import Known, jobs_of
from quorate.operations.hosts.parameters import (
    HostRef,
    Key,
    Password,
    Port,
    User,
    given_login,
    machine_action,
    machine_label,
)
from quorate.operations.inside.parameters import needs_of, target_of
from quorate.operations.plan import Action, Plan, Target
from quorate.operations.registry import Risk, Table, operation
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
from quorate.problems import BadArgument, NotFound, Problem
from quorate.pve.cluster import Cluster, Guest


@operation(risk=Risk.CHANGE, idempotent=False, unrecorded=("stdin", "env"))
async def host_exec(
    home: Homelab,
    host: HostRef,
    command: Annotated[str | list[str], Meta(description="A list is run as it is; a text by sh -c")],
    sudo: Annotated[bool, Meta(description="As root, where the login is not")] = False,
    user: User | None = None,
    key: Key | None = None,
    password: Password | None = None,
    port: Port | None = None,
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    stdin: str | None = None,
    timeout: Timeout | None = None,
    max_output: MaxOutput = SHOWN,
) -> Plan:
    """Run a command on a host, node or guest. One that outlasts `wait` goes on in the background: see host_job."""
    found = await machine(home, host, given_login(user, key, password, port))
    label = machine_label(found)
    wanted = errand(
        home, found.way, command, label=label, noun="host", cluster=found.where.name if found.where else None,
        stdin=stdin, env=env, cwd=cwd, user="root" if sudo else None,
        password=found.sudo_password if sudo else None, timeout=timeout, keep=max_output,
    )  # fmt: skip
    return Plan(
        f"Run a command on {label}",
        (machine_action(found, f"Run it on {label}", wanted.described, wanted.perform),),
        facts={"host": label, "way": found.way.description},
    )


@operation(
    risk=Risk.CHANGE,
    least=Risk.LOOK_INSIDE,
    risk_of=lambda given: Risk.CHANGE if given.get("action") == "stop" else Risk.LOOK_INSIDE,
)
async def host_job(
    home: Homelab,
    action: Literal["list", "poll", "stop"] = "list",
    job: Annotated[str, Meta(description="As host_exec named it")] | None = None,
    seconds: Seconds = 0,
) -> dict[str, Any] | Table | Plan:
    """Commands of host_exec in the background: list them, poll one for its output, stop one."""
    if action == "list":
        seen = [one for one in jobs_of(home).listed() if await _is_seen(home, one)]
        return jobs_table(home, "host", seen, f"Those of this server. {DIES_WITH_US}, unless it is a guest agent's")
    if job is None:
        raise BadArgument(f"host_job action={action} needs the job", next_step="host_job action=list shows them")
    known = jobs_of(home).find(job)
    if known is None:
        raise NotFound(
            f"There is no job {job!r}",
            why="Jobs live in the server that has started them, and are forgotten some time after their end",
            next_step="host_job action=list shows them; guest_job those of guest_exec",
        )
    where, guest = await _place(home, known)
    if action == "poll":
        return await polled(home, "host", job, known, known.job, seconds)
    return Plan(f"Stop the command {job}", (_stop(home, job, known, where, guest),), facts=about(home, "host", known))


def _stop(home: Homelab, handle: str, known: Known, where: Cluster | None, guest: Guest | None) -> Action:
    """Judged by the rules of the cluster that the machine belongs to, as its start was."""
    line = f"stop {handle} ({known.line})"
    perform = stopping(home, known, known.job)
    if where is not None and guest is not None:
        needs = needs_of(guest, AgentWay(where, guest, "posix")) if handle.startswith("agent:") else ()
        return Action("Stop it", line, perform, target_of(guest), needs, where)
    kind, name = known.machine.split(" ")[:2]
    return Action("Stop it", line, perform, Target(kind, name, node=name if kind == "node" else ""), (), where)


async def _place(home: Homelab, known: Known) -> tuple[Cluster | None, Guest | None]:
    """The cluster and guest that it runs in, as far as it does; a Problem where the caller may not see them.

    A guest that is gone hides nothing.
    """
    kind, name = known.machine.split(" ")[:2]
    if known.cluster is None:
        await require_seen(home, name)
        return None, None
    where = next((one for one in home.clusters if one.name == known.cluster), None)
    if where is None:
        raise NotFound(f"There is no cluster {known.cluster!r}")
    try:
        return where, None if kind == "node" else await where.guest(int(name))
    except NotFound:
        return where, None


async def _is_seen(home: Homelab, known: Known) -> bool:
    try:
        await _place(home, known)
    except Problem:
        return False
    return True
