"""Ceph status of the cluster: not installed, unless a test sets its health."""

from __future__ import annotations

from typing import Any

from pve_simulator.http.refusals import failure
from pve_simulator.http.routing import Call, route
from pve_simulator.world import World

_RECOVERY_SECONDS = 180.0
_NOT_INSTALLED = "binary not installed: /usr/bin/ceph-mon"


class Ceph:
    """The health of the Ceph cluster."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.health: str | None = None
        """None: Ceph is not installed. While a node is offline, and briefly after, it is not OK."""
        self.checks: dict[str, str] = {}
        """Failed checks by name."""

    def status(self) -> dict[str, Any]:
        if self.health is None:
            raise failure(_NOT_INSTALLED)
        health, failed = self.health, {**self._recovery(), **self.checks}
        if failed and health == "HEALTH_OK":
            health = "HEALTH_WARN"
        severity = "HEALTH_ERR" if health == "HEALTH_ERR" else "HEALTH_WARN"
        checks = {
            name: {"severity": severity, "summary": {"message": text, "count": 1}, "muted": False}
            for name, text in failed.items()
        }
        return {"health": {"status": health, "checks": checks, "mutes": []}}

    def _recovery(self) -> dict[str, str]:
        """The degraded data that an offline node leaves behind."""
        now = self._world.clock.now()
        ends = [end for node in self._world.nodes.values() for _, end in node.outages]
        if any(end > now for end in ends):
            return {"OSD_DOWN": "1 osds down"}
        if any(now - end < _RECOVERY_SECONDS for end in ends):
            return {"PG_DEGRADED": "Degraded data redundancy: 412/18300 objects degraded (2.251%), 21 pgs degraded"}
        return {}


@route("GET /cluster/ceph/status")
def status(call: Call) -> dict[str, Any]:
    return call.world.part(Ceph).status()
