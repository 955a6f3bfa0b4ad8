"""The registry of hosts: list, register, update, verify, remove."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from quorate.homelab.home import Homelab
from quorate.homelab.host import Host, checked
from quorate.homelab.registry import jumps
from quorate.homelab.verifying import verification
from quorate.operations.hosts.parameters import HostName, Key, Port, Reference
from quorate.operations.plan import Action, Performed, Plan, Target
from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.units import moment
from quorate.problems import BadArgument, Conflict, NotFound, Problem
from quorate.pve.tasks import Report
from quorate.ssh.target import SSH_PORT

TOLD_AS = {"password": "password_from", "sudo_password": "sudo_password_from"}
"""Under these names a reference is seen for what it is: no secret."""
Labels = Annotated[list[str], Meta(description="Such as role=nas")]


@operation(risk=Risk.READ)
async def host_list(
    home: Homelab,
    host: HostName | None = None,
    label: str | None = None,
    clusters: Annotated[bool, Meta(description="Nodes and guests of the clusters, too")] = True,
    inactive: bool = False,
    limit: Annotated[int, Meta(ge=1, le=500)] = 100,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table | dict[str, Any]:
    """Hosts that commands can be sent to: registered ones, nodes and guests. With `host`, all that is kept of it."""
    if host is not None:
        return _told(await home.hosts.named(host))
    kept = [one for one in await home.hosts.all() if (inactive or one.active) and (not label or label in one.labels)]
    rows = [["host", one.name, one.at, one.user or "", ", ".join(one.labels), _verified(one)] for one in kept]
    silent = {}
    for cluster in home.clusters if clusters and not label else ():
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


@operation(risk=Risk.CHANGE, idempotent=False)
async def host_register(
    home: Homelab,
    host: Annotated[str, Meta(description="A name of your choice")],
    address: Annotated[str, Meta(description="Name or IP address")],
    port: Port = SSH_PORT,
    user: str | None = None,
    key: Key | None = None,
    password: Reference | None = None,
    sudo_password: Reference | None = None,
    jump: Annotated[str, Meta(description="Registered host to go through")] | None = None,
    labels: Labels | None = None,
    display_name: str | None = None,
    verify: Annotated[bool, Meta(description="Log in once it is registered")] = True,
) -> Plan:
    """Register a host for SSH. Secrets are given by reference; its host key is trusted by the operator."""
    new = checked(
        Host(host, address, port, user, key, password, sudo_password, jump, tuple(labels or ()), display_name or "")
    )
    if await home.hosts.find(host):
        raise Conflict(f"There is a host {host!r} already", next_step="host_update changes it")
    await _check_references(home, new)

    async def perform(wait: float, report: Report | None) -> Performed:
        del wait, report
        await home.hosts.add(new)
        return Performed(await verification(home, new) if verify else {})

    return await _keeping(home, f"Register {new} at {new.at}", new, perform)


@operation(risk=Risk.CHANGE)
async def host_update(
    home: Homelab,
    host: HostName,
    address: str | None = None,
    port: Port | None = None,
    user: str | None = None,
    key: Key | None = None,
    password: Reference | None = None,
    sudo_password: Reference | None = None,
    jump: str | None = None,
    labels: Labels | None = None,
    display_name: str | None = None,
    active: Annotated[bool, Meta(description="False keeps it, but does not use it")] | None = None,
) -> Plan:
    """Change what is kept of a registered host. What is not given stays; an empty text clears it."""
    old = await home.hosts.named(host)
    given = {
        "address": address, "port": port, "user": user, "key": key, "password": password,
        "sudo_password": sudo_password, "jump": jump, "labels": None if labels is None else tuple(labels),
        "display_name": display_name, "active": active,
    }  # fmt: skip
    changes = {name: _cleared(name, value) for name, value in given.items() if value is not None}
    if not changes:
        raise BadArgument("Nothing to change was given", next_step="Give at least one of the fields")
    new = checked(msgspec.structs.replace(old, **changes))
    if new == old:
        return Plan(f"Update {old}", unchanged=(f"{old} is so already",))
    await _check_references(home, new)

    async def perform(wait: float, report: Report | None) -> Performed:
        del wait, report
        await home.hosts.change(host, old, **changes)
        differing = [name for name in changes if getattr(old, name) != getattr(new, name)]
        return Performed(
            {"changed": {TOLD_AS.get(name, name): [getattr(old, name), getattr(new, name)] for name in differing}},
            next_step="" if old.digest == new.digest else f"host_verify host={host} tries the login",
        )

    return await _keeping(home, f"Update {old}: {', '.join(changes)}", new, perform)


@operation(risk=Risk.LOOK_INSIDE)
async def host_verify(home: Homelab, host: HostName) -> dict[str, Any]:
    """Log in to a registered host and note whether it works: connection, host key, login, sudo."""
    return {"host": host, **await verification(home, await home.hosts.named(host))}


@operation(risk=Risk.DESTROY)
async def host_remove(home: Homelab, host: HostName) -> Plan:
    """Forget a registered host. The machine itself is not touched."""
    old = await home.hosts.named(host)
    if any(one.jump == host for one in await home.hosts.everyone()):
        users = [one.name for one in await home.hosts.all() if one.jump == host]
        raise Conflict(
            f"{old} is the jump host of {', '.join(users) or 'another one'}", next_step="Update or remove those first"
        )

    async def perform(wait: float, report: Report | None) -> Performed:
        del wait, report
        if not await home.hosts.remove(host):
            raise NotFound(f"{old} was removed meanwhile")
        return Performed()

    summary = f"Forget {old} at {old.at}"
    return Plan(summary, (Action(summary, f"forget {old.name}", perform, Target("host", old.name)),))


# -- shared ------------------------------------------------------------------------------------------------------------


async def _keeping(home: Homelab, summary: str, new: Host, perform: Any) -> Plan:
    line = f"keep {msgspec.json.encode(_told(new)).decode()}"
    same = await home.whereabouts.same(new, await home.hosts.all())
    warnings = tuple(f"{one} is at the same address, {one.at}" for one in same)
    step = Action(summary, line, perform, Target("host", new.name), becomes=new)
    return Plan(summary, (step,), warnings=warnings)


def _cleared(name: str, value: Any) -> Any:
    return None if value == "" and name in ("user", "key", "password", "sudo_password", "jump") else value


async def _check_references(home: Homelab, host: Host) -> None:
    """A reference that leads nowhere is told at once, and so is a secret in the place of one."""
    for reference in (host.password, host.sudo_password):
        if reference:
            await home.secret_store.fetch(reference)
    await jumps(home.hosts, host)


def _verified(host: Host) -> str:
    state = "not tried" if host.verified is None else host.verdict
    return state if host.active else "switched off"


def _told(host: Host) -> dict[str, Any]:
    told = {TOLD_AS.get(name, name): value for name, value in msgspec.to_builtins(host).items()}
    return told | ({"verified": moment(host.verified)} if host.verified is not None else {})
