"""Making edits of networks real, on one node or, for SDN, on all."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from quorate.operations.misplaced import refuse_beside
from quorate.operations.network import node_network, sdn
from quorate.operations.plan import Plan
from quorate.operations.registry import Risk, operation
from quorate.pve.cluster import Cluster
from quorate.pve.errors import BadArgument


@operation(risk=Risk.DESTROY)
async def network_apply(
    pve: Cluster,
    of: Annotated[
        Literal["node", "sdn"],
        Meta(description="sdn: every node reloads its network, its own waiting edits included"),
    ],
    node: Annotated[str, Meta(description="With of=node")] | None = None,
) -> Plan:
    """Make the waiting network edits of a node, or of SDN, real. A mistake cuts nodes and their guests off."""
    if of == "node":
        if node is None:
            raise BadArgument("of=node needs node", next_step="node_list shows the nodes")
        return await node_network.apply(pve, node)
    refuse_beside("of=sdn", {"node": node}, "SDN is applied on all nodes at once")
    return await sdn.apply(pve)
