"""Cluster-wide queries: resources, status, the next free id."""

from __future__ import annotations

from typing import Any

from pve_simulator.cluster.option_routes import Datacenter
from pve_simulator.cluster.resources import rows_of
from pve_simulator.http.refusals import bad_parameters, failure
from pve_simulator.http.routing import Call, route
from pve_simulator.nodes.status_daemon import StatusDaemon
from pve_simulator.world import Node


@route("GET /cluster/resources")
def resources(call: Call) -> list[Any]:
    wanted = call.params.get("type")
    sources = (("", _pool_rows), ("vm", _guest_rows), ("node", _node_rows), ("storage", _storage_rows))
    return [row for kind, rows in (*sources, ("sdn", _network_rows)) if wanted in (None, kind) for row in rows(call)]


def _node_rows(call: Call) -> list[dict[str, Any]]:
    return [
        rows_of(call.world).node(node, numbers=call.allowed(f"/nodes/{node.name}", "Sys.Audit"))
        for node in call.world.nodes.values()
    ]


def _pool_rows(call: Call) -> list[dict[str, Any]]:
    return [
        {"id": f"/pool/{pool}", "type": "pool", "pool": pool}
        for pool in call.world.access.pools
        if call.allowed(f"/pool/{pool}", "Pool.Audit")
    ]


def _guest_rows(call: Call) -> list[Any]:
    world, rows = call.world, rows_of(call.world)
    guests = world.guests.values()
    if call.is_root or world.access.allowed_everywhere(call.authid, "/vms", "VM.Audit"):
        return list(rows.guests(guests))
    return list(rows.guests(guest for guest in guests if call.allowed(f"/vms/{guest.vmid}", "VM.Audit")))


def _storage_rows(call: Call) -> list[dict[str, Any]]:
    return [
        rows_of(call.world).storage(storage, node)
        for storage in call.world.storages.values()
        if not storage.disabled and call.allowed(f"/storage/{storage.id}", "Datastore.Audit")
        for node in call.world.nodes.values()
        if storage.on_node(node.name)
    ]


def _network_rows(call: Call) -> list[dict[str, Any]]:
    """The zone of the plain bridges and those of SDN; their type is network since PVE 9, sdn before."""
    zones = ["localnetwork", *sorted(call.world.part(StatusDaemon).zones)]
    seen = [zone for zone in zones if call.allowed(f"/sdn/zones/{zone}", "SDN.Audit")]
    return [_zone_row(call, node, zone) for node in call.world.nodes.values() for zone in seen]


def _zone_row(call: Call, node: Node, zone: str) -> dict[str, Any]:
    row = {"node": node.name, "status": "ok" if node.online else "unknown"}
    if not call.world.version_at_least(9, 0):
        return {"id": f"sdn/{node.name}/{zone}", "type": "sdn", "sdn": zone, **row}
    kind = {"type": "network", "network": zone, "network-type": "zone"}
    return {"id": f"network/{node.name}/zone/{zone}", **kind, **row}


@route("GET /cluster/status")
def cluster_status(call: Call) -> list[dict[str, Any]]:
    nodes = list(call.world.nodes.values())
    standalone = call.world.standalone
    rows: list[dict[str, Any]] = [
        {
            "type": "node",
            "id": f"node/{node.name}",
            "name": node.name,
            "nodeid": 0 if standalone else node.number,
            "ip": node.ip,
            "online": int(node.online),
            "local": int(node is call.local_node),
            "level": "",
        }
        for node in nodes
    ]
    if standalone:
        return rows
    cluster = {
        "type": "cluster",
        "id": "cluster",
        "name": call.world.name,
        "nodes": len(nodes),
        "version": len(nodes),
        "quorate": int(call.world.quorate),
    }
    return [cluster, *rows]


@route("GET /cluster/nextid")
def next_id(call: Call) -> str:
    wanted = call.params.get("vmid")
    if wanted is None:
        return str(_free_vmid(call))
    if wanted in call.world.guests:
        raise bad_parameters({"vmid": f"VM {wanted} already exists"})
    return str(wanted)


def _free_vmid(call: Call) -> int:
    """The lowest free vmid in the range of the datacenter options."""
    lower, upper = call.world.part(Datacenter).vmid_range()
    for vmid in range(lower, upper):
        if vmid not in call.world.guests:
            return vmid
    raise failure(f"unable to get any free VMID in range [{lower}, {upper}]")
