"""A health check of the whole cluster."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Annotated

from msgspec import Meta

from quorate.hints import (
    BACKUP_COVERAGE,
    CLUSTER_STATUS,
    GUEST_LIST,
    HA_STATUS,
    NODE_LIST,
    STORAGE_LIST,
    TASK_LIST,
    Advice,
)
from quorate.operations.preconditions import storages_on
from quorate.operations.registry import Risk, Table, operation
from quorate.operations.reports import backup_health, node_health
from quorate.operations.reports.cluster_state import (
    full_storages,
    ha_trouble,
    lost_quorum,
    nodes_down,
    unavailable_by_node,
    unavailable_storages,
)
from quorate.operations.reports.findings import SEVERITIES, Finding, count_of, run_check
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource

COLUMNS = ("severity", "area", "finding", "next")


@operation(
    risk=Risk.READ,
    search_words=(
        "daily report slow problems wrong worry attention broken issues alerts anything bad check healthy diagnose"
        " trouble red failed warning fix look after"
    ),
)
async def cluster_health(
    pve: Cluster,
    snapshot_days: Annotated[int, Meta(ge=0)] = 30,
    backup_days: Annotated[int, Meta(ge=1)] = 7,
    storage_percent: Annotated[int, Meta(ge=1, le=100)] = 85,
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """What is wrong and what to do next, worst first: quorum, nodes, storages, failed tasks, missing backups, old
    snapshots, updates, certificates, HA."""
    rows = await pve.inventory.rows()  # nothing can be checked without it
    checks = {
        "quorum": (CLUSTER_STATUS, _quorum(pve)),
        "nodes": (NODE_LIST, _nodes(rows)),
        "storage": (STORAGE_LIST, _storages(pve, rows, storage_percent / 100)),
        "tasks": (TASK_LIST(status="failed"), node_health.failed_tasks(pve, rows)),
        "backups": (BACKUP_COVERAGE, backup_health.backups(pve, rows, backup_days)),
        "snapshots": (GUEST_LIST, backup_health.old_snapshots(pve, rows, snapshot_days)),
        "updates": (NODE_LIST, node_health.updates(pve, rows)),
        "certificates": (NODE_LIST, node_health.certificates(pve, rows)),
        "ha": (HA_STATUS, _ha(pve)),
    }
    found = await asyncio.gather(*(run_check(pve, area, leads_on, look) for area, (leads_on, look) in checks.items()))
    findings = sorted((each for part in found for each in part), key=lambda each: SEVERITIES.index(each.severity))
    shown = [
        [each.severity, each.area, each.what, Advice("", each.next_call)] for each in findings[offset : offset + limit]
    ]
    return Table(COLUMNS, shown, len(findings), offset, facts={"verdict": _verdict(findings), "checked": list(checks)})


def _verdict(findings: list[Finding]) -> str:
    count = Counter(each.severity for each in findings)
    counts = [count_of(count[one], one, "warnings" if one == "warning" else one) for one in SEVERITIES if count[one]]
    if count["critical"]:
        return f"critical ({', '.join(counts)})"
    if count["warning"]:
        return f"needs attention ({', '.join(counts)})"
    if count["unchecked"]:
        return f"no problems found, but not everything could be checked ({', '.join(counts)})"
    return "healthy" + (f" ({', '.join(counts)})" if counts else "")


async def _quorum(pve: Cluster) -> list[Finding]:
    return lost_quorum(await pve.get("/cluster/status"))


async def _nodes(rows: list[Resource]) -> list[Finding]:
    return nodes_down(rows)


async def _storages(pve: Cluster, rows: list[Resource], limit: float) -> list[Finding]:
    return unavailable_storages(await _really_away(pve, unavailable_by_node(rows))) + full_storages(rows, limit)


async def _really_away(pve: Cluster, away: dict[str, list[str]]) -> dict[str, list[str]]:
    """Storage -> nodes, of node -> storages: a storage that is new is there, only not reported yet."""
    found: dict[str, list[str]] = {}
    for node, storages in sorted(away.items()):
        available = await storages_on(pve, node, storages)
        for storage in storages:
            if storage not in available:
                found.setdefault(storage, []).append(node)
    return found


async def _ha(pve: Cluster) -> list[Finding]:
    return ha_trouble(await pve.get("/cluster/ha/status/current"))
