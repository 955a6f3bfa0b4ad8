"""The cluster as a whole."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from quorate.operations.registry import Risk, operation
from quorate.operations.units import percent, used_of
from quorate.pve.cluster import Cluster


@operation(risk=Risk.READ)
async def cluster_status(pve: Cluster) -> dict[str, Any]:
    """Health at a glance: quorum, nodes, guests by state, load."""
    members, rows = await asyncio.gather(pve.get("/cluster/status"), pve.inventory.rows())
    cluster = next((member for member in members if member["type"] == "cluster"), None)
    nodes = [row for row in rows if row.type == "node"]
    guests = [row for row in rows if row.is_guest]
    online = [node for node in nodes if node.status == "online"]
    offline = sorted(node.node for node in nodes if node.status != "online")
    cores = sum(node.maxcpu for node in online)
    return {
        "cluster": cluster["name"] if cluster else "single node, no cluster",
        "quorate": bool(cluster["quorate"]) if cluster else True,
        "nodes": f"{len(online)} of {len(nodes)} online",
        **({"offline": offline} if offline else {}),
        "guests": dict(sorted(Counter(f"{guest.kind} {_state(guest)}" for guest in guests).items())),
        "cpu": f"{percent(sum(node.cpu * node.maxcpu for node in online) / cores)} of {cores:.0f} cores"
        if cores
        else "",
        "memory": used_of(sum(node.mem for node in online), sum(node.maxmem for node in online)),
    }


def _state(guest: Any) -> str:
    return "template" if guest.template else str(guest.status)
