"""Community scripts: search, inspect, and run exactly the text that was shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import OMITTED, Advice, append_advice, see, tools
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine, find_machine
from quorate.homelab.scripts import (
    REFRESH,
    RUNNER,
    Category,
    Index,
    Script,
    ScriptDownload,
    current,
    environment,
    fetch_script,
    parse_script,
)
from quorate.inside.jobs import JobRegistry
from quorate.inside.transport import KEPT_BYTES
from quorate.operations.plan import ActionResult, Plan, StepContext
from quorate.operations.registry import Owner, Risk, Table, operation, page
from quorate.problems import BadArgument, Conflict, NotConfigured, NotFound, TaskFailed
from quorate.pve.cluster import Cluster
from quorate.tools.commands import CommandRequest, Timeout, command_job
from quorate.tools.machines import command_target, machine_action
from quorate.units import count_of, duration

ScriptName = Annotated[str, Meta(description="As script_search names it, or ct/NAME.sh")]


def index_of(homelab: Homelab) -> Index:
    return current(homelab.settings.scripts_index)


def provenance(homelab: Homelab, index: Index) -> dict[str, Any]:
    """The age of the index, because scripts may have changed since."""
    if index.taken is None:
        return {"index": f"bundled, with only some of the scripts. {REFRESH}"}
    return {"index": f"fetched {duration(max(0.0, homelab.clock.time() - index.taken))} ago"}


PAGE = 16 * 1024
"""Characters of a script's text in one answer."""
COLUMNS = ("script", "category", "name", "about", "cpu", "ram_mb", "disk_gb", "os", "port", "tags")


