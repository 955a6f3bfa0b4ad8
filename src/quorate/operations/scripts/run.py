"""Running a community script on a node: exactly the text that was shown, until its container exists."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import (
    GUEST_DELETE,
    GUEST_GET,
    HOST_LIST,
    HOST_SHELL_OPEN,
    OMITTED,
    SCRIPT_INFO,
    Advice,
    append_advice,
    see,
)
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine, find_machine
from quorate.homelab.scripts.download import ScriptDownload, fetch_script
from quorate.homelab.scripts.index import Index
from quorate.homelab.scripts.script import Script, parse_script
from quorate.homelab.scripts.unattended_run import RUNNER, environment
from quorate.inside.jobs import JobRegistry
from quorate.inside.transport import KEPT_BYTES
from quorate.operations.commands import CommandRequest, Timeout, command_job
from quorate.operations.machine import command_target, machine_action
from quorate.operations.plan import ActionResult, Plan, StepContext
from quorate.operations.registry import Owner, Risk, operation
from quorate.operations.scripts.queries import ScriptName, index_of
from quorate.problems import BadArgument, Conflict, NotConfigured, NotFound, TaskFailed
from quorate.pve.cluster import Cluster

LONGEST_SHOWN = 8 * 1024
END_SHOWN = 2 * 1024
LAST_LINES = 20
LAST_LINES, LONGEST_EXCERPT = 5, 1000
"""How many of its last lines go into the error message, and how long they may be."""


@operation(
    risk=Risk.DESTROY,
    idempotent=False,
    search_words="community script helper-scripts tteck install an app by script one click",
    example="script=jellyfin node=pve1 settings='{\"ram\": 4096}' dry_run=true",
)
async def script_run(
    homelab: Homelab,
    script: ScriptName,
    node: Annotated[str, Meta(description="Node of a cluster, or CLUSTER/NODE")],
    ctid: Annotated[int, Meta(ge=100, le=999999999, description="Id of the new container; default: the next free one")]
    | None = None,
    settings: Annotated[
        dict[str, str | int | bool],
        Meta(description="Instead of the script's defaults: cpu, ram (MB), disk (GB), hostname, brg, net, …"),
    ]
    | None = None,
    sha256: Annotated[str, Meta(description="Run it only if its hash is still this")] | None = None,
    timeout: Timeout = 3600.0,
    *,
    owner: Owner,
) -> Plan:
    """Let a community script create a container. It runs as root on the node: inspect it first with dry_run=true."""
    found = _find_container_script(index_of(homelab), script)
    machine, cluster = await _node(homelab, node)
    fetched = await fetch_script(homelab.settings.scripts_url, found.path)
    if sha256 is not None and sha256.strip().lower() != fetched.sha256:
        raise Conflict(
            f"{found.path} has changed: its hash is {fetched.sha256}",
            next_step=Advice("Look at it again with {dry_run}; nothing was done", dry_run=True),
        )
    vmid = await _free(cluster, ctid)
    variables = environment(settings or {}, {"var_ctid": str(vmid), **_system(found, fetched)})
    request = CommandRequest(
        ["/bin/sh", "-c", RUNNER, "community-script", fetched.sha256],
        stdin=fetched.text,
        env=variables,
        user="root",
        password=machine.sudo_password,
        timeout=timeout,
        keep=KEPT_BYTES,
    )
    wanted = await command_job(JobRegistry(homelab, homelab.job_book, owner), command_target(machine), request)
    given = " ".join(f"{name}={value}" for name, value in sorted(variables.items()) if name.startswith("var_"))
    wanted = replace(wanted, line=f"bash {found.path} sha256={fetched.sha256} {given}")

    async def perform(context: StepContext) -> ActionResult:
        performed = await wanted.perform(context)
        if not performed.running:
            return await _check_result(cluster, vmid, machine, performed)
        after = "Then see whether the container exists"
        return replace(performed, next_step=append_advice(performed.next_step, after, GUEST_GET(guest=vmid)))

    return Plan(
        f"Run the community script {found.path} as root on {machine}, to create container {vmid}",
        (machine_action(machine, f"Run it on {machine}", wanted.described, perform, opens=not wanted.named),),
        facts=_describe(found, fetched, vmid),
        warnings=_warnings(fetched),
        next_step=see("See the container", GUEST_GET(guest=vmid)),
    )


def _find_container_script(index: Index, name: str) -> Script:
    try:
        return index.get(name, "ct")
    except NotFound:
        other = index.get(name)
    raise BadArgument(
        f"{other.path} asks questions at a terminal",
        why="Only scripts of the category ct can run without someone to answer",
        next_step=Advice("Run it in a shell on the node, which a person can open", HOST_SHELL_OPEN),
    )


async def _node(homelab: Homelab, ref: str) -> tuple[Machine, Cluster]:
    found = await find_machine(homelab, ref)
    if found.kind != "node" or found.where is None:
        raise NotConfigured(
            f"{found} is not a node of a configured cluster",
            why="The cluster is asked whether the script has created its container",
            next_step=see("List the nodes", HOST_LIST),
        )
    await found.where.inventory.online_node(found.name)
    return found, found.where


async def _free(cluster: Cluster, ctid: int | None) -> int:
    if ctid is None:
        return int(await cluster.get("/cluster/nextid"))
    try:
        taken = await cluster.guest(ctid)
    except NotFound:
        return ctid
    raise Conflict(
        f"The id {ctid} belongs to {taken}", next_step=Advice("Leave {ctid} out for the next free one", ctid=OMITTED)
    )


def _system(known: Script, fetched: ScriptDownload) -> dict[str, str]:
    """Some scripts ask for the container's system unless it is given."""
    own = parse_script(known.path, fetched.text)
    return {} if own.os or not known.os else {"var_os": known.os}


