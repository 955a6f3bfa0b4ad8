"""Sensible defaults from the cluster: the next free id, a node, a storage with room, a bridge."""

from __future__ import annotations

from quorate.hints import OMITTED, Advice, either, see, tools
from quorate.problems import BadArgument, Conflict, ParameterRejected
from quorate.pve.cluster import Cluster
from quorate.pve.lookup import Resource, View
from quorate.units import size

LOWEST_VMID, HIGHEST_VMID = 100, 999_999_999


async def next_vmid(pve: Cluster) -> int:
    """PVE's next free id that no other call has just reserved."""
    vmid = int(await pve.get("/cluster/nextid"))
    guests = {row.vmid for row in await pve.inventory.guests()}
    pve.reserved_vmids -= guests
    while vmid in guests | pve.reserved_vmids:
        vmid += 1
    pve.reserved_vmids.add(vmid)
    return vmid


async def choose_vmid(pve: Cluster, requested: int | None) -> int:
    """The requested vmid, which must be free, or the next free one."""
    if requested is None:
        return await next_vmid(pve)
    if not LOWEST_VMID <= requested <= HIGHEST_VMID:
        raise BadArgument(f"{requested} cannot be a vmid", next_step=f"It is {LOWEST_VMID} to {HIGHEST_VMID}")
    try:
        await pve.original.get("/cluster/nextid", vmid=requested)  # no rule applies to an unused id
    except ParameterRejected:
        pve.inventory.forget()  # its guest may be new
        holder = (await pve.inventory.complete_view()).by_vmid.get(requested)
        raise Conflict(
            f"The vmid {requested} is taken",
            why=f"It is {holder}" if holder else "A guest that is hidden from you has it",
            next_step=either(
                f"Give a free one, such as {await pve.get('/cluster/nextid')}", Advice("leave {vmid} out", vmid=OMITTED)
            ),
        ) from None
    return requested


async def pick_node(pve: Cluster, requested: str | None = None, *, memory: int = 0) -> str:
    """The requested node if it is online, else the default one, else the online node with most free memory."""
    named = requested or pve.defaults.node
    if named:
        return (await pve.inventory.online_node(named)).node
    return await pve.inventory.decide_on_fresh_view(lambda view: _roomiest(view, memory))


def _roomiest(view: View, memory: int) -> str:
    if not view.online:
        raise Conflict("No node is online", next_step=see("See the state of the cluster", tools.cluster_status))
    best = max((view.nodes[name] for name in view.online), key=lambda row: (row.maxmem - row.mem, row.node))
    if memory and best.maxmem and best.maxmem < memory:
        raise BadArgument(
            f"No node has {size(memory)} of memory", why=f"The largest, {best.node}, has {size(best.maxmem)}"
        )
    return best.node


async def pick_storage(
    pve: Cluster, node: str, content: str, *, room: int = 0, requested: str | None = None
) -> Resource:
    """A storage of the node for this content with room for it: the requested one, the default, or the best.

    The best for disks is a local one, because a file share is slow; for all else it is the roomiest.
    """
    return await pve.inventory.choose_storage(
        node,
        lambda rows: _pick_storage(rows, node, content, room=room, requested=requested, default=pve.defaults.storage),
    )


def _pick_storage(
    rows: list[Resource], node: str, content: str, *, room: int, requested: str | None, default: str | None
) -> Resource:
    here = [row for row in rows if row.status == "available"]
    fitting = [row for row in here if row.holds(content)]
    named = requested or (default if any(row.storage == default for row in fitting) else None)
    names = ", ".join(sorted(row.storage for row in fitting)) or "none"
    if named:
        chosen = next((row for row in here if row.storage == named), None)
        if chosen is None:
            raise BadArgument(f"Node {node} has no storage {named!r}", next_step=f"Its storages for {content}: {names}")
        if chosen not in fitting:
            raise BadArgument(
                f"Storage {named} does not take {content}",
                why=f"It takes {chosen.content.replace(',', ', ')}",
                next_step=f"Storages for {content}: {names}",
            )
    else:
        if not fitting:
            raise BadArgument(
                f"Node {node} shows no storage for {content}",
                why="It has none, or these credentials lack Datastore.Audit on it",
                next_step=see("See what there is", tools.storage_list),
            )
        disks = content in ("images", "rootdir")
        chosen = max(fitting, key=lambda row: (disks and _rank(row, room), row.maxdisk - row.disk, row.storage))
    free = chosen.maxdisk - chosen.disk
    if room and chosen.maxdisk and free < room:
        raise Conflict(
            f"Storage {chosen.storage} on {node} has {size(free)} free, not {size(room)}",
            next_step=Advice("Choose another storage or a smaller size, or make room", tools.storage_list),
        )
    return chosen


_FILE_SHARES = frozenset({"nfs", "cifs", "cephfs", "glusterfs"})
LEAST_FREE = 0.05
"""The share of a storage that must be free for it to be preferred."""


def _rank(row: Resource, room: int) -> int:
    """How well a storage suits disks: local before shared blocks before file shares, if it has room."""
    free = row.maxdisk - row.disk
    if row.maxdisk and (free < room or free < row.maxdisk * LEAST_FREE):
        return 0
    return 1 if row.plugintype in _FILE_SHARES else 2 if row.shared else 3


async def oversize_warnings(pve: Cluster, node: str, memory: int) -> list[str]:
    """A guest with more memory than its node may start, but exhausts the node when it uses it."""
    whole = (await pve.inventory.node(node)).maxmem
    if not whole or memory <= whole:
        return []
    return [f"{size(memory)} of memory is more than {node} has ({size(whole)})"]


_NAME_BRIDGE = Advice("Name it with {bridge}", bridge="")


async def pick_bridge(
    pve: Cluster, node: str, requested: str | None = None, *, next_step: Advice = _NAME_BRIDGE
) -> str:
    """The requested bridge or vnet if the node has it, else the default one, else the node's first bridge.

    `next_step`: how the caller names one that cannot be seen.
    """
    rows = await pve.get(f"/nodes/{node}/network", type="any_bridge")
    # bridges of the node first: a vnet is someone's own network, to be chosen by name
    known = [str(row["iface"]) for row in sorted(rows, key=lambda row: (row.get("type") == "vnet", str(row["iface"])))]
    named = requested or (pve.defaults.bridge if pve.defaults.bridge in known else None)
    if named:
        if known and named not in known:
            raise BadArgument(f"Node {node} has no bridge {named!r}", next_step=f"It has {', '.join(known)}")
        return named
    if not known:
        raise BadArgument(
            f"Node {node} shows no bridge",
            why="It has none, or these credentials lack SDN.Use or SDN.Audit on /sdn/zones/localnetwork",
            next_step=next_step,
        )
    return known[0]
