"""Storages: full now, full soon, not available, Ceph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quorate.hints import tools
from quorate.tools.cluster import full_storages, storage_places, unavailable_by_node, unavailable_storages
from quorate.tools.health_findings import Severity
from quorate.tools.node_health import DAY
from quorate.units import duration, percent, size
from quorate.watch.checks import observe, to_observation
from quorate.watch.facts import Snapshot
from quorate.watch.finding_store import Observation
from quorate.watch.memory import Memory

LEAST_SAMPLES = 24
LEAST_SPAN = 2 * DAY
STEADY = 0.8
"""How well a straight line must fit; backups that come and go are not a trend."""
LEAST_SHARE = 0.5


def full(snapshot: Snapshot) -> Iterator[Observation]:
    for finding in full_storages(snapshot.rows, snapshot.settings.storage_percent / 100):
        storage, _, node = finding.target.removeprefix("storage ").partition(" on ")
        yield to_observation(finding, f"storage {storage}@{node}")


def away(snapshot: Snapshot) -> Iterator[Observation]:
    by_storage: dict[str, list[str]] = {}
    for node, storages in sorted(unavailable_by_node(snapshot.rows).items()):
        for storage in storages:
            by_storage.setdefault(storage, []).append(node)
    for finding in unavailable_storages(by_storage):
        yield to_observation(finding, f"{finding.target}@{finding.subjects[0]}")


def filling(snapshot: Snapshot, memory: Memory) -> Iterator[Observation]:
    for (storage, node), row in sorted(storage_places(snapshot.rows).items()):
        share, left = row.disk / row.maxdisk, row.maxdisk - row.disk
        slope = growth(memory.samples.get(f"{storage}@{node}", ()))
        if slope <= 0 or share < LEAST_SHARE or share >= snapshot.settings.storage_percent / 100:
            continue
        seconds = left / slope
        if seconds < snapshot.settings.storage_days * DAY:
            where = f" on {node}" if node else ""
            what = (
                f"Storage {storage}{where} is {percent(share)} full, grows by {size(slope * DAY)} a day "
                f"and will be full in {duration(seconds)}"
            )
            next_call = tools.volume_list(storage=storage, node=row.node)
            yield observe(
                "storage-filling", f"storage {storage}{where}", "warning", what, next_call, f"storage {storage}@{node}"
            )


def growth(samples: Sequence[tuple[float, int, int]]) -> float:
    """Bytes per second of a steady growth; 0 if there is none, or too little is known."""
    if len(samples) < LEAST_SAMPLES or samples[-1][0] - samples[0][0] < LEAST_SPAN:
        return 0.0
    begun = samples[0][0]
    times, used = [sample[0] - begun for sample in samples], [float(sample[1]) for sample in samples]
    mean_time, mean_used = sum(times) / len(times), sum(used) / len(used)
    spread = sum((time - mean_time) ** 2 for time in times)
    together = sum((time - mean_time) * (amount - mean_used) for time, amount in zip(times, used, strict=True))
    varied = sum((amount - mean_used) ** 2 for amount in used)
    if not spread or not varied or together**2 / (spread * varied) < STEADY:
        return 0.0
    return max(0.0, together / spread)


def ceph(snapshot: Snapshot) -> Iterator[Observation]:
    status = snapshot.value("ceph")
    health = (status or {}).get("health") or {}
    word = str(health.get("status", "HEALTH_OK"))
    if status is None or word == "HEALTH_OK":
        return
    checks = [str(check) for check in health.get("checks") or {}]
    severity: Severity = "critical" if word == "HEALTH_ERR" else "warning"
    what = f"Ceph reports {word}" + (f": {', '.join(checks[:8])}" if checks else "")
    yield observe("ceph-unhealthy", "", severity, what, tools.ceph_status, "ceph")
