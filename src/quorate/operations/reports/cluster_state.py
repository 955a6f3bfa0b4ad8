"""What is wrong with quorum, nodes, storages and HA, judged by what PVE reports about the whole cluster."""

from __future__ import annotations

from typing import Any

from quorate.hints import CAPACITY_PLAN, CLUSTER_STATUS, HA_STATUS, NODE_GET, VOLUME_LIST
from quorate.operations.reports.findings import Finding, Severity, names
from quorate.operations.units import percent, used_of
from quorate.pve.inventory import Resource

NEARLY_FULL = 0.95


def lost_quorum(members: list[dict[str, Any]]) -> list[Finding]:
    """From `/cluster/status`."""
    cluster = next((member for member in members if member["type"] == "cluster"), None)
    if cluster is None or cluster.get("quorate"):
        return []
    online = sum(bool(member.get("online")) for member in members if member["type"] == "node")
    what = f"The cluster has no quorum ({online} of {cluster.get('nodes', '?')} nodes online), so it refuses changes"
    return [Finding("critical", "quorum", what, CLUSTER_STATUS, "quorum-lost")]


def nodes_down(rows: list[Resource]) -> list[Finding]:
    found = []
    for row in rows:
        if row.type == "node" and row.status != "online":
            stuck = [each for each in rows if each.is_guest and each.node == row.node and not each.template]
            what = f"Node {row.node} is {row.status}; {len(stuck)} guests are on it"
            next_call = CAPACITY_PLAN(fails=row.node)
            found.append(Finding("critical", "nodes", what, next_call, "node-down", f"node {row.node}"))
    return found


def unavailable_by_node(rows: list[Resource]) -> dict[str, list[str]]:
    """Node -> storages that it reports as not available; only nodes that are online report anything."""
    online = {row.node for row in rows if row.type == "node" and row.status == "online"}
    away: dict[str, list[str]] = {}
    for row in rows:
        if row.type == "storage" and row.node in online and row.status != "available":
            away.setdefault(row.node, []).append(row.storage)
    return away


def unavailable_storages(away: dict[str, list[str]]) -> list[Finding]:
    """Findings from storage -> nodes."""
    return [
        Finding(
            "warning",
            "storage",
            f"Storage {storage} is not available on {names(nodes)}",
            NODE_GET(node=nodes[0]),
            "storage-away",
            f"storage {storage}",
            tuple(nodes),
        )
        for storage, nodes in sorted(away.items())
    ]


def storage_places(rows: list[Resource]) -> dict[tuple[str, str], Resource]:
    """Storage and node -> its row; of a shared storage one row is enough, under an empty node."""
    online = {row.node for row in rows if row.type == "node" and row.status == "online"}
    return {
        (row.storage, "" if row.shared else row.node): row
        for row in rows
        if row.type == "storage" and row.node in online and row.status == "available" and row.maxdisk
    }


def full_storages(rows: list[Resource], limit: float) -> list[Finding]:
    found = []
    for (storage, node), row in sorted(storage_places(rows).items()):
        share = row.disk / row.maxdisk
        if share >= limit:
            where = f" on {node}" if node else ""
            what = f"Storage {storage}{where} is {percent(share)} full ({used_of(row.disk, row.maxdisk)})"
            severity: Severity = "critical" if share >= NEARLY_FULL else "warning"
            next_call = VOLUME_LIST(storage=storage, node=row.node)
            found.append(Finding(severity, "storage", what, next_call, "storage-full", f"storage {storage}{where}"))
    return found


def ha_trouble(rows: list[dict[str, Any]]) -> list[Finding]:
    """From `/cluster/ha/status/current`."""
    found = []
    for row in rows:
        status, state = str(row.get("status", "")), str(row.get("state", ""))
        if row.get("type") == "service" and state in ("error", "fence", "recovery"):
            what = f"HA resource {row.get('sid')} is in state {state}"
            found.append(Finding("critical", "ha", what, HA_STATUS, "ha-trouble", f"HA resource {row.get('sid')}"))
        elif row.get("type") == "lrm" and "dead" in status:
            what = f"The HA agent of a node is silent: {status}"
            found.append(Finding("warning", "ha", what, HA_STATUS, "ha-trouble", f"HA agent of {row.get('node')}"))
        elif row.get("type") == "fencing" and row.get("armed-state") == "disarmed":
            what = "HA is disarmed: failed guests are not recovered"
            found.append(Finding("warning", "ha", what, HA_STATUS, "ha-trouble", "HA"))
    return found
