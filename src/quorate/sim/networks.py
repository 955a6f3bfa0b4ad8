"""The network configuration of a node: what is active, and what waits in `interfaces.new`."""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

from quorate.sim.refusals import bad_parameters, failure
from quorate.sim.world import Node, World

Interface = dict[str, Any]

_FIRST_PRIORITY = 3  # the interfaces count in their order, after the loopback
_IPV4 = ("cidr", "address", "netmask")
_IPV6 = ("cidr6", "address6", "netmask6")
# How the keys of the API are spelled in the file.
_FILE_KEYS = {
    "bridge_ports": "bridge-ports",
    "bridge_stp": "bridge-stp",
    "bridge_fd": "bridge-fd",
    "bridge_vids": "bridge-vids",
    "slaves": "bond-slaves",
    "bond_mode": "bond-mode",
    "bond-primary": "bond-primary",
    "bond_xmit_hash_policy": "bond-xmit-hash-policy",
    "bond_miimon": "bond-miimon",
    "vlan-id": "vlan-id",
    "vlan-raw-device": "vlan-raw-device",
    "mtu": "mtu",
}


class Networks:
    """The network configuration of every node."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._by_node: dict[str, NodeNetwork] = {}

    def of(self, node: str) -> NodeNetwork:
        known = self._by_node.get(node)
        if known is None:
            known = self._by_node[node] = NodeNetwork(self._world.nodes[node])
        return known


class NodeNetwork:
    """`/etc/network/interfaces` of one node, with the edits that are not applied yet."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._active = _first_configuration(node)
        self._pending: dict[str, Interface] | None = None

    @property
    def configured(self) -> dict[str, Interface]:
        """The interfaces with the pending edits in them, which is what the API shows."""
        return self._active if self._pending is None else self._pending

    def rows(self) -> Iterable[tuple[str, Interface]]:
        """Every interface as the API shows it."""
        for name in self.configured:
            yield name, self.shown(name)

    def shown(self, name: str) -> Interface:
        """One interface, with what follows from its settings and from its being up."""
        settings = self.configured.get(name)
        if settings is None:
            raise bad_parameters({"iface": "interface does not exist"})
        row = dict(settings)
        if "address" in row:
            row["cidr"] = f"{row['address']}/{row['netmask']}"
        if "address6" in row:
            row["cidr6"] = f"{row['address6']}/{row['netmask6']}"
        if name in self._active and row["type"] != "unknown":
            row["active"] = 1
        if row["type"] == "eth":
            row["exists"] = 1
        row["priority"] = _FIRST_PRIORITY + list(self.configured).index(name)
        return row

    def changes(self) -> str | None:
        """The difference to the active configuration as a patch, None if there is none."""
        if self._pending is None:
            return None
        old, new = (_as_file(each).splitlines(keepends=True) for each in (self._active, self._pending))
        body = list(difflib.unified_diff(old, new, "/etc/network/interfaces", "/etc/network/interfaces.new"))
        return "".join(body) or None

    def create(self, name: str, options: Mapping[str, Any]) -> None:
        if name in self.configured:
            raise bad_parameters({"iface": "interface already exists"})
        settings = self._checked(name, options)
        if settings["type"].startswith("OVS"):
            raise failure("Open VSwitch is not installed (need package 'openvswitch-switch')")
        self._write({**self.configured, name: _completed(settings, settings)})

    def update(self, name: str, options: Mapping[str, Any], delete: Iterable[str]) -> None:
        if name not in self.configured:
            raise bad_parameters({"iface": "interface does not exist"})
        settings = self._checked(name, options)
        kept = dict(self.configured[name])
        for key in delete:
            for dropped in (key, *(_IPV4 if key == "cidr" else _IPV6 if key == "cidr6" else ())):
                kept.pop(dropped, None)
        self._write({**self.configured, name: _completed({**kept, **settings}, settings)})

    def delete(self, name: str) -> None:
        if name not in self.configured:
            raise bad_parameters({"iface": "interface does not exist"})
        self._write({key: value for key, value in self.configured.items() if key != name})

    def revert(self) -> None:
        self._pending = None

    def apply(self) -> None:
        """Make the pending edits real; guests can be attached to new bridges from then on."""
        if self._pending is not None:
            self._active, self._pending = self._pending, None
        bridges = tuple(name for name, settings in self._active.items() if settings["type"] == "bridge")
        self._node.bridges = bridges

    def _write(self, interfaces: dict[str, Interface]) -> None:
        self._pending = interfaces

    def _checked(self, name: str, options: Mapping[str, Any]) -> Interface:
        settings = _with_split_addresses(options)
        for key, words in (("gateway", "Default gateway"), ("gateway6", "Default ipv6 gateway")):
            if key not in settings:
                continue
            for other, other_settings in self.configured.items():
                if other != name and key in other_settings:
                    raise bad_parameters({key: f"{words} already exists on interface '{other}'."})
        return {key: int(value) if isinstance(value, bool) else value for key, value in settings.items()}


def _with_split_addresses(options: Mapping[str, Any]) -> Interface:
    """A CIDR is another way to give address and netmask, not to be mixed with them."""
    settings = dict(options)
    for cidr, address, netmask in (_IPV4, _IPV6):
        given = settings.pop(cidr, None)
        if given is None:
            continue
        for key in (address, netmask):
            if key in settings:
                raise bad_parameters({key: f"{key} conflicts with {cidr}"})
        settings[address], _, settings[netmask] = str(given).partition("/")
    if "netmask" in settings and "." in str(settings["netmask"]):
        settings["netmask"] = str(ipaddress.ip_network(f"0.0.0.0/{settings['netmask']}").prefixlen)
    return settings


def _completed(settings: Interface, given: Mapping[str, Any]) -> Interface:
    """What PVE writes beside the given settings: families, methods and the defaults of a bridge."""
    families = [family for family, key in (("inet", "address"), ("inet6", "address6")) if key in given]
    settings = {
        **settings,
        "families": families or ["inet"],
        "method": "static" if "address" in given else "manual",
        "method6": "static" if "address6" in given else "manual",
    }
    if settings["type"] == "bridge":
        settings = {"bridge_ports": "", "bridge_stp": "off", "bridge_fd": "0", **settings}
    if settings["type"] == "bond":
        settings = {"bond_mode": "balance-rr", "bond_miimon": "100", **settings}
    return settings


def _first_configuration(node: Node) -> dict[str, Interface]:
    """One card for the first bridge, and the rest of the bridges without one."""
    card: Interface = {"type": "eth", "method": "manual", "method6": "manual", "families": ["inet"]}
    interfaces = {"eno1": dict(card)}
    for number, name in enumerate(node.bridges):
        if number:
            interfaces[f"eno{number + 1}"] = dict(card)
        settings: Interface = {"type": "bridge", "bridge_ports": f"eno{number + 1}", "autostart": 1}
        if number == 0:
            gateway = node.ip.rpartition(".")[0] + ".1"
            settings |= {"address": node.ip, "netmask": "24", "gateway": gateway}
        interfaces[name] = _completed(settings, settings)
    return interfaces


def _as_file(interfaces: Mapping[str, Interface]) -> str:
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
    for key, spelled in _FILE_KEYS.items():
        if key in settings:
            value = settings[key] if settings[key] != "" or key != "bridge_ports" else "none"
            lines.append(f"\t{spelled} {value}")
    if settings.get("bridge_vlan_aware"):
        lines.append("\tbridge-vlan-aware yes")
    return lines
