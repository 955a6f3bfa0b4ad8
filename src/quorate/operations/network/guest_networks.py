"""The bridges, VLANs and SDN vnets that the network cards of guests can be plugged into."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from quorate.operations.registry import Table, page
from quorate.problems import Problem
from quorate.pve.cluster import Cluster
from quorate.pve.tasks import gather_bounded

NODES_AT_ONCE = 8
KINDS = {"bridge": ("bridge", "OVSBridge"), "vlan": ("vlan",), "vnet": ("vnet",)}
COLUMNS = ("node", "name", "type", "active", "address", "ports", "vlan", "zone", "comment")


async def list_guest_networks(pve: Cluster, node: str | None, kind: str | None, *, limit: int, offset: int) -> Table:
    """The networks of one node, or of all that are online."""
    if node is not None:
        await pve.inventory.node(node)
    known = await pve.inventory.of_type("node")
    nodes = sorted(row.node for row in known if (row.node == node if node else row.status == "online"))
    vnets, *found = await gather_bounded(NODES_AT_ONCE, [lambda: _vnets(pve), *(_job(pve, one, kind) for one in nodes)])
    rows = [_row(one, interface, vnets) for one, listed in zip(nodes, found, strict=True) for interface in listed]
    table = page(COLUMNS, rows, limit=limit, offset=offset)
    if unasked := sorted(row.node for row in known if node is None and row.status != "online"):
        table.facts["not_read"] = [f"{one}: the node is offline" for one in unasked]
    return table


def _job(pve: Cluster, node: str, kind: str | None) -> Any:
    return lambda: _interfaces(pve, node, kind)


async def _interfaces(pve: Cluster, node: str, kind: str | None) -> list[dict[str, Any]]:
    """What the node has itself, and the vnets that SDN has brought to it."""
    path = f"/nodes/{node}/network"
    own, vnets = await asyncio.gather(pve.get(path), pve.get(path, type="vnet"))
    shown = [name for each, names in KINDS.items() if kind in (None, each) for name in names]
    merged = {str(row["iface"]): row for row in [*own, *vnets] if row.get("type") in shown}
    return [merged[name] for name in sorted(merged)]


async def _vnets(pve: Cluster) -> dict[str, dict[str, Any]]:
    """Zone and tag of every vnet; empty without SDN, or without the privilege to see it."""
    try:
        return {str(row["vnet"]): row for row in await pve.get("/cluster/sdn/vnets") or []}
    except Problem:
        return {}


def _row(node: str, interface: Mapping[str, Any], vnets: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    name = str(interface["iface"])
    vnet = vnets.get(name, {}) if interface["type"] == "vnet" else {}
    vlan = interface.get("vlan-id") or vnet.get("tag") or ("aware" if interface.get("bridge_vlan_aware") else "")
    ports = interface.get("bridge_ports") or interface.get("ovs_ports") or interface.get("vlan-raw-device", "")
    addresses = [str(interface[key]) for key in ("cidr", "cidr6") if interface.get(key)]
    comment = str(interface.get("comments") or vnet.get("alias") or "").strip()
    active = "yes" if interface.get("active") else "no"
    return [node, name, interface["type"], active, " ".join(addresses), ports, vlan, vnet.get("zone", ""), comment]
