"""Is everything well? One look at all that tends to go wrong."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Annotated

from msgspec import Meta

from quorate.operations.registry import Risk, Table, operation
from quorate.operations.reports import backup_health, node_health
from quorate.operations.reports.findings import SEVERITIES, Finding, Severity, guarded, names
from quorate.operations.units import percent, used_of
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource

NEARLY_FULL = 0.95

COLUMNS = ("severity", "area", "finding", "next")


@operation(risk=Risk.READ)
async def cluster_health(
    pve: Cluster,
    snapshot_days: Annotated[int, Meta(ge=0, description="Snapshots older than this are told")] = 30,
    backup_days: Annotated[int, Meta(ge=1, description="Backups older than this are told")] = 7,
    storage_percent: Annotated[int, Meta(ge=1, le=100, description="Storages fuller than this are told")] = 85,
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """What is wrong and what to do next, worst first: quorum, nodes, storages, failed tasks, missing backups, old
    snapshots, updates, certificates, HA."""
    rows = await pve.inventory.rows()  # without it nothing can be said at all
    checks = {
        "quorum": ("cluster_status", _quorum(pve)),
        "nodes": ("node_list", _nodes(rows)),
        "storage": ("storage_list", _storages(rows, storage_percent / 100)),
        "tasks": ("task_list status=failed", node_health.failed_tasks(pve, rows)),
        "backups": ("backup_coverage", backup_health.backups(pve, rows, backup_days)),
        "snapshots": ("guest_list", backup_health.old_snapshots(pve, rows, snapshot_days)),
        "updates": ("node_list", node_health.updates(pve, rows)),
        "certificates": ("node_list", node_health.certificates(pve, rows)),
        "ha": ("ha_status", _ha(pve)),
    }
    found = await asyncio.gather(*(guarded(area, leads_on, look) for area, (leads_on, look) in checks.items()))
    findings = sorted((each for part in found for each in part), key=lambda each: SEVERITIES.index(each.severity))
    shown = [[each.severity, each.area, each.what, each.next_call] for each in findings[offset : offset + limit]]
    return Table(COLUMNS, shown, len(findings), offset, facts={"verdict": _verdict(findings), "checked": list(checks)})


def _verdict(findings: list[Finding]) -> str:
    count = Counter(each.severity for each in findings)
    told = [f"{count[severity]} {severity}" for severity in SEVERITIES if count[severity]]
    if count["critical"]:
        return f"critical ({', '.join(told)})"
    if count["warning"]:
        return f"needs attention ({', '.join(told)})"
    if count["unchecked"]:
        return f"nothing bad was found, but not everything could be looked at ({', '.join(told)})"
    return "healthy" + (f" ({', '.join(told)})" if told else "")


async def _quorum(pve: Cluster) -> list[Finding]:
    members = await pve.get("/cluster/status")
    cluster = next((member for member in members if member["type"] == "cluster"), None)
    if cluster is None or cluster.get("quorate"):
        return []
    online = sum(bool(member.get("online")) for member in members if member["type"] == "node")
    what = f"The cluster has no quorum ({online} of {cluster.get('nodes', '?')} nodes online), so it refuses changes"
    return [Finding("critical", "quorum", what, "cluster_status")]


async def _nodes(rows: list[Resource]) -> list[Finding]:
    found = []
    for row in rows:
        if row.type == "node" and row.status != "online":
            stuck = [each for each in rows if each.is_guest and each.node == row.node and not each.template]
            what = f"Node {row.node} is {row.status}; {len(stuck)} guests are on it"
            found.append(Finding("critical", "nodes", what, f"capacity_plan fails={row.node}"))
    return found


async def _storages(rows: list[Resource], limit: float) -> list[Finding]:
    """Of a shared storage one row is enough; a storage that is away counts only where its node is there."""
    online = {row.node for row in rows if row.type == "node" and row.status == "online"}
    places: dict[tuple[str, str], Resource] = {}
    away: dict[str, list[str]] = {}
    for row in rows:
        if row.type != "storage" or row.node not in online:
            continue
        if row.status != "available":
            away.setdefault(row.storage, []).append(row.node)
        elif row.maxdisk:
            places[row.storage, "" if row.shared else row.node] = row
    found = [
        Finding(
            "warning", "storage", f"Storage {storage} is not available on {names(nodes)}", f"node_get node={nodes[0]}"
        )
        for storage, nodes in sorted(away.items())
    ]
    for (storage, node), row in sorted(places.items()):
        share = row.disk / row.maxdisk
        if share >= limit:
            where = f" on {node}" if node else ""
            what = f"Storage {storage}{where} is {percent(share)} full ({used_of(row.disk, row.maxdisk)})"
            severity: Severity = "critical" if share >= NEARLY_FULL else "warning"
            found.append(Finding(severity, "storage", what, f"volume_list storage={storage} node={row.node}"))
    return found


async def _ha(pve: Cluster) -> list[Finding]:
    found = []
    for row in await pve.get("/cluster/ha/status/current"):
        status, state = str(row.get("status", "")), str(row.get("state", ""))
        if row.get("type") == "service" and state in ("error", "fence", "recovery"):
            found.append(Finding("critical", "ha", f"HA resource {row.get('sid')} is in state {state}", "ha_status"))
        elif row.get("type") == "lrm" and "dead" in status:
            found.append(Finding("warning", "ha", f"The HA agent of a node is silent: {status}", "ha_status"))
        elif row.get("type") == "fencing" and row.get("armed-state") == "disarmed":
            found.append(Finding("warning", "ha", "HA is disarmed: failed guests are not recovered", "ha_status"))
    return found
