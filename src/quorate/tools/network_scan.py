"""Finding devices: scans of the network, and discovering many machines at once."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import Advice, either, tools
from quorate.homelab.devices.device import Device, Sighting, bare
from quorate.homelab.devices.store import Devices
from quorate.homelab.homelab import Homelab
from quorate.homelab.network_probe import (
    USUAL_PORTS,
    Address,
    Pace,
    Scan,
    ScannedDevice,
    addresses,
    as_ranges,
    parse_ports,
)
from quorate.homelab.network_scan import Engine, SurveyResult, find_absent, scan, survey_machines
from quorate.homelab.selection import expand_all
from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import BadArgument, Problem
from quorate.pve.inventory import Resource
from quorate.pve.tasks import Report
from quorate.ssh.target import SSH_PORT
from quorate.tools.hosts import HostRefs
from quorate.units import count_of, shortlist

RATE = 400.0
SCAN_SECONDS = 35.0

Targets = Annotated[list[str], Meta(max_length=256, description="Subnets, ranges (192.168.1.10-50) or addresses")]
Rate = Annotated[float, Meta(ge=1, le=2000, description="Connections per second")]
Seconds = Annotated[float, Meta(ge=1, le=45, description="Returns what was found by then")]


@operation(
    toolset="map",
    risk=Risk.LOOK_INSIDE,
    search_words="scan subnet network ports open nmap arp find devices ip addresses who is on my lan",
    example="targets=192.168.10.0/24",
)
async def network_scan(
    homelab: Homelab,
    targets: Targets,
    report: Report,
    ports: Annotated[list[int | str], Meta(description="Such as 22 or 8000-8010; default: common ones")] | None = None,
    rate: Rate = RATE,
    engine: Annotated[Engine, Meta(description="auto takes nmap where it is installed")] = "builtin",
    seconds: Seconds = SCAN_SECONDS,
    limit: Annotated[int, Meta(ge=1, le=1000)] = 256,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Scan a network for devices: open TCP ports, MAC addresses, names. Results are added to the map."""
    done, devices, gone = await scan_and_record(
        homelab, targets, ports, rate=rate, engine=engine, seconds=seconds, report=report
    )
    hosts = {host.address: str(host) for host in await homelab.hosts.all()}
    rows = [
        [str(scanned.address), device.id, str(device), scanned.mac, ", ".join(map(str, sorted(scanned.open))),
         _known_as(device) or hosts.get(str(scanned.address), "")]
        for scanned, device in zip(done.devices.values(), devices, strict=True)
    ]  # fmt: skip
    table = page(("address", "device", "name", "mac", "open_ports", "known_as"), rows, limit=limit, offset=offset)
    table.facts = {
        "engine": done.engine,
        "answered": len(rows),
        **({"gone": shortlist(gone, 20)} if gone else {}),
        **_rest(done),
    }
    return table


async def scan_and_record(
    homelab: Homelab,
    targets: list[str],
    ports: list[int | str] | None,
    *,
    rate: float = RATE,
    engine: Engine = "builtin",
    seconds: float = SCAN_SECONDS,
    report: Report | None = None,
) -> tuple[Scan, list[Device], list[Device]]:
    """Scan and record; returns what was seen, its devices in the same order, and the devices that are gone."""
    places: list[Address] = addresses(targets, homelab.settings.networks)
    numbers = parse_ports(ports) if ports else list(USUAL_PORTS)
    pace = Pace(homelab.clock, rate, homelab.probes)
    done = await scan(places, numbers, pace, seconds=seconds, engine=engine, report=report)
    done.devices = dict(sorted(done.devices.items(), key=lambda item: (item[0].version, int(item[0]))))
    store, now = Devices(homelab.store), homelab.clock.time()
    mark_absent = await find_absent(await store.all(), done, places, pace)
    left = {bare(address) for device in mark_absent for address in device.addresses}
    done.devices = {
        place: scanned for place, scanned in done.devices.items() if not (scanned.quiet and str(place) in left)
    }
    devices = await store.record_sightings([_sighting(scanned) for scanned in done.devices.values()], now)
    met = {device.id for device in devices}
    gone = [device for device in mark_absent if device.id not in met]
    await store.mark_absent([device.id for device in gone], now)
    return done, devices, gone


