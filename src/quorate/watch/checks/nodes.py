"""Nodes and the cluster they form: presence, quorum, clocks, disks, certificates, subscriptions, updates."""

from __future__ import annotations

import datetime
import re
import statistics
from collections.abc import Iterator

from quorate.hints import CLUSTER_STATUS, NODE_GET, NODE_INSPECT, REPLICATION_LIST
from quorate.operations.reports.cluster_state import ha_trouble, lost_quorum, nodes_down
from quorate.operations.reports.findings import Finding, Severity, count_of, names
from quorate.operations.reports.node_health import DAY, ending_certificates
from quorate.operations.units import duration, moment, percent
from quorate.state.findings import Observation
from quorate.watch.checks import to_observation
from quorate.watch.facts import HOUR, Snapshot
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


def presence(now: Snapshot, memory: Memory) -> Iterator[Observation]:
    for finding in nodes_down(now.rows):
        yield to_observation(finding, "view")
    for node, times in memory.flaps.items():
        if len(times) >= FLAPS:
            what = f"Node {node} left the cluster {len(times)} times within an hour"
            found = Finding("critical", "nodes", what, NODE_GET(node=node), "node-flapping", f"node {node}")
            yield to_observation(found, "view", left_at=[moment(one).value for one in times])


def quorum(now: Snapshot) -> Iterator[Observation]:
    members = now.value("status")
    if members is None:
        return
    lost = lost_quorum(members)
    yield from (to_observation(one, "status") for one in lost)
    nodes = [one for one in members if one["type"] == "node"]
    online = sum(bool(one.get("online")) for one in nodes)
    if not lost and 1 < online < len(nodes) and (online - 1) * 2 <= len(nodes):
        what = f"Only {online} of {len(nodes)} nodes are online; one more failure costs the quorum"
        yield to_observation(Finding("critical", "quorum", what, CLUSTER_STATUS, "quorum-at-risk"), "status")


def high_availability(now: Snapshot) -> Iterator[Observation]:
    for finding in ha_trouble(now.value("ha") or []):
        yield to_observation(finding, "ha")


def clocks(now: Snapshot) -> Iterator[Observation]:
    offsets = now.of_nodes("time")
    usual = statistics.median(offsets.values()) if offsets else 0.0
    for node, offset in offsets.items():
        apart = offset - usual if len(offsets) > 2 else offset
        if abs(apart) > SKEW_SECONDS:
            against = "the other nodes" if len(offsets) > 2 else "this server"
            side = "ahead of" if apart > 0 else "behind"
            what = f"The clock of node {node} is {duration(abs(apart))} {side} {against}"
            found = Finding("warning", "nodes", what, NODE_GET(node=node), "clock-skew", f"node {node}")
            yield to_observation(found, f"time {node}", seconds=round(apart, 1))


def disks(now: Snapshot) -> Iterator[Observation]:
    for node, rows in now.of_nodes("disks").items():
        for row in rows:
            where = f"{row['devpath']} of {node}"
            called = f"Disk {where} ({row.get('model') or 'unknown model'})"
            next_call, source = NODE_INSPECT(node=node, aspect="disks"), f"disks {node}"
            health = str(row.get("health") or "UNKNOWN").upper()
            if health not in ("PASSED", "OK", "UNKNOWN"):
                what = f"{called} reports SMART health {health}"
                yield to_observation(Finding("critical", "disks", what, next_call, "disk-failing", where), source)
            left = row.get("wearout")
            if isinstance(left, (int, float)) and left <= WORN_PERCENT:
                what = f"{called} has {left:g}% of its life left"
                severity: Severity = "critical" if left <= 1 else "warning"
                yield to_observation(Finding(severity, "disks", what, next_call, "disk-worn", where), source)


