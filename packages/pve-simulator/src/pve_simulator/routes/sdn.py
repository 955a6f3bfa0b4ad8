"""SDN: zones, vnets, subnets, controllers, fabrics, and applying changes to them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pve_simulator.access.directory import ROOT
from pve_simulator.cluster.config_files import (
    EMPTY_DIGEST,
    Section,
    SectionFile,
    Sections,
    always,
    changing,
    options_of,
    texts,
)
from pve_simulator.cluster.sdn import FABRIC_NODE_TYPES, Kind, Sdn, dhcp_ranges, network_of
from pve_simulator.http.refusals import bad_parameters, existing, failure
from pve_simulator.http.routing import Call, route
from pve_simulator.nodes.tasks import TaskContext, Work
from pve_simulator.routes.nodes.network import Networks
from pve_simulator.world import World


def sdn_of(world: World) -> Sdn:
    return world.part(Sdn)


class SdnSections(Sections):
    """Sections that change under the lock of the SDN configuration."""

    word = ""
    no_options: tuple[str, ...] = ("lock-token", "digest", "delete", "pending", "running")
    readers = ("SDN.Audit", "SDN.Allocate")
    missing = always("sdn '{name}' does not exist")

    def __init__(self) -> None:
        if self.word:
            self.key, self.acl = self.word, f"/sdn/{self.word}s/{{name}}"
            self.failing = f"{{verb}} sdn {self.word} object failed"
            self.duplicate = f"sdn {self.word} object ID '{{name}}' already defined"
        super().__init__()

    @contextmanager
    def lock(self, call: Call, verb: str) -> Iterator[None]:
        with changing(self.failing.format(verb=verb)):
            sdn_of(call.world).check_lock(call.params.get("lock-token"))
            yield


class _Objects(SdnSections):
    """What waits for `apply`: shown with pending changes marked, as running, or as configured."""

    objects: Kind

    def file(self, call: Call) -> SectionFile:
        return sdn_of(call.world).files[self.objects]

    def select_sections(self, call: Call) -> Mapping[str, Section]:
        sdn, sections = sdn_of(call.world), self.all(call)
        if call.params.get("pending"):
            sections = sdn.pending(self.objects)
        elif call.params.get("running"):
            sections = sdn.running(self.objects)
        return dict(sorted(sections.items()))

    def digest(self, call: Call) -> str | None:
        """Only the configuration itself has a digest; the other views carry an empty one."""
        return None if call.params.get("pending") or call.params.get("running") else self.file(call).digest()

    def row(self, call: Call, name: str, section: Section) -> Section:
        return {self.key: name, **section, "digest": self.digest(call)}


class _Zones(_Objects):
    path, word, objects = "/cluster/sdn/zones", "zone", "zones"

    def check(self, call: Call, name: str, section: Section, before: Section | None) -> None:
        sdn = sdn_of(call.world)
        has_subnets = any(subnet.startswith(f"{name}-") for subnet in sdn.files["subnets"].sections)
        if before is not None and section.get("ipam") != before.get("ipam") and has_subnets:
            raise bad_parameters({"ipam": "can't change ipam if a subnet is already defined in this zone"})
        sdn.check_zone(section)

    def check_unused(self, call: Call, name: str) -> None:
        sdn_of(call.world).check_zone_unused(name)


class _Controllers(_Objects):
    path, word, objects = "/cluster/sdn/controllers", "controller", "controllers"

    def check_unused(self, call: Call, name: str) -> None:
        for zone, section in sdn_of(call.world).files["zones"].sections.items():
            if section.get("controller") == name:
                raise failure(f"controller {name} is used by {zone}")


def require_vnet(call: Call, *privileges: str) -> None:
    """The zone of a vnet is part of its permission path, so the vnet must exist."""
    vnet = call.values["vnet"]
    zone = sdn_of(call.world).require_object("vnets", vnet)["zone"]
    call.require(f"/sdn/zones/{zone}/{vnet}", *privileges, any_of=True)


class _InZone(_Objects):
    """Objects under a vnet's permission path."""

    def update(self, call: Call) -> None:
        require_vnet(call, "SDN.Allocate")
        super().update(call)

    def delete(self, call: Call) -> None:
        require_vnet(call, "SDN.Allocate")
        super().delete(call)


