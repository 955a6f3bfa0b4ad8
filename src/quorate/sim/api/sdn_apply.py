"""The SDN configuration as a whole: apply, roll back, lock, and the view of one node."""

from __future__ import annotations

from typing import Any

from quorate.sim.access import ROOT
from quorate.sim.api.sdn_common import sdn_of
from quorate.sim.networks import Networks
from quorate.sim.refusals import failure
from quorate.sim.routing import Call, route
from quorate.sim.tasks import TaskContext, Work
from quorate.sim.world import World

_RELOAD_SECONDS = 2.0


@route("PUT /cluster/sdn")
def apply(call: Call) -> str:
    """What is configured runs at once; then every node reloads its network, in a task of its own."""
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

    return world.tasks.start(call.local_node.name, "reloadnetworkall", "", call.authid, work)


def _reload(world: World, node: str) -> Work:
    """What applying the network of one node does, its own pending changes included."""

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
    name = call.params["node"]
    if name not in call.world.nodes:
        raise failure(
            f"hostname lookup '{name}' failed - failed to get address info for: {name}: Name or service not known"
        )
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
