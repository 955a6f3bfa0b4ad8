"""What the watch remembers of a cluster between cycles and restarts: histories, and the last known good settings."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from quorate.pve.inventory import REPORT_SECONDS, Resource
from quorate.pve.tasks import Upid
from quorate.tools.cluster import storage_places
from quorate.tools.node_health import has_failed
from quorate.units import size
from quorate.watch.facts import HOUR, Snapshot
from quorate.watch.finding_store import Event

FLAP_SECONDS = HOUR
RESTART_SECONDS = HOUR
SAMPLE_SECONDS = 2 * HOUR
SAMPLES_KEPT = 7 * 12
FAILURE_SECONDS = 24 * HOUR
_DESTROYS, _RESTORES = ("qmdestroy", "vzdestroy"), ("qmrestore", "vzrestore")
_TURNS = {("stopped", "running"): "started", ("running", "stopped"): "stopped"}


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
        """Whether Quorate changed the settings of this source; true once, after they were read again."""
        if source in self.ours and read_at >= self.ours[source]:
            del self.ours[source]
            return True
        return False

    def update(self, snapshot: Snapshot, last_uptimes: dict[int, tuple[str, int]]) -> None:
        self._note_nodes(snapshot)
        self._note_restarts(snapshot, last_uptimes)
        self._note_samples(snapshot)
        self._note_tasks(snapshot)

    def _note_nodes(self, snapshot: Snapshot) -> None:
        for node in snapshot.view.nodes:
            up = node in snapshot.view.online
            if self.online.get(node, up) and not up:
                self.flaps.setdefault(node, []).append(snapshot.now)
            self.online[node] = up
        self.online = {node: up for node, up in self.online.items() if node in snapshot.view.nodes}
        self.flaps = _recent(self.flaps, snapshot.now - FLAP_SECONDS)

    def _note_restarts(self, snapshot: Snapshot, last_uptimes: dict[int, tuple[str, int]]) -> None:
        """A guest restarted if it has run for less time than at the last look, and no move or task explains that.

        A live migration starts a new process, so the uptime begins again.
        """
        moved = set()
        for row in snapshot.guests:
            node, before = last_uptimes.get(row.vmid, (row.node, 0))
            if node != row.node:
                moved.add(row.vmid)  # its uptime is the old one until the new node reports it
            elif not (row.status == "running" and 0 < row.uptime < before):
                continue
            elif not snapshot.tasks.may_explain_a_restart(row.vmid, row.node):
                self.restarts.setdefault(str(row.vmid), []).append(snapshot.now)
        self.restarts = _recent(self.restarts, snapshot.now - RESTART_SECONDS)
        last_uptimes.clear()
        last_uptimes |= {
            row.vmid: (row.node, 0 if row.vmid in moved else row.uptime) for row in snapshot.guests if row.uptime
        }

    def _note_samples(self, snapshot: Snapshot) -> None:
        places = {f"{storage}@{node}": row for (storage, node), row in storage_places(snapshot.rows).items()}
        for place, row in places.items():
            kept = self.samples.setdefault(place, [])
            if not kept or snapshot.now - kept[-1][0] >= SAMPLE_SECONDS:
                kept.append((snapshot.now, row.disk, row.maxdisk))
                del kept[:-SAMPLES_KEPT]
        for place in self.samples.keys() - places.keys():
            if snapshot.now - self.samples[place][-1][0] > SAMPLES_KEPT * SAMPLE_SECONDS:
                del self.samples[place]

    def _note_tasks(self, snapshot: Snapshot) -> None:
        for task in snapshot.value("tasks") or ():
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
        oldest = snapshot.pve_time - FAILURE_SECONDS
        self.failures = {upid: task for upid, task in self.failures.items() if task.time >= oldest}
        self.done = {key: time for key, time in self.done.items() if time >= oldest}


def _recent(times: dict[str, list[float]], since: float) -> dict[str, list[float]]:
    kept = {key: [time for time in all_of_them if time >= since] for key, all_of_them in times.items()}
    return {key: kept_times for key, kept_times in kept.items() if kept_times}


class GuestRecord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What is remembered of a guest."""

    kind: str
    name: str
    node: str
    status: str
    tags: str
    cores: float
    memory: int
    disk: int
    template: int
    since: float = 0.0
    """When this guest was first seen under its vmid; 0 in records of older versions."""
    restored: float = 0.0
    """When a restore over it last ended, by PVE's clock."""


class Inventory(msgspec.Struct):
    """The guests of a cluster at a time."""

    at: float
    guests: dict[int, GuestRecord]
    failed: set[str] = set()
    """Failed tasks that were recorded."""


