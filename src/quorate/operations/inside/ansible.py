"""An inventory in the forms that Ansible reads. No name or value of a guest can become anything else in them."""

from __future__ import annotations

import ast
import itertools
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from quorate.problems import BadArgument

Value = str | int

_TEMPLATE = re.compile(r"\{[{%#]")


@dataclass(slots=True)
class Inventory:
    """Hosts with their variables, and groups of hosts, all under names that Ansible takes."""

    hosts: dict[str, dict[str, Value]] = field(default_factory=dict)
    groups: dict[str, list[str]] = field(default_factory=dict)
    _meant: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, number: int, variables: Mapping[str, Value], groups: Iterable[tuple[str, str]]) -> str:
        """Add a host; `groups` are pairs of kind and name. Returns the name that it got."""
        host = self._free_host(name, number)
        self.hosts[host] = dict(variables)
        for kind, group in groups:
            self.groups.setdefault(self._group(kind, group), []).append(host)
        return host

    def _free_host(self, name: str, number: int) -> str:
        """A name of letters, digits, dots, dashes: no pattern, no port, no number, no reserved word."""
        safe = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".-")
        if not re.match(r"[A-Za-z_]", safe) or safe in ("all", "ungrouped", "localhost", "meta"):
            safe = f"guest-{safe}" if safe else f"guest-{number}"
        candidates = itertools.chain((safe,), _candidate_names(f"{safe}-{number}"))
        return next(one for one in candidates if one not in self.hosts and one not in self.groups)

    def _group(self, kind: str, name: str) -> str:
        """`tag_web` for the tag web; two names that look alike in Ansible's letters get different ones."""
        meant = f"{kind}:{name}"
        if meant not in self._meant:
            base = f"{kind}_" + re.sub(r"[^A-Za-z0-9_]", "_", name)
            taken = set(self._meant.values())
            self._meant[meant] = next(
                one for one in _candidate_names(base) if one not in taken and one not in self.hosts
            )
        return self._meant[meant]


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


def as_ini(inventory: Inventory) -> str:
    hosts = [" ".join([host, *(f"{name}={_ini(value)}" for name, value in variables.items())])
             for host, variables in sorted(inventory.hosts.items())]  # fmt: skip
    parts = ["\n".join(hosts)]
    parts += ["\n".join([f"[{group}]", *sorted(members)]) for group, members in sorted(inventory.groups.items())]
    return "\n\n".join(parts) + "\n"


def _ini(value: Value) -> str:
    """Ansible takes a line apart as a shell does, and then each value for a literal of Python if it looks like one."""
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
    """What a dynamic inventory answers to --list."""
    return {
        "_meta": {"hostvars": {host: dict(variables) for host, variables in sorted(inventory.hosts.items())}},
        "all": {"children": [*sorted(inventory.groups), "ungrouped"]},
        **{group: {"hosts": sorted(members)} for group, members in sorted(inventory.groups.items())},
        "ungrouped": {
            "hosts": sorted(set(inventory.hosts) - {one for own in inventory.groups.values() for one in own})
        },
    }
