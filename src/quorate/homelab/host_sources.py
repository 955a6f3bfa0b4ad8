"""Hosts that are written down elsewhere: in an SSH configuration, in an Ansible inventory."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from quorate.documents import Unreadable, read_yaml
from quorate.problems import BadArgument, Problem
from quorate.ssh.target import split_port


@dataclass(slots=True)
class Candidate:
    name: str
    address: str
    port: int | None = None
    user: str | None = None
    key: str | None = None
    jump: str | None = None
    """The name of another candidate, or of a registered host."""
    labels: tuple[str, ...] = ()
    login_configured: bool = True
    """False if the source relies on configured logins and there are none."""
    missing: list[str] = field(default_factory=list)
    """Reasons why it will not work here yet, such as options that cannot be imported."""


_LINE = re.compile(r"^\s*(?P<key>[A-Za-z]+)(?:\s+|\s*=\s*)(?P<value>.+?)\s*$")
_USED = ("hostname", "user", "port", "identityfile", "proxyjump", "proxycommand")


def read_ssh_config(text: str) -> tuple[list[Candidate], list[str]]:
    """Every host named in full, with the options of all matching patterns, and what was not understood."""
    blocks, remarks = _blocks(text)
    names = [name for patterns, _ in blocks for name in patterns if not re.search(r"[*?!]", name)]
    candidates: dict[tuple[object, ...], Candidate] = {}
    aliases: dict[str, str] = {}
    for name in dict.fromkeys(names):
        candidate = _ssh_candidate(name, blocks)
        first = candidates.setdefault(
            (candidate.address, candidate.port, candidate.user, candidate.key, candidate.jump), candidate
        )
        if first is not candidate:
            aliases[name] = first.name
            remarks.append(f"{name} is left out: it is another name of {first.name}")
    for candidate in candidates.values():
        candidate.jump = aliases.get(candidate.jump or "", candidate.jump)
    return list(candidates.values()), remarks


def _blocks(text: str) -> tuple[list[tuple[list[str], dict[str, str]]], list[str]]:
    blocks: list[tuple[list[str], dict[str, str]]] = [(["*"], {})]
    remarks: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#") or not (match := _LINE.match(line)):
            continue
        key, value = match["key"].lower(), match["value"]
        if key == "host":
            blocks.append((_ssh_words(value), {}))
        elif key == "match":
            blocks.append(([], {}))
            remarks.append(f"Match {value} is left out")
        elif key == "include":
            remarks.append(f"Include {value} is left out: pass its text to import its hosts")
        elif key in _USED:
            blocks[-1][1].setdefault(key, " ".join(_ssh_words(value)))
    return blocks, remarks


def _ssh_words(value: str) -> list[str]:
    try:
        return shlex.split(value, comments=True)
    except ValueError:
        return value.split()


def _fits(name: str, patterns: list[str]) -> bool:
    if any(fnmatchcase(name, pattern[1:]) for pattern in patterns if pattern.startswith("!")):
        return False
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _ssh_candidate(name: str, blocks: list[tuple[list[str], dict[str, str]]]) -> Candidate:
    """The first value of an option counts, as for ssh."""
    options: dict[str, str] = {}
    for patterns, further in blocks:
        if _fits(name, patterns):
            options = {**further, **options}
    candidate = Candidate(name, options.get("hostname", name).replace("%h", name), user=options.get("user"))
    if port := options.get("port"):
        if port.isdecimal() and 0 < int(port) < 65536:
            candidate.port = int(port)
        else:
            candidate.missing.append(f"Port {port} is not a port")
    if key := options.get("identityfile"):
        if "%" in key.replace("%d", ""):
            candidate.missing.append(f"IdentityFile {key} cannot be worked out: set key")
        else:
            candidate.key = key.replace("%d", "~")
    if (jump := options.get("proxyjump", "none")) != "none":
        hops = jump.split(",")
        candidate.jump = _host_of(hops[-1])
        if len(hops) > 1:
            candidate.missing.append(f"It goes through {jump}: the jump hosts need jump hosts of their own")
    elif options.get("proxycommand", "none") != "none":
        candidate.missing.append("ProxyCommand is left out: set jump if it goes through another host")
    return candidate


def _host_of(hop: str) -> str:
    """The host in `user@host:port`, `host` or `ssh://user@[address]:port`."""
    place = hop.strip().removeprefix("ssh://").rpartition("@")[2]
    return place[1:].partition("]")[0] if place.startswith("[") else place.partition(":")[0]


MOST = 1000
_RANGE = re.compile(r"\[(?P<first>\w+):(?P<last>\w+)(?::(?P<step>[1-9]\d{0,3}))?\]")
_SECTION = re.compile(r"\[(?P<group>[^:\]\s]+)(?::(?P<kind>\w+))?\]\s*(?:[#;].*)?")
_YAML_KEY = re.compile(r"^\s*[\w.-]+:\s*(?:#.*)?$|^\s*\{", re.MULTILINE)
"""Matches a YAML or JSON inventory, but not one in INI format."""
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
        """The groups that contain the host, and their parent groups, outermost last."""
        groups = [group for group, members in self.groups.items() if name in members]
        for group in groups:  # it grows as we go
            groups += [above for above, below in self.children.items() if group in below and above not in groups]
        return groups


def read_inventory(text: str) -> list[Candidate]:
    inventory = _from_yaml(text) or _from_ini(text)
    return [_candidate(inventory, name) for name in inventory.hosts]


def _candidate(inventory: _Inventory, name: str) -> Candidate:
    groups = inventory.groups_of(name)
    variables: dict[str, Any] = dict(inventory.variables.get("all", {}))
    for group in reversed(groups):
        variables |= inventory.variables.get(group, {})
    variables |= inventory.hosts[name]
    candidate = Candidate(
        name,
        str(_first(variables, _ADDRESS) or name),
        user=_text(_first(variables, _USER)),
        key=_text(variables.get("ansible_ssh_private_key_file")),
        labels=tuple(sorted(group for group in groups if group not in _NOT_LABELS)),
    )
    port = str(_first(variables, _PORT) or "")
    if port.isdecimal() and 0 < int(port) < 65536:
        candidate.port = int(port)
    if any("{{" in str(value) for value in (candidate.address, candidate.user, candidate.key)):
        candidate.missing.append("A variable of it is a template, which only Ansible can work out")
    for names, argument in ((_PASSWORDS, "password"), (_SUDO, "sudo_password")):
        if _first(variables, names) is not None:
            candidate.missing.append(
                f"Its {argument} is not imported: store it with `quorate secrets set`, then set it for the host"
            )
    if variables.get("ansible_connection") in ("local", "docker", "winrm"):
        candidate.missing.append(f"It is reached by {variables['ansible_connection']}, not by SSH")
    for argument in _ARGUMENTS:
        if variables.get(argument):
            candidate.missing.append(f"{argument} is left out: set jump if it goes through another host")
    return candidate


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
    if not isinstance(value, dict) or not any(isinstance(part, dict) for part in value.values()):
        if _YAML_KEY.search(text):  # the error would quote the text, and what is secret in it
            raise BadArgument(
                "The inventory is not a valid YAML inventory", next_step="Check it with ansible-inventory --list"
            )
        return None
    inventory = _Inventory()
    for group, body in value.items():
        _fill(inventory, str(group), body)
    return inventory


def _fill(inventory: _Inventory, group: str, body: Any) -> None:
    if not isinstance(body, dict):
        return
    hosts, children, variables = (body.get(part) for part in ("hosts", "children", "vars"))
    for pattern, own in hosts.items() if isinstance(hosts, dict) else ():
        for name in _expand_pattern(str(pattern)):
            inventory.add(name, group, own if isinstance(own, dict) else {})
    if isinstance(variables, dict):
        inventory.variables.setdefault(group, {}).update(variables)
    for child, below in children.items() if isinstance(children, dict) else ():
        inventory.children.setdefault(group, set()).add(str(child))
        _fill(inventory, str(child), below)


# -- INI ---------------------------------------------------------------------------------------------------------------


def _from_ini(text: str) -> _Inventory:
    inventory, group, kind = _Inventory(), "ungrouped", "hosts"
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if section := _SECTION.fullmatch(line):
            group, kind = section["group"], section["kind"] or "hosts"
        elif kind == "vars":
            name, _, value = line.partition("=")
            inventory.variables.setdefault(group, {})[name.strip()] = value.strip().strip("'\"")
        elif kind == "children":
            inventory.children.setdefault(group, set()).add(line.split()[0])
        else:
            pattern, *pairs = _words(line)
            own = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
            for name in _expand_pattern(pattern):
                inventory.add(name, group, own)
    return inventory


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
