"""Registered hosts: list, register, change, remove, try the login, their status, export."""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quorate.hints import OMITTED, Advice, either, tools
from quorate.homelab.homelab import Homelab
from quorate.homelab.host import Host, resolve_jumps, validate_host
from quorate.homelab.machines import NO_KEY, Login, Machine
from quorate.homelab.secrets import new_pairs, question_about
from quorate.homelab.selection import HOST_SECONDS, SECONDS, Limits, gather_in_time, select, select_records, verify_host
from quorate.homelab.services.installations import Installations
from quorate.inside.maintenance import count_pending
from quorate.operations.plan import Action, ActionResult, Plan, StepContext, Target
from quorate.operations.registry import NAMES, Risk, Table, operation, page
from quorate.problems import BadArgument, Conflict, NotConfigured, NotFound, Problem
from quorate.pve.tasks import Report
from quorate.secret import Secret
from quorate.ssh.target import SSH_PORT, split_port
from quorate.tools.inventory import WRITERS, Inventory, Value, check_variables
from quorate.tools.several_hosts import WHY_NOT, answer_each, join_answers, join_plans
from quorate.units import duration, moment, percent, shortlist, used_of

if TYPE_CHECKING:
    from quorate.inside.facts import model as of

_MACHINES = {NAMES: ("host", "node", "guest")}
HostRef = Annotated[
    str, Meta(description="Registered host, node, guest (CLUSTER/web01), or user@address:port", extra=_MACHINES)
]
HostRefs = Annotated[str | list[str], Meta(description="One host or several, a label, or all", extra=_MACHINES)]
HostNames = Annotated[
    str | list[str], Meta(description="One registered host or several, a label, or all", extra={NAMES: ("host",)})
]
HostName = Annotated[str, Meta(extra={NAMES: ("host",)})]
User = Annotated[str, Meta(description="Instead of the registered one")]
Key = Annotated[str, Meta(description="Path of a private key on the server")]
Password = Annotated[str, Meta(description="For this call only; never stored")]
Sudo = Annotated[bool, Meta(description="As root, where the login is not")]
Port = Annotated[int, Meta(ge=1, le=65535)]
Reference = Annotated[str, Meta(description="vault:NAME, keyring:NAME, env:NAME or file:PATH")]


def given_login(
    user: str | None = None, key: str | None = None, password: str | None = None, port: int | None = None
) -> Login:
    return Login(user, key, Secret(password) if password else None, port)


_CLEARABLE = frozenset({"user", "key", "password", "sudo_password", "jump"})
"""Fields that an empty string clears; the others have no empty value."""
SHOWN_AS = {"password": "password_from", "sudo_password": "sudo_password_from"}
"""Names under which a reference is not mistaken for a secret."""
Labels = Annotated[list[str], Meta(description="Such as role=nas")]


