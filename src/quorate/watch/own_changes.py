"""Settings that Quorate itself changed: intended changes are not drift."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from quorate.state.trail import AuditTrail, seconds_of

SLACK = 120.0
"""Seconds by which an entry may be older than the change that it announces."""
_AREAS = (
    ("/storage", "settings storages"),
    ("/cluster/backup", "settings backup jobs"),
    ("/cluster/ha", "settings HA"),
    ("/cluster/firewall", "settings firewall"),
    ("/cluster/options", "settings datacenter"),
    ("/access", "privileges"),
)
_GUEST = re.compile(r"/nodes/[^/]+/(?:qemu|lxc)/(\d+)(?:/|$)")


async def changed_sources(trail: AuditTrail, cluster: str, since: float) -> set[str]:
    """The facts that Quorate's own changes since then may have altered."""
    found: set[str] = set()
    async for line in trail.newest_first():
        if (seconds_of(line.get("time")) or since) < since - SLACK:
            break
        if not line.get("dry_run"):
            found.update(_source(path) for where, path in _paths(line.get("wire")) if where == cluster)
    return found - {""}


def _paths(steps: Any) -> Iterator[tuple[str, str]]:
    for step in steps if isinstance(steps, list) else ():
        if "path" in step:
            yield str(step.get("cluster")), str(step["path"])
        yield from _paths(step.get("calls"))


def _source(path: str) -> str:
    if guest := _GUEST.match(path):
        return f"config {guest[1]}"
    return next((source for prefix, source in _AREAS if path.startswith(prefix)), "")
