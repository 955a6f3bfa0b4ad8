"""Storages: full now, full soon, not available, Ceph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quorate.hints import CEPH_STATUS, VOLUME_LIST
from quorate.operations.reports.cluster_state import (
    full_storages,
    storage_places,
    unavailable_by_node,
    unavailable_storages,
)
from quorate.operations.reports.findings import Finding, Severity
from quorate.operations.reports.node_health import DAY
from quorate.operations.units import duration, percent, size
from quorate.state.findings import Observation
from quorate.watch.checks import to_observation
from quorate.watch.facts import Snapshot
from quorate.watch.memory import Memory

LEAST_SAMPLES = 24
LEAST_SPAN = 2 * DAY
STEADY = 0.8
"""How well a straight line must fit; backups that come and go are not a trend."""
LEAST_SHARE = 0.5


def full(now: Snapshot) -> Iterator[Observation]:
    for finding in full_storages(now.rows, now.settings.storage_percent / 100):
        yield to_observation(finding, "view")


def away(now: Snapshot) -> Iterator[Observation]:
    by_storage: dict[str, list[str]] = {}
    for node, storages in sorted(unavailable_by_node(now.rows).items()):
        for storage in storages:
            by_storage.setdefault(storage, []).append(node)
    for finding in unavailable_storages(by_storage):
        yield to_observation(finding, "view")


def filling(now: Snapshot, memory: Memory) -> Iterator[Observation]:
    for (storage, node), row in sorted(storage_places(now.rows).items()):
        share, left = row.disk / row.maxdisk, row.maxdisk - row.disk
        slope = growth(memory.samples.get(f"{storage}@{node}", ()))
        if slope <= 0 or share < LEAST_SHARE or share >= now.settings.storage_percent / 100:
            continue
        seconds = left / slope
        if seconds < now.settings.storage_days * DAY:
            where = f" on {node}" if node else ""
            what = (
                f"Storage {storage}{where} is {percent(share)} full, grows by {size(slope * DAY)} a day "
                f"and will be full in {duration(seconds)}"
            )
            next_call = VOLUME_LIST(storage=storage, node=row.node)
            found = Finding("warning", "storage", what, next_call, "storage-filling", f"storage {storage}{where}")
            yield to_observation(found, "view")


def growth(samples: Sequence[tuple[float, int, int]]) -> float:
    """Bytes per second of a steady growth; 0 if there is none, or too little is known."""
    if len(samples) < LEAST_SAMPLES or samples[-1][0] - samples[0][0] < LEAST_SPAN:
        return 0.0
    begun = samples[0][0]
    times, used = [one[0] - begun for one in samples], [float(one[1]) for one in samples]
    mean_time, mean_used = sum(times) / len(times), sum(used) / len(used)
    spread = sum((time - mean_time) ** 2 for time in times)
    together = sum((time - mean_time) * (one - mean_used) for time, one in zip(times, used, strict=True))
    varied = sum((one - mean_used) ** 2 for one in used)
    if not spread or not varied or together**2 / (spread * varied) < STEADY:
        return 0.0
    return max(0.0, together / spread)


def ceph(now: Snapshot) -> Iterator[Observation]:
    status = now.value("ceph")
    health = (status or {}).get("health") or {}
    word = str(health.get("status", "HEALTH_OK"))
    if status is None or word == "HEALTH_OK":
        return
    checks = [str(one) for one in health.get("checks") or {}]
    severity: Severity = "critical" if word == "HEALTH_ERR" else "warning"
    what = f"Ceph reports {word}" + (f": {', '.join(checks[:8])}" if checks else "")
    yield to_observation(Finding(severity, "storage", what, CEPH_STATUS, "ceph-unhealthy"), "ceph")
