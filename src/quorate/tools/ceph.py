"""The state of Ceph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.operations.registry import Risk, operation
from quorate.problems import Problem
from quorate.pve.cluster import Cluster
from quorate.units import size, used_of


@operation(
    toolset="nodes",
    risk=Risk.READ,
    search_words="ceph osd monitor placement rados healthy",
)
async def ceph_status(pve: Cluster) -> dict[str, Any]:
    """Ceph: health and its reasons, OSDs, monitors, placement groups, space."""
    try:
        return summarize(await pve.get("/cluster/ceph/status"))
    except Problem as problem:
        if is_not_set_up(problem):
            return {"ceph": "not set up on this cluster", "why": problem.what}
        raise


def is_not_set_up(problem: Problem) -> bool:
    """True if there is no Ceph; False if it is there but does not answer."""
    return any(words in str(problem) for words in ("not installed", "not initialized", "not fully configured"))


async def unhealthy(pve: Cluster) -> str:
    """One sentence about the health of Ceph; empty if it is healthy or not set up."""
    try:
        status = await pve.get("/cluster/ceph/status")
    except Problem as problem:
        if is_not_set_up(problem):
            return ""
        raise
    health = status.get("health", {})
    if health.get("status", "HEALTH_OK") == "HEALTH_OK":
        return ""
    checks = ", ".join(health.get("checks") or {})
    return f"Ceph is {health['status']}" + (f" ({checks})" if checks else "")


def summarize(status: Mapping[str, Any]) -> dict[str, Any]:
    """The few facts that show how the Ceph cluster is doing."""
    health = status.get("health", {})
    osds, groups = status.get("osdmap", {}), status.get("pgmap", {})
    osds = osds.get("osdmap", osds)  # older Ceph wraps it in another level
    return {
        "health": health.get("status", "unknown"),
        "reasons": [
            f"{name} ({check.get('severity', '')}): {check.get('summary', {}).get('message', '')}"
            for name, check in health.get("checks", {}).items()
        ],
        "monitors": {
            "quorum": status.get("quorum_names", []),
            "all": [monitor.get("name") for monitor in status.get("monmap", {}).get("mons", [])],
        },
        "manager": status.get("mgrmap", {}).get("active_name", ""),
        "osds": f"{osds.get('num_up_osds', '?')} up, {osds.get('num_in_osds', '?')} in, of {osds.get('num_osds', '?')}",
        "used": used_of(groups.get("bytes_used", 0), groups.get("bytes_total", 0)),
        "placement_groups": {state["state_name"]: state["count"] for state in groups.get("pgs_by_state", [])},
        "client_io": {
            "read_per_second": size(groups.get("read_bytes_sec", 0)),
            "write_per_second": size(groups.get("write_bytes_sec", 0)),
        },
        "fsid": status.get("fsid", ""),
    }
