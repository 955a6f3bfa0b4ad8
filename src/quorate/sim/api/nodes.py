"""Nodes: the list, status and version."""

from __future__ import annotations

from typing import Any

from quorate.sim import status
from quorate.sim.resources import rows_of
from quorate.sim.routing import Call, route


@route("GET /nodes")
def list_nodes(call: Call) -> list[dict[str, Any]]:
    rows = []
    for node in call.world.nodes.values():
        row = rows_of(call.world).node(node, numbers=call.allowed(f"/nodes/{node.name}", "Sys.Audit"))
        row.pop("cgroup-mode", None)
        rows.append(row | {"ssl_fingerprint": node.fingerprint})
    return rows


@route("GET /nodes/{node}/status")
def node_status(call: Call) -> dict[str, Any]:
    return status.node_status(call.world, call.world.nodes[call.node])


@route("GET /version", "GET /nodes/{node}/version")
def version(call: Call) -> dict[str, Any]:
    world = call.world
    return {"version": world.version, "release": world.release, "repoid": status.repoid(world.version)}
