"""Which facts are outdated: those that a change through Quorate, or a task of PVE, may have altered."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from quorate.problems import Problem
from quorate.pve.tasks import Upid
from quorate.state.trail import AuditTrail, seconds_of

SLACK = 120.0
"""Seconds by which an entry may be older than the change that it announces."""
REPORT_SECONDS = 30.0
"""Nodes report their guests every ten seconds, so the effect of a task may show that much later."""
_AREAS = (
    (r"/storage(?:/|$)", "settings storages"),
    (r"/cluster/backup(?:/|$)", "settings backup jobs"),
    (r"/cluster/backup(?:/|$)", "jobs"),
    (r"/cluster/ha(?:/|$)", "settings HA"),
    (r"/cluster/firewall(?:/|$)", "settings firewall"),
    (r"/cluster/options", "settings datacenter"),
    (r"/cluster/replication(?:/|$)", "replication-jobs"),
    (r"/access(?:/|$)", "privileges"),
    (r"/nodes/[^/]+/(?:qemu|lxc)/(\d+)/snapshot", "snapshots {}"),
    (r"/nodes/[^/]+/(?:qemu|lxc)/(\d+)/firewall", "firewall {}"),
    (r"/nodes/[^/]+/(?:qemu|lxc)/(\d+)(?:/|$)", "config {}"),
    (r"/nodes/[^/]+/(?:vzdump$|storage/[^/]+/(?:content|prunebackups))", "backups"),
    (r"/nodes/([^/]+)/apt/", "updates {}"),
    (r"/nodes/([^/]+)/certificates", "certificates {}"),
    (r"/nodes/([^/]+)/subscription", "subscription {}"),
    (r"/nodes/([^/]+)/disks/", "disks {}"),
)
"""The path of a change, and the facts that it alters."""
_TASKS = (
    (r"vzdump|imgdel|prunebackups|imgcopy", "backups"),
    (r"(?:qm|vz).*(?:snapshot|rollback)", "snapshots {id}"),
    (r"(?:qm|vz).*(?:config|rollback|move|migrate|template|restore|create)|resize|move_volume", "config {id}"),
    (r"aptupdate", "updates {node}"),
    (r"acme.*", "certificates {node}"),
    (r"zfs.*|lvm.*|dir.*|disk.*", "disks {node}"),
)
"""The type of a task, and the facts that it alters."""
_STARTS = frozenset({"qmstart", "vzstart", "hastart", "startall"})
_WHOLE_NODE = frozenset({"vzdump", "stopall", "suspendall", "migrateall"})


async def changed_sources(trail: AuditTrail, cluster: str, since: float) -> set[str]:
    """The facts that Quorate's own changes since then may have altered: intended changes are not drift."""
    sources: set[str] = set()
    async for line in trail.newest_first():
        if (seconds_of(line.get("time")) or since) < since - SLACK:
            break
        if not line.get("dry_run"):
            for where, path in _paths(line.get("wire")):
                sources.update(_sources(path) if where == cluster else ())
    return sources


def _paths(steps: Any) -> Iterator[tuple[str, str]]:
    for step in steps if isinstance(steps, list) else ():
        if "path" in step:
            yield str(step.get("cluster")), str(step["path"])
        yield from _paths(step.get("calls"))


def _sources(path: str) -> Iterator[str]:
    for pattern, source in _AREAS:
        if match := re.match(pattern, path):
            yield source.format(*match.groups())


class TaskLog:
    """The tasks that PVE lists, and when each was first seen to have ended."""

    def __init__(self) -> None:
        self._ended: dict[str, float] = {}
        self._looks = (float("-inf"), float("-inf"))
        self._listed: list[Mapping[str, Any]] = []

    def note(self, tasks: Iterable[Mapping[str, Any]], now: float) -> set[str]:
        """Note the listed tasks; returns the facts that those may have altered that ended since the last look."""
        self._listed = list(tasks)
        ended = {str(task.get("upid", "")): task for task in self._listed if task.get("endtime")}
        new = [task for upid, task in ended.items() if upid not in self._ended]
        self._ended = {upid: self._ended.get(upid, now) for upid in ended}
        self._looks = (self._looks[1], now)
        return {source for task in new for source in _sources_of(task)}

    def may_explain_a_restart(self, vmid: int, node: str) -> bool:
        """Whether a task that is running, or ended since the last look, may have restarted this guest on request."""
        return any(self._restarts(task, vmid, node) for task in self._listed if self._is_recent(task))

    def _is_recent(self, task: Mapping[str, Any]) -> bool:
        ended = self._ended.get(str(task.get("upid", "")))
        return ended is None or ended >= self._looks[0] - REPORT_SECONDS

    @staticmethod
    def _restarts(task: Mapping[str, Any], vmid: int, node: str) -> bool:
        kind, about = str(task.get("type")), str(task.get("id") or "")
        if about == str(vmid):
            return kind not in _STARTS
        return not about and kind in _WHOLE_NODE and task.get("node") == node


def _sources_of(task: Mapping[str, Any]) -> Iterator[str]:
    try:
        upid = Upid.parse(str(task.get("upid", "")))
    except Problem:
        return
    for pattern, source in _TASKS:
        if re.fullmatch(pattern, upid.type):
            yield source.format(id=upid.vmid, node=upid.node)
