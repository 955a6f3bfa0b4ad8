"""Guests as an Ansible inventory."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.inside import names
from quorate.inside.interfaces import is_usable, read_interfaces, usable_addresses
from quorate.operations.guests.queries import Filter
from quorate.operations.inside.ansible import Inventory, Value, as_ini, as_json, as_yaml, refuse_templates
from quorate.operations.registry import GuestRefs, Risk, operation
from quorate.problems import BadArgument, Problem
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.tasks import gather_bounded
from quorate.ssh.target import SSH_PORT, SshTarget

MOST_GUESTS = 500
ASKED_AT_ONCE = 8

Grouping = Literal["tag", "pool", "node", "os", "kind"]


@operation(
    risk=Risk.READ,
    search_words="playbook host ansible inventory file export list guests addresses",
)
async def inventory_export(
    pve: Cluster,
    guest: Annotated[int | str | list[int | str], Meta(description="One or several; default: all that match")]
    | None = None,
    format: Literal["ini", "yaml", "json"] = "yaml",
    node: str | None = None,
    tag: str | None = None,
    pool: str | None = None,
    type: Literal["vm", "ct"] | None = None,
    group_by: Annotated[list[Grouping], Meta(description="Default: all of them")] | None = None,
    user: Annotated[str, Meta(description="ansible_user; default: from the settings")] | None = None,
    key_file: Annotated[str, Meta(description="Path of the private key; default: from the settings")] | None = None,
    interface: Annotated[str, Meta(description="Prefer addresses of this interface")] | None = None,
) -> dict[str, Any]:
    """Ansible inventory of running guests that have an address."""
    user = None if user is None else names.require_user(user)
    key_file = None if key_file is None else refuse_templates("key_file", key_file)
    chosen = await _select_guests(pve, guest, Filter(node, type, None, None, tag, pool, template=False))
    found = await gather_bounded(ASKED_AT_ONCE, [_host_finder(pve, one, interface) for one in chosen])
    inventory, left_out = Inventory(), {}
    for host in sorted(found, key=lambda host: host.guest.vmid):
        if host.address:
            groups = _groups(host, group_by or ["tag", "pool", "node", "os", "kind"])
            inventory.add(host.guest.row.name, host.guest.vmid, _variables(pve, host, user, key_file), groups)
        else:
            left_out[host.guest.label] = host.why
    write = {"ini": as_ini, "yaml": as_yaml, "json": as_json}[format]
    return {
        "hosts": len(inventory.hosts),
        "groups": sorted(inventory.groups),
        "inventory": write(inventory),
        "left_out": left_out,
    }


@dataclass(frozen=True, slots=True)
class _Host:
    guest: Guest
    address: str = ""
    os: str = ""
    why: str = ""


async def _select_guests(pve: Cluster, guest: GuestRefs | None, fits: Filter) -> list[Guest]:
    if guest is not None:
        found = await pve.guests(guest if isinstance(guest, list) else [guest])
        return [one for one in found if replace(fits, template=None).fits(one.row)]
    found = [Guest(pve, row) for row in await fits.apply(pve)]
    if len(found) > MOST_GUESTS:
        raise BadArgument(
            f"{len(found)} guests are too many for one inventory (at most {MOST_GUESTS})",
            next_step="Narrow with node, tag, pool or type",
        )
    return found


def _host_finder(pve: Cluster, guest: Guest, interface: str | None) -> Any:
    return lambda: _find_host(pve, guest, interface)


async def _find_host(pve: Cluster, guest: Guest, interface: str | None) -> _Host:
    """Where the guest is reached: by the settings, by what it reports, by its configuration."""
    if guest.row.template:
        return _Host(guest, why="It is a template")
    try:
        if (status := await guest.status()) != "running":
            return _Host(guest, why=f"It is {status}")
        config = await guest.get("config")
    except Problem as problem:
        return _Host(guest, why=str(problem))
    system = await _os(guest, config)
    target = pve.ssh.guest(guest.vmid)
    if target is not None and target.host:
        return _Host(guest, target.host, system)
    given = [address for own in values.addresses_in_config(config).values() for address in own if is_usable(address)]
    try:
        addresses, why = (
            usable_addresses(await read_interfaces(guest), config, prefer=interface),
            "It has no address that is reachable from outside",
        )
    except Problem as problem:
        addresses, why = given, str(problem)
    return _Host(guest, addresses[0], system) if addresses else _Host(guest, os=system, why=why)


async def _os(guest: Guest, config: Mapping[str, Any]) -> str:
    """`debian` or `windows` by the agent, else what the configuration says: `alpine`, `linux`."""
    if guest.is_vm and values.agent_enabled(config.get("agent")):
        try:
            os = str(((await guest.get("agent/get-osinfo")).get("result") or {}).get("id") or "")
        except Problem:
            os = ""
        if os:
            return "windows" if os == "mswindows" else os
    ostype = str(config.get("ostype", ""))
    if ostype.startswith(("l2", "win", "w2k", "wxp", "wvista", "other", "solaris")):
        return "linux" if ostype.startswith("l2") else "windows" if ostype.startswith("w") else ostype
    return ostype


def _groups(host: _Host, kinds: list[Grouping]) -> list[tuple[str, str]]:
    row = host.guest.row
    own = {"tag": row.tag_list, "pool": [row.pool], "node": [row.node], "os": [host.os], "kind": [row.kind]}
    return [(kind, name) for kind in dict.fromkeys(kinds) for name in own[kind] if name]


def _variables(pve: Cluster, host: _Host, user: str | None, key_file: str | None) -> dict[str, Value]:
    """Address, user and key by the arguments or the settings, and the guest's identity."""
    target = pve.ssh.guest(host.guest.vmid, host.address)
    assert target is not None  # there is an address
    login = user or ("" if host.os == "windows" else target.user)
    key = key_file or (str(target.key) if target.key else "")
    given: dict[str, Value] = {
        "ansible_host": target.host,
        "ansible_port": target.port if target.port != SSH_PORT else "",
        "ansible_user": login,
        "ansible_ssh_private_key_file": key,
        "ansible_ssh_common_args": _jump(target.jump) if target.jump else "",
        "proxmox_vmid": host.guest.vmid,
        "proxmox_node": host.guest.row.node,
    }
    return {name: _check_value(name, value) for name, value in given.items() if value != ""}


def _check_value(name: str, value: Value) -> Value:
    return refuse_templates(name, value) if isinstance(value, str) else value


def _jump(jump: SshTarget) -> str:
    """The arguments by which ssh uses a jump host, with that host's own key."""
    before = ["-J", ",".join(_hops(jump.jump))] if jump.jump else []
    key = ["-i", str(jump.key)] if jump.key else []
    command = ["ssh", *before, *key, "-p", str(jump.port), "-W", "%h:%p", f"{jump.user}@{jump.host}"]
    return f"-o {shlex.quote(f'ProxyCommand={shlex.join(command)}')}"


def _hops(target: SshTarget) -> list[str]:
    return [*(_hops(target.jump) if target.jump else []), f"{target.user}@{target.address}"]
