"""Acting on nodes: services, package lists, power."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from quorate.hints import NODE_INSPECT, NODE_LIST, Advice, see
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import Risk, operation
from quorate.problems import Conflict, NotFound
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource
from quorate.suggestions import suggest

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
            next_step=see("See its services", NODE_INSPECT(node=node, aspect="services")),
        )
    summary = f"{action.capitalize()} {service} on {node}"
    if rows[service].get("state") == _DONE.get(action):
        return Plan(summary, unchanged=(f"{service} on {node} is already {rows[service]['state']}",))

    async def state() -> str:
        return str((await pve.get(f"/nodes/{node}/services/{service}/state"))["state"])

    async def after() -> dict[str, Any]:
        return {"state": await state()}

    warnings = (
        (f"The API of {node} is unavailable for some seconds",) if service in ESSENTIAL and action == "restart" else ()
    )
    call = Call(summary, "POST", f"/nodes/{node}/services/{service}/{action}", {}, _target(node))
    return Plan(summary, (call,), warnings=warnings, after=after)


@operation(
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
            "next": see("See the updates", NODE_INSPECT(node=node, aspect="updates")),
        }

    return Plan(summary, (Call(summary, "POST", f"/nodes/{node}/apt/update", {}, _target(node)),), after=after)


@operation(
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
        next_step=Advice(f"PVE has accepted it and shuts the guests down first{after}", NODE_LIST),
    )


def _labels(running: list[Resource]) -> list[str]:
    names = [f"{row.kind} {row.vmid} {row.name}" + (" (under HA)" if row.hastate else "") for row in running]
    more = len(names) - GUESTS_NAMED
    return names[:GUESTS_NAMED] + ([f"and {more} more"] if more > 0 else [])


async def _shutdown_warnings(pve: Cluster, node: str, running: list[Resource]) -> list[str]:
    found = [f"{len(running)} running guests of {node} go down"] if running else []
    nodes = await pve.inventory.of_type("node")
    left = sum(row.status == "online" and row.node != node for row in nodes)
    if len(nodes) > 1 and left <= len(nodes) // 2:
        found.append(f"Only {left} of {len(nodes)} nodes remain: the cluster loses its quorum and accepts no changes")
    if len(nodes) == 1:
        found.append("It is the only node: nothing can be queried until it is back")
    return found


def _target(node: str) -> Target:
    return Target("node", node, node=node)
