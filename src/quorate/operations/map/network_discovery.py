"""Discovering many machines at once, for the map and its history."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import HOST_REGISTER, Advice, either
from quorate.homelab.devices.device import Device
from quorate.homelab.devices.store import Devices
from quorate.homelab.devices.survey import SurveyResult, survey_machines
from quorate.homelab.homelab import Homelab
from quorate.homelab.selection import expand_all
from quorate.operations.hosts.parameters import HostRefs
from quorate.operations.map.network_scan import Seconds, Targets, scan_and_record
from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import BadArgument, Problem
from quorate.pve.inventory import Resource
from quorate.pve.tasks import Report
from quorate.ssh.target import SSH_PORT

AT_ONCE = 32
SECONDS = 40.0
SCAN_SHARE = 0.4
"""The share of the time that a scan gets if it comes first."""


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words="discover many hosts inventory all machines scan hardware bulk refresh map whole homelab",
)
async def network_discover(
    homelab: Homelab,
    report: Report,
    hosts: Annotated[HostRefs, Meta(description="Only these: one or several, a label, or all")] | None = None,
    labels: Annotated[list[str], Meta(description="Only registered hosts with all of these")] | None = None,
    scan: Annotated[Targets, Meta(description="Scan these ranges first, and try what answers SSH, too")] | None = None,
    concurrency: Annotated[int, Meta(ge=1, le=64)] = AT_ONCE,
    seconds: Seconds = SECONDS,
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Discover many machines at once and put them on the map: all registered hosts, nodes and running guests unless
    chosen otherwise. Machines that do not answer are listed with the reason."""
    begun = asyncio.get_running_loop().time()
    rows = await _cluster_rows(homelab)
    if hosts and labels:
        raise BadArgument(
            "hosts and labels cannot be combined", next_step="Give the names, or what they have in common"
        )
    refs = (await expand_all(homelab, hosts))[0] if hosts else await _hosts_with_labels(homelab, labels or [])
    if not hosts and not labels:
        refs += [ref for ref, row in rows.items() if row.status in ("running", "online") and not row.template]
    if scan:
        done, _, _ = await scan_and_record(homelab, scan, None, seconds=seconds * SCAN_SHARE, report=report)
        known = {host.address for host in await homelab.hosts.all()}
        refs += [
            str(one.address) for one in done.devices.values() if SSH_PORT in one.open and str(one.address) not in known
        ]
    if not refs:
        raise BadArgument(
            "There is nothing to discover",
            next_step=either(Advice("Register hosts", HOST_REGISTER), Advice("give {scan}", scan="")),
        )
    left = max(1.0, seconds - (asyncio.get_running_loop().time() - begun))
    looks = await survey_machines(homelab, refs, at_once=concurrency, seconds=left, report=report)
    kept = Devices(homelab.store)
    found = await _record_looks(kept, homelab.clock.time(), looks, rows)
    table = page(
        ("host", "device", "name", "address", "system", "changed", "why_not"),
        [_row(look, found.get(look.ref), kept.changed) for look in sorted(looks, key=lambda one: bool(one.why))],
        limit=limit,
        offset=offset,
    )
    table.facts = {
        "discovered": len(found),
        "failed": len(looks) - len(found),
        "seconds": round(asyncio.get_running_loop().time() - begun, 1),
    }
    return table


async def _hosts_with_labels(homelab: Homelab, labels: list[str]) -> list[str]:
    return [one.name for one in await homelab.hosts.all() if one.active and set(labels) <= set(one.labels)]


async def _cluster_rows(homelab: Homelab) -> dict[str, Resource]:
    """Nodes and guests by cluster/node and cluster/vmid; a cluster that does not answer is left out."""
    found: dict[str, Resource] = {}
    for cluster in homelab.clusters:
        try:
            rows = await cluster.inventory.rows()
        except Problem:
            continue
        found |= {f"{cluster.name}/{row.vmid or row.node}": row for row in rows if row.is_guest or row.type == "node"}
    return found


async def _record_looks(
    kept: Devices, now: float, looks: list[SurveyResult], rows: dict[str, Resource]
) -> dict[str, Device]:
    """Store what was seen, and what is offline or stopped."""
    seen = [look for look in looks if look.seen is not None]
    devices = await kept.record_sightings([look.seen for look in seen if look.seen is not None], now)
    found = {look.ref: device for look, device in zip(seen, devices, strict=True)}
    here = {device.id for device in devices}
    absent = {look.ref for look in looks if look.absent}
    others = [one for one in await kept.all() if one.id not in here]
    stopped = [one.id for one in others if one.place in rows and rows[one.place].status == "stopped"]
    away = [one.id for one in others if absent & {*one.refs, one.address} and one.id not in stopped]
    await kept.mark_absent(stopped, now, "stopped")
    await kept.mark_absent(away, now)
    return found


def _row(look: SurveyResult, device: Device | None, changed: set[int]) -> list[Any]:
    if device is None:
        return [look.ref, None, "", "", "", "", look.why]
    system = device.facts.system if device.facts else None
    system_name = " ".join(filter(None, (system.id, system.version))) if system else ""
    return [look.ref, device.id, device.name, device.address, system_name, "yes" if device.id in changed else "", ""]
