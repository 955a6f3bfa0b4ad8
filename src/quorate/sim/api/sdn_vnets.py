"""SDN vnets."""

from __future__ import annotations

from quorate.sim.api.sdn_common import digest_shown, options, require_vnet, sdn_change, view, zone_of
from quorate.sim.refusals import bad_parameters, failure
from quorate.sim.routing import Call, route
from quorate.sim.sections import Section


@route("GET /cluster/sdn/vnets")
def list_vnets(call: Call) -> list[Section]:
    return [
        _row(call, name, vnet)
        for name, vnet in sorted(view(call, "vnets").items())
        if call.allowed(f"/sdn/zones/{zone_of(vnet)}/{name}", "SDN.Audit", "SDN.Allocate")
    ]


@route("GET /cluster/sdn/vnets/{vnet}")
def one_vnet(call: Call) -> Section:
    name = call.values["vnet"]
    require_vnet(call, name, "SDN.Audit", "SDN.Allocate")
    vnet = view(call, "vnets").get(name)
    if vnet is None:
        raise failure(f"sdn '{name}' does not exist")
    return _row(call, name, vnet)


def _row(call: Call, name: str, vnet: Section) -> Section:
    return {"vnet": name, **vnet, "digest": digest_shown(call, "vnets")}


@route("POST /cluster/sdn/vnets")
def create_vnet(call: Call) -> None:
    name = call.params["vnet"]
    with sdn_change(call, "create sdn vnet object") as sdn:
        vnets = sdn.files["vnets"]
        given = vnets.new_section("vnet", options(call, "vnet", "type"))
        if name in vnets.sections:
            raise failure(f"sdn vnet object ID '{name}' already defined")
        sdn.check_vnet(name, given)
        vnets.sections[name] = given


@route("PUT /cluster/sdn/vnets/{vnet}")
def update_vnet(call: Call) -> None:
    name = call.values["vnet"]
    require_vnet(call, name, "SDN.Allocate")
    with sdn_change(call, "update sdn vnet object") as sdn:
        vnets = sdn.files["vnets"]
        vnets.check_digest(call.params.get("digest"))
        changed = dict(vnets.sections[name])
        vnets.change(changed, options(call, "vnet"), call.params.get("delete"))
        if changed["zone"] != vnets.sections[name]["zone"] and sdn.subnets_of(name):
            raise bad_parameters({"zone": "can't change zone if subnets exist"})
        sdn.check_vnet(name, changed)
        vnets.sections[name] = changed


@route("DELETE /cluster/sdn/vnets/{vnet}")
def delete_vnet(call: Call) -> None:
    name = call.values["vnet"]
    require_vnet(call, name, "SDN.Allocate")
    with sdn_change(call, "delete sdn vnet object") as sdn:
        if sdn.subnets_of(name):
            raise bad_parameters({"vnet": "Can't delete vnet if subnets exists"})
        del sdn.files["vnets"].sections[name]
