"""The load of nodes, guests and storages over time, as points and as pictures."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from pve_simulator.guests.guest import Guest
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import existing, failure
from pve_simulator.http.routing import GUEST, Call, route
from pve_simulator.nodes import rrd
from pve_simulator.nodes.status_daemon import StatusDaemon
from pve_simulator.world import Node


def _node(call: Call) -> Node:
    """The node of an RRD file; every node has all files, so it may be down."""
    name = call.local_node.name if call.node == "localhost" else call.node
    return existing(call.world.nodes.get(name), rrd.missing_file(f"{_prefix(call, 'node')}/{name}"))


def _guest(call: Call) -> Guest:
    """The guest, once pvestatd has written its first data."""
    guest = call.world.guests.get(call.vmid)
    if guest is None or call.vmid not in call.world.part(StatusDaemon).guests:
        raise failure(rrd.missing_file(f"{_prefix(call, 'vm')}/{call.vmid}"))
    return guest


def _prefix(call: Call, what: str) -> str:
    return f"pve-{what}-9.0" if call.world.version_at_least(9, 0) else f"pve2-{what}"


@route("GET /nodes/{node}/rrddata")
def node_data(call: Call) -> list[dict[str, Any]]:
    return rrd.node_points(call.world, _node(call), call.params["timeframe"], call.params.get("cf"))


@route(f"GET {GUEST}/rrddata")
def guest_data(call: Call) -> list[dict[str, Any]]:
    return rrd.guest_points(call.world, _guest(call), call.params["timeframe"], call.params.get("cf"))


@route("GET /nodes/{node}/rrd")
def node_picture(call: Call) -> dict[str, str]:
    return _picture(call, f"{_prefix(call, 'node')}/{_node(call).name}", rrd.NODE_FIELDS)


@route(f"GET {GUEST}/rrd")
def guest_picture(call: Call) -> dict[str, str]:
    _guest(call)
    return _picture(call, f"{_prefix(call, 'vm')}/{call.vmid}", rrd.GUEST_FIELDS)


@route("GET /nodes/{node}/storage/{storage}/rrddata")
def storage_series(call: Call) -> list[dict[str, Any]]:
    storage = call.world.storages.get(call.values["storage"])
    if storage is None or not storage.on_node(call.node):
        raise failure(rrd.missing_file(f"{_prefix(call, 'storage')}/{call.node}/{call.values['storage']}"))
    return rrd.storage_points(call.world, call.node, storage, call.params["timeframe"], call.params.get("cf"))


@route("GET /nodes/{node}/storage/{storage}/rrd")
def storage_picture(call: Call) -> dict[str, str]:
    return _picture(call, f"pve2-storage/{call.node}/{call.values['storage']}", ("total", "used"))


def _picture(call: Call, path: str, known: Container[str]) -> dict[str, str]:
    """The path of the rendered graph in PVE."""
    file = f"/var/lib/rrdcached/db/{path}"
    sources = split_list(call.params["ds"])
    for source in sources:
        if source not in known:
            raise failure(f"RRD error: No DS called '{source}' in '{file}'")
    return {"filename": f"{file}_{'_'.join(sources)}.png"}
