"""Software-defined networking: what is configured, what is running, and the difference between the two."""

from __future__ import annotations

import copy
import ipaddress
import uuid
from typing import Any, Final, Literal

from pve_simulator.cluster.config_files import UNDEFINED_TYPE, Section, SectionFile, section_type
from pve_simulator.http.parameters import split_pairs
from pve_simulator.http.refusals import bad_parameters, existing, failure
from pve_simulator.world import World

Kind = Literal["zones", "vnets", "subnets", "controllers"]

_OF_ALL_ZONES: Final = "nodes mtu dns reversedns dnszone ipam"
_ZONE_TYPES: Final = {
    "simple": section_type(optional=f"{_OF_ALL_ZONES} dhcp"),
    "vlan": section_type("bridge", f"{_OF_ALL_ZONES} bridge-disable-mac-learning"),
    "qinq": section_type("bridge tag", f"{_OF_ALL_ZONES} vlan-protocol bridge-disable-mac-learning"),
    "vxlan": section_type(optional=f"{_OF_ALL_ZONES} peers fabric vxlan-port"),
    "evpn": section_type(
        "controller vrf-vxlan",
        f"{_OF_ALL_ZONES} mac exitnodes exitnodes-primary exitnodes-local-routing advertise-subnets"
        " disable-arp-nd-suppression rt-import secondary-controllers",
    ),
    "faucet": section_type("dp-id controller", f"{_OF_ALL_ZONES} bridge"),
}
_VNET_TYPES: Final = {"vnet": section_type("zone", "tag alias vlanaware isolate-ports")}
_SUBNET_TYPES: Final = {"subnet": section_type("vnet", "gateway snat dnszoneprefix dhcp-range dhcp-dns-server")}
_CONTROLLER_TYPES: Final = {
    "evpn": section_type("asn", "peers fabric bgp-mode nodes peer-group-name route-map-in route-map-out ebgp-multihop"),
    "bgp": section_type(
        "asn node peers", "ebgp ebgp-multihop loopback bgp-multipath-as-path-relax route-map-in route-map-out"
    ),
    "isis": section_type("isis-domain isis-ifaces isis-net node", "loopback"),
    "faucet": section_type(),
}
_IPAM_TYPES: Final = {
    "pve": section_type(),
    "netbox": section_type("url token", "fingerprint"),
    "phpipam": section_type("url token section", "fingerprint"),
}
_DNS_TYPES: Final = {"powerdns": section_type("url key", "ttl reversemaskv6 reversev6mask fingerprint")}
_FABRIC_TYPES: Final = {
    "openfabric": section_type(optional="ip_prefix ip6_prefix hello_interval csnp_interval"),
    "ospf": section_type("area", "ip_prefix"),
}
FABRIC_NODE_TYPES: Final = {kind: section_type(optional="ip ip6 interfaces") for kind in _FABRIC_TYPES}
_HIGHEST_VLAN: Final = 4096
_HIGHEST_VXLAN: Final = 16777216


