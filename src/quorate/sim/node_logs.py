"""The journal of a node: its boot, its services, and a line for every beginning and end of a task."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from quorate.sim.world import Node, World

_HOUR = 3600.0
_ROUTINE_HOURS = 48


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the journal."""

    time: float
    unit: str
    text: str

    def line(self, host: str) -> str:
        stamp = datetime.fromtimestamp(self.time, UTC).strftime("%b %d %H:%M:%S")
        return f"{stamp} {host} {self.text}"

    def cursor(self, position: int) -> str:
        return f"s=quorate;i={position:x};t={int(self.time * 1_000_000):x}"


def entries(world: World, node: Node) -> list[Entry]:
    """Everything that the node has logged, oldest first."""
    found = [*_boot(node), *_routine(world, node), *_tasks(world, node)]
    return sorted(found, key=lambda entry: entry.time)


def _boot(node: Node) -> Iterable[Entry]:
    at = node.booted_at
    yield Entry(at, "kernel", f"kernel: Linux version {node.kernel} (build@proxmox)")
    yield Entry(at + 4, "systemd", "systemd[1]: Started systemd-journald.service - Journal Service.")
    yield Entry(at + 9, "pve-cluster", "systemd[1]: Started pve-cluster.service - The Proxmox VE cluster filesystem.")
    yield Entry(at + 10, "corosync", "corosync[1102]:   [QUORUM] This node is within the primary component.")
    yield Entry(at + 14, "pvedaemon", "pvedaemon[1204]: starting 3 worker(s)")
    yield Entry(at + 15, "pveproxy", "pveproxy[1210]: starting 3 worker(s)")


def _routine(world: World, node: Node) -> Iterable[Entry]:
    """What a healthy node says every hour, for the last two days."""
    last = world.clock.now() // _HOUR * _HOUR
    for hours in range(_ROUTINE_HOURS):
        at = last - hours * _HOUR
        if at + 17 * 60 <= world.clock.now() and at > node.booted_at:
            yield Entry(at + 17 * 60, "cron", "CRON[88121]: (root) CMD (cd / && run-parts --report /etc/cron.hourly)")


def _tasks(world: World, node: Node) -> Iterable[Entry]:
    for task in world.tasks.newest_first(node.name):
        upid = task.upid
        who = f"pvedaemon[{upid.pid}]: <{upid.user}>"
        yield Entry(float(upid.starttime), "pvedaemon", f"{who} starting task {upid}")
        if task.endtime is not None:
            yield Entry(task.endtime, "pvedaemon", f"{who} end task {upid} {task.exitstatus}")
