"""Whether the machines that records of services name are still there."""

from __future__ import annotations

from collections.abc import Iterable

from quorate.homelab.homelab import Homelab
from quorate.homelab.services.installations import Installation
from quorate.problems import Problem

HOST_GONE, GUEST_GONE, CLUSTER_GONE = "its host is no longer registered", "its guest is gone", "its cluster is gone"
MOVED = "its host is another machine now"


async def find_stale_hosts(homelab: Homelab, records: Iterable[Installation]) -> dict[str, str]:
    """Host of a record -> why the record can no longer be trusted. A cluster that does not answer proves nothing."""
    hosts = {one.name: one for one in await homelab.hosts.everyone()}
    found: dict[str, str] = {}
    for one in records:
        cluster, slash, inner = one.host.partition("/")
        if slash:
            if why := await _gone_in(homelab, cluster, inner):
                found[one.host] = why
        elif one.host not in hosts:
            if not (one.at or one.host).startswith(one.host) or not set(one.host) & set(".:"):
                found[one.host] = HOST_GONE  # a bare address was never registered
        elif one.at and hosts[one.host].at != one.at:
            found[one.host] = MOVED
    return found


async def _gone_in(homelab: Homelab, name: str, inner: str) -> str:
    cluster = next((one for one in homelab.clusters if one.name == name), None)
    if cluster is None:
        return CLUSTER_GONE if all(one.name != name for one in homelab.guarded) else ""
    if not inner.isdecimal():
        return ""
    try:
        rows = await cluster.inventory.guests()
    except Problem:
        return ""
    return "" if any(row.vmid == int(inner) for row in rows) else GUEST_GONE
