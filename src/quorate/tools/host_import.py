"""Registering many hosts at once, from a configuration, an inventory, a scan or a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from quorate.hints import NAMED, Advice, Sentence, either, tools
from quorate.homelab.homelab import Homelab
from quorate.homelab.host import Host, validate_host
from quorate.homelab.host_sources import Candidate, read_inventory, read_ssh_config
from quorate.homelab.machines import NO_KEY
from quorate.homelab.selection import verify_host
from quorate.inside.guest_addresses import read_interfaces, usable_addresses
from quorate.operations.plan import Action, ActionResult, Failure, Plan, StepContext
from quorate.operations.registry import Risk, operation
from quorate.problems import AgentNotConfigured, AgentSilent, BadArgument, Conflict, NotConfigured, NotFound, Problem
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.tasks import gather_bounded
from quorate.server_files import expand_home
from quorate.ssh.connection import has_usual_keys
from quorate.ssh.target import SSH_PORT
from quorate.tools.hosts import Labels, plan_save
from quorate.tools.network_scan import Targets, scan_and_record
from quorate.tools.several_hosts import MOST_REASONS, by_reason

ASKED_AT_ONCE = 8
SCAN_SECONDS = 25.0
SSH_CONFIG, ANSIBLE_HOSTS = Path("~/.ssh/config"), Path("/etc/ansible/hosts")
LONGEST = 256 * 1024
NO_LOGIN = "no login for guests: set user and key under [ssh.guests]"


@operation(
    toolset="hosts",
    risk=Risk.CHANGE,
    idempotent=True,
    shown_by=("host_list",),
    search_words="import hosts register many servers from ssh config ansible inventory network scan guests of cluster",
    example="source=cluster dry_run=true",
)
async def host_import(
    homelab: Homelab,
    source: Literal["ssh_config", "ansible", "scan", "cluster"],
    text: Annotated[str, Meta(description="Its content; default: ~/.ssh/config or /etc/ansible/hosts")] | None = None,
    targets: Annotated[Targets, Meta(description="Such as 192.168.1.0/24")] | None = None,
    only: Annotated[list[str], Meta(description="Only these names")] | None = None,
    labels: Labels | None = None,
) -> Plan:
    """Register hosts from an SSH config, an Ansible inventory, a scan or a cluster, and try their logins. dry_run=true
    lists them with what is missing."""
    candidates, remarks = await _candidates(homelab, source, text, targets)
    candidates = [candidate for candidate in candidates if only is None or candidate.name in only]
    if not candidates:
        why = "; ".join(remarks) or None
        raise NotFound(
            "Nothing to import was found",
            why=why,
            next_step=either(
                Advice("Give {text} or {targets}", text=NAMED, targets=NAMED), Advice("another {source}", source=NAMED)
            ),
        )
    known = {host.name: host for host in await homelab.hosts.everyone()}
    places = {(host.address, host.port): host.name for host in known.values()}
    actions, unchanged = [], []
    failures: list[Failure] = []
    missing: dict[str, list[str]] = {}
    keyless = False
    jumps = {candidate.jump for candidate in candidates if candidate.jump}
    for candidate in sorted(candidates, key=lambda entry: (entry.name not in jumps, entry.name)):
        name, place = candidate.name, (candidate.address, candidate.port or SSH_PORT)
        if old := places.get(place) or (name if name in known else None):
            unchanged.append(f"{name} is already registered" + (f" as {old}" if old != name else ""))
            continue
        try:
            if candidate.key and text is not None:  # all other sources are the operator's
                homelab.files.require(candidate.key, NO_KEY)
            new = _host(candidate, tuple(labels or ()))
            lacking = await _missing(homelab, candidate, new, {other.name for other in candidates} | set(known))
        except Problem as problem:
            failures.append(Failure(name, str(problem)))
            continue
        missing[name] = lacking
        keyless = keyless or await _is_keyless(homelab, candidate)
        actions.append(await _register(homelab, new, lacking))
    if not actions and not unchanged:
        raise Conflict(
            f"None of the {len(candidates)} hosts can be registered", why="; ".join(map(str, failures[:MOST_REASONS]))
        )
    return Plan(
        f"Register {len(actions)} host{'' if len(actions) == 1 else 's'} from {source}",
        tuple(actions),
        unchanged=tuple(unchanged),
        failures=tuple(failures),
        columns=("at", "login", "missing"),
        next_step=Advice("Set a key or password where there is none", tools.host_update) if keyless else None,
        facts={"missing": _group_missing(missing)},
        warnings=tuple(remarks),
    )


def _group_missing(missing: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """List what several hosts lack once, under all their names, then what single hosts lack."""
    lacking = by_reason((name, reason) for name, reasons in missing.items() for reason in reasons)
    by_names: dict[str, list[str]] = {}
    for reason, names in sorted(lacking.items(), key=lambda item: -len(item[1])):
        everyone = len(names) > 1 and len(names) == len(missing)
        by_names.setdefault(f"all {len(names)}" if everyone else ", ".join(names), []).append(reason)
    return {names: "; ".join(reasons) for names, reasons in by_names.items()}


async def _register(homelab: Homelab, new: Host, lacking: list[str]) -> Action:
    async def perform(_: StepContext) -> ActionResult:
        await homelab.hosts.add(new)
        verified = await verify_host(homelab, new, knock_first=True)
        login = "works" if verified["verified"] else f"{verified['failed_at']}: {verified['why']}"
        return ActionResult({"at": new.at, "login": login, "missing": "; ".join(lacking)})

    plan = await plan_save(homelab, f"Register {new} at {new.at}", new, perform)
    [step] = plan.calls
    assert isinstance(step, Action)
    return step


def _host(candidate: Candidate, labels: tuple[str, ...]) -> Host:
    own = tuple(dict.fromkeys((*candidate.labels, *labels)))
    return validate_host(
        Host(
            candidate.name,
            candidate.address,
            candidate.port or SSH_PORT,
            candidate.user,
            candidate.key,
            jump=candidate.jump,
            labels=own,
        )
    )


async def _missing(homelab: Homelab, candidate: Candidate, host: Host, named: set[str]) -> list[str]:
    """List what has to be done before the login of the host can work."""
    missing = [*candidate.missing]
    keys = homelab.ssh.pool.host_keys
    trusted, *_ = await asyncio.to_thread(keys.match, host.address, "", host.port)
    if not trusted:
        at = host.address if host.port == SSH_PORT else host.at
        missing.append(f"its host key is not trusted: `quorate trust {at}`")
    if host.key and not await asyncio.to_thread(_exists, host.key):
        missing.append(f"there is no key {host.key} on this server")
    if await _is_keyless(homelab, candidate):
        missing.append("it has no key or password")
    if host.jump and host.jump not in named:
        missing.append(f"its jump host {host.jump} is not registered")
    return missing


async def _is_keyless(homelab: Homelab, candidate: Candidate) -> bool:
    """Neither the source of the candidate nor the configuration has a key or password for it."""
    usual = homelab.settings.ssh.nodes
    if candidate.key or usual.key or usual.password is not None or not candidate.login_configured:
        return False
    return not await asyncio.to_thread(has_usual_keys)


# -- sources -----------------------------------------------------------------------------------------------------------


async def _candidates(
    homelab: Homelab, source: str, text: str | None, targets: list[str] | None
) -> tuple[list[Candidate], list[str]]:
    if (source == "scan") != (targets is not None):
        raise BadArgument(
            Sentence("{source} requires {targets}, and nothing else takes them", source="scan", targets=NAMED)
        )
    match source:
        case "ssh_config":
            return read_ssh_config(text if text is not None else await _read(homelab, SSH_CONFIG))
        case "ansible":
            content = text if text is not None else await _read(homelab, ANSIBLE_HOSTS)
            return await asyncio.to_thread(read_inventory, content), []
        case "scan":
            assert targets is not None
            return await _scan(homelab, targets), []
        case _:
            return await _guests(homelab)


async def _read(homelab: Homelab, path: Path) -> str:
    """Only these two files of the server are read, never one that a caller names, and for callers on it only."""
    if not homelab.files.local:
        raise homelab.files.refusal(Advice("Pass its content as {text}", text="..."))
    try:
        content = await asyncio.to_thread(lambda: path.expanduser().read_bytes())
    except OSError as error:
        repair = f"Create {path}" if isinstance(error, FileNotFoundError) else "Make it readable"
        raise NotFound(
            f"{path} cannot be read on this server",
            why=error.strerror,
            next_step=either(repair, Advice("pass its content as {text}", text="...")),
        ) from None
    return content[:LONGEST].decode("utf-8", "replace")


def _exists(key: str) -> bool:
    try:
        return expand_home(key).is_file()
    except OSError:
        return False


async def _scan(homelab: Homelab, targets: list[str]) -> list[Candidate]:
    done, devices, _ = await scan_and_record(homelab, targets, [SSH_PORT], seconds=SCAN_SECONDS)
    return [
        Candidate(str(device.name or address).partition(".")[0] if device.name else str(address), str(address))
        for (address, seen), device in zip(done.devices.items(), devices, strict=True)
        if SSH_PORT in seen.open
    ]


async def _guests(homelab: Homelab) -> tuple[list[Candidate], list[str]]:
    """The running guests of the clusters, at the addresses that they report."""
    candidates: list[Candidate] = []
    remarks: list[str] = []
    for cluster in homelab.clusters:
        try:
            rows = [row for row in await cluster.inventory.guests() if row.status == "running" and not row.template]
        except Problem as problem:
            remarks.append(f"{cluster.name} does not answer: {problem.what}")
            continue
        answers = await gather_bounded(
            ASKED_AT_ONCE, [partial(_read_guest, cluster, Guest(cluster, row)) for row in rows]
        )
        candidates += [answer for answer in answers if isinstance(answer, Candidate)]
        silent = by_reason(
            (str(Guest(cluster, row)), answer)
            for row, answer in zip(rows, answers, strict=True)
            if isinstance(answer, str)
        )
        remarks += [f"{', '.join(guests)}: {why}" for why, guests in silent.items()]
    return candidates, remarks


async def _read_guest(cluster: Cluster, guest: Guest) -> Candidate | str:
    """A guest as a candidate, or the reason why its address is unknown."""
    candidate = Candidate(guest.row.name or str(guest.vmid), "", labels=tuple(guest.row.tag_list))
    try:
        login = cluster.ssh.reported_login(guest.vmid)
        candidate = replace(candidate, user=login.user, key=str(login.key) if login.key else None)
    except Problem as problem:
        unconfigured = isinstance(problem, NotConfigured)
        candidate.missing.append(NO_LOGIN if unconfigured else problem.what.removesuffix("."))
        candidate.login_configured = not unconfigured
    if configured := cluster.ssh.guest(guest.vmid):
        return replace(candidate, address=configured.host, port=configured.port)
    try:
        addresses = usable_addresses(await read_interfaces(guest), await guest.get("config"))
    except Problem as problem:
        return f"{_cause(problem)}, so the address is unknown"
    return replace(candidate, address=addresses[0]) if addresses else "no address is reported"


def _cause(problem: Problem) -> str:
    """PVE's refusal, short enough for a list."""
    if isinstance(problem, AgentNotConfigured):
        return "no guest agent is configured"
    return "the guest agent is not running" if isinstance(problem, AgentSilent) else problem.what.removesuffix(".")
