"""The members of the cluster, and joining it."""

from __future__ import annotations

import hashlib
from typing import Any

from pve_simulator.http.refusals import Refusal, failure
from pve_simulator.http.routing import Call, route
from pve_simulator.nodes.tasks import TaskContext, TaskError


@route("GET /cluster/config/qdevice")
def qdevice(call: Call) -> dict[str, Any]:
    """Values from corosync's own status."""
    if not call.world.has_qdevice:
        return {}
    return {
        "Algorithm": "Fifty-Fifty split", "Echo reply": "Not received yet", "Last poll call": "Never", "Model": "Net",
        "QNetd host": "192.168.10.250:5403", "State": "Connected", "Tie-breaker": "Node with lowest node ID",
    }  # fmt: skip


@route("GET /cluster/config/nodes")
def members(call: Call) -> list[dict[str, Any]]:
    return [] if call.world.standalone else _members(call)


@route("GET /cluster/config/totem")
def totem(call: Call) -> dict[str, Any] | None:
    return None if call.world.standalone else _totem(call)


@route("GET /cluster/config/join")
def join_information(call: Call) -> dict[str, Any]:
    world = call.world
    if call.world.standalone:
        raise Refusal(424, "node is not in a cluster, no join info available!")
    preferred = call.params.get("node", call.local_node.name)
    if preferred not in world.nodes:
        raise failure(f"no such node '{preferred}'")
    nodes = [
        {key: value for key, value in row.items() if key != "node"}
        | {"pve_addr": world.nodes[row["name"]].ip, "pve_fp": world.nodes[row["name"]].fingerprint}
        for row in _members(call)
    ]
    digest = hashlib.sha1(repr((nodes, _totem(call))).encode(), usedforsecurity=False).hexdigest()
    return {"nodelist": nodes, "preferred_node": preferred, "totem": _totem(call), "config_digest": digest}


@route("POST /cluster/config")
def create_cluster(call: Call) -> str:
    """Create a cluster with this node; no others can join in the simulator."""
    if not call.world.standalone:
        raise failure("cluster config '/etc/pve/corosync.conf' already exists")

    async def work(context: TaskContext) -> None:
        context.log("Corosync Cluster Engine Authentication key generator.")
        await context.sleep(1.0)
        call.world.name, call.world.clustered = call.params["clustername"], True
        context.log("Restart corosync and cluster filesystem")

    return call.start_local_task("clustercreate", call.params["clustername"], work)


@route("POST /cluster/config/join")
def join_cluster(call: Call) -> str:
    """There is no other cluster to reach."""
    if not call.world.standalone:
        raise failure("detected the following error(s):\n* cluster config '/etc/pve/corosync.conf' already exists")

    async def work(context: TaskContext) -> None:
        context.log(f"Establishing API connection with host '{call.params['hostname']}'")
        await context.sleep(1.0)
        raise TaskError(f"500 Can't connect to {call.params['hostname']}:8006 (No route to host)")

    return call.start_local_task("clusterjoin", "", work)


def _members(call: Call) -> list[dict[str, Any]]:
    return [
        {"node": node.name, "name": node.name, "nodeid": str(node.number), "quorum_votes": "1", "ring0_addr": node.ip}
        for node in call.world.nodes.values()
    ]


def _totem(call: Call) -> dict[str, Any]:
    return {
        "cluster_name": call.world.name, "config_version": str(len(call.world.nodes)),
        "interface": {"0": {"linknumber": "0"}}, "ip_version": "ipv4-6", "link_mode": "passive", "secauth": "on",
        "version": "2", "token_coefficient": "125",
    }  # fmt: skip
