"""Guests as an Ansible inventory. No name or value of a guest can become anything but text."""

from __future__ import annotations

import ast
import itertools
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.inside.transport import require_user
from quorate.operations.registry import GuestRefs, Risk, operation
from quorate.problems import BadArgument, Problem
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.tasks import gather_bounded
from quorate.ssh.target import SSH_PORT, SshTarget
from quorate.tools.guest_addresses import AddressFinder, read_reported
from quorate.tools.guests import Filter

Value = str | int

_TEMPLATE = re.compile(r"\{[{%#]")


@dataclass(slots=True)
class Inventory:
    """Hosts with their variables, and groups of hosts, all under names that Ansible takes."""

    hosts: dict[str, dict[str, Value]] = field(default_factory=dict)
    groups: dict[str, list[str]] = field(default_factory=dict)
    _group_names: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, number: int, variables: Mapping[str, Value], groups: Iterable[tuple[str, str]]) -> str:
        """Add a host; `groups` are pairs of kind and name. Returns the name that it got."""
        host = self._free_host(name, number)
        self.hosts[host] = dict(variables)
        for kind, group in groups:
            self.groups.setdefault(self._group(kind, group), []).append(host)
        return host

    def _free_host(self, name: str, number: int) -> str:
        """A free name of letters, digits, dots and dashes that is not a pattern, port, number or reserved word."""
        safe = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".-")
        if not re.match(r"[A-Za-z_]", safe) or safe in ("all", "ungrouped", "localhost", "meta"):
            safe = f"guest-{safe}" if safe else f"guest-{number}"
        candidates = itertools.chain((safe,), _candidate_names(f"{safe}-{number}"))
        return next(
            candidate for candidate in candidates if candidate not in self.hosts and candidate not in self.groups
        )

    def _group(self, kind: str, name: str) -> str:
        """A group such as `tag_web`; names that differ only in unusual characters get different groups."""
        label = f"{kind}:{name}"
        if label not in self._group_names:
            base = f"{kind}_" + re.sub(r"[^A-Za-z0-9_]", "_", name)
            used = set(self._group_names.values())
            self._group_names[label] = next(
                candidate
                for candidate in _candidate_names(base)
                if candidate not in used and candidate not in self.hosts
            )
        return self._group_names[label]


def _candidate_names(base: str) -> Iterator[str]:
    yield base
    yield from (f"{base}_{number}" for number in itertools.count(2))


def refuse_templates(name: str, value: str) -> str:
    """Ansible would run what is in such braces, and a line end would begin a new line."""
    if _TEMPLATE.search(value) or not value.isprintable():
        raise BadArgument(
            f"{name}={value!r} cannot be written to an inventory", why="Ansible would evaluate its content"
        )
    return value


def check_variables(variables: Mapping[str, Value]) -> dict[str, Value]:
    """The variables that are set; raises where Ansible would evaluate one."""
    return {
        name: refuse_templates(name, value) if isinstance(value, str) else value
        for name, value in variables.items()
        if value != ""
    }


def as_ini(inventory: Inventory) -> str:
    hosts = [" ".join([host, *(f"{name}={_ini(value)}" for name, value in variables.items())])
             for host, variables in sorted(inventory.hosts.items())]  # fmt: skip
    parts = ["\n".join(hosts)]
    parts += ["\n".join([f"[{group}]", *sorted(members)]) for group, members in sorted(inventory.groups.items())]
    return "\n\n".join(parts) + "\n"


def _ini(value: Value) -> str:
    """Ansible splits a line as a shell does, then reads each value that looks like a Python literal as one."""
    if isinstance(value, int):
        return str(value)
    return shlex.quote(repr(value) if _looks_like_literal(value) or not value.isprintable() else value)


def _looks_like_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


def as_yaml(inventory: Inventory) -> str:
    """Every name and text is in double quotes, as JSON writes them: YAML reads them the same."""
    lines = ["all:", "  hosts:" if inventory.hosts else "  hosts: {}"]
    for host, variables in sorted(inventory.hosts.items()):
        lines.append(f"    {json.dumps(host)}:" + ("" if variables else " {}"))
        lines += [f"      {name}: {_yaml(value)}" for name, value in variables.items()]
    lines.append("  children:" if inventory.groups else "  children: {}")
    for group, members in sorted(inventory.groups.items()):
        lines += [f"    {group}:", "      hosts:", *(f"        {json.dumps(host)}: {{}}" for host in sorted(members))]
    return "\n".join(lines) + "\n"


