"""SDN fabrics: routed networks between nodes, the nodes in them, and what a node sees of them."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from typing import Any

from pve_simulator.cluster.config_files import EMPTY_DIGEST, Section, SectionFile, options_of
from pve_simulator.cluster.sdn import FABRIC_NODE_TYPES
from pve_simulator.cluster.sdn_routes import SdnSections, sdn_of
from pve_simulator.cluster.sections import always
from pve_simulator.http.refusals import existing, failure
from pve_simulator.http.routing import Call, route

_NODE_FABRIC = "/nodes/{node}/sdn/fabrics/{fabric}"
_NO_NODE = "node '{name}' does not exist in fabric '{fabric_id}'"
_NO_FABRIC = "fabric '{name}' does not exist in configuration"


def _nodes_of(call: Call, fabric: str) -> SectionFile:
    return existing(sdn_of(call.world).fabric_nodes.get(fabric), _NO_FABRIC.format(name=fabric))


class _Fabrics(SdnSections):
    path, key, kind_key = "/cluster/sdn/fabrics/fabric", "id", "protocol"
    no_options = (*SdnSections.no_options, "redistribute")
    acl, failing, locks_early = "/sdn/fabrics/{name}", "{verb} sdn fabric failed", True
    taken, missing = "fabric '{name}' already exists", always(_NO_FABRIC)

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

    taken, missing = "node '{name}' already exists in fabric '{fabric_id}'", always(_NO_NODE)

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