class _Vnets(_InZone):
    path, word, objects = "/cluster/sdn/vnets", "vnet", "vnets"
    kind, locks_early = "vnet", True

    def visible(self, call: Call, name: str, section: Section) -> bool:
        zone = section.get("zone", section.get("pending", {}).get("zone"))
        return call.allowed(f"/sdn/zones/{zone}/{name}", *self.readers)

    def read(self, call: Call) -> Any:
        name = self.name(call)
        existing(self.all(call).get(name), f"sdn vnet '{name}' does not exist")
        require_vnet(call, *self.readers)
        return super().read(call)

    def check(self, call: Call, name: str, section: Section, before: Section | None) -> None:
        sdn = sdn_of(call.world)
        if before is not None and section["zone"] != before["zone"] and sdn.subnets_of(name):
            raise bad_parameters({"zone": "can't change zone if subnets exist"})
        sdn.check_vnet(name, section)

    def check_unused(self, call: Call, name: str) -> None:
        if sdn_of(call.world).subnets_of(name):
            raise bad_parameters({"vnet": "Can't delete vnet if subnets exists"})


class _Subnets(_InZone):
    path, word, objects = "/cluster/sdn/vnets/{vnet}/subnets", "subnet", "subnets"
    kind, locks_early = "subnet", True
    missing = texts(read="sdn subnet '{name}' does not exist", update="sdn subnet '{name}' does not exist")

    def name(self, call: Call) -> str:
        network = super().name(call)
        if "/" not in network:
            return network
        zone = sdn_of(call.world).require_object("vnets", call.values["vnet"])["zone"]
        return f"{zone}-{network.replace('/', '-')}"

    def list(self, call: Call) -> Any:
        require_vnet(call, *self.readers)
        return super().list(call)

    def read(self, call: Call) -> Any:
        require_vnet(call, *self.readers)
        row = super().read(call)
        if row["vnet"] != call.values["vnet"]:
            raise bad_parameters({"vnet": "wrong vnet"})
        return row

    def create(self, call: Call) -> None:
        _check_network(call.params["subnet"])
        require_vnet(call, "SDN.Allocate")
        super().create(call)

    def visible(self, call: Call, _name: str, section: Section) -> bool:
        return section.get("vnet") == call.values["vnet"]

    def row(self, call: Call, name: str, subnet: Section) -> Section:
        """A subnet with the fields that its id implies."""
        zone, network, mask = name.split("-")
        return {
            "subnet": name,
            "id": name,
            **subnet,
            "zone": zone,
            "network": network,
            "mask": mask,
            "cidr": f"{network}/{mask}",
            "dhcp-range": dhcp_ranges(subnet),
            "digest": self.digest(call),
        }

    def check(self, call: Call, name: str, section: Section, _before: Section | None) -> None:
        sdn_of(call.world).check_subnet(name, section)


for _kind in (_Zones, _Controllers, _Vnets, _Subnets):
    _kind()


def _check_network(text: str) -> None:
    """The format of the parameter: a network, or an id that contains one."""
    network = text
    if "/" not in text:
        parts = text.split("-")
        network = "/".join(parts[1:]) if len(parts) == 3 else ""
    try:
        ipaddress.ip_network(network, strict=False)
    except ValueError as error:
        problem = "invalid format - value does not look like a valid CIDR network\n"
        raise bad_parameters({"subnet": problem}) from error
    if "/" not in network:
        raise bad_parameters({"subnet": "invalid format - value does not look like a valid CIDR network\n"})


_RELOAD_SECONDS = 2.0


@route("PUT /cluster/sdn")
def apply(call: Call) -> str:
    """Apply the configuration; then every node reloads its network in its own task."""
    sdn, world = sdn_of(call.world), call.world
    sdn.check_lock(call.params.get("lock-token"))
    sdn.apply()
    _release(call)

    async def work(context: TaskContext) -> None:
        for node in list(world.nodes.values()):
            if not node.online:
                context.log(f"{node.name}: no route to host")
                continue
            context.log(f"{node.name}: reloading network config")
            world.tasks.start(node.name, "srvreload", "networking", ROOT, _reload(world, node.name))
        await context.sleep(_RELOAD_SECONDS)

    return call.start_local_task("reloadnetworkall", "", work)