def _sighting(device: ScannedDevice) -> Sighting:
    return Sighting(
        name=device.name,
        address=str(device.address),
        macs=(device.mac,) if device.mac else (),
        open_ports=tuple(sorted(device.open)),
        closed_ports=tuple(sorted(device.closed)),
    )


def _known_as(device: Device) -> str:
    return "" if device.kind == "device" else f"{device.kind} {device.refs[0] if device.refs else device}"


def _rest(done: Scan) -> dict[str, Any]:
    if not done.unfinished:
        return {}
    left = as_ranges(done.unfinished)
    return {
        "not_scanned": f"{count_of(len(done.unfinished), 'address', 'addresses')}, for lack of time or connections",
        "next": Advice("Scan the rest", tools.network_scan(targets=left))
        if len(left) <= 20
        else "Scan a smaller range, or with a higher rate",
    }


AT_ONCE = 32
SECONDS = 40.0
SCAN_SHARE = 0.4
"""The share of the time that a scan gets if it comes first."""


@operation(
    toolset="map",
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
    if hosts:
        refs, _ = await expand_all(homelab, hosts)
    else:
        wanted_labels = set(labels or ())
        refs = [host.name for host in await homelab.hosts.all() if host.active and wanted_labels <= set(host.labels)]
    if not hosts and not labels:
        refs += [ref for ref, row in rows.items() if row.status in ("running", "online") and not row.template]
    if scan:
        done, _, _ = await scan_and_record(homelab, scan, None, seconds=seconds * SCAN_SHARE, report=report)
        known = {host.address for host in await homelab.hosts.all()}
        refs += [
            str(scanned.address)
            for scanned in done.devices.values()
            if SSH_PORT in scanned.open and str(scanned.address) not in known
        ]
    if not refs:
        raise BadArgument(
            "There is nothing to discover",
            next_step=either(Advice("Register hosts", tools.host_register), Advice("give {scan}", scan="")),
        )
    left = max(1.0, seconds - (asyncio.get_running_loop().time() - begun))
    looks = await survey_machines(homelab, refs, at_once=concurrency, seconds=left, report=report)
    store = Devices(homelab.store)
    devices = await _record_looks(store, homelab.clock.time(), looks, rows)
    table = page(
        ("host", "device", "name", "address", "system", "changed", "why_not"),
        [_row(look, devices.get(look.ref), store.changed) for look in sorted(looks, key=lambda look: bool(look.why))],
        limit=limit,
        offset=offset,
    )
    table.facts = {
        "discovered": len(devices),
        "failed": len(looks) - len(devices),
        "seconds": round(asyncio.get_running_loop().time() - begun, 1),
    }
    return table


async def _cluster_rows(homelab: Homelab) -> dict[str, Resource]:
    """Nodes and guests by cluster/node and cluster/vmid; a cluster that does not answer is left out."""
    cluster_rows: dict[str, Resource] = {}
    for cluster in homelab.clusters:
        try:
            rows = await cluster.inventory.rows()
        except Problem:
            continue
        cluster_rows |= {
            f"{cluster.name}/{row.vmid or row.node}": row for row in rows if row.is_guest or row.type == "node"
        }
    return cluster_rows


async def _record_looks(
    store: Devices, now: float, looks: list[SurveyResult], rows: dict[str, Resource]
) -> dict[str, Device]:
    """Store what was seen, and what is offline or stopped."""
    seen = [look for look in looks if look.seen is not None]
    devices = await store.record_sightings([look.seen for look in seen if look.seen is not None], now)
    devices_by_ref = {look.ref: device for look, device in zip(seen, devices, strict=True)}
    here = {device.id for device in devices}
    absent = {look.ref for look in looks if look.absent}
    others = [device for device in await store.all() if device.id not in here]
    stopped = [device.id for device in others if device.place in rows and rows[device.place].status == "stopped"]
    away = [device.id for device in others if absent & {*device.refs, device.address} and device.id not in stopped]
    await store.mark_absent(stopped, now, "stopped")
    await store.mark_absent(away, now)
    return devices_by_ref


def _row(look: SurveyResult, device: Device | None, changed: set[int]) -> list[Any]:
    if device is None:
        return [look.ref, None, "", "", "", "", look.why]
    system = device.facts.system if device.facts else None
    system_name = " ".join(filter(None, (system.id, system.version))) if system else ""
    return [look.ref, device.id, device.name, device.address, system_name, "yes" if device.id in changed else "", ""]