def pools(now: Snapshot) -> Iterator[Observation]:
    for node, rows in now.of_nodes("zfs").items():
        for row in rows:
            if str(row.get("health", "")).upper() != "ONLINE":
                where = f"pool {row.get('name')} of {node}"
                what = f"ZFS {where} is {row.get('health') or 'in an unknown state'}"
                next_call = NODE_INSPECT(node=node, aspect="disks")
                yield to_observation(
                    Finding("critical", "disks", what, next_call, "zfs-degraded", where), f"zfs {node}"
                )
    for node, rows in now.of_nodes("lvmthin").items():
        for row in rows:
            share = int(row.get("metadata_used") or 0) / max(1, int(row.get("metadata_size") or 0))
            if share >= METADATA_SHARE:
                where = f"thin pool {row.get('vg')}/{row.get('lv')} of {node}"
                what = f"The metadata of {where} is {percent(share)} full"
                level: Severity = "critical" if share >= 0.95 else "warning"
                next_call = NODE_INSPECT(node=node, aspect="disks")
                yield to_observation(
                    Finding(level, "disks", what, next_call, "thin-metadata", where), f"lvmthin {node}"
                )


def certificates(now: Snapshot) -> Iterator[Observation]:
    for finding in ending_certificates(now.of_nodes("certificates"), now.pve_time):
        yield to_observation(finding, f"certificates {finding.subjects[0]}")


def subscriptions(now: Snapshot) -> Iterator[Observation]:
    for node, row in now.of_nodes("subscription").items():
        status, due = str(row.get("status") or "").lower(), str(row.get("nextduedate") or "")
        ends = _date(due)
        next_call, source = NODE_INSPECT(node=node, aspect="subscription"), f"subscription {node}"
        about = ("subscription-ending", f"node {node}")
        if status in ("expired", "invalid", "suspended"):
            what = f"The subscription of node {node} is {status}"
            yield to_observation(Finding("warning", "subscriptions", what, next_call, *about), source)
        elif status == "active" and ends is not None and ends - now.pve_time < SUBSCRIPTION_DAYS * DAY:
            what = f"The subscription of node {node} ends on {due}"
            yield to_observation(Finding("warning", "subscriptions", what, next_call, *about), source)


def _date(text: str) -> float | None:
    try:
        return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC).timestamp()
    except ValueError:
        return None


def updates(now: Snapshot) -> Iterator[Observation]:
    """As of the node's last refresh of its package lists."""
    for node, rows in now.of_nodes("updates").items():
        risky = [str(row.get("Package")) for row in rows if _is_security_update(row)]
        if risky:
            count = count_of(len(risky), "security update waits", "security updates wait")
            what = f"{count} on {node}: {names(risky)}"
            next_call = NODE_INSPECT(node=node, aspect="updates")
            found = Finding("warning", "updates", what, next_call, "updates-security", f"node {node}")
            yield to_observation(found, f"updates {node}", all_updates=len(rows))


def _is_security_update(row: dict[str, object]) -> bool:
    origin, version = str(row.get("Origin") or ""), str(row.get("Version") or "")
    return "security" in origin.lower() or (origin == "Debian" and bool(_SECURITY.search(version)))


def replication(now: Snapshot) -> Iterator[Observation]:
    for node, rows in now.of_nodes("replication").items():
        for row in rows:
            job, late = str(row.get("id")), now.pve_time - float(row.get("next_sync") or now.pve_time)
            if row.get("disable"):
                continue
            if not row.get("fail_count") and not row.get("error") and late < REPLICATION_SECONDS:
                continue
            last = float(row.get("last_sync") or 0)
            since = f"; the last good run was {duration(now.pve_time - last)} ago" if last else "; it never succeeded"
            why = f": {str(row['error'])[:120]}" if row.get("error") else " is overdue"
            what = f"Replication {job} of guest {row.get('guest')} to {row.get('target')}{why}{since}"
            found = Finding("warning", "ha", what, REPLICATION_LIST, "replication-late", f"replication {job}")
            yield to_observation(found, f"replication {node}", failures=row.get("fail_count"))
