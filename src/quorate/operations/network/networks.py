"""Networks: what guests can use, the interfaces of a node, SDN; and applying pending changes."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from quorate.hints import NAMED, NODE_LIST, ArgumentHint, Sentence, see
from quorate.operations.argument_checks import refuse_combination
from quorate.operations.network import guest_networks, node_network, sdn
from quorate.operations.plan import Plan
from quorate.operations.registry import Risk, Table, operation
from quorate.problems import BadArgument
from quorate.pve.cluster import Cluster

_KINDS = {
    "guests": tuple(guest_networks.KINDS),
    "node": ("bridge", "bond", "eth", "vlan"),
    "sdn": ("zone", "vnet", "subnet"),
}


@operation(
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
        return await guest_networks.list_guest_networks(pve, node, kind, limit=limit, offset=offset)
    if of == "node":
        if node is None:
            raise BadArgument(
                Sentence("{of} needs {node}", of="node", node=NAMED), next_step=see("List the nodes", NODE_LIST)
            )
        return await node_network.interfaces(pve, node, kind, limit=limit, offset=offset)
    refuse_combination(ArgumentHint("of", "sdn"), {"node": node}, "SDN is the same on all nodes")
    return await sdn.objects(pve, kind, limit=limit, offset=offset)


@operation(
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
                Sentence("{of} needs {node}", of="node", node=NAMED), next_step=see("List the nodes", NODE_LIST)
            )
        return await node_network.apply(pve, node)
    refuse_combination(ArgumentHint("of", "sdn"), {"node": node}, "SDN is applied on all nodes at once")
    return await sdn.apply(pve)
