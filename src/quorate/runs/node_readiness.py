"""Whether a node can be taken out of its cluster now, and whether it is back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from quorate.problems import PermissionMissing, Problem
from quorate.pve.cluster import Cluster
from quorate.pve.lookup import Resource
from quorate.tools.ceph import unhealthy
from quorate.units import size

LEAST_SPACE = 2 * 1024**3
"""On the root file system: packages are downloaded and unpacked there."""
BOOT_SLACK = 5.0
STILL_UP = "it has not gone down yet"
SERVICES = ("pve-cluster", "pvedaemon", "pveproxy", "pvestatd")


@dataclass(slots=True)
class Readiness:
    problems: list[str] = field(default_factory=list)
    """Problems that a person has to look at."""
    busy: list[str] = field(default_factory=list)
    """Tasks that will end; the run waits for them."""


async def preflight(pve: Cluster, node: str) -> Readiness:
    """What prevents taking the node down now."""
    readiness = Readiness()
    await _check_quorum(pve, node, readiness)
    if problem := await unhealthy(pve):
        readiness.problems.append(problem)
    await _check_node(pve, node, readiness)
    return readiness


async def _check_quorum(pve: Cluster, node: str, readiness: Readiness) -> None:
    rows = await pve.get("/cluster/status")
    nodes = [row for row in rows if row.get("type") == "node"]
    cluster = next((row for row in rows if row.get("type") == "cluster"), None)
    if cluster is None:  # a single node without a cluster has no quorum to lose
        return
    if not int(cluster.get("quorate", 0)):
        readiness.problems.append("the cluster has no quorum")
    if offline := [str(row["name"]) for row in nodes if not int(row.get("online", 0)) and row["name"] != node]:
        readiness.problems.append(f"{', '.join(offline)} is offline")
    votes, device = await _votes(pve)
    total = sum(votes.get(str(row["name"]), 1) for row in nodes) + device
    gone = {node, *offline}
    left = sum(votes.get(str(row["name"]), 1) for row in nodes if row["name"] not in gone) + device
    if left <= total // 2:
        readiness.problems.append(f"without {node} only {left} of {total} votes are left, too few for a quorum")


async def _votes(pve: Cluster) -> tuple[dict[str, int], int]:
    """Votes by node, and of the QDevice that many clusters of two nodes have; none if it is not connected."""
    try:
        members, device = await pve.get("/cluster/config/nodes"), await pve.get("/cluster/config/qdevice")
    except PermissionMissing:
        return {}, 0
    votes = {str(row["node"]): int(row.get("quorum_votes") or 1) for row in members}
    if device.get("State") != "Connected":
        return votes, 0
    return votes, len(votes) - 1 if "LMS" in str(device.get("Algorithm")) else 1


async def _check_node(pve: Cluster, node: str, readiness: Readiness) -> None:
    for job in await _failing_replication(pve, node):
        readiness.problems.append(f"replication {job.get('id')} fails: {job.get('error', '')}".rstrip(": "))
    space = ((await pve.get(f"/nodes/{node}/status")).get("rootfs") or {}).get("avail")
    if space is not None and int(space) < LEAST_SPACE:
        readiness.problems.append(f"only {size(int(space))} are free on {node}")
    tasks = await pve.get(f"/nodes/{node}/tasks", source="active")
    readiness.busy += [_describe_task(task) for task in tasks if not task.get("endtime")]


def _describe_task(task: dict[str, Any]) -> str:
    return f"{task.get('type')} {task.get('id') or ''}".strip()


async def running_on(pve: Cluster, node: str) -> list[Resource]:
    """What would go down with the node, as the node itself says."""
    rows = await pve.inventory.fresh_guests(node)
    return sorted((row for row in rows if row.status != "stopped" and not row.template), key=lambda row: row.vmid)


async def missing_after_boot(pve: Cluster, node: str, seconds: float) -> str:
    """What the node still lacks, `seconds` after the reboot was requested; empty if it is back with everything."""
    pve.inventory.forget()
    try:
        row = await pve.inventory.node(node)
        if row.status != "online":
            return "it is offline"
        status = await pve.get(f"/nodes/{node}/status")
        if float(status.get("uptime", 0)) > seconds + BOOT_SLACK:
            return STILL_UP
        cluster = await pve.get("/cluster/status")
        if any(row.get("type") == "cluster" and not int(row.get("quorate", 0)) for row in cluster):
            return "the cluster has no quorum"
        services = {service["service"]: service.get("state") for service in await pve.get(f"/nodes/{node}/services")}
        down = [name for name in SERVICES if services.get(name, "running") != "running"]
        if down:
            return f"services are not running: {', '.join(down)}"
        storages = await pve.get(f"/nodes/{node}/storage", enabled=1)
        away = [str(storage["storage"]) for storage in storages if not int(storage.get("active", 1))]
        if away:
            return f"storages are not available: {', '.join(away)}"
        if problem := await unhealthy(pve):
            return problem
        if failing := await _failing_replication(pve, node):  # while it was down; PVE tries again
            return f"replication has not caught up: {', '.join(str(job.get('id')) for job in failing)}"
        starting = [task for task in await pve.get(f"/nodes/{node}/tasks", source="active") if not task.get("endtime")]
        return f"tasks still run: {', '.join(map(_describe_task, starting))}" if starting else ""
    except Problem as problem:
        return problem.what


async def _failing_replication(pve: Cluster, node: str) -> list[dict[str, Any]]:
    """The jobs to and from the node whose last run failed."""
    failing: list[dict[str, Any]] = []
    for row in await pve.inventory.of_type("node"):
        jobs = await pve.get(f"/nodes/{row.node}/replication") if row.status == "online" else []
        concerned = [job for job in jobs if node in (row.node, job.get("target"))]
        failing += [job for job in concerned if int(job.get("fail_count") or 0)]
    return failing
