"""The cluster and its nodes at a glance."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Annotated, Any

from msgspec import Meta

from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.units import duration, load_of, percent, size, used_of
from quorate.pve.cluster import Cluster
from quorate.state.freeze import Freeze
from quorate.state.store import StateUnavailable


@operation(
    risk=Risk.READ,
    search_words="daily report overview summary quorum healthy up online offline everything lab homelab version",
)
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
        **await _freeze_note(pve.attachment(Freeze)),
        "cluster": cluster["name"] if cluster else "single node, no cluster",
        "quorate": bool(cluster["quorate"]) if cluster else True,
        "nodes": f"{len(online)} of {len(nodes)} online",
        **({"offline": offline} if offline else {}),
        "guests": dict(sorted(Counter(f"{guest.kind} {_state(guest)}" for guest in guests).items())),
        "cpu": _load_of_cores(sum(node.cpu * node.maxcpu for node in online) / cores, cores) if cores else "",
        "memory": used_of(sum(node.mem for node in online), sum(node.maxmem for node in online)),
    }


async def _freeze_note(freeze: Freeze) -> dict[str, str]:
    """The status of a cluster can be read even if the state store does not answer."""
    try:
        frozen = await freeze.state() if freeze.may_hold else None
    except StateUnavailable:
        return {"changes": "none are made: the state cannot be read, so it is not known whether they are frozen"}
    return {"changes": f"frozen {frozen}"} if frozen else {}


def _load_of_cores(share: float, cores: float) -> str:
    return load_of(share, cores, text=f"{percent(share)} of {cores:.0f} cores")


def _state(guest: Any) -> str:
    return "template" if guest.template else str(guest.status)


COLUMNS = ("node", "status", "cpu", "cores", "mem", "disk", "uptime", "guests")


@operation(
    risk=Risk.READ,
    search_words="nodes hosts busy online offline load most free memory overview",
)
async def node_list(
    pve: Cluster,
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Nodes with state, load and running guests."""
    rows = await pve.inventory.rows()
    running: dict[str, int] = {}
    for row in rows:
        if row.is_guest and row.status == "running":
            running[row.node] = running.get(row.node, 0) + 1
    nodes = sorted((row for row in rows if row.type == "node"), key=lambda row: row.node)
    return page(COLUMNS, ([*_load(node), running.get(node.node, 0)] for node in nodes), limit=limit, offset=offset)


def _load(node: Any) -> list[Any]:
    if not node.maxmem:  # offline, or the token lacks Sys.Audit there
        return [node.node, node.status, "", "", "", "", ""]
    return [
        node.node,
        node.status,
        percent(node.cpu),
        int(node.maxcpu),
        used_of(node.mem, node.maxmem),
        used_of(node.disk, node.maxdisk),
        duration(node.uptime),
    ]


@operation(
    risk=Risk.READ,
    search_words="list everything node one node host details version proxmox kernel hardware cpu memory uptime",
    example="node=pve1",
)
async def node_get(pve: Cluster, node: str) -> dict[str, Any]:
    """One node: hardware, versions, load, memory, storages, guests."""
    row = await pve.inventory.node(node)
    if row.status != "online":
        return {
            "node": node,
            "status": row.status,
            "next": "It does not answer, and the other nodes have no details about it.",
        }
    status, rows = await asyncio.gather(pve.get(f"/nodes/{node}/status"), pve.inventory.rows())
    here = [other for other in rows if other.node == node]
    guests = [guest for guest in here if guest.is_guest]
    cpu, memory, root = status.get("cpuinfo", {}), status.get("memory", {}), status.get("rootfs", {})
    swap = status.get("swap", {})
    return {
        "node": node,
        "status": row.status,
        "pve": status.get("pveversion", ""),
        "kernel": status.get("current-kernel", {}).get("release") or status.get("kversion", ""),
        "uptime": duration(status.get("uptime", 0)),
        "cpu": load_of(
            status.get("cpu", 0),
            cpu.get("cpus", 0),
            text=f"{percent(status.get('cpu', 0))} of {cpu.get('cpus', '?')} x {cpu.get('model', 'unknown')}",
        ),
        "load": " ".join(str(value) for value in status.get("loadavg", [])),
        "iowait": percent(status.get("wait", 0)),
        "memory": used_of(memory.get("used", 0), memory.get("total", 0)),
        "swap": used_of(swap.get("used", 0), swap.get("total", 0)),
        "root_fs": used_of(root.get("used", 0), root.get("total", 0)),
        "boot": status.get("boot-info", {}).get("mode", ""),
        "guests": {
            "running": sum(guest.status == "running" for guest in guests),
            "all": len(guests),
            "memory_given": size(sum(guest.maxmem for guest in guests if guest.status == "running")),
        },
        "storages": {
            one.storage: used_of(one.disk, one.maxdisk) or one.status for one in here if one.type == "storage"
        },
    }
