"""The network of a node: changes are pending in `interfaces.new` until applied or reverted."""

from __future__ import annotations

import difflib
import functools
import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pve_simulator.cluster.sdn import Sdn
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import bad_parameters, existing, failure
from pve_simulator.http.routing import Call, Payload, route
from pve_simulator.nodes.tasks import TaskContext
from pve_simulator.world import Node, PerNode

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
    needed = int(interfaces[child].get("mtu", 0))
    bond = interfaces[parent]["type"] == "bond"
    have = int(interfaces[parent].get("mtu", needed if bond else _USUAL_MTU))
    if have < needed:
        raise failure(f"interface '{parent}' - mtu {have} is lower than '{child}' - mtu {needed}")


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

    def compare(name: str, other: str) -> int:
        first, second = weight(name), weight(other)
        difference = first - second if first and second else 0
        difference += positions.get(name, _LAST_POSITION) - positions.get(other, _LAST_POSITION)
        return difference or (name > other) - (name < other)

    return sorted(interfaces, key=functools.cmp_to_key(compare))


def read_back(name: str, settings: Interface) -> Interface:
    """An interface as PVE reads it back from the file: text, without options that the file cannot hold."""
    families = settings["families"]
    read = {key: value for key, value in settings.items() if value != 0}
    for family, suffix in (("inet", ""), ("inet6", "6")):
        written = family in families
        lost = () if written and f"address{suffix}" in read else ("address", "netmask", "gateway")[: 3 - written]
        read = {key: value for key, value in read.items() if key not in [f"{key_stem}{suffix}" for key_stem in lost]}
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


_FIRST_PRIORITY = 3  # the interfaces count in their order, after the loopback
_IPV4 = ("cidr", "address", "netmask")
_IPV6 = ("cidr6", "address6", "netmask6")


