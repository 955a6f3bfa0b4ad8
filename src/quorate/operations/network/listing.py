"""Listing networks: what guests can be plugged into, a node's own interfaces, and SDN."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from quorate.operations.misplaced import refuse_beside
from quorate.operations.network import guest_networks, node_network, sdn
from quorate.operations.registry import Risk, Table, operation
from quorate.pve.cluster import Cluster
from quorate.pve.errors import BadArgument

_KINDS = {
    "guests": tuple(guest_networks.KINDS),
    "node": ("bridge", "bond", "eth", "vlan"),
    "sdn": ("zone", "vnet", "subnet"),
}


@operation(risk=Risk.READ)
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
    """Networks that guests can use, interfaces of a node, or SDN; with the edits that wait for network_apply."""
    if kind is not None and kind not in _KINDS[of]:
        raise BadArgument(f"of={of} has no kind={kind}", next_step=f"It has {', '.join(_KINDS[of])}")
    if of == "guests":
        return await guest_networks.for_guests(pve, node, kind, limit=limit, offset=offset)
    if of == "node":
        if node is None:
            raise BadArgument("of=node needs node", next_step="node_list shows the nodes")
        return await node_network.interfaces(pve, node, kind, limit=limit, offset=offset)
    refuse_beside("of=sdn", {"node": node}, "SDN is the same on all nodes")
    return await sdn.objects(pve, kind, limit=limit, offset=offset)
