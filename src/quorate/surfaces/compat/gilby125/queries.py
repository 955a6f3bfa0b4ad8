"""The cluster, nodes, guests, storages, and their content."""

from __future__ import annotations

import asyncio
from typing import Any

from quorate.problems import NotFound, PermissionMissing
from quorate.surfaces.compat.declaration import ELEVATED_VARIABLE, Recipe
from quorate.surfaces.compat.execution import ToolCall
from quorate.surfaces.compat.gilby125.markdown import (
    BOTH,
    Kind,
    amount,
    bold,
    card,
    catalogue,
    entry,
    light,
    share,
    uptime,
    usage,
)
from quorate.surfaces.compat.recipes import guest_on_node
from quorate.units import moment

ICONS = {"qemu": "🖥️", "lxc": "📦"}
LABELS = {"qemu": "QEMU", "lxc": "LXC"}


# -- cluster and nodes -------------------------------------------------------------------------------------------------


async def nodes(call: ToolCall) -> str:
    return catalogue("🖥️", "Proxmox Cluster Nodes", [_node(row) for row in await _nodes(call)])


async def _nodes(call: ToolCall, name: str | None = None) -> list[dict[str, Any]]:
    """All nodes by name, or the requested one; one that does not exist is an error, not an empty answer."""
    rows = sorted(await call.get("/nodes"), key=lambda row: str(row["node"]))
    nodes = [row for row in rows if name in (None, row["node"])]
    if not nodes:
        raise NotFound(
            f"There is no node {name!r}", next_step=f"The nodes are {', '.join(str(row['node']) for row in rows)}"
        )
    return nodes


def _node(row: dict[str, Any]) -> str:
    facts = {
        "Status": row["status"],
        "Uptime": uptime(row.get("uptime", 0)),
        "CPU": share(row["cpu"]) if "cpu" in row else None,
        "Memory": usage(row.get("mem", 0), row.get("maxmem", 0)),
    }
    return entry(light(row["status"] == "online"), bold(row["node"]), facts)


async def node_status(call: ToolCall) -> str:
    (row,) = await _nodes(call, call["node"])
    if row["status"] != "online":
        return card(light(False), bold(f"Node {row['node']}"), {"Status": row["status"]})
    status = await call.get(f"/nodes/{row['node']}/status")
    processor = status.get("cpuinfo", {})
    facts = {
        "Status": row["status"],
        "Uptime": uptime(status.get("uptime", 0)),
        "CPU Usage": share(status.get("cpu", 0)),
        "CPU": f"{processor['cpus']} x {processor.get('model', 'unknown')}" if "cpus" in processor else None,
        "Load Average": ", ".join(map(str, status.get("loadavg", ()))),
        **{
            label: usage(status.get(part, {}).get("used", 0), status.get(part, {}).get("total", 0))
            for label, part in (("Memory", "memory"), ("Swap", "swap"), ("Root Disk", "rootfs"))
        },
        "Kernel": status.get("current-kernel", {}).get("release") or status.get("kversion"),
        "PVE Version": status.get("pveversion"),
    }
    return card(light(True), bold(f"Node {row['node']}"), facts)


async def cluster(call: ToolCall) -> str:
    """Without the opt-in for elevated tools, the nodes are listed without their load."""
    rows = await _nodes(call)
    online = [row for row in rows if row["status"] == "online"]
    quorate = await _is_quorate(call)
    healthy = quorate and len(online) == len(rows)
    state = "Healthy" if healthy else "Degraded" if quorate else "No quorum"
    facts = {
        "Cluster Health": f"{light(healthy)} {state}",
        "Nodes": f"{len(online)}/{len(rows)} online",
        **(_usage(online) if ELEVATED_VARIABLE in call.opt_ins else {}),
    }
    limited = f"⚠️  **Limited**: resource usage is shown with `{ELEVATED_VARIABLE}=true` only."
    listed = [f"{light(row['status'] == 'online')} {row['node']} - {row['status']}" for row in rows]
    more = () if ELEVATED_VARIABLE in call.opt_ins else (limited,)
    return card("🏗️", bold("Proxmox Cluster Status"), facts, *more, "**Node Details**:", *listed)


async def _is_quorate(call: ToolCall) -> bool:
    """A token with few privileges sees only the nodes; a cluster that lists them probably has quorum."""
    try:
        members = await call.get("/cluster/status")
    except PermissionMissing:
        return True
    return all(row.get("quorate", 1) for row in members if row["type"] == "cluster")


def _usage(online: list[dict[str, Any]]) -> dict[str, Any]:
    cores = sum(row.get("maxcpu", 0) for row in online)
    busy = sum(row.get("cpu", 0) * row.get("maxcpu", 0) for row in online)
    return {
        "CPU": f"{share(busy / cores)} of {cores} cores" if cores else None,
        "Memory": usage(sum(row.get("mem", 0) for row in online), sum(row.get("maxmem", 0) for row in online)),
    }


async def next_vmid(call: ToolCall) -> str:
    return f"**Next Available VM/Container ID**: {await call.get('/cluster/nextid')}"


# -- guests ------------------------------------------------------------------------------------------------------------


async def guests(call: ToolCall) -> str:
    if call["node"]:
        await _nodes(call, call["node"])
    rows = [
        row
        for row in await call.guests()
        if call["node"] in (None, row["node"]) and call["type"] in ("all", row["type"])
    ]
    rows.sort(key=lambda row: int(row["vmid"]))
    return catalogue("💻", "Virtual Machines", [_guest(row) for row in rows])