@operation(
    toolset="hosts",
    risk=Risk.READ,
    search_words="hosts servers machines registered ssh which hosts do I have list servers labels",
)
async def host_list(
    homelab: Homelab,
    host: HostNames | None = None,
    label: str | None = None,
    clusters: Annotated[bool, Meta(description="Also nodes and guests of the clusters")] = True,
    inactive: bool = False,
    limit: Annotated[int, Meta(ge=1, le=500)] = 100,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table | dict[str, Any]:
    """Hosts that commands can be sent to: registered ones, nodes and guests. With one `host`, its whole record."""
    if host is None:
        everyone = await homelab.hosts.all()
        records = [
            record for record in everyone if (inactive or record.active) and (not label or label in record.labels)
        ]
    else:
        chosen = await select_records(homelab, host, inactive=inactive)
        if not chosen.several:
            return _as_dict(chosen.hosts[0])
        records, clusters = [record for record in chosen.hosts if not label or label in record.labels], False
    rows = [
        ["host", record.name, record.at, record.user or "", ", ".join(record.labels), _login_state(record)]
        for record in records
    ]
    silent = {} if host is None else {name: str(problem) for name, problem in chosen.failures.items()}
    for cluster in homelab.clusters if clusters and not label else ():
        try:
            rows += [
                [row.kind if row.is_guest else "node", row.name or row.node, f"{cluster.name}/{row.vmid or row.node}",
                 "", row.tags.replace(";", ", "), row.status]
                for row in await cluster.inventory.rows() if row.is_guest or row.type == "node"
            ]  # fmt: skip
        except Problem as problem:
            silent[cluster.name] = str(problem)
    table = page(("kind", "name", "at", "user", "labels", "state"), rows, limit=limit, offset=offset)
    table.facts = {"no_answer": silent} if silent else {}
    return table


@operation(
    toolset="hosts",
    risk=Risk.CHANGE,
    idempotent=False,
    shown_by=("host_list", "host"),
    search_words="add register host server machine ssh login new raspberry pi nas",
    example="host=nas address=192.168.10.9 user=admin labels=role=nas",
)
async def host_register(
    homelab: Homelab,
    host: Annotated[str, Meta(description="A name of your choice")],
    address: Annotated[str, Meta(description="Name or IP address, or HOST:PORT")],
    port: Port = SSH_PORT,
    user: str | None = None,
    key: Key | None = None,
    password: Reference | None = None,
    sudo_password: Reference | None = None,
    jump: Annotated[HostName, Meta(description="Registered host to go through")] | None = None,
    labels: Labels | None = None,
    display_name: str | None = None,
    verify: Annotated[bool, Meta(description="Log in once it is registered")] = True,
) -> Plan:
    """Register a host for SSH. Give secrets by reference; the operator decides whether to trust its host key."""
    if key:
        homelab.files.require(key, NO_KEY)
    own_port = None
    with contextlib.suppress(NotConfigured):  # refused below
        address, own_port = split_port(address)
    if own_port is not None and port not in (SSH_PORT, own_port):
        raise BadArgument(f"{address} has two ports, {own_port} and {port}", next_step="Give one of them")
    new = validate_host(
        Host(
            host,
            address,
            own_port or port,
            user,
            key,
            password,
            sudo_password,
            jump,
            tuple(labels or ()),
            display_name or "",
        )
    )
    if await homelab.hosts.find(host):
        raise Conflict(f"Host {host!r} already exists", next_step=Advice("Change it", tools.host_update(host=host)))
    await check_references(homelab, new)

    async def perform(_: StepContext) -> ActionResult:
        await homelab.hosts.add(new)
        return ActionResult(await verify_host(homelab, new) if verify else {})

    return await plan_save(homelab, f"Register {new} at {new.at}", new, perform)


@operation(
    toolset="hosts",
    risk=Risk.DESTROY,
    shown_by=("host_list", "host"),
    search_words="forget unregister remove host server from the list",
    example="host=nas",
)
async def host_remove(homelab: Homelab, host: HostNames) -> Plan:
    """Forget registered hosts. The machines themselves are not touched."""
    chosen = await select_records(homelab, host, inactive=True)
    if not chosen.several:
        return await _removal(homelab, chosen.hosts[0], {chosen.hosts[0].name})
    going = {record.name for record in chosen.hosts}
    plans = await gather_in_time(chosen.hosts, lambda old: _removal(homelab, old, going))
    named = zip(map(str, chosen.hosts), plans, strict=True)
    return join_plans("Forget", named, chosen.failures, ("records_forgotten",))


async def _removal(homelab: Homelab, old: Host, going: set[str]) -> Plan:
    host = old.name
    if any(other.jump == host and other.name not in going for other in await homelab.hosts.everyone()):
        users = [other.name for other in await homelab.hosts.all() if other.jump == host and other.name not in going]
        raise Conflict(
            f"{old} is the jump host of {', '.join(users) or 'another one'}", next_step="Update or remove those first"
        )

    ledger = Installations(homelab.store)
    services = [installation.service for installation in await ledger.on(host)]

    async def perform(_: StepContext) -> ActionResult:
        if not await homelab.hosts.remove(host):
            raise NotFound(f"{old} was removed in the meantime")
        for service in services:
            await ledger.forget(host, service)
        return ActionResult({"records_forgotten": services} if services else {})

    summary = f"Forget {old} at {old.at}"
    line = f"forget {old.name}" + (f" and the records of {', '.join(services)} on it" if services else "")
    warnings = (
        (f"{', '.join(services)} on it keep running, but Quorate will no longer know about them",) if services else ()
    )
    step = Action(summary, line, perform, Target("host", old.name))
    return Plan(summary, (step,), warnings=warnings)


# -- shared ------------------------------------------------------------------------------------------------------------


async def plan_save(homelab: Homelab, summary: str, new: Host, perform: Any) -> Plan:
    line = f"save host {msgspec.json.encode(_as_dict(new), enc_hook=str).decode()}"
    same = await homelab.address_index.find_aliases(new, await homelab.hosts.all())
    warnings = tuple(f"{alias} is at the same address, {alias.at}" for alias in same)
    step = Action(summary, line, perform, Target("host", new.name), becomes=new)
    if unbound := new_pairs(new, await homelab.hosts.everyone()):
        step = replace(step, risk=Risk.DESTROY, risk_because=question_about(unbound, new.at))
    return Plan(summary, (step,), warnings=warnings)


async def check_references(homelab: Homelab, host: Host) -> None:
    """Refuse a reference that leads nowhere, and a secret given instead of a reference."""
    for reference in (host.password, host.sudo_password):
        if reference:
            await homelab.secret_store.fetch(reference)
    await resolve_jumps(homelab.hosts, host)


def _login_state(host: Host) -> str:
    state = "not tried" if host.verified is None else host.verdict
    return state if host.active else "switched off"


def _as_dict(host: Host) -> dict[str, Any]:
    facts = {SHOWN_AS.get(name, name): value for name, value in msgspec.to_builtins(host).items()}
    return facts | ({"verified": moment(host.verified)} if host.verified is not None else {})


@operation(
    toolset="host_admin",
    risk=Risk.CHANGE,
    shown_by=("host_list", "host"),
    search_words="change host server new ip address moved port user key label rename display name deactivate",
    example="host=nas labels=role=nas labels=prod",
)
async def host_update(
    homelab: Homelab,
    host: HostNames,
    address: str | None = None,
    port: Port | None = None,
    user: str | None = None,
    key: Key | None = None,
    password: Reference | None = None,
    sudo_password: Reference | None = None,
    jump: HostName | None = None,
    labels: Labels | None = None,
    display_name: str | None = None,
    active: Annotated[bool, Meta(description="false keeps the record but does not use it")] | None = None,
) -> Plan:
    """Change the records of registered hosts. Omitted fields stay; an empty string clears a field."""
    chosen = await select_records(homelab, host, inactive=True)
    if address and len(chosen.hosts) > 1:
        raise BadArgument(
            "Several hosts cannot have the same address",
            next_step=either("Give one host", Advice("leave {address} out", address=OMITTED)),
        )
    if key and any(record.key != key for record in chosen.hosts):
        homelab.files.require(key, NO_KEY)
    fields = {
        "address": address, "port": port, "user": user, "key": key, "password": password,
        "sudo_password": sudo_password, "jump": jump, "labels": None if labels is None else tuple(labels),
        "display_name": display_name, "active": active,
    }  # fmt: skip
    changes = {
        name: None if value == "" and name in _CLEARABLE else value
        for name, value in fields.items()
        if value is not None
    }
    if not changes:
        raise BadArgument("No changes were specified", next_step="Give at least one of the fields")
    if not chosen.several:
        return await _update(homelab, chosen.hosts[0], changes)
    plans = await gather_in_time(chosen.hosts, lambda old: _update(homelab, old, changes))
    named = zip(map(str, chosen.hosts), plans, strict=True)
    return join_plans(f"Update {', '.join(changes)} of", named, chosen.failures, ("changed",))


async def _update(homelab: Homelab, old: Host, changes: dict[str, Any]) -> Plan:
    new = validate_host(msgspec.structs.replace(old, **changes))
    if new == old:
        return Plan(f"Update {old}", unchanged=(f"{old} already has these settings",))
    await check_references(homelab, new)

    async def perform(_: StepContext) -> ActionResult:
        await homelab.hosts.change(old.name, old, **changes)
        differing = [name for name in changes if getattr(old, name) != getattr(new, name)]
        return ActionResult(
            {"changed": {SHOWN_AS.get(name, name): [getattr(old, name), getattr(new, name)] for name in differing}},
            next_step=None if old.digest == new.digest else Advice("Try the login", tools.host_verify(host=old.name)),
        )

    return await plan_save(homelab, f"Update {old}: {', '.join(changes)}", new, perform)


@operation(
    toolset="host_admin",
    risk=Risk.LOOK_INSIDE,
    search_words="test login can still log in ssh works reachable check credentials verify connection",
    example="host=nas",
)
async def host_verify(homelab: Homelab, host: HostNames, report: Report) -> dict[str, Any] | Table:
    """Log in to registered hosts and record whether it works: connection, host key, login, sudo."""
    chosen = await select_records(homelab, host)
    if not chosen.several:
        [only] = chosen.hosts
        return {"host": only.name, **await verify_host(homelab, only)}
    verify = partial(verify_host, homelab, knock_first=True)
    results = await gather_in_time(chosen.hosts, verify, Limits.same_for_each(SECONDS), report)
    named = zip(map(str, chosen.hosts), results, strict=True)
    answers = sorted(named, key=lambda pair: _works(pair[1]))
    table = join_answers(answers, chosen.failures)
    table.facts["failed"] = len(chosen.failures) + sum(not _works(answer) for _, answer in answers)
    return table


def _works(answer: dict[str, Any] | Table | Problem) -> bool:
    return isinstance(answer, dict) and bool(answer["verified"])


SECTIONS = ("system", "cpu", "memory", "filesystems", "services", "uptime", "temperature")
COLUMNS = ("attention", "up", "load", "memory", "disk", "temp", "failed", "reboot", "updates", "system")
FULL, HOT = 0.9, 85.0
SPARE_SECONDS = 4.0
"""Seconds reserved for the login."""
_NOT_DISKS = ("/boot/efi", "/snap/", "/run", "/dev", "/sys", "/proc")


@operation(
    toolset="hosts",
    risk=Risk.LOOK_INSIDE,
    search_words=(
        "how are my hosts servers machines doing health overview glance load memory disk full temperature failed "
        "units reboot required pending updates uptime nas raspberry pi all hosts check"
    ),
    example="host=nas",
)
async def host_status(
    homelab: Homelab,
    report: Report,
    host: HostRefs = "all",
) -> Table:
    """Uptime, load, memory, disk, temperature, failed units, updates of hosts; what needs attention first."""
    table = await answer_each(await select(homelab, host), _look, COLUMNS, report=report)
    attention = table.columns.index("attention") if "attention" in table.columns else None
    silent = table.columns.index(WHY_NOT) if WHY_NOT in table.columns else None
    table.rows.sort(
        key=lambda row: (silent is None or not row[silent], attention is None or not row[attention]),
    )
    return table


async def _look(machine: Machine) -> list[list[Any]]:
    seconds = HOST_SECONDS - SPARE_SECONDS
    facts, updates = await asyncio.gather(
        machine.collect_facts(seconds=seconds, sections=SECTIONS),
        count_pending(machine.transport, str(machine), seconds=seconds),  # apt can be slow; nothing else waits for it
    )
    disk, share = _fullest(facts.filesystems or ())
    memory, failed = facts.memory, facts.services.failed if facts.services else ()
    worries = [
        "disk" if share >= FULL else "",
        "heat" if (facts.temperature or 0) >= HOT else "",
        "units" if failed else "",
        "reboot" if updates and updates.restart else "",
        "security" if updates and updates.security else "",
        "packages" if updates and updates.unfinished else "",
        "load" if _overloaded(facts) else "",
    ]
    used = memory.total - memory.available if memory and memory.total and memory.available is not None else None
    return [
        [
            ", ".join(filter(None, worries)),
            duration(facts.uptime.seconds) if facts.uptime and facts.uptime.seconds is not None else "",
            f"{facts.uptime.load[0]:g}" if facts.uptime and facts.uptime.load else "",
            used_of(used, memory.total) if memory and memory.total and used is not None else "",
            disk,
            f"{facts.temperature:.0f}C" if facts.temperature is not None else "",
            shortlist(failed, 5),
            updates.restart if updates else "",
            _updates(updates),
            (facts.system.name or facts.system.id or "") if facts.system else "",
        ]
    ]


def _fullest(filesystems: tuple[of.Filesystem, ...]) -> tuple[str, float]:
    shares = [
        (filesystem.share, filesystem)
        for filesystem in filesystems
        if filesystem.share is not None
        and not filesystem.mount.startswith(_NOT_DISKS)
        and filesystem.type != "squashfs"
    ]
    if not shares:
        return "", 0.0
    share, fullest = max(shares, key=lambda pair: pair[0])
    return f"{fullest.mount} {percent(share)} of {used_of(0, fullest.size or 0).partition('/')[2]}", share


def _overloaded(facts: of.Facts) -> bool:
    """A five-minute load above twice the number of processors."""
    threads = facts.cpu.threads if facts.cpu and facts.cpu.threads else None
    return bool(threads and facts.uptime and len(facts.uptime.load) > 1 and facts.uptime.load[1] > 2 * threads)


def _updates(updates: of.Updates | None) -> str:
    """`12 (3 security), lists 9d old, half-configured: nginx`; empty where no package manager is known."""
    if updates is None or updates.pending is None:
        return ""
    security = f" ({updates.security} security)" if updates.security else ""
    age = f", lists {duration(updates.age)} old" if updates.age is not None else ""
    unfinished = f", half-configured: {shortlist(updates.unfinished, 5)}" if updates.unfinished else ""
    return f"{updates.pending}{security}{age}{unfinished}"


MOST = 500
_WAY = re.compile(r"[A-Za-z0-9._@:,%+\[\]-]+")
"""Logins and addresses. A blank would begin another option of ssh, and a shell on the way may interpret the rest."""


@operation(
    toolset="host_admin",
    risk=Risk.READ,
    search_words="ansible inventory of registered hosts export servers playbook",
)
async def host_export(
    homelab: Homelab,
    hosts: Annotated[HostNames, Meta(description="Default: all that are active")] | None = None,
    label: str | None = None,
    format: Literal["ini", "yaml", "json"] = "yaml",
) -> dict[str, Any]:
    """Ansible inventory of registered hosts, in groups by label. Passwords are left out; keys are paths."""
    inventory, left_out = Inventory(), {}
    for number, host in enumerate((await _select_hosts(homelab, hosts, label))[:MOST]):
        try:
            variables = await _variables(homelab, host)
        except Problem as problem:
            left_out[host.name] = str(problem)
        else:
            inventory.add(host.name, number, variables, [("label", text) for text in host.labels])
    return {
        "hosts": len(inventory.hosts),
        "groups": sorted(inventory.groups),
        "inventory": WRITERS[format](inventory),
        **({"left_out": left_out} if left_out else {}),
    }


async def _select_hosts(homelab: Homelab, hosts: str | list[str] | None, label: str | None) -> list[Host]:
    if hosts is not None:
        chosen = await select_records(homelab, hosts)
        if chosen.failures:
            raise next(iter(chosen.failures.values()))
        return list(chosen.hosts)
    return [host for host in await homelab.hosts.all() if host.active and (label is None or label in host.labels)]


async def _variables(homelab: Homelab, host: Host) -> dict[str, Value]:
    usual = homelab.settings.ssh.nodes
    through = ",".join(
        f"{jump.user or usual.user or 'root'}@{jump.at}" for jump in reversed(await resolve_jumps(homelab.hosts, host))
    )
    if through and not _WAY.fullmatch(through):
        raise BadArgument(
            f"The jump through {through!r} cannot be written to an inventory",
            why="ssh would take parts of it for options",
        )
    variables: dict[str, Value] = {
        "ansible_host": host.address,
        "ansible_port": host.port if host.port != SSH_PORT else "",
        "ansible_user": host.user or usual.user or "root",
        "ansible_ssh_private_key_file": host.key or (str(usual.key) if usual.key else ""),
        "ansible_ssh_common_args": f"-o ProxyJump={through}" if through else "",
    }
    return check_variables(variables)
