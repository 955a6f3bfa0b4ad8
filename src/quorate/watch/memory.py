"""What the watch remembers of a cluster between cycles and restarts: histories, and the last known good settings."""

from __future__ import annotations

import msgspec

from quorate.watch.facts import HOUR, Snapshot

FLAP_SECONDS = HOUR
RESTART_SECONDS = HOUR
SAMPLE_SECONDS = 2 * HOUR
SAMPLES_KEPT = 7 * 12
FAILURE_SECONDS = 24 * HOUR


class FailedTask(msgspec.Struct, frozen=True):
    time: float
    node: str
    type: str
    id: str
    status: str
    upid: str
    user: str = ""


class Memory(msgspec.Struct):
    online: dict[str, bool] = {}
    """Nodes, as of the last cycle."""
    flaps: dict[str, list[float]] = {}
    """When a node left the cluster."""
    restarts: dict[str, list[float]] = {}
    samples: dict[str, list[tuple[float, int, int]]] = {}
    """Storage -> time, bytes used, size."""
    failures: dict[str, FailedTask] = {}
    """Failed tasks of the last day, by id."""
    done: dict[str, float] = {}
    """Task and what it is about -> when it last ended well."""
    good: dict[str, dict[str, str]] = {}
    """Last known good settings, by area."""
    ours: dict[str, float] = {}
    """Facts that one of Quorate's own changes may have altered -> when."""
    appeared: dict[str, float] = {}
    """Guests of the last day -> when they were first seen."""

    def accepts(self, source: str, read_at: float) -> bool:
        """Whether the settings of this source were changed by us; only once they were read after that."""
        if source in self.ours and read_at >= self.ours[source]:
            del self.ours[source]
            return True
        return False

    def update(self, now: Snapshot, last_uptimes: dict[int, int]) -> None:
        self._note_nodes(now)
        self._note_restarts(now, last_uptimes)
        self._note_samples(now)
        self._note_tasks(now)

    def _note_nodes(self, now: Snapshot) -> None:
        for node in now.view.nodes:
            up = node in now.view.online
            if self.online.get(node, up) and not up:
                self.flaps.setdefault(node, []).append(now.now)
            self.online[node] = up
        self.online = {node: up for node, up in self.online.items() if node in now.view.nodes}
        self.flaps = _recent(self.flaps, now.now - FLAP_SECONDS)

    def _note_restarts(self, now: Snapshot, last_uptimes: dict[int, int]) -> None:
        """A guest restarted if it has run for less time than at the last look."""
        for row in now.guests:
            before = last_uptimes.get(row.vmid)
            if before is not None and row.status == "running" and 0 < row.uptime < before:
                self.restarts.setdefault(str(row.vmid), []).append(now.now)
        self.restarts = _recent(self.restarts, now.now - RESTART_SECONDS)
        last_uptimes.clear()
        last_uptimes |= {row.vmid: row.uptime for row in now.guests if row.uptime}

    def _note_samples(self, now: Snapshot) -> None:
        from quorate.operations.reports.cluster_state import storage_places

        places = {f"{storage}@{node}": row for (storage, node), row in storage_places(now.rows).items()}
        for place, row in places.items():
            kept = self.samples.setdefault(place, [])
            if not kept or now.now - kept[-1][0] >= SAMPLE_SECONDS:
                kept.append((now.now, row.disk, row.maxdisk))
                del kept[:-SAMPLES_KEPT]
        for place in self.samples.keys() - places.keys():
            if now.now - self.samples[place][-1][0] > SAMPLES_KEPT * SAMPLE_SECONDS:
                del self.samples[place]

    def _note_tasks(self, now: Snapshot) -> None:
        from quorate.operations.reports.node_health import has_failed

        for task in now.value("tasks") or ():
            upid, ended = str(task.get("upid", "")), float(task.get("endtime") or 0)
            if not ended:
                continue
            if has_failed(task):
                self.failures.setdefault(
                    upid,
                    FailedTask(
                        ended,
                        str(task.get("node", "")),
                        str(task.get("type", "")),
                        str(task.get("id") or ""),
                        str(task.get("status", ""))[:200],
                        upid,
                        str(task.get("user", "")),
                    ),
                )
            else:
                key = f"{task.get('type')} {task.get('id') or ''}"
                self.done[key] = max(self.done.get(key, 0.0), ended)
        oldest = now.pve_time - FAILURE_SECONDS
        self.failures = {upid: one for upid, one in self.failures.items() if one.time >= oldest}
        self.done = {key: time for key, time in self.done.items() if time >= oldest}


def _recent(times: dict[str, list[float]], since: float) -> dict[str, list[float]]:
    kept = {key: [one for one in all_of_them if one >= since] for key, all_of_them in times.items()}
    return {key: some for key, some in kept.items() if some}