class NodeNetwork:
    """`/etc/network/interfaces` of one node, with pending changes."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._active = _first_configuration(node)
        self._pending: dict[str, Interface] | None = None

    @property
    def configured(self) -> dict[str, Interface]:
        """The interfaces with pending changes, as the API shows them."""
        return self._active if self._pending is None else self._pending

    def rows(self) -> Iterable[tuple[str, Interface]]:
        """Every interface as the API shows it."""
        for name in self.configured:
            yield name, self.describe(name)

    def describe(self, name: str) -> Interface:
        """One interface, with the derived fields."""
        settings = existing(self.configured.get(name), bad_parameters({"iface": "interface does not exist"}))
        row = dict(settings)
        if "address" in row:
            row["cidr"] = f"{row['address']}/{row['netmask']}"
        if "address6" in row:
            row["cidr6"] = f"{row['address6']}/{row['netmask6']}"
        if name in self._active and row["type"] != "unknown":
            row["active"] = 1
        if row["type"] == "eth" and name in self._active:
            row["exists"] = 1
        if row["type"] in ("vlan", "alias"):
            parent = row.get("vlan-raw-device", name.partition(":")[0])
            row["exists"] = self.describe(parent).get("exists") if parent in self.configured else None
        row["priority"] = _FIRST_PRIORITY + list(self.configured).index(name)
        return row

    def changes(self) -> str | None:
        """The difference to the active configuration as a patch, None if there is none."""
        if self._pending is None:
            return None
        old, new = (as_file(each).splitlines(keepends=True) for each in (self._active, self._pending))
        body = list(difflib.unified_diff(old, new, "/etc/network/interfaces", "/etc/network/interfaces.new"))
        return "".join(body) or None

    def create(self, name: str, options: Mapping[str, Any]) -> None:
        if name in self.configured:
            raise bad_parameters({"iface": "interface already exists"})
        settings = self._check_options(name, options)
        if settings["type"].startswith("OVS"):
            raise failure("Open VSwitch is not installed (need package 'openvswitch-switch')")
        if settings.get("bridge_vids"):  # an update keeps the separators
            settings["bridge_vids"] = " ".join(split_list(settings["bridge_vids"]))
        self._write({**self.configured, name: _add_defaults(settings, settings)})

    def update(self, name: str, options: Mapping[str, Any], delete: Iterable[str]) -> None:
        if name not in self.configured:
            raise bad_parameters({"iface": "interface does not exist"})
        settings = self._check_options(name, options)
        kept = dict(self.configured[name])
        for key in delete:
            for dropped in (key, *(_IPV4 if key == "cidr" else _IPV6 if key == "cidr6" else ())):
                kept.pop(dropped, None)
        self._write({**self.configured, name: _add_defaults({**kept, **settings}, settings)})

    def delete(self, name: str) -> None:
        if name not in self.configured:
            raise bad_parameters({"iface": "interface does not exist"})
        self._write({key: value for key, value in self.configured.items() if key != name})

    def revert(self) -> None:
        self._pending = None

    def apply(self) -> None:
        """Apply pending changes; guests can then use new bridges."""
        if self._pending is not None:
            self._active, self._pending = self._pending, None
        bridges = tuple(name for name, settings in self._active.items() if settings["type"] == "bridge")
        self._node.bridges = bridges

    def _write(self, interfaces: dict[str, Interface]) -> None:
        for settings in list(interfaces.values()):
            for slave in str(settings.get("slaves", "")).split() if settings["type"] == "bond" else ():
                interfaces[slave] = {"type": "", **interfaces.get(slave, {}), "autostart": 1}
        check_ports(interfaces)
        self._pending = {name: read_back(name, interfaces[name]) for name in in_file_order(interfaces, self.configured)}

    def _check_options(self, name: str, options: Mapping[str, Any]) -> Interface:
        settings = _with_split_addresses(options)
        for key, words in (("gateway", "Default gateway"), ("gateway6", "Default ipv6 gateway")):
            if key not in settings:
                continue
            for other, other_settings in self.configured.items():
                if other != name and key in other_settings:
                    raise bad_parameters({key: f"{words} already exists on interface '{other}'."})
        self._check_free(name, settings)
        if "address6" in settings:
            _check_ipv6(str(settings["address6"]), int(settings["netmask6"]))
        return {key: int(value) if isinstance(value, bool) else value for key, value in settings.items()}

    def _check_free(self, name: str, options: Mapping[str, Any]) -> None:
        port_keys = [key for key in PORTS if options.get(key)]
        for other, settings in self.configured.items():
            for port in ports_of(settings) if other != name else ():
                if port in ports_of(options):
                    raise bad_parameters({port_keys[0]: f"{port} is already used on interface '{other}'."})


class Networks(PerNode[NodeNetwork]):
    """The network configuration of every node."""

    def make(self, node: Node) -> NodeNetwork:
        return NodeNetwork(node)


def _check_ipv6(address: str, length: int) -> None:
    if length > ipaddress.IPV6LENGTH:
        raise bad_parameters({"netmask": f"{length} is not a valid subnet length for ipv6"})
    known = ipaddress.ip_address(address)
    kinds = (("LOOPBACK", known.is_loopback), ("MULTICAST", known.is_multicast), ("UNSPECIFIED", known.is_unspecified))
    for kind, applies in kinds:
        if applies:
            raise bad_parameters({"address": f"{address} with type '{kind}', cannot be used as host IPv6 address."})


def _with_split_addresses(options: Mapping[str, Any]) -> Interface:
    """Split a CIDR into address and netmask; both forms together are refused."""
    settings = dict(options)
    for cidr, address, netmask in (_IPV4, _IPV6):
        network = settings.pop(cidr, None)
        if network is None:
            continue
        for key in (address, netmask):
            if key in settings:
                raise bad_parameters({key: f"{key} conflicts with {cidr}"})
        settings[address], _, settings[netmask] = str(network).partition("/")
    if "netmask" in settings and "." in str(settings["netmask"]):
        settings["netmask"] = str(ipaddress.ip_network(f"0.0.0.0/{settings['netmask']}").prefixlen)
    return settings


def _add_defaults(settings: Interface, changed: Mapping[str, Any]) -> Interface:
    """Add what PVE writes in addition: families, methods and bridge defaults."""
    families = [family for family, key in (("inet", "address"), ("inet6", "address6")) if key in changed]
    settings = {
        **settings,
        "families": families or ["inet"],
        "method": "static" if "address" in changed else "manual",
        "method6": "static" if "address6" in changed else "manual",
    }
    if settings["type"] == "bridge":
        settings = {"bridge_ports": "", "bridge_stp": "off", "bridge_fd": "0", **settings}
    if settings["type"] == "bond":
        settings = {"bond_mode": "balance-rr", "bond_miimon": "100", **settings}
    return settings


def _first_configuration(node: Node) -> dict[str, Interface]:
    """One physical interface per bridge."""
    card: Interface = {"type": "eth", "method": "manual", "method6": "manual", "families": ["inet"]}
    interfaces = {"eno1": dict(card)}
    for number, name in enumerate(node.bridges):
        if number:
            interfaces[f"eno{number + 1}"] = dict(card)
        settings: Interface = {"type": "bridge", "bridge_ports": f"eno{number + 1}", "autostart": 1}
        if number == 0:
            gateway = node.ip.rpartition(".")[0] + ".1"
            settings |= {"address": node.ip, "netmask": "24", "gateway": gateway}
        interfaces[name] = _add_defaults(settings, settings)
    return interfaces


_BASE = "/nodes/{node}/network"
_BRIDGES = ("bridge", "OVSBridge")


def _network(call: Call) -> NodeNetwork:
    return call.world.part(Networks).of(call.node)


def _options(call: Call) -> dict[str, Any]:
    return {key: value for key, value in call.params.items() if key not in ("node", "iface", "delete")}


def _may_see(call: Call, name: str, kind: str) -> bool:
    """Whether the caller may see a bridge, by privileges on the zone `localnetwork`."""
    if kind not in _BRIDGES or call.is_root or call.allowed(f"/nodes/{call.node}", "Sys.Audit", "Sys.Modify"):
        return True
    return call.allowed(f"/sdn/zones/localnetwork/{name}", "SDN.Audit", "SDN.Use")


def _vnets(call: Call) -> list[dict[str, Any]]:
    """The SDN vnets on the node; guests use them like bridges."""
    sdn = call.world.part(Sdn)
    rows: list[dict[str, Any]] = []
    for name, vnet in sorted(sdn.running("vnets").items()):
        zone = sdn.running("zones").get(str(vnet["zone"]), {})
        only = str(zone.get("nodes") or call.node).split(",")
        visible = call.is_root or call.allowed(f"/sdn/zones/{vnet['zone']}/{name}", "SDN.Audit", "SDN.Use")
        if call.node in only and visible:
            rows.append({"iface": name, "type": "vnet", "active": "1", "comments": str(vnet.get("alias", ""))})
    return rows


@route(f"GET {_BASE}")
def interfaces(call: Call) -> Payload:
    network, only = _network(call), call.params.get("type")
    rows = []
    for name, settings in network.rows():
        kind = settings["type"]
        bridges_wanted = only in ("any_bridge", "any_local_bridge") and kind in _BRIDGES
        matches = only in (None, "include_sdn", kind) or bridges_wanted
        if matches and _may_see(call, name, kind):
            rows.append({"iface": name, **settings})
    if only in ("any_bridge", "include_sdn", "vnet"):
        rows += _vnets(call)
    return Payload(rows, changes=network.changes())


@route(f"GET {_BASE}/{{iface}}")
def interface(call: Call) -> dict[str, Any]:
    return _network(call).describe(call.values["iface"])


@route(f"POST {_BASE}")
def create(call: Call) -> None:
    _network(call).create(call.params["iface"], _options(call))


@route(f"PUT {_BASE}/{{iface}}")
def update(call: Call) -> None:
    _network(call).update(call.values["iface"], _options(call), split_list(call.params.get("delete")))


@route(f"DELETE {_BASE}/{{iface}}")
def delete(call: Call) -> None:
    _network(call).delete(call.values["iface"])


@route(f"PUT {_BASE}")
def apply(call: Call) -> str:
    network = _network(call)

    async def work(context: TaskContext) -> None:
        await context.sleep(1.5)
        network.apply()

    return call.start_task("srvreload", "networking", work)


@route(f"DELETE {_BASE}")
def revert(call: Call) -> None:
    _network(call).revert()
