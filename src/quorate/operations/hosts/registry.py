"""The registry of hosts: list, register, remove."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from quorate.hints import HOST_UPDATE, Advice
from quorate.homelab.homelab import Homelab
from quorate.homelab.host import Host, validate_host
from quorate.homelab.machines import NO_KEY
from quorate.homelab.registry import resolve_jumps
from quorate.homelab.secret_scope import new_pairs, question_about
from quorate.homelab.selection import gather_in_time, select_records
from quorate.homelab.services.installations import Installations
from quorate.homelab.verification import verify_host
from quorate.operations.hosts.parameters import HostName, HostNames, Key, Port, Reference
from quorate.operations.hosts.several import join_plans
from quorate.operations.plan import Action, ActionResult, Plan, StepContext, Target
from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.units import moment
from quorate.problems import Conflict, NotFound, Problem
from quorate.ssh.target import SSH_PORT

SHOWN_AS = {"password": "password_from", "sudo_password": "sudo_password_from"}
"""Names under which a reference is not mistaken for a secret."""
Labels = Annotated[list[str], Meta(description="Such as role=nas")]


@operation(
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
        kept = [one for one in everyone if (inactive or one.active) and (not label or label in one.labels)]
    else:
        chosen = await select_records(homelab, host, inactive=inactive)
        if not chosen.several:
            return _as_dict(chosen.hosts[0])
        kept, clusters = [one for one in chosen.hosts if not label or label in one.labels], False
    rows = [["host", one.name, one.at, one.user or "", ", ".join(one.labels), _login_state(one)] for one in kept]
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
    risk=Risk.CHANGE,
    idempotent=False,
    shown_by=("host_list", "host"),
    search_words="add register host server machine ssh login new raspberry pi nas",
    example="host=nas address=192.168.10.9 user=admin labels=role=nas",
)
async def host_register(
    homelab: Homelab,
    host: Annotated[str, Meta(description="A name of your choice")],
    address: Annotated[str, Meta(description="Name or IP address")],
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
    new = validate_host(
        Host(host, address, port, user, key, password, sudo_password, jump, tuple(labels or ()), display_name or "")
    )
    if await homelab.hosts.find(host):
        raise Conflict(f"Host {host!r} already exists", next_step=Advice("Change it", HOST_UPDATE(host=host)))
    await check_references(homelab, new)

    async def perform(_: StepContext) -> ActionResult:
        await homelab.hosts.add(new)
        return ActionResult(await verify_host(homelab, new) if verify else {})

    return await plan_save(homelab, f"Register {new} at {new.at}", new, perform)


@operation(
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
    going = {one.name for one in chosen.hosts}
    plans = await gather_in_time(chosen.hosts, lambda old: _removal(homelab, old, going))
    named = zip(map(str, chosen.hosts), plans, strict=True)
    return join_plans("Forget", named, chosen.failures, ("records_forgotten",))


async def _removal(homelab: Homelab, old: Host, going: set[str]) -> Plan:
    host = old.name
    if any(one.jump == host and one.name not in going for one in await homelab.hosts.everyone()):
        users = [one.name for one in await homelab.hosts.all() if one.jump == host and one.name not in going]
        raise Conflict(
            f"{old} is the jump host of {', '.join(users) or 'another one'}", next_step="Update or remove those first"
        )

    ledger = Installations(homelab.store)
    services = [one.service for one in await ledger.on(host)]

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
    warnings = tuple(f"{one} is at the same address, {one.at}" for one in same)
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
