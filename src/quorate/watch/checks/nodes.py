"""Nodes and the cluster they form: presence, quorum, clocks, disks, certificates, subscriptions, updates."""

from __future__ import annotations

import datetime
import re
import statistics
from collections.abc import Iterator

from quorate.hints import tools
from quorate.tools.cluster import ha_trouble, lost_quorum, nodes_down
from quorate.tools.health_findings import Severity, names
from quorate.tools.node_health import DAY, ending_certificates
from quorate.units import count_of, duration, moment, percent
from quorate.watch.checks import observe, to_observation
from quorate.watch.facts import HOUR, Snapshot
from quorate.watch.finding_store import Observation
from quorate.watch.memory import Memory

FLAPS = 3
SKEW_SECONDS = 5.0
METADATA_SHARE = 0.8
WORN_PERCENT = 10
SUBSCRIPTION_DAYS = 30
REPLICATION_SECONDS = HOUR
"""Later than its next planned run by this much."""
_SECURITY = re.compile(r"[~+]deb\d+u\d+")
"""Debian marks stable and security updates this way."""


def presence(snapshot: Snapshot, memory: Memory) -> Iterator[Observation]:
    for finding in nodes_down(snapshot.rows):
        yield to_observation(finding, "view")
    for node, times in memory.flaps.items():
        if len(times) >= FLAPS:
            what = f"Node {node} left the cluster {len(times)} times within an hour"
            next_call, left_at = tools.node_get(node=node), [moment(time).value for time in times]
            yield observe("node-flapping", f"node {node}", "critical", what, next_call, "view", left_at=left_at)


def quorum(snapshot: Snapshot) -> Iterator[Observation]:
    members = snapshot.value("status")
    if members is None:
        return
    lost = lost_quorum(members)
    yield from (to_observation(finding, "status") for finding in lost)
    nodes = [member for member in members if member["type"] == "node"]
    online = sum(bool(member.get("online")) for member in nodes)
    if not lost and 1 < online < len(nodes) and (online - 1) * 2 <= len(nodes):
        what = f"Only {online} of {len(nodes)} nodes are online; one more failure costs the quorum"
        yield observe("quorum-at-risk", "", "critical", what, tools.cluster_status, "status")


def high_availability(snapshot: Snapshot) -> Iterator[Observation]:
    for finding in ha_trouble(snapshot.value("ha") or []):
        yield to_observation(finding, "ha")


def clocks(snapshot: Snapshot) -> Iterator[Observation]:
    offsets = snapshot.of_nodes("time")
    usual = statistics.median(offsets.values()) if offsets else 0.0
    for node, offset in offsets.items():
        apart = offset - usual if len(offsets) > 2 else offset
        if abs(apart) > SKEW_SECONDS:
            against = "the other nodes" if len(offsets) > 2 else "this server"
            side = "ahead of" if apart > 0 else "behind"
            what = f"The clock of node {node} is {duration(abs(apart))} {side} {against}"
            target, next_call, source = f"node {node}", tools.node_get(node=node), f"time {node}"
            yield observe("clock-skew", target, "warning", what, next_call, source, seconds=round(apart, 1))


def disks(snapshot: Snapshot) -> Iterator[Observation]:
    for node, rows in snapshot.of_nodes("disks").items():
        for row in rows:
            where = f"{row['devpath']} of {node}"
            called = f"Disk {where} ({row.get('model') or 'unknown model'})"
            next_call, source = tools.node_inspect(node=node, aspect="disks"), f"disks {node}"
            health = str(row.get("health") or "UNKNOWN").upper()
            if health not in ("PASSED", "OK", "UNKNOWN"):
                what = f"{called} reports SMART health {health}"
                yield observe("disk-failing", where, "critical", what, next_call, source)
            left = row.get("wearout")
            if isinstance(left, (int, float)) and left <= WORN_PERCENT:
                what = f"{called} has {left:g}% of its life left"
                severity: Severity = "critical" if left <= 1 else "warning"
                yield observe("disk-worn", where, severity, what, next_call, source)


