"""The network of a node: changes are pending in `interfaces.new` until applied or reverted."""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

from pve_simulator.cluster.sdn import Sdn
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import bad_parameters, existing, failure
from pve_simulator.http.routing import Call, Payload, route
from pve_simulator.nodes.network_file import PORTS, Interface, as_file, check_ports, in_file_order, ports_of, read_back
from pve_simulator.nodes.tasks import TaskContext
from pve_simulator.world import Node, PerNode

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
        wanted = [key for key in PORTS if options.get(key)]
        for other, settings in self.configured.items():
            for port in ports_of(settings) if other != name else ():
                if port in ports_of(options):
                    raise bad_parameters({wanted[0]: f"{port} is already used on interface '{other}'."})


class Networks(PerNode[NodeNetwork]):
    """The network configuration of every node."""

    def make(self, node: Node) -> NodeNetwork:
        return NodeNetwork(node)


def _check_ipv6(address: str, length: int) -> None:
    if length > ipaddress.IPV6LENGTH:
        raise bad_parameters({"netmask": f"{length} is not a valid subnet length for ipv6"})
    known = ipaddress.ip_address(address)
    kinds = (("LOOPBACK", known.is_loopback), ("MULTICAST", known.is_multicast), ("UNSPECIFIED", known.is_unspecified))
    for kind, found in kinds:
        if found:
            raise bad_parameters({"address": f"{address} with type '{kind}', cannot be used as host IPv6 address."})


def _with_split_addresses(options: Mapping[str, Any]) -> Interface:
    """Split a CIDR into address and netmask; both forms together are refused."""
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


def _add_defaults(settings: Interface, given: Mapping[str, Any]) -> Interface:
    """Add what PVE writes in addition: families, methods and bridge defaults."""
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
    network, wanted = _network(call), call.params.get("type")
    rows = []
    for name, settings in network.rows():
        kind = settings["type"]
        bridges_wanted = wanted in ("any_bridge", "any_local_bridge") and kind in _BRIDGES
        matches = wanted in (None, "include_sdn", kind) or bridges_wanted
        if matches and _may_see(call, name, kind):
            rows.append({"iface": name, **settings})
    if wanted in ("any_bridge", "include_sdn", "vnet"):
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