class Sdn:
    """The SDN configuration of a cluster. Zones, vnets, subnets and controllers wait for `apply`."""

    def __init__(self, _world: World) -> None:
        self.files: dict[Kind, SectionFile] = {
            "zones": SectionFile(_ZONE_TYPES),
            "vnets": SectionFile(_VNET_TYPES),
            "subnets": SectionFile(_SUBNET_TYPES),
            "controllers": SectionFile(_CONTROLLER_TYPES),
        }
        self.ipams = SectionFile(_IPAM_TYPES)
        self.dns = SectionFile(_DNS_TYPES)
        self.fabrics = SectionFile(_FABRIC_TYPES)
        self.fabric_nodes: dict[str, SectionFile] = {}
        self.addresses: dict[str, dict[str, dict[str, Any]]] = {}
        """Manually entered addresses by vnet."""
        self._running: dict[Kind, dict[str, Section]] = {kind: {} for kind in self.files}
        self._lock: str | None = None

    def require_object(self, kind: Kind, name: str) -> Section:
        """A configured object, or PVE's refusal."""
        return existing(self.files[kind].sections.get(name), f"sdn '{name}' does not exist")

    def running(self, kind: Kind) -> dict[str, Section]:
        """The objects as last applied."""
        return self._running[kind]

    def pending(self, kind: Kind) -> dict[str, Section]:
        """All objects, running values first, with `state` and `pending` where the two differ."""
        configured, running = self.files[kind].sections, self._running[kind]
        return {name: _compare(running.get(name), configured.get(name)) for name in sorted({*configured, *running})}

    def has_pending(self) -> bool:
        return any(self.files[kind].sections != self._running[kind] for kind in self.files)

    def apply(self) -> None:
        """Make the configuration the running one."""
        self._running = {kind: copy.deepcopy(file.sections) for kind, file in self.files.items()}

    def roll_back(self) -> None:
        """Forget all changes since the last apply."""
        for kind, file in self.files.items():
            file.sections = copy.deepcopy(self._running[kind])

    def lock(self, *, allow_pending: bool) -> str:
        """Lock the configuration for holders of the returned token."""
        self.check_lock(None)
        if self.has_pending() and not allow_pending:
            raise failure("configuration contains pending changes")
        self._lock = str(uuid.uuid4())
        return self._lock

    def check_lock(self, token: str | None) -> None:
        if self._lock is not None and token != self._lock:
            raise failure("invalid lock token provided!")

    def unlock(self) -> None:
        self._lock = None

    def check_zone(self, options: Section) -> None:
        """Refuse a zone that refers to missing objects."""
        if options["type"] == "vxlan" and bool(options.get("peers")) == bool(options.get("fabric")):
            raise bad_parameters(dict.fromkeys(("fabric", "peers"), "must have exactly one of peers / fabric defined"))
        for name in ("dns", "reversedns"):
            if options.get(name) and options[name] not in self.dns.sections:
                raise bad_parameters({name: f"{options[name]} don't exist"})
        if options.get("dnszone") and not options.get("dns"):
            raise bad_parameters({"dnszone": "missing dns server"})
        ipam = options.get("ipam")
        if ipam and ipam != "pve" and ipam not in self.ipams.sections:
            raise bad_parameters({"ipam": f"{ipam} not existing"})
        controller = options.get("controller")
        if controller and controller not in self.files["controllers"].sections:
            raise bad_parameters({"controller": f"controller {controller} does not exist"})

    def check_zone_unused(self, zone: str) -> None:
        for name, vnet in self.files["vnets"].sections.items():
            if vnet["zone"] == zone:
                where = "/usr/share/perl5/PVE/Network/SDN/Zones/Plugin.pm line 341."
                raise failure(f"zone {zone} is used by vnet {name} at {where}")

    def check_vnet(self, name: str, vnet: Section) -> None:
        """Check a vnet against the tag rules of its zone's type."""
        zone = existing(self.files["zones"].sections.get(vnet["zone"]), UNDEFINED_TYPE)
        tag = vnet.get("tag")
        if zone["type"] == "simple":
            if tag is not None:
                raise bad_parameters({"tag": "vlan tag is not allowed on simple zone"})
        elif zone["type"] in ("vlan", "qinq", "faucet"):
            _check_tag(tag, "vlan", _HIGHEST_VLAN)
        else:
            _check_tag(tag, "vxlan", _HIGHEST_VXLAN)
        for other_name, other in self.files["vnets"].sections.items():
            if other_name != name and other["zone"] == vnet["zone"] and tag is not None and other.get("tag") == tag:
                raise bad_parameters({"tag": f"tag {tag} already exist in vnet {other_name}"})
        if vnet.get("vlanaware") and self.subnets_of(name):
            raise bad_parameters({"vlanaware": "vlanaware vnet is not compatible with subnets"})

    def subnets_of(self, vnet: str) -> dict[str, Section]:
        return {name: subnet for name, subnet in self.files["subnets"].sections.items() if subnet["vnet"] == vnet}

    def check_subnet(self, name: str, subnet: Section) -> None:
        """Refuse a gateway or DHCP range outside the subnet, and a vnet that cannot have subnets."""
        if self.require_object("vnets", subnet["vnet"]).get("vlanaware"):
            raise bad_parameters({"vnet": "you can't add a subnet on a vlanaware vnet"})
        network = network_of(name)
        gateway = subnet.get("gateway")
        if gateway and ipaddress.ip_address(gateway) not in network and network.prefixlen != 32:
            raise bad_parameters({"gateway": f"{gateway} is not in subnet {network}"})
        for dhcp_range in dhcp_ranges(subnet):
            _check_range(dhcp_range, network)


def network_of(subnet: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """The network in a subnet's name, `zone-10.0.0.0-24`."""
    _, address, mask = subnet.split("-")
    return ipaddress.ip_network(f"{address}/{mask}", strict=False)


def dhcp_ranges(subnet: Section) -> list[dict[str, str]]:
    """The DHCP ranges, parsed from property strings."""
    return [split_pairs(text) for text in subnet.get("dhcp-range", [])]


def _check_tag(tag: int | None, word: str, highest: int) -> None:
    if tag is None:
        raise bad_parameters({"tag": f"missing {word} tag"})
    if tag > highest:
        raise bad_parameters({"tag": f"{word} tag max value is {highest}"})


def _check_range(dhcp_range: dict[str, str], network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> None:
    ends: list[Any] = []
    for name in ("start-address", "end-address"):
        text = dhcp_range.get(name, "")
        try:
            address = ipaddress.ip_address(text)
        except ValueError as error:
            raise bad_parameters({"dhcp-range": f"{name} is not a valid IP {text}"}) from error
        ends.append(address)
    if ends[0].version == ends[1].version and ends[0] > ends[1]:
        text = f"start-address {ends[0]} must be smaller than end-address {ends[1]}"
        raise bad_parameters({"dhcp-range": text})
    for name, address in zip(("start-address", "end-address"), ends, strict=True):
        if address not in network:
            raise bad_parameters({"dhcp-range": f"{name} {address} is not in subnet {network}"})


def _compare(running: Section | None, configured: Section | None) -> Section:
    """One object of the pending view."""
    if configured is None:
        return {**(running or {}), "state": "deleted", "pending": {}}
    if running is None:
        pending = {key: value for key, value in configured.items() if key not in ("type", "vnet")}
        shown = {key: value for key, value in configured.items() if key in ("type", "vnet")}
        return {**shown, "state": "new", "pending": pending}
    changes = {key: value for key, value in configured.items() if running.get(key) != value}
    changes |= dict.fromkeys(running.keys() - configured.keys(), "deleted")
    return {**running, **({"state": "changed", "pending": changes} if changes else {})}