def take_inventory(snapshot: Snapshot, before: Inventory | None, memory: Memory) -> Inventory:
    """Guests on offline nodes keep their last record: PVE reports little more than their id.

    Without a record are the copies of restore drills, guests that are still being made, and those with a vmid that
    another guest had a moment ago: until their node reports, PVE shows them under the name of the former one.
    """
    guests: dict[int, GuestRecord] = {}
    for row in snapshot.view.guests:
        if row.name in snapshot.copies:
            continue
        old = before.guests.get(row.vmid) if before else None
        since = _since(old, before) if old is not None and before is not None else snapshot.now
        destroyed = _last_success(memory, _DESTROYS, row.vmid) - (snapshot.pve_time - snapshot.now)
        if old is not None and (old.kind != row.kind or destroyed > since):
            old, since = None, snapshot.now
        unreported = row.node not in snapshot.view.online or row.is_unreported
        if old is not None and (unreported or row.lock == "create"):  # the lock of a restore over it
            guests[row.vmid] = old
        elif not unreported and (old is not None or _is_complete(row, snapshot.now - destroyed)):
            restored = max(_last_success(memory, _RESTORES, row.vmid), old.restored if old is not None else 0.0)
            guests[row.vmid] = _remember(row, since, restored)
    return Inventory(snapshot.now, guests, set(memory.failures))


def _last_success(memory: Memory, tasks: tuple[str, ...], vmid: int) -> float:
    """When a task of these types last ended well for a guest, by PVE's clock."""
    return max(memory.done.get(f"{task} {vmid}", 0.0) for task in tasks)


def _since(record: GuestRecord, inventory: Inventory) -> float:
    return record.since or inventory.at


def _is_complete(row: Resource, age: float) -> bool:
    return row.lock not in ("create", "clone") and age > REPORT_SECONDS


def _remember(row: Resource, since: float, restored: float) -> GuestRecord:
    return GuestRecord(
        row.kind,
        row.name,
        row.node,
        row.status,
        row.tags,
        row.maxcpu,
        row.maxmem,
        row.maxdisk,
        row.template,
        since,
        restored,
    )


def differences(cluster: str, before: Inventory, after: Inventory, memory: Memory) -> Iterator[Event]:
    def event(kind: str, vmid: int, summary: str) -> Event:
        return Event(cluster, after.at, kind, f"guest {vmid}", summary)

    if before.guests != after.guests:
        replaced = {
            vmid
            for vmid, new in after.guests.items()
            if vmid in before.guests and new.since != _since(before.guests[vmid], before)
        }
        for vmid in sorted((before.guests.keys() - after.guests.keys()) | replaced):
            gone = before.guests[vmid]
            yield event("gone", vmid, f"{gone.kind} {vmid} {gone.name}, last on {gone.node}")
        for vmid in sorted((after.guests.keys() - before.guests.keys()) | replaced):
            new = after.guests[vmid]
            yield event("created", vmid, f"{new.kind} {vmid} {new.name} on {new.node}")
        for vmid, new in after.guests.items():
            old = before.guests.get(vmid)
            if old is None or old is new or old == new or vmid in replaced:
                continue
            called = f"{new.kind} {vmid} {new.name}"
            if old.since and new.restored > old.restored:
                yield event("restored", vmid, f"{called} from a backup")
            if old.node != new.node:
                yield event("moved", vmid, f"{called} from {old.node} to {new.node}")
            if turn := _TURNS.get((old.status, new.status)):
                yield event(turn, vmid, called)
            if changes := list(_changes(old, new)):
                yield event("changed", vmid, f"{called}: {', '.join(changes)}")
    for upid in sorted(after.failed - before.failed):
        task = memory.failures[upid]
        about = Upid.parse(upid).vmid
        target = f"guest {about}" if about else f"node {task.node}"
        summary = f"{task.type} {task.id} on {task.node}: {task.status}".replace("  ", " ")
        yield Event(cluster, after.at, "task-failed", target, summary)


def _changes(old: GuestRecord, new: GuestRecord) -> Iterator[str]:
    if old.name != new.name:
        yield f"renamed from {old.name}"
    if old.tags != new.tags:
        yield f"tags {new.tags or 'none'}"
    if old.cores != new.cores and new.cores and old.cores:
        yield f"{old.cores:g} -> {new.cores:g} cores"
    if old.memory != new.memory and new.memory and old.memory:
        yield f"memory {size(old.memory)} -> {size(new.memory)}"
    if old.disk != new.disk and new.disk and old.disk:
        yield f"disk {size(old.disk)} -> {size(new.disk)}"
    if old.template != new.template:
        yield "now a template"
