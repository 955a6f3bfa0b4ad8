"""Registered hosts as an Ansible inventory; that of guests is inventory_export."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.homelab.homelab import Homelab
from quorate.homelab.host import Host
from quorate.homelab.registry import resolve_jumps
from quorate.homelab.selection import select_records
from quorate.operations.hosts.parameters import HostNames
from quorate.operations.inside.ansible import Inventory, Value, as_ini, as_json, as_yaml, refuse_templates
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, Problem
from quorate.ssh.target import SSH_PORT

MOST = 500
_WAY = re.compile(r"[A-Za-z0-9._@:,%+\[\]-]+")
"""Logins and addresses; a blank would begin another option of ssh, and a shell on the way may read the rest."""


@operation(
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
            inventory.add(host.name, number, variables, [("label", one) for one in host.labels])
    write = {"ini": as_ini, "yaml": as_yaml, "json": as_json}[format]
    return {
        "hosts": len(inventory.hosts),
        "groups": sorted(inventory.groups),
        "inventory": write(inventory),
        **({"left_out": left_out} if left_out else {}),
    }


async def _select_hosts(homelab: Homelab, given: str | list[str] | None, label: str | None) -> list[Host]:
    if given is not None:
        chosen = await select_records(homelab, given)
        if chosen.failures:
            raise next(iter(chosen.failures.values()))
        return list(chosen.hosts)
    return [one for one in await homelab.hosts.all() if one.active and (label is None or label in one.labels)]


async def _variables(homelab: Homelab, host: Host) -> dict[str, Value]:
    usual = homelab.settings.ssh.nodes
    through = ",".join(
        f"{one.user or usual.user or 'root'}@{one.at}" for one in reversed(await resolve_jumps(homelab.hosts, host))
    )
    if through and not _WAY.fullmatch(through):
        raise BadArgument(
            f"The jump through {through!r} cannot be written to an inventory",
            why="ssh would take parts of it for options",
        )
    given: dict[str, Value] = {
        "ansible_host": host.address,
        "ansible_port": host.port if host.port != SSH_PORT else "",
        "ansible_user": host.user or usual.user or "root",
        "ansible_ssh_private_key_file": host.key or (str(usual.key) if usual.key else ""),
        "ansible_ssh_common_args": f"-o ProxyJump={through}" if through else "",
    }
    return {
        name: refuse_templates(name, value) if isinstance(value, str) else value
        for name, value in given.items()
        if value != ""
    }
