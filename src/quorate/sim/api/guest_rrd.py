"""Round-robin data of nodes and guests, as rows and as (never drawn) pictures."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any

from quorate.sim import rrd
from quorate.sim.guests import Guest
from quorate.sim.refusals import failure
from quorate.sim.routing import Call, route
from quorate.sim.world import Node

_LIST = re.compile(r"[,;\s]+")


def _node(call: Call) -> Node:
    """The node whose file is read; PVE keeps those of all nodes everywhere, so it may be down."""
    name = call.local_node.name if call.node == "localhost" else call.node
    node = call.world.nodes.get(name)
    if node is None:
        raise failure(rrd.missing_file(f"{_prefix(call, 'node')}/{name}"))
    return node


def _guest(call: Call) -> Guest:
    guest = call.world.guests.get(call.vmid)
    if guest is None:
        raise failure(rrd.missing_file(f"pve2-vm/{call.vmid}"))
    return guest


def _prefix(call: Call, what: str) -> str:
    return f"pve-{what}-9.0" if call.world.version_at_least(9, 0) else f"pve2-{what}"


@route("GET /nodes/{node}/rrddata")
def node_data(call: Call) -> list[dict[str, Any]]:
    return rrd.node_points(call.world, _node(call), call.params["timeframe"], call.params.get("cf"))


@route("GET /nodes/{node}/qemu/{vmid}/rrddata", "GET /nodes/{node}/lxc/{vmid}/rrddata")
def guest_data(call: Call) -> list[dict[str, Any]]:
    return rrd.guest_points(call.world, _guest(call), call.params["timeframe"], call.params.get("cf"))


@route("GET /nodes/{node}/rrd")
def node_picture(call: Call) -> dict[str, str]:
    return picture(call, f"{_prefix(call, 'node')}/{_node(call).name}", rrd.NODE_FIELDS)


@route("GET /nodes/{node}/qemu/{vmid}/rrd", "GET /nodes/{node}/lxc/{vmid}/rrd")
def guest_picture(call: Call) -> dict[str, str]:
    _guest(call)
    return picture(call, f"{_prefix(call, 'vm')}/{call.vmid}", rrd.GUEST_FIELDS)


def picture(call: Call, path: str, known: Container[str]) -> dict[str, str]:
    """Where PVE would leave the drawing."""
    file = f"/var/lib/rrdcached/db/{path}"
    sources = [source for source in _LIST.split(call.params["ds"]) if source]
    for source in sources:
        if source not in known:
            raise failure(f"RRD error: No DS called '{source}' in '{file}'")
    return {"filename": f"{file}_{'_'.join(sources)}.png"}
