"""The journal of a node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pve_simulator.http.routing import Call, Payload, route
from pve_simulator.world import Node, World

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
        return f"s=simulator;i={position:x};t={int(self.time * 1_000_000):x}"


def entries(world: World, node: Node) -> list[Entry]:
    """The journal of the node, oldest first."""
    unsorted = [*_boot(node), *_routine(world, node), *_tasks(world, node)]
    return sorted(unsorted, key=lambda entry: entry.time)


def _boot(node: Node) -> Iterable[Entry]:
    at = node.booted_at
    yield Entry(at, "kernel", f"kernel: Linux version {node.kernel} (build@proxmox)")
    yield Entry(at + 4, "systemd", "systemd[1]: Started systemd-journald.service - Journal Service.")
    yield Entry(at + 9, "pve-cluster", "systemd[1]: Started pve-cluster.service - The Proxmox VE cluster filesystem.")
    yield Entry(at + 10, "corosync", "corosync[1102]:   [QUORUM] This node is within the primary component.")
    yield Entry(at + 14, "pvedaemon", "pvedaemon[1204]: starting 3 worker(s)")
    yield Entry(at + 15, "pveproxy", "pveproxy[1210]: starting 3 worker(s)")


def _routine(world: World, node: Node) -> Iterable[Entry]:
    """Hourly routine messages of the last two days."""
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


@route("GET /nodes/{node}/syslog")
def syslog(call: Call) -> Payload:
    params = call.params
    shown = _between(_entries(call), _seconds(params.get("since")), _seconds(params.get("until")))
    if "service" in params:
        shown = [entry for entry in shown if entry.unit == params["service"].removesuffix(".service")]
    lines = [entry.line(call.node) for entry in shown] or ["-- No entries --"]
    return Payload.of_lines(lines, params)


@route("GET /nodes/{node}/journal")
def journal(call: Call) -> list[str]:
    """The lines between two cursors, which come first and last."""
    params: dict[str, Any] = call.params
    known = _entries(call)
    marked = [(entry.cursor(position), entry) for position, entry in enumerate(known)]
    cursors = [cursor for cursor, _ in marked]
    if params.get("startcursor") in cursors:
        marked = marked[cursors.index(params["startcursor"]) :]
    if params.get("endcursor") in cursors:
        marked = [pair for pair in marked if cursors.index(pair[0]) <= cursors.index(params["endcursor"])]
    since, until = params.get("since"), params.get("until")
    marked = [pair for pair in marked if pair[1] in _between([pair[1]], since, until)]
    if "lastentries" in params:
        marked = marked[len(marked) - min(len(marked), params["lastentries"]) :]
    if not marked:
        return []
    return [marked[0][0], *(entry.line(call.node) for _, entry in marked), marked[-1][0]]


def _entries(call: Call) -> list[Entry]:
    return entries(call.world, call.world.nodes[call.node])


def _between(log: list[Entry], since: float | None, until: float | None) -> list[Entry]:
    return [entry for entry in log if (since is None or entry.time >= since) and (until is None or entry.time <= until)]


def _seconds(text: str | None) -> float | None:
    """A time such as `2026-01-15 08:00`; the schema has checked its form, but not that there is such a day."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