async def _check_result(cluster: Cluster, vmid: int, machine: Machine, performed: ActionResult) -> ActionResult:
    """These scripts exit with 0 in many cases: it succeeded if the container exists."""
    cluster.inventory.forget()
    code = performed.facts.get("exit_code")
    try:
        guest = await cluster.guest(vmid)
    except NotFound:
        guest = None
    if guest is None or code != 0:
        state = f"{guest} is there" if guest is not None else f"there is no container {vmid}"
        words = _last_words(performed.facts)
        raise TaskFailed(
            f"The script ended with {'a signal' if code is None else f'exit code {code}'}, and {state}",
            why=f"Its last output: {_one_line(words)}" if words else "It printed nothing",
            next_step=Advice("Remove what it left behind", GUEST_DELETE(guest=vmid)) if guest is not None else None,
            facts=words,
        )
    return ActionResult({"made": guest.label, "node": machine.name, **_last_words(performed.facts)})


def _last_words(facts: Any) -> dict[str, str]:
    return {name: "\n".join(facts[name].splitlines()[-LAST_LINES:]) for name in ("stdout", "stderr") if facts.get(name)}


def _one_line(words: dict[str, str]) -> str:
    lines = [line.strip() for text in words.values() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-LAST_LINES:])[-LONGEST_EXCERPT:]


def _describe(script: Script, fetched: ScriptDownload, vmid: int) -> dict[str, Any]:
    text = fetched.text
    more: dict[str, Any] = {}
    if len(text) > LONGEST_SHOWN:
        left = len(text) - LONGEST_SHOWN
        cut = f"\n[… {left} characters …]\n"
        text = text[: LONGEST_SHOWN - END_SHOWN] + cut + text[-END_SHOWN:]
        more = {"content_cut": see("See all of it", SCRIPT_INFO(script=script.path, text=True))}
    return {
        "script": script.path,
        "sha256": fetched.sha256,
        "address": fetched.address,
        "length": f"{len(fetched.data)} bytes, {len(fetched.text.splitlines())} lines",
        "container": vmid,
        "content": text,
        **more,
    }


def _warnings(fetched: ScriptDownload) -> tuple[str, ...]:
    strangers = "It is third-party code, and root on the node can do anything to every guest there"
    more = fetched.runs_also
    if not more:
        return (strangers,)
    listed = ", ".join(more[:5]) + (f" and {len(more) - 5} more" if len(more) > 5 else "")
    return strangers, f"The hash is of this text only: it runs what it fetches from {listed} as well"
