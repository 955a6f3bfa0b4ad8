"""SDN zones."""

from __future__ import annotations

from quorate.sim.api.sdn_common import digest_shown, options, sdn_change, sdn_of, view
from quorate.sim.refusals import bad_parameters, failure
from quorate.sim.routing import Call, route
from quorate.sim.sections import Section


@route("GET /cluster/sdn/zones")
def list_zones(call: Call) -> list[Section]:
    wanted = call.params.get("type")
    return [
        _row(call, name, zone)
        for name, zone in sorted(view(call, "zones").items())
        if wanted in (None, zone.get("type")) and call.allowed(f"/sdn/zones/{name}", "SDN.Audit", "SDN.Allocate")
    ]


@route("GET /cluster/sdn/zones/{zone}")
def one_zone(call: Call) -> Section:
    name = call.values["zone"]
    zone = view(call, "zones").get(name)
    if zone is None:
        raise failure(f"sdn '{name}' does not exist")
    return _row(call, name, zone)


def _row(call: Call, name: str, zone: Section) -> Section:
    return {"zone": name, **zone, "digest": digest_shown(call, "zones")}


@route("POST /cluster/sdn/zones")
def create_zone(call: Call) -> None:
    name = call.params["zone"]
    given = sdn_of(call.world).files["zones"].new_section(call.params["type"], options(call, "zone", "type"))
    with sdn_change(call, "create sdn zone object") as sdn:
        zones = sdn.files["zones"].sections
        if name in zones:
            raise failure(f"sdn zone object ID '{name}' already defined")
        sdn.check_zone(given)
        zones[name] = given


@route("PUT /cluster/sdn/zones/{zone}")
def update_zone(call: Call) -> None:
    name = call.values["zone"]
    with sdn_change(call, "update sdn zone object") as sdn:
        zones = sdn.files["zones"]
        zones.check_digest(call.params.get("digest"))
        changed = dict(sdn.configured("zones", name))
        zones.change(changed, options(call, "zone"), call.params.get("delete"))
        if changed.get("ipam") != zones.sections[name].get("ipam") and _has_subnets(call, name):
            raise bad_parameters({"ipam": "can't change ipam if a subnet is already defined in this zone"})
        sdn.check_zone(changed)
        zones.sections[name] = changed


@route("DELETE /cluster/sdn/zones/{zone}")
def delete_zone(call: Call) -> None:
    name = call.values["zone"]
    with sdn_change(call, "delete sdn zone object") as sdn:
        sdn.configured("zones", name)
        sdn.check_zone_unused(name)
        del sdn.files["zones"].sections[name]


def _has_subnets(call: Call, zone: str) -> bool:
    return any(name.startswith(f"{zone}-") for name in sdn_of(call.world).files["subnets"].sections)
