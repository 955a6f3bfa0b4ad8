"""Hosts of an OpenSSH client configuration."""

from __future__ import annotations

import re
import shlex
from fnmatch import fnmatchcase

from quorate.homelab.imports.candidate import Candidate

_LINE = re.compile(r"^\s*(?P<key>[A-Za-z]+)(?:\s+|\s*=\s*)(?P<value>.+?)\s*$")
_USED = ("hostname", "user", "port", "identityfile", "proxyjump", "proxycommand")


def read_ssh_config(text: str) -> tuple[list[Candidate], list[str]]:
    """Every host named in full, with the options of all matching patterns, and what was not understood."""
    blocks, remarks = _blocks(text)
    names = [name for patterns, _ in blocks for name in patterns if not re.search(r"[*?!]", name)]
    found: dict[tuple[object, ...], Candidate] = {}
    aliases: dict[str, str] = {}
    for name in dict.fromkeys(names):
        one = _candidate(name, blocks)
        first = found.setdefault((one.address, one.port, one.user, one.key, one.jump), one)
        if first is not one:
            aliases[name] = first.name
            remarks.append(f"{name} is left out: it is another name of {first.name}")
    for one in found.values():
        one.jump = aliases.get(one.jump or "", one.jump)
    return list(found.values()), remarks


def _blocks(text: str) -> tuple[list[tuple[list[str], dict[str, str]]], list[str]]:
    blocks: list[tuple[list[str], dict[str, str]]] = [(["*"], {})]
    remarks: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#") or not (match := _LINE.match(line)):
            continue
        key, value = match["key"].lower(), match["value"]
        if key == "host":
            blocks.append((_words(value), {}))
        elif key == "match":
            blocks.append(([], {}))
            remarks.append(f"Match {value} is left out")
        elif key == "include":
            remarks.append(f"Include {value} is left out: pass its text to import its hosts")
        elif key in _USED:
            blocks[-1][1].setdefault(key, " ".join(_words(value)))
    return blocks, remarks


def _words(value: str) -> list[str]:
    try:
        return shlex.split(value, comments=True)
    except ValueError:
        return value.split()


def _fits(name: str, patterns: list[str]) -> bool:
    if any(fnmatchcase(name, one[1:]) for one in patterns if one.startswith("!")):
        return False
    return any(fnmatchcase(name, one) for one in patterns)


def _candidate(name: str, blocks: list[tuple[list[str], dict[str, str]]]) -> Candidate:
    """The first value of an option counts, as for ssh."""
    options: dict[str, str] = {}
    for patterns, given in blocks:
        if _fits(name, patterns):
            options = {**given, **options}
    found = Candidate(name, options.get("hostname", name).replace("%h", name), user=options.get("user"))
    if port := options.get("port"):
        if port.isdecimal() and 0 < int(port) < 65536:
            found.port = int(port)
        else:
            found.missing.append(f"Port {port} is not a port")
    if key := options.get("identityfile"):
        if "%" in key.replace("%d", ""):
            found.missing.append(f"IdentityFile {key} cannot be worked out: set key")
        else:
            found.key = key.replace("%d", "~")
    if (jump := options.get("proxyjump", "none")) != "none":
        hops = jump.split(",")
        found.jump = _host_of(hops[-1])
        if len(hops) > 1:
            found.missing.append(f"It goes through {jump}: the jump hosts need jump hosts of their own")
    elif options.get("proxycommand", "none") != "none":
        found.missing.append("ProxyCommand is left out: set jump if it goes through another host")
    return found


def _host_of(hop: str) -> str:
    """Of `user@host:port`, `host` or `ssh://user@[address]:port`."""
    place = hop.strip().removeprefix("ssh://").rpartition("@")[2]
    return place[1:].partition("]")[0] if place.startswith("[") else place.partition(":")[0]
