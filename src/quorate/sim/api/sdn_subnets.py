"""Subnets of SDN vnets; their id is `zone-network-mask`."""

from __future__ import annotations

import ipaddress

from quorate.sim.api.sdn_common import digest_shown, options, require_vnet, sdn_change, view
from quorate.sim.refusals import bad_parameters, failure
from quorate.sim.routing import Call, route
from quorate.sim.sdn import dhcp_ranges
from quorate.sim.sections import Section

_LIST = "/cluster/sdn/vnets/{vnet}/subnets"
_ONE = f"{_LIST}/{{subnet}}"


@route(f"GET {_LIST}")
def list_subnets(call: Call) -> list[Section]:
    vnet = call.values["vnet"]
    require_vnet(call, vnet, "SDN.Audit", "SDN.Allocate")
    return [
        _row(call, name, subnet) for name, subnet in sorted(view(call, "subnets").items()) if subnet.get("vnet") == vnet
    ]


@route(f"GET {_ONE}")
def one_subnet(call: Call) -> Section:
    name = call.values["subnet"]
    require_vnet(call, call.values["vnet"], "SDN.Audit", "SDN.Allocate")
    subnet = view(call, "subnets").get(name)
    if subnet is None:
        raise failure(f"sdn subnet '{name}' does not exist")
    if subnet["vnet"] != call.values["vnet"]:
        raise bad_parameters({"vnet": "wrong vnet"})
    return _row(call, name, subnet)


def _row(call: Call, name: str, subnet: Section) -> Section:
    """A subnet with what its id says, in full."""
    zone, network, mask = name.split("-")
    return {
        "subnet": name,
        **subnet,
        "zone": zone,
        "network": network,
        "mask": mask,
        "cidr": f"{network}/{mask}",
        "dhcp-range": dhcp_ranges(subnet),
        "digest": digest_shown(call, "subnets"),
    }


@route(f"POST {_LIST}")
def create_subnet(call: Call) -> None:
    vnet, cidr = call.values["vnet"], call.params["subnet"]
    _check_network(cidr)
    require_vnet(call, vnet, "SDN.Allocate")
    with sdn_change(call, "create sdn subnet object") as sdn:
        subnets = sdn.files["subnets"]
        zone = sdn.configured("vnets", vnet)["zone"]
        name = cidr if "/" not in cidr else f"{zone}-{cidr.replace('/', '-')}"
        given = subnets.new_section("subnet", options(call, "subnet", "type"))
        if name in subnets.sections:
            raise failure(f"sdn subnet object ID '{name}' already defined")
        sdn.check_subnet(name, given)
        subnets.sections[name] = given


@route(f"PUT {_ONE}")
def update_subnet(call: Call) -> None:
    name = call.values["subnet"]
    require_vnet(call, call.values["vnet"], "SDN.Allocate")
    with sdn_change(call, "update sdn subnet object") as sdn:
        subnets = sdn.files["subnets"]
        if name not in subnets.sections:
            raise failure(f"sdn subnet '{name}' does not exist")
        subnets.check_digest(call.params.get("digest"))
        changed = dict(subnets.sections[name])
        subnets.change(changed, options(call, "subnet"), call.params.get("delete"))
        sdn.check_subnet(name, changed)
        subnets.sections[name] = changed


@route(f"DELETE {_ONE}")
def delete_subnet(call: Call) -> None:
    require_vnet(call, call.values["vnet"], "SDN.Allocate")
    with sdn_change(call, "delete sdn subnet object") as sdn:
        sdn.files["subnets"].sections.pop(call.values["subnet"], None)


def _check_network(text: str) -> None:
    """The named format of the parameter: a network, or an id with one in it."""
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
