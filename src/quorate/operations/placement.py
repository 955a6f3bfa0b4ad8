"""Sensible defaults from the cluster: the next free id, a node, a storage with room, a bridge."""

from __future__ import annotations

from quorate.operations.units import size
from quorate.pve.cluster import Cluster
from quorate.pve.errors import BadArgument, Conflict
from quorate.pve.inventory import Resource


async def next_vmid(pve: Cluster) -> int:
    """PVE's next free id that no other call of ours has just taken for itself."""
    vmid = int(await pve.get("/cluster/nextid"))
    guests = {row.vmid for row in await pve.inventory.guests()}
    pve.reserved_vmids -= guests
    while vmid in guests | pve.reserved_vmids:
        vmid += 1
    pve.reserved_vmids.add(vmid)
    return vmid


async def pick_node(pve: Cluster, wanted: str | None = None, *, memory: int = 0) -> str:
    """The wanted node if it is online, else the default one, else the online node with most free memory."""
    named = wanted or pve.defaults.node
    if named:
        return (await pve.inventory.online_node(named)).node
    online = [row for row in await pve.inventory.of_type("node") if row.status == "online"]
    if not online:
        raise Conflict("No node is online", next_step="See cluster_status")
    roomiest = max(online, key=lambda row: (row.maxmem - row.mem, row.node))
    if memory and roomiest.maxmem and roomiest.maxmem < memory:
        raise BadArgument(
            f"No node has {size(memory)} of memory", why=f"The largest, {roomiest.node}, has {size(roomiest.maxmem)}"
        )
    return roomiest.node


async def pick_storage(pve: Cluster, node: str, content: str, *, room: int = 0, wanted: str | None = None) -> Resource:
    """A storage of the node for this content with room for it: the wanted one, the default, or the roomiest."""
    here = [row for row in await pve.inventory.of_type("storage") if row.node == node and row.status == "available"]
    fitting = [row for row in here if content in row.content.split(",")]
    named = wanted or (pve.defaults.storage if any(row.storage == pve.defaults.storage for row in fitting) else None)
    names = ", ".join(sorted(row.storage for row in fitting)) or "none"
    if named:
        found = next((row for row in here if row.storage == named), None)
        if found is None:
            raise BadArgument(f"Node {node} has no storage {named!r}", next_step=f"For {content} it has {names}")
        if found not in fitting:
            raise BadArgument(
                f"Storage {named} does not hold {content}",
                why=f"It holds {found.content}",
                next_step=f"For {content} there is {names}",
            )
    else:
        if not fitting:
            raise BadArgument(
                f"Node {node} shows no storage for {content}",
                why="It has none, or these credentials lack Datastore.Audit on it",
                next_step="storage_list shows what there is",
            )
        found = max(fitting, key=lambda row: (row.maxdisk - row.disk, row.storage))
    free = found.maxdisk - found.disk
    if room and found.maxdisk and free < room:
        raise Conflict(
            f"Storage {found.storage} on {node} has {size(free)} free, not {size(room)}",
            next_step="Choose another storage, a smaller size, or make room; storage_list shows the others",
        )
    return found


async def pick_bridge(pve: Cluster, node: str, wanted: str | None = None) -> str:
    """The wanted bridge or vnet if the node has it, else the default one, else the node's first bridge."""
    rows = await pve.get(f"/nodes/{node}/network", type="any_bridge")
    # bridges of the node first: a vnet is somebody's own network, to be chosen by name
    known = [str(row["iface"]) for row in sorted(rows, key=lambda row: (row.get("type") == "vnet", str(row["iface"])))]
    named = wanted or (pve.defaults.bridge if pve.defaults.bridge in known else None)
    if named:
        if known and named not in known:
            raise BadArgument(f"Node {node} has no bridge {named!r}", next_step=f"It has {', '.join(known)}")
        return named
    if not known:
        raise BadArgument(
            f"Node {node} shows no bridge",
            why="It has none, or these credentials lack SDN.Use or SDN.Audit on /sdn/zones/localnetwork",
            next_step="Name the bridge, or leave the network out",
        )
    return known[0]
