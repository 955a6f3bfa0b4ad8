"""The cluster as a whole: its state at a glance, and a health check."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import Advice, tools
from quorate.operations.preconditions import storages_on
from quorate.operations.registry import Risk, Table, operation
from quorate.problems import Problem, catch_problem
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.inventory import Resource
from quorate.pve.tasks import gather_bounded
from quorate.state.limits import Freeze
from quorate.state.store import StateUnavailable
from quorate.tools import node_health
from quorate.tools.backup_coverage import backup_findings
from quorate.tools.health_findings import (
    SEVERITIES,
    Finding,
    Severity,
    explained_finding,
    guest_label,
    names,
    pve_time,
    read_in_time,
    run_check,
)
from quorate.tools.node_health import DAY
from quorate.units import count_of, duration, load_of, percent, used_of


@operation(
    toolset="cluster",
    risk=Risk.READ,
    search_words="daily report overview summary quorum healthy up online offline everything lab homelab version",
)
async def cluster_status(pve: Cluster) -> dict[str, Any]:
    """Health at a glance: quorum, nodes, guests by state, load."""
    members, rows = await asyncio.gather(pve.get("/cluster/status"), pve.inventory.rows())
    cluster = next((member for member in members if member["type"] == "cluster"), None)
    nodes = [row for row in rows if row.type == "node"]
    guests = [row for row in rows if row.is_guest]
    online = [node for node in nodes if node.status == "online"]
    offline = sorted(node.node for node in nodes if node.status != "online")
    cores = sum(node.maxcpu for node in online)
    load = sum(node.cpu * node.maxcpu for node in online) / cores if cores else 0.0
    states = Counter(f"{guest.kind} {'template' if guest.template else guest.status}" for guest in guests)
    return {
        **await _freeze_note(pve.attachment(Freeze)),
        "cluster": cluster["name"] if cluster else "single node, no cluster",
        "quorate": bool(cluster["quorate"]) if cluster else True,
        "nodes": f"{len(online)} of {len(nodes)} online",
        **({"offline": offline} if offline else {}),
        "guests": dict(sorted(states.items())),
        "cpu": load_of(load, cores, text=f"{percent(load)} of {cores:.0f} cores") if cores else "",
        "memory": used_of(sum(node.mem for node in online), sum(node.maxmem for node in online)),
    }


async def _freeze_note(freeze: Freeze) -> dict[str, str]:
    """The status of a cluster can be read even if the state store does not answer."""
    try:
        frozen = await freeze.state() if freeze.may_hold else None
    except StateUnavailable:
        return {"changes": "none are made: the state cannot be read, so it is not known whether they are frozen"}
    return {"changes": f"frozen {frozen}"} if frozen else {}


NEARLY_FULL = 0.95


def lost_quorum(members: list[dict[str, Any]]) -> list[Finding]:
    """A finding if the rows of `/cluster/status` show no quorum."""
    cluster = next((member for member in members if member["type"] == "cluster"), None)
    if cluster is None or cluster.get("quorate"):
        return []
    online = sum(bool(member.get("online")) for member in members if member["type"] == "node")
    what = f"The cluster has no quorum ({online} of {cluster.get('nodes', '?')} nodes online), so it refuses changes"
    return [Finding("critical", "quorum", what, tools.cluster_status, "quorum-lost")]


def nodes_down(rows: list[Resource]) -> list[Finding]:
    findings = []
    for row in rows:
        if row.type == "node" and row.status != "online":
            affected = [guest for guest in rows if guest.is_guest and guest.node == row.node and not guest.template]
            verb = "is" if len(affected) == 1 else "are"
            what = f"Node {row.node} is {row.status}; {count_of(len(affected), 'guest')} {verb} on it"
            next_call = tools.capacity_plan(fails=row.node)
            findings.append(Finding("critical", "nodes", what, next_call, "node-down", f"node {row.node}"))
    return findings


def unavailable_by_node(rows: list[Resource]) -> dict[str, list[str]]:
    """Node -> storages that it reports as not available; only nodes that are online report anything."""
    online = {row.node for row in rows if row.type == "node" and row.status == "online"}
    away: dict[str, list[str]] = {}
    for row in rows:
        if row.type == "storage" and row.node in online and row.status != "available":
            away.setdefault(row.node, []).append(row.storage)
    return away


def unavailable_storages(unavailable: dict[str, list[str]]) -> list[Finding]:
    """Findings from storage -> nodes where it is not available."""
    return [
        Finding(
            "warning",
            "storage",
            f"Storage {storage} is not available on {names(nodes)}",
            tools.node_get(node=nodes[0]),
            "storage-away",
            f"storage {storage}",
            tuple(nodes),
        )
        for storage, nodes in sorted(unavailable.items())
    ]


def storage_places(rows: list[Resource]) -> dict[tuple[str, str], Resource]:
    """(storage, node) -> its row; a shared storage is listed once, with an empty node."""
    online = {row.node for row in rows if row.type == "node" and row.status == "online"}
    return {
        (row.storage, "" if row.shared else row.node): row
        for row in rows
        if row.type == "storage" and row.node in online and row.status == "available" and row.maxdisk
    }


def full_storages(rows: list[Resource], limit: float) -> list[Finding]:
    findings = []
    for (storage, node), row in sorted(storage_places(rows).items()):
        share = row.disk / row.maxdisk
        if share >= limit:
            where = f" on {node}" if node else ""
            what = f"Storage {storage}{where} is {percent(share)} full ({used_of(row.disk, row.maxdisk)})"
            severity: Severity = "critical" if share >= NEARLY_FULL else "warning"
            next_call = tools.volume_list(storage=storage, node=row.node)
            findings.append(Finding(severity, "storage", what, next_call, "storage-full", f"storage {storage}{where}"))
    return findings


def ha_trouble(rows: list[dict[str, Any]]) -> list[Finding]:
    """Findings from the rows of `/cluster/ha/status/current`."""
    findings = []
    for row in rows:
        status, state = str(row.get("status", "")), str(row.get("state", ""))
        if row.get("type") == "service" and state in ("error", "fence", "recovery"):
            what = f"HA resource {row.get('sid')} is in state {state}"
            findings.append(
                Finding("critical", "ha", what, tools.ha_status, "ha-trouble", f"HA resource {row.get('sid')}")
            )
        elif row.get("type") == "lrm" and "dead" in status:
            what = f"The HA agent of a node is silent: {status}"
            findings.append(
                Finding("warning", "ha", what, tools.ha_status, "ha-trouble", f"HA agent of {row.get('node')}")
            )
        elif row.get("type") == "fencing" and row.get("armed-state") == "disarmed":
            what = "HA is disarmed: failed guests are not recovered"
            findings.append(Finding("warning", "ha", what, tools.ha_status, "ha-trouble", "HA"))
    return findings


READS_AT_ONCE = 8
GUESTS_READ = 500
"""How many guests are asked for their snapshots: each is a request of its own."""


async def _old_snapshots(pve: Cluster, rows: list[Resource], days: int) -> list[Finding]:
    online = {row.node for row in rows if row.type == "node" and row.status == "online"}
    guests = sorted((row for row in rows if row.is_guest and row.node in online), key=lambda row: row.vmid)
    checked = guests[:GUESTS_READ]
    answers = await gather_bounded(READS_AT_ONCE, [partial(_read_snapshots, pve, row) for row in checked])
    now = pve_time(pve)
    findings: list[Finding] = []
    failed: list[tuple[Resource, Problem]] = []
    for row, answer in zip(checked, answers, strict=True):
        if isinstance(answer, Problem):
            failed.append((row, answer))
            continue
        findings += old_snapshots_of(row, answer, now, days)
    if failed:
        row, problem = failed[0]
        where = f" at the snapshots of {count_of(len(failed), 'guest', 'guests')}"
        findings.append(await explained_finding(pve, "snapshots", problem, tools.snapshot_list(guest=row.vmid), where))
    if len(guests) > len(checked):
        what = f"Snapshots of {len(guests) - len(checked)} guests were not checked; there are too many"
        findings.append(Finding("unchecked", "snapshots", what, tools.guest_list))
    return findings


async def _read_snapshots(pve: Cluster, row: Resource) -> Any:
    return await catch_problem(read_in_time(Guest(pve, row).get("snapshot")))


def old_snapshots_of(row: Resource, snapshots: list[dict[str, Any]], now: float, days: int) -> list[Finding]:
    old = [
        (now - float(snapshot["snaptime"]), str(snapshot["name"]))
        for snapshot in snapshots
        if snapshot.get("name") != "current"
        and snapshot.get("snaptime")
        and now - float(snapshot["snaptime"]) >= days * DAY
    ]
    if not old:
        return []
    listed = names(f"{name} ({duration(age)})" for age, name in sorted(old, reverse=True))
    what = f"{guest_label(row)} has {count_of(len(old), 'snapshot', 'snapshots')} of {days} days or more: {listed}"
    return [
        Finding("info", "snapshots", what, tools.snapshot_list(guest=row.vmid), "snapshot-old", f"guest {row.vmid}")
    ]


COLUMNS = ("severity", "area", "finding", "next")


@operation(
    toolset="reports",
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
        "quorum": (tools.cluster_status, _quorum(pve)),
        "nodes": (tools.node_list, _nodes(rows)),
        "storage": (tools.storage_list, _storages(pve, rows, storage_percent / 100)),
        "tasks": (tools.task_list(status="failed"), node_health.failed_tasks(pve, rows)),
        "backups": (tools.backup_coverage, backup_findings(pve, backup_days)),
        "snapshots": (tools.guest_list, _old_snapshots(pve, rows, snapshot_days)),
        "updates": (tools.node_list, node_health.updates(pve, rows)),
        "certificates": (tools.node_list, node_health.certificates(pve, rows)),
        "ha": (tools.ha_status, _ha(pve)),
    }
    results = await asyncio.gather(*(run_check(pve, area, leads_on, look) for area, (leads_on, look) in checks.items()))
    findings = sorted(
        (finding for part in results for finding in part), key=lambda finding: SEVERITIES.index(finding.severity)
    )
    shown = [
        [finding.severity, finding.area, finding.what, Advice("", finding.next_call)]
        for finding in findings[offset : offset + limit]
    ]
    return Table(COLUMNS, shown, len(findings), offset, facts={"verdict": _verdict(findings), "checked": list(checks)})


def _verdict(findings: list[Finding]) -> str:
    count = Counter(finding.severity for finding in findings)
    counts = [
        count_of(count[severity], severity, "warnings" if severity == "warning" else severity)
        for severity in SEVERITIES
        if count[severity]
    ]
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


async def _really_away(pve: Cluster, unavailable: dict[str, list[str]]) -> dict[str, list[str]]:
    """Storage -> nodes that do not have it. New storages are dropped: they are available, only not reported yet."""
    missing: dict[str, list[str]] = {}
    for node, storages in sorted(unavailable.items()):
        available = await storages_on(pve, node, storages)
        for storage in storages:
            if storage not in available:
                missing.setdefault(storage, []).append(node)
    return missing


async def _ha(pve: Cluster) -> list[Finding]:
    return ha_trouble(await pve.get("/cluster/ha/status/current"))
