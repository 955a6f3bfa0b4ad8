"""Applying the SDN configuration; IPAM and DNS servers."""

from __future__ import annotations

import ipaddress
from typing import Any

from pve_simulator.access.directory import ROOT
from pve_simulator.cluster.config_files import Section, SectionFile
from pve_simulator.cluster.sdn import network_of
from pve_simulator.cluster.sdn_routes import SdnSections, sdn_of
from pve_simulator.http.refusals import bad_parameters, failure
from pve_simulator.http.routing import Call, route
from pve_simulator.nodes.network_routes import Networks
from pve_simulator.nodes.tasks import TaskContext, Work
from pve_simulator.world import World

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