def _reload(world: World, node: str) -> Work:
    """Reload the network of one node, including its own pending changes."""

    async def work(context: TaskContext) -> None:
        await context.sleep(_RELOAD_SECONDS / 2)
        world.part(Networks).of(node).apply()

    return work


@route("POST /cluster/sdn/rollback")
def roll_back(call: Call) -> None:
    sdn = sdn_of(call.world)
    sdn.check_lock(call.params.get("lock-token"))
    sdn.roll_back()
    _release(call)


def _release(call: Call) -> None:
    if "lock-token" in call.params and call.params.get("release-lock", True):
        sdn_of(call.world).unlock()


@route("POST /cluster/sdn/lock")
def lock(call: Call) -> str:
    return sdn_of(call.world).lock(allow_pending=call.params.get("allow-pending", False))


@route("DELETE /cluster/sdn/lock")
def unlock(call: Call) -> None:
    sdn = sdn_of(call.world)
    if not call.params.get("force"):
        sdn.check_lock(call.params.get("lock-token"))
    sdn.unlock()


@route("GET /cluster/sdn/dry-run")
def dry_run(call: Call) -> dict[str, Any]:
    call.world.node(call.params["node"])
    return {"frr-diff": None, "interfaces-diff": None}


@route("GET /nodes/{node}/sdn/zones")
def zones_of_node(call: Call) -> list[dict[str, Any]]:
    return [
        {"zone": name, "status": "available"}
        for name, zone in sorted(sdn_of(call.world).running("zones").items())
        if _on_node(zone, call.node) and call.allowed(f"/sdn/zones/{name}", "SDN.Audit")
    ]


@route("GET /nodes/{node}/sdn/zones/{zone}/content")
def zone_content(call: Call) -> list[dict[str, Any]]:
    zone = call.values["zone"]
    return [
        {"vnet": name, "status": "available", "statusmsg": ""}
        for name, vnet in sorted(sdn_of(call.world).running("vnets").items())
        if vnet["zone"] == zone and call.allowed(f"/sdn/zones/{zone}/{name}", "SDN.Audit")
    ]


@route("GET /nodes/{node}/sdn/zones/{zone}/bridges")
def zone_bridges(call: Call) -> list[dict[str, Any]]:
    """The bridges of a zone with the ports of running guests; `localnetwork` is the zone of the plain ones."""
    zone = call.values["zone"]
    names = list(call.world.nodes[call.node].bridges)
    if zone != "localnetwork":
        vnets = sdn_of(call.world).running("vnets")
        names = sorted(name for name, vnet in vnets.items() if vnet["zone"] == zone)
    return [{"name": name, "vlan_filtering": "0", "ports": _ports(call, name)} for name in names]


def _ports(call: Call, bridge: str) -> list[dict[str, Any]]:
    ports = []
    for guest in call.world.guests_on(call.node):
        for index in range(32):
            net = str(guest.config.get(f"net{index}", ""))
            if guest.running and f"bridge={bridge}" in net.split(","):
                prefix = "tap" if guest.kind == "qemu" else "veth"
                row = {"name": f"{prefix}{guest.vmid}i{index}", "vmid": guest.vmid, "index": f"net{index}"}
                ports.append(row)
    return ports


def _on_node(zone: dict[str, Any], node: str) -> bool:
    return "nodes" not in zone or node in str(zone["nodes"]).split(",")


_ADDRESSES = "/cluster/sdn/vnets/{vnet}/ips"


class _Plain(SdnSections):
    """IPAMs and DNS servers: changes take effect at once."""

    def __init__(self, word: str, path: str) -> None:
        self.word, self.path = word, path
        super().__init__()

    def file(self, call: Call) -> SectionFile:
        return sdn_of(call.world).ipams if self.word == "ipam" else sdn_of(call.world).dns

    def all(self, call: Call) -> dict[str, Section]:
        """The configured ones, and PVE's built-in IPAM."""
        builtin: dict[str, Section] = {"pve": {"type": "pve"}} if self.word == "ipam" else {}
        return dict(sorted((builtin | self.file(call).sections).items()))

    def check_unused(self, call: Call, name: str) -> None:
        for zone, section in sdn_of(call.world).files["zones"].sections.items():
            if name in (section.get(self.word), section.get(f"reverse{self.word}")):
                raise failure(f"{self.word} {name} is used by {zone}")