def _yaml(value: Value) -> str:
    return str(value) if isinstance(value, int) else json.dumps(value, ensure_ascii=False)


def as_json(inventory: Inventory) -> dict[str, Any]:
    """The inventory as a dynamic inventory script prints it for --list."""
    return {
        "_meta": {"hostvars": {host: dict(variables) for host, variables in sorted(inventory.hosts.items())}},
        "all": {"children": [*sorted(inventory.groups), "ungrouped"]},
        **{group: {"hosts": sorted(members)} for group, members in sorted(inventory.groups.items())},
        "ungrouped": {
            "hosts": sorted(set(inventory.hosts) - {host for own in inventory.groups.values() for host in own})
        },
    }


WRITERS: Mapping[str, Callable[[Inventory], Any]] = {"ini": as_ini, "yaml": as_yaml, "json": as_json}
MOST_GUESTS = 500
ASKED_AT_ONCE = 8

Grouping = Literal["tag", "pool", "node", "os", "kind"]


@operation(
    toolset="inside",
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
    user = None if user is None else require_user(user)
    key_file = None if key_file is None else refuse_templates("key_file", key_file)
    chosen = await _select_guests(pve, guest, Filter(node, type, None, None, tag, pool, template=False))
    finder = AddressFinder(pve)
    hosts = await gather_bounded(
        ASKED_AT_ONCE, [partial(_find_host, pve, finder, selected, interface) for selected in chosen]
    )
    inventory, left_out = Inventory(), {}
    for host in sorted(hosts, key=lambda host: host.guest.vmid):
        if host.address:
            groups = _groups(host, group_by or ["tag", "pool", "node", "os", "kind"])
            inventory.add(host.guest.row.name, host.guest.vmid, _variables(pve, host, user, key_file), groups)
        else:
            left_out[host.guest.label] = host.why
    return {
        "hosts": len(inventory.hosts),
        "groups": sorted(inventory.groups),
        "inventory": WRITERS[format](inventory),
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
        guests = await pve.guests(guest if isinstance(guest, list) else [guest])
        return [member for member in guests if replace(fits, template=None).fits(member.row)]
    guests = [Guest(pve, row) for row in await fits.apply(pve)]
    if len(guests) > MOST_GUESTS:
        raise BadArgument(
            f"{len(guests)} guests are too many for one inventory (at most {MOST_GUESTS})",
            next_step="Narrow with node, tag, pool or type",
        )
    return guests


async def _find_host(pve: Cluster, finder: AddressFinder, guest: Guest, interface: str | None) -> _Host:
    """Find the address of a guest: in the settings, else as guest_get does."""
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
    known = await finder.find(guest, config, await read_reported(guest))
    addresses = known.best_first(config, prefer=interface)
    return _Host(guest, addresses[0], system) if addresses else _Host(guest, os=system, why=known.why_none)


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
    variables: dict[str, Value] = {
        "ansible_host": target.host,
        "ansible_port": target.port if target.port != SSH_PORT else "",
        "ansible_user": login,
        "ansible_ssh_private_key_file": key,
        "ansible_ssh_common_args": _jump(target.jump) if target.jump else "",
        "proxmox_vmid": host.guest.vmid,
        "proxmox_node": host.guest.row.node,
    }
    return check_variables(variables)


def _jump(jump: SshTarget) -> str:
    """The arguments by which ssh uses a jump host, with that host's own key."""
    before = ["-J", ",".join(_hops(jump.jump))] if jump.jump else []
    key = ["-i", str(jump.key)] if jump.key else []
    command = ["ssh", *before, *key, "-p", str(jump.port), "-W", "%h:%p", f"{jump.user}@{jump.host}"]
    return f"-o {shlex.quote(f'ProxyCommand={shlex.join(command)}')}"


def _hops(target: SshTarget) -> list[str]:
    return [*(_hops(target.jump) if target.jump else []), f"{target.user}@{target.address}"]
