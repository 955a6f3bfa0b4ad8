"""Networks that guests can use, and applying pending changes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NAMED, ArgumentHint, Sentence, see, tools
from quorate.operations.arguments import refuse_combination
from quorate.operations.plan import Plan
from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import BadArgument, NodeOffline, NotFound, Problem
from quorate.pve.cluster import Cluster
from quorate.pve.tasks import gather_bounded
from quorate.tools import node_network, sdn

NODES_AT_ONCE = 8
KINDS = {"bridge": ("bridge", "OVSBridge"), "vlan": ("vlan",), "vnet": ("vnet",)}
COLUMNS = ("node", "name", "type", "active", "address", "ports", "vlan", "zone", "comment")


async def list_guest_networks(pve: Cluster, node: str | None, kind: str | None, *, limit: int, offset: int) -> Table:
    """The networks of one node, or of all that are online."""
    if node is not None:
        await pve.inventory.node(node)
    known = await pve.inventory.of_type("node")
    nodes = sorted(row.node for row in known if (row.node == node if node else row.status == "online"))
    silent: list[str] = []

    async def interfaces(name: str) -> list[dict[str, Any]]:
        try:
            return await _interfaces(pve, name, kind)
        except (NodeOffline, NotFound) as problem:  # since the list of nodes was read
            if node is not None:
                raise
            silent.append(f"{name}: {problem.what}")
            return []

    vnets, *per_node = await gather_bounded(
        NODES_AT_ONCE, [partial(_vnets, pve), *(partial(interfaces, name) for name in nodes)]
    )
    rows = [_row(name, interface, vnets) for name, listed in zip(nodes, per_node, strict=True) for interface in listed]
    table = page(COLUMNS, rows, limit=limit, offset=offset)
    offline = [f"{row.node}: the node is offline" for row in known if node is None and row.status != "online"]
    if unread := sorted([*offline, *silent]):
        table.facts["not_read"] = unread
    return table


async def _interfaces(pve: Cluster, node: str, kind: str | None) -> list[dict[str, Any]]:
    """The interfaces of the node itself, and the vnets that SDN has brought to it."""
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


_KINDS = {
    "guests": tuple(KINDS),
    "node": ("bridge", "bond", "eth", "vlan"),
    "sdn": ("zone", "vnet", "subnet"),
}


@operation(
    toolset="network",
    risk=Risk.READ,
    search_words="bridges vlans vmbr bonds networks interfaces node zones vnets subnets",
)
async def network_list(
    pve: Cluster,
    of: Annotated[
        Literal["guests", "node", "sdn"],
        Meta(description="guests: what they can be plugged into; node: all its interfaces; sdn: zones, vnets, subnets"),
    ] = "guests",
    node: Annotated[str, Meta(description="guests: default all; node: needed")] | None = None,
    kind: Literal["bridge", "bond", "eth", "vlan", "vnet", "zone", "subnet"] | None = None,
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Networks that guests can use, interfaces of a node, or SDN; with the edits that are pending."""
    if kind is not None and kind not in _KINDS[of]:
        raise BadArgument(Sentence("{of} has no {kind}", of=of, kind=kind), next_step=f"It has {', '.join(_KINDS[of])}")
    if of == "guests":
        return await list_guest_networks(pve, node, kind, limit=limit, offset=offset)
    if of == "node":
        if node is None:
            raise BadArgument(
                Sentence("{of} needs {node}", of="node", node=NAMED), next_step=see("List the nodes", tools.node_list)
            )
        return await node_network.interfaces(pve, node, kind, limit=limit, offset=offset)
    refuse_combination(ArgumentHint("of", "sdn"), {"node": node}, "SDN is the same on all nodes")
    return await sdn.objects(pve, kind, limit=limit, offset=offset)


@operation(
    toolset="network",
    risk=Risk.DESTROY,
    search_words="apply activate pending waiting network changes make real reload",
    example="of=node node=pve1",
)
async def network_apply(
    pve: Cluster,
    of: Annotated[
        Literal["node", "sdn"],
        Meta(description="sdn: every node reloads its network, its own pending edits included"),
    ],
    node: Annotated[str, Meta(description="With of=node")] | None = None,
) -> Plan:
    """Apply the pending network edits of a node or of SDN. A mistake cuts off nodes and their guests."""
    if of == "node":
        if node is None:
            raise BadArgument(
                Sentence("{of} needs {node}", of="node", node=NAMED), next_step=see("List the nodes", tools.node_list)
            )
        return await node_network.apply(pve, node)
    refuse_combination(ArgumentHint("of", "sdn"), {"node": node}, "SDN is applied on all nodes at once")
    return await sdn.apply(pve)