def pools(snapshot: Snapshot) -> Iterator[Observation]:
    for node, rows in snapshot.of_nodes("zfs").items():
        for row in rows:
            if str(row.get("health", "")).upper() != "ONLINE":
                where = f"pool {row.get('name')} of {node}"
                what = f"ZFS {where} is {row.get('health') or 'in an unknown state'}"
                next_call = tools.node_inspect(node=node, aspect="disks")
                yield observe("zfs-degraded", where, "critical", what, next_call, f"zfs {node}")
    for node, rows in snapshot.of_nodes("lvmthin").items():
        for row in rows:
            share = int(row.get("metadata_used") or 0) / max(1, int(row.get("metadata_size") or 0))
            if share >= METADATA_SHARE:
                where = f"thin pool {row.get('vg')}/{row.get('lv')} of {node}"
                what = f"The metadata of {where} is {percent(share)} full"
                level: Severity = "critical" if share >= 0.95 else "warning"
                next_call = tools.node_inspect(node=node, aspect="disks")
                yield observe("thin-metadata", where, level, what, next_call, f"lvmthin {node}")


def certificates(snapshot: Snapshot) -> Iterator[Observation]:
    for finding in ending_certificates(snapshot.of_nodes("certificates"), snapshot.pve_time):
        yield to_observation(finding, f"certificates {finding.subjects[0]}")


def subscriptions(snapshot: Snapshot) -> Iterator[Observation]:
    for node, row in snapshot.of_nodes("subscription").items():
        status, due = str(row.get("status") or "").lower(), str(row.get("nextduedate") or "")
        ends = _date(due)
        next_call, source = tools.node_inspect(node=node, aspect="subscription"), f"subscription {node}"
        problem = ""
        if status in ("expired", "invalid", "suspended"):
            problem = f"is {status}"
        elif status == "active" and ends is not None and ends - snapshot.pve_time < SUBSCRIPTION_DAYS * DAY:
            problem = f"ends on {due}"
        if problem:
            what = f"The subscription of node {node} {problem}"
            yield observe("subscription-ending", f"node {node}", "warning", what, next_call, source)


def _date(text: str) -> float | None:
    try:
        return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC).timestamp()
    except ValueError:
        return None


def updates(snapshot: Snapshot) -> Iterator[Observation]:
    """Security updates as of the node's last refresh of its package lists."""
    for node, rows in snapshot.of_nodes("updates").items():
        risky = [str(row.get("Package")) for row in rows if _is_security_update(row)]
        if risky:
            count = count_of(len(risky), "security update waits", "security updates wait")
            what = f"{count} on {node}: {names(risky)}"
            next_call, source = tools.node_inspect(node=node, aspect="updates"), f"updates {node}"
            yield observe("updates-security", f"node {node}", "warning", what, next_call, source, all_updates=len(rows))


def _is_security_update(row: dict[str, object]) -> bool:
    origin, version = str(row.get("Origin") or ""), str(row.get("Version") or "")
    return "security" in origin.lower() or (origin == "Debian" and bool(_SECURITY.search(version)))


def replication(snapshot: Snapshot) -> Iterator[Observation]:
    for node, rows in snapshot.of_nodes("replication").items():
        for row in rows:
            job, late = str(row.get("id")), snapshot.pve_time - float(row.get("next_sync") or snapshot.pve_time)
            if row.get("disable"):
                continue
            if not row.get("fail_count") and not row.get("error") and late < REPLICATION_SECONDS:
                continue
            last = float(row.get("last_sync") or 0)
            since = f"the last good run was {duration(snapshot.pve_time - last)} ago" if last else "it never succeeded"
            why = f": {str(row['error'])[:120]}" if row.get("error") else " is overdue"
            what = f"Replication {job} of guest {row.get('guest')} to {row.get('target')}{why}; {since}"
            target, next_call, source = f"replication {job}", tools.replication_list, f"replication {node}"
            yield observe(
                "replication-late", target, "warning", what, next_call, source, failures=row.get("fail_count")
            )
