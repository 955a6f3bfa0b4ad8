"""Guests compared with the last cycle: created, gone, moved, changed, started, stopped."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from quorate.operations.units import size
from quorate.pve.inventory import Resource
from quorate.pve.tasks import Upid
from quorate.state.events import Event
from quorate.watch.facts import Snapshot
from quorate.watch.memory import Memory

_TURNS = {("stopped", "running"): "started", ("running", "stopped"): "stopped"}


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


class Inventory(msgspec.Struct):
    """The guests of a cluster at a time."""

    at: float
    guests: dict[int, GuestRecord]
    failed: set[str] = set()
    """Failed tasks that were recorded."""


def take_inventory(now: Snapshot, before: Inventory | None, memory: Memory) -> Inventory:
    """Guests on offline nodes keep their last record: PVE reports little more than their id."""
    guests: dict[int, GuestRecord] = {}
    for row in now.view.guests:
        old = before.guests.get(row.vmid) if before else None
        unreported = row.node not in now.view.online or row.is_unreported
        if unreported and old is None:
            continue
        guests[row.vmid] = old if unreported and old is not None else _remember(row)
    return Inventory(now.now, guests, set(memory.failures))


def _remember(row: Resource) -> GuestRecord:
    return GuestRecord(
        row.kind, row.name, row.node, row.status, row.tags, row.maxcpu, row.maxmem, row.maxdisk, row.template
    )


def differences(cluster: str, before: Inventory, after: Inventory, memory: Memory) -> Iterator[Event]:
    def event(kind: str, vmid: int, summary: str) -> Event:
        return Event(cluster, after.at, kind, f"guest {vmid}", summary)

    if before.guests != after.guests:
        for vmid in sorted(after.guests.keys() - before.guests.keys()):
            new = after.guests[vmid]
            yield event("created", vmid, f"{new.kind} {vmid} {new.name} on {new.node}")
        for vmid in sorted(before.guests.keys() - after.guests.keys()):
            gone = before.guests[vmid]
            yield event("gone", vmid, f"{gone.kind} {vmid} {gone.name}, last on {gone.node}")
        for vmid, new in after.guests.items():
            old = before.guests.get(vmid)
            if old is None or old is new or old == new:
                continue
            called = f"{new.kind} {vmid} {new.name}"
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