def _guest(row: dict[str, Any]) -> str:
    running = row["status"] == "running"
    facts = {
        "Node": row["node"],
        "Status": "template" if row.get("template") else row["status"],
        "Type": LABELS[row["type"]],
        **(
            {
                "Uptime": uptime(row.get("uptime", 0)),
                "CPU": share(row.get("cpu", 0)),
                "Memory": usage(row.get("mem", 0), row.get("maxmem", 0), with_share=False),
            }
            if running
            else {}
        ),
    }
    mark = f"{light(running)} {ICONS[row['type']]}"
    return entry(mark, f"{bold(row.get('name', ''))} (ID: {row['vmid']})", facts)


async def guest_status(call: ToolCall) -> str:
    """The status of a VM or a container, found by its id alone."""
    guest = await guest_on_node(call)
    status = await call.get(f"{guest.path}/status/current")
    running = status["status"] == "running"
    facts = {
        "Node": guest.node,
        "Status": status.get("qmpstatus") if running and status.get("qmpstatus") else status["status"],
        "Type": LABELS[guest.type],
        "Uptime": uptime(status.get("uptime", 0)),
        "CPU Usage": share(status.get("cpu", 0)) if running else None,
        "Memory": usage(status.get("mem", 0), status.get("maxmem", 0)),
        "Disk Read": amount(status.get("diskread", 0)),
        "Disk Write": amount(status.get("diskwrite", 0)),
        "Network In": amount(status.get("netin", 0)),
        "Network Out": amount(status.get("netout", 0)),
    }
    return card(f"{light(running)} {ICONS[guest.type]}", f"{bold(guest.name)} (ID: {guest.vmid})", facts)


def snapshots(kind: Kind) -> Recipe:
    async def recipe(call: ToolCall) -> str:
        guest = await guest_on_node(call, kind.type)
        rows = [row for row in await call.get(f"{guest.path}/snapshot") if row["name"] != "current"]
        listed = [
            _item(
                row["name"], {"Created": moment(row.get("snaptime", 0)), "Description": _line(row.get("description"))}
            )
            for row in sorted(rows, key=lambda row: -row.get("snaptime", 0))
        ]
        return catalogue("📋", f"Snapshots of {kind.label} {guest.vmid}", listed, f"**Total**: {len(rows)} snapshot(s)")

    return recipe


# -- storages ----------------------------------------------------------------------------------------------------------


async def storages(call: ToolCall) -> str:
    """As the nodes report them: the cluster's list has only the name of a new storage."""
    nodes = [row["node"] for row in await _nodes(call, call["node"] or None) if row["status"] == "online"]
    lists = await asyncio.gather(*(call.get(f"/nodes/{node}/storage", enabled=1) for node in nodes))
    rows = [{**row, "node": node} for node, listed in zip(nodes, lists, strict=True) for row in listed]
    rows.sort(key=lambda row: (row["storage"], row["node"]))
    return catalogue("💾", "Storage Pools", [_storage(row) for row in rows])


def _storage(row: dict[str, Any]) -> str:
    active = bool(row.get("active"))
    facts = {
        "Node": row["node"],
        "Type": row.get("type"),
        "Content": row.get("content"),
        "Usage": usage(row.get("used", 0), row.get("total", 0)),
        "Status": "Enabled" if active else "Not available",
    }
    return entry(light(active), bold(row["storage"]), facts)


async def templates(call: ToolCall) -> str:
    rows = await call.get(f"/nodes/{call['node']}/storage/{call['storage']}/content", content="vztmpl")
    listed = [_item(row["volid"], {"Size": amount(row["size"])}) for row in rows]
    return catalogue("📦", "Available LXC Templates", listed)


async def backups(call: ToolCall) -> str:
    rows = await call.get(f"/nodes/{call['node']}/storage/{call['storage']}/content", content="backup")
    listed = [_backup(row) for row in sorted(rows, key=lambda row: -row.get("ctime", 0))]
    return catalogue("📦", f"Backups on {call['storage']}", listed, f"**Total**: {len(rows)} backup(s)")


def _backup(row: dict[str, Any]) -> str:
    kind = LABELS.get(str(row.get("subtype")), "")
    facts = {
        "VM ID": f"{row['vmid']} ({kind})" if kind else row.get("vmid"),
        "Size": amount(row["size"]),
        "Created": moment(row["ctime"]) if row.get("ctime") else None,
        "Notes": _line(row.get("notes")),
        "Volume": row["volid"],
    }
    return _item(str(row["volid"]).partition(":")[2].removeprefix("backup/"), facts)


def _item(name: str, facts: dict[str, Any]) -> str:
    return entry("•", bold(name), facts, indent="  ")


def _line(text: Any) -> str | None:
    return " ".join(str(text).split()) if text else None


RECIPES: dict[str, Recipe] = {
    "proxmox_get_nodes": nodes,
    "proxmox_get_node_status": node_status,
    "proxmox_get_vms": guests,
    "proxmox_get_vm_status": guest_status,
    "proxmox_get_storage": storages,
    "proxmox_get_cluster_status": cluster,
    "proxmox_list_templates": templates,
    "proxmox_get_next_vmid": next_vmid,
    **{f"proxmox_list_snapshots_{kind.suffix}": snapshots(kind) for kind in BOTH},
    "proxmox_list_backups": backups,
}