@operation(
    toolset="scripts",
    risk=Risk.READ,
    search_words="community scripts helper-scripts tteck find a script for an app catalogue",
    example="words=dns",
)
async def script_search(
    homelab: Homelab,
    words: Annotated[str, Meta(description="All must match; empty lists every script")] = "",
    category: Category | None = None,
    limit: Annotated[int, Meta(ge=1, le=200)] = 25,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Community scripts for Proxmox VE that create containers (ct) or VMs, or maintain nodes (misc). Works offline."""
    index = index_of(homelab)
    rows = [
        [script.slug, script.category, script.name, script.about, script.cpu, script.ram, script.disk,
         _required_system(script), script.port, ", ".join(script.tags)]
        for script in index.matching(words, category)
    ]  # fmt: skip
    table = page(COLUMNS, rows, limit=limit, offset=offset)
    table.facts = provenance(homelab, index)
    return table


@operation(
    toolset="scripts",
    risk=Risk.READ,
    search_words="community script helper-scripts tteck what does this script need show its text",
    example="script=jellyfin",
)
async def script_info(
    homelab: Homelab,
    script: ScriptName,
    category: Category | None = None,
    text: Annotated[bool, Meta(description="Fetch the script and show it")] = False,
    offset: Annotated[int, Meta(ge=0, description="Of the text, in characters")] = 0,
) -> dict[str, Any]:
    """What a community script needs and creates, from the index; with `text`, the current script itself."""
    index = index_of(homelab)
    entry = index.get(script, category)
    facts = _facts(entry) | provenance(homelab, index)
    if not text:
        return facts | {"address": f"{homelab.settings.scripts_url.rstrip('/')}/{entry.path}"}
    fetched = await fetch_script(homelab.settings.scripts_url, entry.path)
    shown = fetched.text[offset : offset + PAGE]
    end = offset + len(shown)
    return facts | {
        "address": fetched.address,
        "sha256": fetched.sha256,
        "runs_also": fetched.runs_also,
        "content": shown,
        **({"next_offset": end} if end < len(fetched.text) else {}),
    }


def _required_system(script: Script) -> str:
    return f"{script.os} {script.version}".strip()


def _facts(script: Script) -> dict[str, Any]:
    facts = {
        "script": script.path,
        "name": script.name,
        "category": script.category,
        "about": script.about,
        "cpu": script.cpu,
        "ram_mb": script.ram,
        "disk_gb": script.disk,
        "os": _required_system(script),
        "unprivileged": script.unprivileged,
        "port": script.port,
        "tags": list(script.tags),
    }
    known = {name: value for name, value in facts.items() if value not in (None, "", [])}
    if script.category == "ct":
        return known | {"to_run": Advice("Run it on a node", tools.script_run(script=script.path))}
    return known | {"to_run": "it asks questions, so run it at a shell of the node"}


LONGEST_SHOWN = 8 * 1024
END_SHOWN = 2 * 1024
LAST_LINES = 20
"""The last lines of its output in an answer."""
EXCERPT_LINES, LONGEST_EXCERPT = 5, 1000
"""The last lines in the sentence of an error, and how many characters they may have."""


@operation(
    toolset="scripts",
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
    entry = _find_container_script(index_of(homelab), script)
    machine, cluster = await _node(homelab, node)
    fetched = await fetch_script(homelab.settings.scripts_url, entry.path)
    if sha256 is not None and sha256.strip().lower() != fetched.sha256:
        raise Conflict(
            f"{entry.path} has changed: its hash is {fetched.sha256}",
            next_step=Advice("Look at it again with {dry_run}; nothing was done", dry_run=True),
        )
    vmid = await _free(cluster, ctid)
    variables = environment(settings or {}, {"var_ctid": str(vmid), **_system(entry, fetched)})
    request = CommandRequest(
        ["/bin/sh", "-c", RUNNER, "community-script", fetched.sha256],
        stdin=fetched.text,
        env=variables,
        user="root",
        password=machine.sudo_password,
        timeout=timeout,
        keep=KEPT_BYTES,
    )
    job = await command_job(JobRegistry(homelab, homelab.job_book, owner), command_target(machine), request)
    arguments = " ".join(f"{name}={value}" for name, value in sorted(variables.items()) if name.startswith("var_"))
    job = replace(job, line=f"bash {entry.path} sha256={fetched.sha256} {arguments}")

    async def perform(context: StepContext) -> ActionResult:
        performed = await job.perform(context)
        if not performed.running:
            return await _check_result(cluster, vmid, machine, performed)
        after = "Then see whether the container exists"
        return replace(performed, next_step=append_advice(performed.next_step, after, tools.guest_get(guest=vmid)))

    return Plan(
        f"Run the community script {entry.path} as root on {machine}, to create container {vmid}",
        (machine_action(machine, f"Run it on {machine}", job.described, perform, opens=not job.named),),
        facts=_describe(entry, fetched, vmid),
        warnings=_warnings(fetched),
        next_step=see("See the container", tools.guest_get(guest=vmid)),
    )


def _find_container_script(index: Index, name: str) -> Script:
    try:
        return index.get(name, "ct")
    except NotFound:
        other = index.get(name)
    raise BadArgument(
        f"{other.path} asks questions at a terminal",
        why="Only scripts of the category ct can run without someone to answer",
        next_step=Advice("Run it in a shell on the node, which a person can open", tools.host_shell_open),
    )


async def _node(homelab: Homelab, ref: str) -> tuple[Machine, Cluster]:
    machine = await find_machine(homelab, ref)
    if machine.kind != "node" or machine.where is None:
        raise NotConfigured(
            f"{machine} is not a node of a configured cluster",
            why="The cluster is asked whether the script has created its container",
            next_step=see("List the nodes", tools.host_list),
        )
    await machine.where.inventory.online_node(machine.name)
    return machine, machine.where


async def _free(cluster: Cluster, ctid: int | None) -> int:
    if ctid is None:
        return int(await cluster.get("/cluster/nextid"))
    try:
        owner = await cluster.guest(ctid)
    except NotFound:
        return ctid
    raise Conflict(
        f"The id {ctid} belongs to {owner}", next_step=Advice("Leave {ctid} out for the next free one", ctid=OMITTED)
    )


def _system(entry: Script, fetched: ScriptDownload) -> dict[str, str]:
    """Some scripts ask for the container's system unless it is given."""
    own = parse_script(entry.path, fetched.text)
    return {} if own.os or not entry.os else {"var_os": entry.os}


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
            next_step=Advice("Remove what it left behind", tools.guest_delete(guest=vmid))
            if guest is not None
            else None,
            facts=words,
        )
    return ActionResult({"made": guest.label, "node": machine.name, **_last_words(performed.facts)})


def _last_words(facts: Any) -> dict[str, str]:
    return {name: "\n".join(facts[name].splitlines()[-LAST_LINES:]) for name in ("stdout", "stderr") if facts.get(name)}


def _one_line(words: dict[str, str]) -> str:
    lines = [line.strip() for text in words.values() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-EXCERPT_LINES:])[-LONGEST_EXCERPT:]


def _describe(script: Script, fetched: ScriptDownload, vmid: int) -> dict[str, Any]:
    text = fetched.text
    more: dict[str, Any] = {}
    if len(text) > LONGEST_SHOWN:
        left = len(text) - LONGEST_SHOWN
        cut = f"\n[… {left} characters …]\n"
        text = text[: LONGEST_SHOWN - END_SHOWN] + cut + text[-END_SHOWN:]
        more = {"content_cut": see("See all of it", tools.script_info(script=script.path, text=True))}
    return {
        "script": script.path,
        "sha256": fetched.sha256,
        "address": fetched.address,
        "length": f"{count_of(len(fetched.data), 'byte')}, {count_of(len(fetched.text.splitlines()), 'line')}",
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
