"""`/etc/network/interfaces` as PVE checks, writes and reads it."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import failure

Interface = dict[str, Any]

PORTS = ("bridge_ports", "slaves")

_FILE = "/usr/share/perl5/PVE/INotify.pm"
_HIGHEST_VLAN = 4094
_USUAL_MTU = 1500
_LAST_POSITION = 50000
_WEIGHTS = {"loopback": 1, "dummy": 1, "eth": 2, "bond": 4, "bridge": 5, "vlan": 6}  # the order of kinds in the file
_KINDS = ((r"bond\d+", "bond"), (r"\S+:\d+", "alias"), (r"\S+\.\d+", "vlan"))
_CARD = re.compile(r"eth\d+|en[^:.]+|ib[^:.]+|(nic|if)\d+")
_HASHING_MODES = ("balance-xor", "802.3ad")
_IN_FILE = split_list(
    "bridge_ports bridge_stp bridge_fd bridge_vids slaves bond_mode bond-primary bond_xmit_hash_policy bond_miimon"
    " vlan-id vlan-raw-device mtu"
)


def ports_of(settings: Mapping[str, Any]) -> list[str]:
    return split_list(" ".join(str(settings.get(key, "")) for key in PORTS))


def check_ports(interfaces: Mapping[str, Interface]) -> None:
    """Check that the ports of all interfaces exist and are compatible, as PVE does when it writes the file."""
    for kind, check in (("bond", _check_bond), ("vlan", _check_vlan), ("bridge", _check_bridge)):
        for name, settings in interfaces.items():
            if settings["type"] == kind:
                check(interfaces, name, settings)


def _check_bond(interfaces: Mapping[str, Interface], name: str, settings: Interface) -> None:
    slaves = str(settings.get("slaves", "")).split()
    for slave in slaves:
        kind = interfaces[slave]["type"]
        if kind not in ("eth", "bond"):
            raise failure(f"bond '{name}' - wrong interface type on slave '{slave}' ('{kind}' != 'eth or bond')")
        _check_mtu(interfaces, name, slave)
    if slaves and settings.get("bond-primary", slaves[0]) not in slaves:
        raise failure(f"bond '{name}' - bond-primary interface is not a slave at {_FILE} line 1590.")


def _check_vlan(interfaces: Mapping[str, Interface], name: str, settings: Interface) -> None:
    parent, dot, tag = name.rpartition(".")
    if not (dot and tag.isdecimal()):
        if not settings.get("vlan-raw-device"):
            raise failure(f"missing vlan-raw-device option at {_FILE} line 1634.")
        parent, named = str(settings["vlan-raw-device"]), re.fullmatch(r"vlan(\d+)", name)
        if named is None and not settings.get("vlan-id"):
            raise failure(f"missing vlan-id option at {_FILE} line 1642.")
        tag = str(settings["vlan-id"]) if named is None else named[1]
    if int(tag) > _HIGHEST_VLAN:
        raise failure(f"vlan '{name}' - vlan-id {tag} should be <= {_HIGHEST_VLAN}")
    kind = _kind_of(interfaces, parent, f"vlan '{name}' - unable to find parent '{parent}'")
    if kind not in ("eth", "bridge", "bond", "vlan"):
        wrong = f"wrong interface type on parent '{parent}' ('{kind}' != 'eth|bond|bridge|vlan' )"
        raise failure(f"vlan '{name}' - {wrong}")
    _check_mtu(interfaces, parent, name)


def _check_bridge(interfaces: Mapping[str, Interface], name: str, settings: Interface) -> None:
    for port in str(settings.get("bridge_ports", "")).split():
        if re.fullmatch(r"\S+\.\d+", port) and port not in interfaces:
            continue  # the bridge gets its own VLAN interface
        _kind_of(interfaces, port, f"bridge '{name}' - unable to find bridge port '{port}'")
        if "static" in (interfaces[port].get("method"), interfaces[port].get("method6")):
            raise failure(f"iface {port} - ip address can't be set on interface if bridged in {name}")
        _check_mtu(interfaces, port, name)


def _check_mtu(interfaces: Mapping[str, Interface], parent: str, child: str) -> None:
    """Refuse an MTU larger than that of the parent."""
    wanted = int(interfaces[child].get("mtu", 0))
    bond = interfaces[parent]["type"] == "bond"
    have = int(interfaces[parent].get("mtu", wanted if bond else _USUAL_MTU))
    if have < wanted:
        raise failure(f"interface '{parent}' - mtu {have} is lower than '{child}' - mtu {wanted}")


def _kind_of(interfaces: Mapping[str, Interface], name: str, missing: str) -> str:
    if name not in interfaces:
        raise failure(missing)
    return str(interfaces[name]["type"])


def in_file_order(interfaces: Mapping[str, Interface], before: Iterable[str]) -> list[str]:
    """By kind, then in file order; unknown kinds keep their position, new interfaces come last."""
    positions = {name: number for number, name in enumerate(before)}

    def weight(name: str) -> int:
        root, *children = re.split(r"[.:]", name)
        kind = _WEIGHTS.get(str(interfaces[root]["type"]) if root in interfaces else "loopback")
        return 0 if kind is None else 2 * _LAST_POSITION * kind + len(children)

    def compare(one: str, other: str) -> int:
        first, second = weight(one), weight(other)
        difference = first - second if first and second else 0
        difference += positions.get(one, _LAST_POSITION) - positions.get(other, _LAST_POSITION)
        return difference or (one > other) - (one < other)

    return sorted(interfaces, key=functools.cmp_to_key(compare))


def read_back(name: str, settings: Interface) -> Interface:
    """An interface as PVE reads it back from the file: text, without options that the file cannot hold."""
    families = settings["families"]
    read = {key: value for key, value in settings.items() if value != 0}
    for family, suffix in (("inet", ""), ("inet6", "6")):
        written = family in families
        lost = () if written and f"address{suffix}" in read else ("address", "netmask", "gateway")[: 3 - written]
        read = {key: value for key, value in read.items() if key not in [f"{one}{suffix}" for one in lost]}
    comments = [str(read.pop(key, "")) for key in ("comments", "comments6")]
    kept = comments[:1] if "inet6" not in families or "inet" not in families else comments
    if lines := [line.rstrip() for text in kept if text for line in text.rstrip("\n").split("\n")]:
        read["comments"] = "".join(f"{line}\n" for line in lines)
    read |= {key: str(read[key]) for key in ("mtu", "vlan-id") if key in read}
    read |= {key: " ".join(sorted(set(split_list(read[key])))) for key in PORTS if key in read}
    if read["type"] == "bridge" and "bridge_vlan_aware" in settings:
        read |= {"bridge_vlan_aware": 1, "bridge_vids": read.get("bridge_vids") or "2-4094"}
    else:
        read.pop("bridge_vids", None)
    if read["type"] == "bond":
        read.setdefault("slaves", "")
        if read["bond_mode"] not in _HASHING_MODES:
            read.pop("bond_xmit_hash_policy", None)
        if read["bond_mode"] != "active-backup":
            read.pop("bond-primary", None)
    read["type"] = _kind_when_read(name, read)
    if read["type"] == "vlan":
        parent, _, tag = name.rpartition(".")
        named = re.fullmatch(r"vlan(\d+)", name)
        if parent:
            read["vlan-raw-device"] = parent
        if parent or named is not None:
            read["vlan-id"] = tag if named is None else named[1]
    return read


def _kind_when_read(name: str, settings: Interface) -> str:
    """The type of an interface, derived from its name and options."""
    if settings["type"] == "bridge" or settings.get("bridge_ports"):
        return "bridge"
    for pattern, kind in _KINDS:
        if re.fullmatch(pattern, name):
            return kind
    return "vlan" if settings.get("vlan-raw-device") else "eth" if _CARD.fullmatch(name) else "unknown"


def as_file(interfaces: Mapping[str, Interface]) -> str:
    lines = ["auto lo", "iface lo inet loopback", ""]
    for name, settings in interfaces.items():
        if settings.get("autostart"):
            lines.append(f"auto {name}")
        for family, suffix in (("inet", ""), ("inet6", "6")):
            if family not in settings["families"]:
                continue
            lines.append(f"iface {name} {family} {settings[f'method{suffix}']}")
            if f"address{suffix}" in settings:
                lines.append(f"\taddress {settings[f'address{suffix}']}/{settings[f'netmask{suffix}']}")
            if f"gateway{suffix}" in settings:
                lines.append(f"\tgateway {settings[f'gateway{suffix}']}")
            lines += _options_in_file(settings) if suffix == "" or settings["families"] == ["inet6"] else []
            lines += [f"#{line}" for line in str(settings.get(f"comments{suffix}", "")).splitlines()]
            lines.append("")
    return "\n".join(lines) + "\n"


def _options_in_file(settings: Interface) -> list[str]:
    lines = []
    for key in _IN_FILE:
        if key in settings:
            value = settings[key] if settings[key] != "" or key != "bridge_ports" else "none"
            lines.append(f"\t{'bond-slaves' if key == 'slaves' else key.replace('_', '-')} {value}")
    if settings.get("bridge_vlan_aware"):
        lines.append("\tbridge-vlan-aware yes")
    return lines
