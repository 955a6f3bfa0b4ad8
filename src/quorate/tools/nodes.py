"""Nodes: their state, services, package lists and power."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import Advice, see, tools
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import Conflict, NotFound
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource
from quorate.suggestions import suggest
from quorate.units import duration, load_of, percent, size, used_of

COLUMNS = ("node", "status", "cpu", "cores", "mem", "disk", "uptime", "guests")


@operation(
    toolset="cluster",
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
    if not node.maxmem or node.status != "online":  # offline, or the token lacks Sys.Audit there
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
    toolset="cluster",
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
            storage.storage: used_of(storage.disk, storage.maxdisk) or storage.status
            for storage in here
            if storage.type == "storage"
        },
    }


GUESTS_NAMED = 20

# Without these the node can no longer be reached through the API, or leaves the cluster and may be fenced.
ESSENTIAL = {
    "pveproxy": "the API would become unavailable and could not be started again from here",
    "pvedaemon": "the API would become unavailable and could not be started again from here",
    "pve-cluster": "the node would lose its configuration",
    "corosync": "the node would leave the cluster, and be reset if it runs guests under HA",
}
_DONE = {"start": "running", "stop": "dead"}


def _service_risk(arguments: Mapping[str, Any]) -> Risk:
    """A stopped service may be the firewall, the scheduler of backups or the guard of HA."""
    return Risk.DESTROY if arguments["action"] == "stop" else Risk.CHANGE


@operation(
    toolset="nodes",
    risk=Risk.DESTROY,
    risk_of=_service_risk,
    least=Risk.CHANGE,
    search_words=(
        "web interface proxmox hangs restart start stop service daemon node host pveproxy pvedaemon corosync ssh chrony"
    ),
    example="node=pve1 service=chrony action=restart",
)
async def node_service_control(
    pve: Cluster, node: str, service: str, action: Literal["start", "stop", "restart", "reload"]
) -> Plan:
    """Start, stop (needs access admin), restart or reload a service of a node."""
    await pve.inventory.online_node(node)
    rows = {row["service"]: row for row in await pve.get(f"/nodes/{node}/services")}
    if service not in rows:
        hint = suggest(service, rows, f"Available: {', '.join(sorted(rows))}")
        raise NotFound(f"{node} has no service {service!r} that PVE manages", next_step=hint)
    if action == "stop" and service in ESSENTIAL:
        raise Conflict(
            f"{service} is not stopped: {ESSENTIAL[service]}", next_step=Advice("Use {action}", action="restart")
        )
    if rows[service].get("unit-state") == "not-found":
        raise Conflict(
            f"{service} is not installed on {node}",
            next_step=see("See its services", tools.node_inspect(node=node, aspect="services")),
        )
    summary = f"{action.capitalize()} {service} on {node}"
    if rows[service].get("state") == _DONE.get(action):
        return Plan(summary, unchanged=(f"{service} on {node} is already {rows[service]['state']}",))

    async def after() -> dict[str, Any]:
        return {"state": str((await pve.get(f"/nodes/{node}/services/{service}/state"))["state"])}

    warnings = (
        (f"The API of {node} is unavailable for some seconds",) if service in ESSENTIAL and action == "restart" else ()
    )
    call = Call(summary, "POST", f"/nodes/{node}/services/{service}/{action}", {}, _target(node))
    return Plan(summary, (call,), warnings=warnings, after=after)


@operation(
    toolset="nodes",
    risk=Risk.CHANGE,
    idempotent=True,
    search_words="apt update refresh package lists node check new",
    example="node=pve1",
)
async def node_updates_refresh(pve: Cluster, node: str) -> Plan:
    """Refresh a node's package lists (apt update). Installs nothing."""
    await pve.inventory.online_node(node)
    summary = f"Refresh the package lists of {node}"

    async def after() -> dict[str, Any]:
        return {
            "updates": len(await pve.get(f"/nodes/{node}/apt/update")),
            "next": see("See the updates", tools.node_inspect(node=node, aspect="updates")),
        }

    return Plan(summary, (Call(summary, "POST", f"/nodes/{node}/apt/update", {}, _target(node)),), after=after)


@operation(
    toolset="nodes",
    risk=Risk.DESTROY,
    search_words="reboot restart shutdown whole node host physical server maintenance hypervisor ups battery",
    example="node=pve3 action=reboot",
)
async def node_power(pve: Cluster, node: str, action: Literal["reboot", "shutdown"]) -> Plan:
    """Reboot or shut down a node. Its guests go down with it; only some of those under HA move away."""
    await pve.inventory.online_node(node)
    summary = f"{'Reboot' if action == 'reboot' else 'Shut down'} node {node}"
    running = [row for row in await pve.inventory.fresh_guests(node) if row.status == "running"]
    uptime = (await pve.get(f"/nodes/{node}/status")).get("uptime", 0)

    async def settled() -> bool:
        """PVE starts no task for it, and a node that is off shows nothing: being off is the effect."""
        pve.inventory.forget()
        if (await pve.inventory.node(node)).status != "online":
            return True
        now = (await pve.get(f"/nodes/{node}/status")).get("uptime", 0)  # the inventory's lags behind
        return int(now) < int(uptime)

    call = Call(summary, "POST", f"/nodes/{node}/status", {"command": action}, _target(node), settled=settled)
    after = "" if action == "reboot" else "; only its power button or wake-on-LAN brings it back"
    return Plan(
        summary,
        (call,),
        facts={"guests_going_down": _labels(running)},
        warnings=tuple(await _shutdown_warnings(pve, node, running)),
        next_step=Advice(f"PVE has accepted it and shuts the guests down first{after}", tools.node_list),
    )


def _labels(running: list[Resource]) -> list[str]:
    names = [f"{row.kind} {row.vmid} {row.name}" + (" (under HA)" if row.hastate else "") for row in running]
    more = len(names) - GUESTS_NAMED
    return names[:GUESTS_NAMED] + ([f"and {more} more"] if more > 0 else [])


async def _shutdown_warnings(pve: Cluster, node: str, running: list[Resource]) -> list[str]:
    warnings = [f"{len(running)} running guests of {node} go down"] if running else []
    nodes = await pve.inventory.of_type("node")
    left = sum(row.status == "online" and row.node != node for row in nodes)
    if len(nodes) > 1 and left <= len(nodes) // 2:
        warnings.append(
            f"Only {left} of {len(nodes)} nodes remain: the cluster loses its quorum and accepts no changes"
        )
    if len(nodes) == 1:
        warnings.append("It is the only node: nothing can be queried until it is back")
    return warnings


def _target(node: str) -> Target:
    return Target("node", node, node=node)