_Plain("ipam", "/cluster/sdn/ipams")
_Plain("dns", "/cluster/sdn/dns")


@route("GET /cluster/sdn/ipams/{ipam}/status")
def addresses(call: Call) -> list[dict[str, Any]]:
    """The addresses in PVE's IPAM: gateways of subnets, and manual entries."""
    if call.values["ipam"] != "pve":
        raise bad_parameters({"ipam": "only the PVE IPAM plugin supports this"})
    sdn = sdn_of(call.world)
    rows = []
    for name, subnet in sorted(sdn.files["subnets"].sections.items()):
        zone = name.split("-")[0]
        seen = call.allowed(f"/sdn/zones/{zone}/{subnet['vnet']}", "SDN.Audit", "SDN.Allocate")
        if seen and "gateway" in subnet:
            row = {"zone": zone, "vnet": subnet["vnet"], "subnet": str(network_of(name)), "gateway": 1}
            rows.append({**row, "ip": subnet["gateway"]})
        if seen:
            entered = sdn.addresses.get(str(subnet["vnet"]), {})
            row = {"zone": zone, "vnet": subnet["vnet"], "subnet": str(network_of(name))}
            rows += [{**row, "ip": ip, **about} for ip, about in entered.items() if _is_in(ip, name)]
    return rows


def _is_in(ip: str, subnet: str) -> bool:
    return ipaddress.ip_address(ip) in network_of(subnet)


@route(f"POST {_ADDRESSES}", f"PUT {_ADDRESSES}", f"DELETE {_ADDRESSES}")
def change_address(call: Call) -> None:
    """Add an address, move it to another MAC address, or remove it."""
    vnet, zone, ip = call.values["vnet"], call.params["zone"], call.params["ip"]
    sdn = sdn_of(call.world)
    sdn.require_object("vnets", vnet)
    if not any(section["vnet"] == vnet and _is_in(ip, name) for name, section in sdn.files["subnets"].sections.items()):
        raise failure(f"No subnet in zone {zone} contains IP {ip}")
    entered = sdn.addresses.setdefault(vnet, {})
    if call.endpoint.method == "DELETE":
        entered.pop(ip, None)
        return
    if call.endpoint.method == "POST" and ip in entered:
        raise failure(f"ip {ip} already exist in zone {zone}")
    entered[ip] = {key: call.params[key] for key in ("mac", "vmid") if key in call.params}


_NODE_FABRIC = "/nodes/{node}/sdn/fabrics/{fabric}"
_NO_NODE = "node '{name}' does not exist in fabric '{fabric_id}'"
_NO_FABRIC = "fabric '{name}' does not exist in configuration"


def _nodes_of(call: Call, fabric: str) -> SectionFile:
    return existing(sdn_of(call.world).fabric_nodes.get(fabric), _NO_FABRIC.format(name=fabric))


class _Fabrics(SdnSections):
    path, key, kind_key = "/cluster/sdn/fabrics/fabric", "id", "protocol"
    no_options = (*SdnSections.no_options, "redistribute")
    acl, failing, locks_early = "/sdn/fabrics/{name}", "{verb} sdn fabric failed", True
    duplicate, missing = "fabric '{name}' already exists", always(_NO_FABRIC)

    def file(self, call: Call) -> SectionFile:
        return sdn_of(call.world).fabrics

    def options(self, call: Call) -> Section:
        return options_of(super().options(call), "protocol")

    def row(self, call: Call, name: str, section: Section) -> Section:
        return {"protocol": section["type"], **options_of(super().row(call, name, section), "type")}

    def check_unused(self, call: Call, name: str) -> None:
        if _nodes_of(call, name).sections:
            raise failure(f"fabric '{name}' still has nodes")
        del sdn_of(call.world).fabric_nodes[name]

    def keep(self, call: Call, name: str, section: Section) -> None:
        super().keep(call, name, section)
        sdn_of(call.world).fabric_nodes.setdefault(name, SectionFile(FABRIC_NODE_TYPES))


