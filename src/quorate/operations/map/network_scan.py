"""Scanning the network: what answers in a range of addresses."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import NETWORK_SCAN, Advice
from quorate.homelab.devices.absence import find_absent
from quorate.homelab.devices.device import Device, Sighting, bare
from quorate.homelab.devices.store import Devices
from quorate.homelab.homelab import Homelab
from quorate.homelab.network import scan, targets
from quorate.homelab.network.probe import Pace, Scan, ScannedDevice
from quorate.homelab.network.targets import Address
from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.units import shortlist
from quorate.pve.tasks import Report

RATE = 400.0
SECONDS = 35.0

Targets = Annotated[list[str], Meta(max_length=256, description="Subnets, ranges (192.168.1.10-50) or addresses")]
Rate = Annotated[float, Meta(ge=1, le=2000, description="Connections per second")]
Seconds = Annotated[float, Meta(ge=1, le=45, description="Returns what was found by then")]


@operation(
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
    engine: Annotated[scan.Engine, Meta(description="auto takes nmap where it is installed")] = "builtin",
    seconds: Seconds = SECONDS,
    limit: Annotated[int, Meta(ge=1, le=1000)] = 256,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Scan a network for devices: open TCP ports, MAC addresses, names. Results are added to the map."""
    done, devices, gone = await scan_and_record(
        homelab, targets, ports, rate=rate, engine=engine, seconds=seconds, report=report
    )
    hosts = {host.address: str(host) for host in await homelab.hosts.all()}
    rows = [
        [str(one.address), device.id, str(device), one.mac, ", ".join(map(str, sorted(one.open))),
         _load_devices(device) or hosts.get(str(one.address), "")]
        for one, device in zip(done.devices.values(), devices, strict=True)
    ]  # fmt: skip
    table = page(("address", "device", "name", "mac", "open_ports", "known_as"), rows, limit=limit, offset=offset)
    table.facts = {"engine": done.engine, "answered": len(rows), **_gone_facts(gone), **_rest(done)}
    return table


async def scan_and_record(
    homelab: Homelab,
    wanted: list[str],
    ports: list[int | str] | None,
    *,
    rate: float = RATE,
    engine: scan.Engine = "builtin",
    seconds: float = SECONDS,
    report: Report | None = None,
) -> tuple[Scan, list[Device], list[Device]]:
    """Scan and record; returns what was seen, its devices in the same order, and the devices that are gone."""
    places: list[Address] = targets.addresses(wanted, homelab.settings.networks)
    numbers = targets.ports(ports) if ports else list(targets.USUAL_PORTS)
    pace = Pace(homelab.clock, rate, homelab.probes)
    done = await scan.scan(places, numbers, pace, seconds=seconds, engine=engine, report=report)
    done.devices = dict(sorted(done.devices.items(), key=lambda item: (item[0].version, int(item[0]))))
    kept, now = Devices(homelab.store), homelab.clock.time()
    mark_absent = await find_absent(await kept.all(), done, places, pace)
    left = {bare(one) for device in mark_absent for one in device.addresses}
    done.devices = {place: one for place, one in done.devices.items() if not (one.quiet and str(place) in left)}
    devices = await kept.record_sightings([_sighting(one) for one in done.devices.values()], now)
    met = {one.id for one in devices}
    gone = [one for one in mark_absent if one.id not in met]
    await kept.mark_absent([one.id for one in gone], now)
    return done, devices, gone


def _sighting(one: ScannedDevice) -> Sighting:
    return Sighting(
        name=one.name,
        address=str(one.address),
        macs=(one.mac,) if one.mac else (),
        open_ports=tuple(sorted(one.open)),
        closed_ports=tuple(sorted(one.closed)),
    )


def _load_devices(device: Device) -> str:
    return "" if device.kind == "device" else f"{device.kind} {device.refs[0] if device.refs else device}"


def _gone_facts(gone: list[Device]) -> dict[str, Any]:
    return {"gone": shortlist(gone, 20)} if gone else {}


def _rest(done: Scan) -> dict[str, Any]:
    if not done.unfinished:
        return {}
    left = targets.as_ranges(done.unfinished)
    return {
        "not_scanned": f"{len(done.unfinished)} addresses, for lack of time or connections",
        "next": Advice("Scan the rest", NETWORK_SCAN(targets=left))
        if len(left) <= 20
        else "Scan a smaller range, or with a higher rate",
    }
