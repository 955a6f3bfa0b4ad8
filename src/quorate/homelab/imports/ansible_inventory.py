"""Hosts of an Ansible inventory: INI or YAML, with their groups as labels."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from quorate.documents import Unreadable, read_yaml
from quorate.homelab.imports.candidate import Candidate
from quorate.problems import BadArgument, Problem
from quorate.ssh.target import split_port

MOST = 1000
_RANGE = re.compile(r"\[(?P<first>\w+):(?P<last>\w+)(?::(?P<step>[1-9]\d{0,3}))?\]")
_SECTION = re.compile(r"\[(?P<group>[^:\]\s]+)(?::(?P<kind>\w+))?\]\s*(?:[#;].*)?")
_YAML_KEY = re.compile(r"^\s*[\w.-]+:\s*(?:#.*)?$|^\s*\{", re.MULTILINE)
"""What a YAML or JSON inventory has, and none in INI."""
_TAG = re.compile(r"(?<=\s)!(?:vault|unsafe)(?=\s)")
"""Marks text that only Ansible can decrypt or takes as it is."""
_ADDRESS = ("ansible_host", "ansible_ssh_host")
_USER = ("ansible_user", "ansible_ssh_user")
_PORT = ("ansible_port", "ansible_ssh_port")
_PASSWORDS = ("ansible_password", "ansible_ssh_pass", "ansible_ssh_password")
_SUDO = ("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass")
_ARGUMENTS = ("ansible_ssh_common_args", "ansible_ssh_extra_args")
_NOT_LABELS = ("all", "ungrouped")


@dataclass(slots=True)
class _Inventory:
    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: dict[str, set[str]] = field(default_factory=dict)
    children: dict[str, set[str]] = field(default_factory=dict)
    variables: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, name: str, group: str, variables: Mapping[str, Any]) -> None:
        name, port = _split_port(name)
        if port is not None:
            variables = {"ansible_port": port, **variables}
        self.hosts.setdefault(name, {}).update(variables)
        self.groups.setdefault(group, set()).add(name)
        if len(self.hosts) > MOST:
            raise BadArgument(f"The inventory has more than {MOST} hosts", next_step="Import it in parts")

    def groups_of(self, name: str) -> list[str]:
        """Those that hold the host, and the groups above them, outermost last."""
        found = [group for group, members in self.groups.items() if name in members]
        for group in found:  # it grows as we go
            found += [above for above, below in self.children.items() if group in below and above not in found]
        return found


def read_inventory(text: str) -> list[Candidate]:
    inventory = _from_yaml(text) or _from_ini(text)
    return [_candidate(inventory, name) for name in inventory.hosts]


def _candidate(inventory: _Inventory, name: str) -> Candidate:
    groups = inventory.groups_of(name)
    variables: dict[str, Any] = dict(inventory.variables.get("all", {}))
    for group in reversed(groups):
        variables |= inventory.variables.get(group, {})
    variables |= inventory.hosts[name]
    found = Candidate(
        name,
        str(_first(variables, _ADDRESS) or name),
        user=_text(_first(variables, _USER)),
        key=_text(variables.get("ansible_ssh_private_key_file")),
        labels=tuple(sorted(group for group in groups if group not in _NOT_LABELS)),
    )
    port = str(_first(variables, _PORT) or "")
    if port.isdecimal() and 0 < int(port) < 65536:
        found.port = int(port)
    if any("{{" in str(one) for one in (found.address, found.user, found.key)):
        found.missing.append("A variable of it is a template, which only Ansible can work out")
    for names, argument in ((_PASSWORDS, "password"), (_SUDO, "sudo_password")):
        if _first(variables, names) is not None:
            found.missing.append(
                f"Its {argument} is not imported: store it with `quorate secrets set`, then set it for the host"
            )
    if variables.get("ansible_connection") in ("local", "docker", "winrm"):
        found.missing.append(f"It is reached by {variables['ansible_connection']}, not by SSH")
    for argument in _ARGUMENTS:
        if variables.get(argument):
            found.missing.append(f"{argument} is left out: set jump if it goes through another host")
    return found


def _first(variables: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((variables[name] for name in names if variables.get(name) is not None), None)


def _split_port(name: str) -> tuple[str, int | None]:
    try:
        return split_port(name)
    except Problem:
        return name, None  # it is refused as a name


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


# -- YAML --------------------------------------------------------------------------------------------------------------


def _from_yaml(text: str) -> _Inventory | None:
    """None if it is not a YAML inventory."""
    try:
        value = read_yaml(_TAG.sub("", text))
    except Unreadable:
        value = None
    if not isinstance(value, dict) or not any(isinstance(one, dict) for one in value.values()):
        if _YAML_KEY.search(text):  # the error would quote the text, and what is secret in it
            raise BadArgument(
                "The inventory is not a valid YAML inventory", next_step="Check it with ansible-inventory --list"
            )
        return None
    found = _Inventory()
    for group, body in value.items():
        _fill(found, str(group), body)
    return found


def _fill(found: _Inventory, group: str, body: Any) -> None:
    if not isinstance(body, dict):
        return
    hosts, children, variables = (body.get(part) for part in ("hosts", "children", "vars"))
    for pattern, own in hosts.items() if isinstance(hosts, dict) else ():
        for name in _expand_pattern(str(pattern)):
            found.add(name, group, own if isinstance(own, dict) else {})
    if isinstance(variables, dict):
        found.variables.setdefault(group, {}).update(variables)
    for child, below in children.items() if isinstance(children, dict) else ():
        found.children.setdefault(group, set()).add(str(child))
        _fill(found, str(child), below)


# -- INI ---------------------------------------------------------------------------------------------------------------


def _from_ini(text: str) -> _Inventory:
    found, group, kind = _Inventory(), "ungrouped", "hosts"
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if section := _SECTION.fullmatch(line):
            group, kind = section["group"], section["kind"] or "hosts"
        elif kind == "vars":
            name, _, value = line.partition("=")
            found.variables.setdefault(group, {})[name.strip()] = value.strip().strip("'\"")
        elif kind == "children":
            found.children.setdefault(group, set()).add(line.split()[0])
        else:
            pattern, *pairs = _words(line)
            own = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
            for name in _expand_pattern(pattern):
                found.add(name, group, own)
    return found


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True) or [line]
    except ValueError:
        return line.split()


def _expand_pattern(pattern: str) -> Iterator[str]:
    """web[01:03] is web01, web02, web03; web[1:5:2] is web1, web3, web5."""
    match = _RANGE.search(pattern)
    if match is None:
        yield pattern
        return
    first, last, step = match["first"], match["last"], int(match["step"] or 1)
    if first.isdecimal() and last.isdecimal() and int(last) - int(first) < MOST:
        parts = [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1, step)]
    elif len(first) == len(last) == 1 and first <= last:
        parts = [chr(code) for code in range(ord(first), ord(last) + 1, step)]
    else:
        parts = []
    for part in parts:
        yield from _expand_pattern(f"{pattern[: match.start()]}{part}{pattern[match.end() :]}")