class _Nodes(SdnSections):
    path, key, kind_key = "/cluster/sdn/fabrics/node/{fabric_id}", "node_id", "protocol"
    no_options = (*SdnSections.no_options, "fabric_id")
    failing, locks_early = "{verb} sdn fabric node failed", True

    duplicate, missing = "node '{name}' already exists in fabric '{fabric_id}'", always(_NO_NODE)

    def file(self, call: Call) -> SectionFile:
        return _nodes_of(call, call.values["fabric_id"])

    def options(self, call: Call) -> Section:
        return options_of(super().options(call), "protocol")

    def visible(self, call: Call, _name: str, _section: Section) -> bool:
        return call.allowed(f"/sdn/fabrics/{call.values['fabric_id']}", *self.readers)

    def row(self, call: Call, name: str, section: Section) -> Section:
        about = {"fabric_id": call.values["fabric_id"], "protocol": section["type"]}
        return about | options_of(super().row(call, name, section), "type")

    def check(self, call: Call, _name: str, _section: Section, _before: Section | None) -> None:
        fabric = sdn_of(call.world).fabrics.sections[call.values["fabric_id"]]
        for key, prefix in (("ip", "ip_prefix"), ("ip6", "ip6_prefix")):
            address, network = call.params.get(key), fabric.get(prefix)
            if address and network and ipaddress.ip_address(address) not in ipaddress.ip_network(network, strict=False):
                raise failure(f"IP {address} is not contained in the prefix {network} of the fabric")


_FABRICS, _NODES = _Fabrics(), _Nodes()


@route("GET /cluster/sdn/fabrics/node")
def list_nodes(call: Call) -> list[Section]:
    fabrics = sdn_of(call.world).fabric_nodes
    return [row for name in fabrics for row in _NODES.list(replace(call, values={"fabric_id": name}))]


@route("GET /cluster/sdn/fabrics/all")
def all_fabrics(call: Call) -> dict[str, Any]:
    """Without fabrics PVE still lists the digests of its two empty files."""
    fabrics = _FABRICS.list(call) or [{"digest": EMPTY_DIGEST}, {"digest": EMPTY_DIGEST}]
    return {"fabrics": fabrics, "nodes": list_nodes(call)}


@route(f"GET {_NODE_FABRIC}/interfaces")
def fabric_interfaces(call: Call) -> list[dict[str, str]]:
    own = _own(call).get("interfaces", [])
    kind = "point-to-point"
    return [{"name": str(each).split(",")[0].removeprefix("name="), "type": kind, "state": "up"} for each in own]


@route(f"GET {_NODE_FABRIC}/neighbors")
def fabric_neighbors(call: Call) -> list[dict[str, str]]:
    others = _others(call)
    return [{"neighbor": node, "status": "Up", "uptime": "1h"} for node in others]


@route(f"GET {_NODE_FABRIC}/routes")
def fabric_routes(call: Call) -> list[dict[str, Any]]:
    return [{"route": f"{each['ip']}/32", "via": [each["ip"]]} for each in _others(call).values() if "ip" in each]


@route("GET /nodes/{node}/sdn/zones/{zone}/ip-vrf", "GET /nodes/{node}/sdn/vnets/{vnet}/mac-vrf")
def no_learned_routes(call: Call) -> list[Any]:
    """Routes come from BGP neighbors, which are not simulated."""
    sdn = sdn_of(call.world)
    if "vnet" in call.values:
        sdn.require_object("vnets", call.values["vnet"])
    else:
        sdn.require_object("zones", call.values["zone"])
    return []


def _own(call: Call) -> Section:
    return _nodes_of(call, call.values["fabric"]).sections.get(call.node, {})


def _others(call: Call) -> dict[str, Section]:
    if not _own(call):
        return {}
    nodes = sdn_of(call.world).fabric_nodes[call.values["fabric"]].sections
    return {node: section for node, section in nodes.items() if node != call.node}
