"""The map of the network: as data, as a picture, and what needs attention."""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import Advice, either, tools
from quorate.homelab import map_drawing
from quorate.homelab.devices.analysis import NEEDS, SEVERITIES, findings, node_rooms, rank_rooms, rooms
from quorate.homelab.devices.sitemap import MapDevice, Sitemap, visible_devices
from quorate.homelab.devices.store import Devices, find_device
from quorate.homelab.homelab import Homelab
from quorate.homelab.map_drawing import Picture
from quorate.operations.registry import IllustratedFacts, Risk, Table, operation, page
from quorate.problems import BadArgument, NotConfigured, NotFound
from quorate.units import When, count_of, moment, parse_moment, parse_size, size


@operation(
    toolset="map",
    risk=Risk.READ,
    search_words=("map sitemap topology picture diagram draw network devices segments subnet svg png overview"),
)
async def network_map(
    homelab: Homelab,
    format: Annotated[
        Literal["data", "png", "svg"], Meta(description="data are rows; png and svg are pictures")
    ] = "data",
    segment: Annotated[str, Meta(description="Only this one, such as 192.168.1.0/24")] | None = None,
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table | dict[str, Any] | IllustratedFacts:
    """The map of the homelab: segments, hosts, hypervisors with their guests, from discovery, scans and clusters."""
    map_ = (await visible_devices(homelab)).map()
    if segment is not None:
        map_ = _narrow_to_segment(map_, segment)
    if format == "data":
        return _table(map_, limit, offset)
    count = sum(1 for _ in map_.everything())
    if not count:
        raise NotFound(
            "The map is empty", next_step=Advice("Find devices first", tools.network_discover, tools.network_scan)
        )
    if count > map_drawing.MAX_DEVICES:
        raise BadArgument(
            f"{count} devices are too many for a picture",
            next_step=Advice(f"Narrow it with {{segment}}: {_networks(map_)}", segment=""),
        )
    facts = {"devices": count, "segments": [part.network for part in map_.segments], **_silent(map_)}
    title = f"Homelab {segment}" if segment else "Homelab"
    drawn = map_drawing.draw_map(map_, title, f"{count} devices · {moment(homelab.clock.time())}")
    if format == "svg":
        return {**facts, "svg": map_drawing.render_svg(drawn)}
    png = await asyncio.to_thread(_png)
    return IllustratedFacts(facts, (await asyncio.to_thread(png, drawn),))


def _png() -> Callable[[Picture], bytes]:
    try:
        from quorate.homelab.map_png import png
    except ImportError as error:
        raise NotConfigured(
            "A PNG needs matplotlib, which is not installed",
            why=f"Python said: {error}",
            next_step=either(Advice("Use {format}", format="svg"), "install it with `pip install 'quorate[charts]'`"),
        ) from None
    return png


def _narrow_to_segment(map_: Sitemap, segment: str) -> Sitemap:
    try:
        network = ipaddress.ip_network(segment.strip(), strict=False)
    except ValueError:
        raise BadArgument(f"{segment!r} is not a segment", next_step=f"Available: {_networks(map_)}") from None
    segments = [
        replace(
            part, devices=[_with_guests_in(part.network, spot) for spot in (*part.devices, *part.visitors)], visitors=[]
        )
        for part in map_.segments
        if part.network == str(network)
    ]
    if not segments:
        raise NotFound(f"There is no segment {network} on the map", next_step=f"Available: {_networks(map_)}")
    return Sitemap(segments, [], map_.silent)


def _with_guests_in(network: str, spot: MapDevice) -> MapDevice:
    """The spot without guests whose addresses are all in other segments."""
    return replace(spot, guests=[guest for guest in spot.guests if not guest.addresses or guest.address_in(network)])


def _networks(map_: Sitemap) -> str:
    return ", ".join(segment.network for segment in map_.segments) or "none yet"


def _table(map_: Sitemap, limit: int, offset: int) -> Table:
    rows = [_row(_own_segment(map_, spot) or network, on, spot) for network, on, spot in map_.everything()]
    columns = (
        "segment", "role", "name", "device", "address", "state", "on", "system", "cores", "memory", "containers",
        "host",
    )  # fmt: skip
    table = page(columns, rows, limit=limit, offset=offset)
    table.facts = {
        "segments": {
            part.network: {
                "gateways": part.gateways,
                **({"prefix": "assumed"} if part.assumed else {}),
                **({"also_here": [spot.name for spot in part.visitors]} if part.visitors else {}),
            }
            for part in map_.segments
        },
        **_silent(map_),
    }
    if not rows:
        table.note = Advice("Nothing is known yet; find devices first", tools.network_discover, tools.network_scan)
    return table


def _own_segment(map_: Sitemap, spot: MapDevice) -> str | None:
    """The segment of a guest's address where it differs from its node's, under which the map shows it."""
    if not spot.address:
        return None
    address = ipaddress.ip_address(spot.address)
    visited = (part.network for part in map_.segments if spot in part.visitors)
    return next((part for part in visited if address in ipaddress.ip_network(part)), None)


def _row(network: str, on: str, spot: MapDevice) -> list[Any]:
    memory = size(spot.memory) if spot.memory else ""
    address = (spot.address_in(network) if network else "") or spot.address
    return [
        network, spot.role, spot.name, spot.id, address, spot.state, on, spot.system, spot.cores, memory,
        spot.containers or None, spot.ref,
    ]  # fmt: skip


def _silent(map_: Sitemap) -> dict[str, Any]:
    return {"no_answer": map_.silent} if map_.silent else {}


DeviceRef = Annotated[int | str, Meta(description="Id, name or address")]


@operation(
    toolset="map",
    risk=Risk.READ,
    search_words="what changed history devices new gone since yesterday difference appeared disappeared network",
    example="since=1d",
)
async def network_changes(
    homelab: Homelab,
    device: DeviceRef | None = None,
    since: When | None = None,
    limit: Annotated[int, Meta(ge=1, le=500)] = 50,
) -> Table:
    """The history of devices, newest first: what appeared, went away, came back, and which fields changed. Load, uptime
    and the like do not count as changes."""
    known = (await visible_devices(homelab)).devices
    devices = known if device is None else [find_device(known, device)]
    begin = 0.0 if since is None else parse_moment(since, now=homelab.clock.time())
    changes = await Devices(homelab.store).changes([entry.id for entry in devices], since=begin, limit=limit + 1)
    rows = [
        [moment(entry.time), entry.device, entry.name, change["path"], change["old"], change["new"]]
        for entry in changes[:limit]
        for change in entry.changes
    ]
    table = page(("time", "device", "name", "what", "old", "new"), rows, limit=max(1, len(rows)), offset=0)
    if len(changes) > limit:
        table.note = "There are older changes: ask with a higher limit, for one device, or look at them with since"
    return table


Kind = Literal["service", "docker", "database", "backup", "monitoring", "vm"]
Size = Annotated[str, Meta(description="Such as 4G")]


@operation(
    toolset="map",
    risk=Risk.READ,
    search_words="analyse topology problems duplicate ip mac single point of failure full disk old kernel",
)
async def network_analyze(
    homelab: Homelab,
    severity: Annotated[Literal["critical", "warning", "notice"], Meta(description="At least")] = "notice",
    limit: Annotated[int, Meta(ge=1, le=500)] = 100,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """What needs attention: duplicate addresses, single points of failure, full disks, little memory, old kernels
    and releases, failed services, devices that are gone. Each with evidence and what to do."""
    visible = await visible_devices(homelab)
    devices, map_ = visible.devices, visible.map()
    problems = findings(devices, map_, visible.hosts, homelab.clock.time())
    severities = SEVERITIES[: SEVERITIES.index(severity) + 1]
    rows = [
        [problem.severity, problem.kind, problem.about, problem.evidence, problem.to_do]
        for problem in problems
        if problem.severity in severities
    ]
    table = page(("severity", "finding", "about", "evidence", "to_do"), rows, limit=limit, offset=offset)
    systems = Counter(
        entry.facts.system.id for entry in devices if entry.facts and entry.facts.system and entry.facts.system.id
    )
    table.facts = {
        "devices": dict(Counter(entry.state for entry in devices)),
        "looked_into": sum(entry.facts is not None for entry in devices),
        "systems": dict(systems.most_common(20)),
        "segments": {
            segment.network: len(segment.devices) + sum(len(spot.guests) for spot in segment.devices)
            for segment in map_.segments
        },
        **({"no_answer": visible.silent} if visible.silent else {}),
    }
    if not any(entry.facts for entry in devices):
        table.note = Advice("No machine has been discovered yet", tools.network_discover)
    return table


@operation(
    toolset="map",
    risk=Risk.READ,
    search_words="where to put deploy place suggest host free resources room capacity best machine for a service",
    example="kind=database memory=8G",
)
async def network_suggest(
    homelab: Homelab,
    kind: Annotated[Kind, Meta(description="What is to be placed")] = "service",
    memory: Size | None = None,
    disk: Size | None = None,
    cores: Annotated[int, Meta(ge=1, le=1024)] | None = None,
    limit: Annotated[int, Meta(ge=1, le=50)] = 5,
) -> dict[str, Any]:
    """Where something new would fit best, by measured free memory, disk and cores of hosts and nodes. Shows the
    numbers, and why the others do not fit."""
    usual = NEEDS[kind]
    need = replace(
        usual,
        memory=usual.memory if memory is None else parse_size(memory, unit="G"),
        disk=usual.disk if disk is None else parse_size(disk, unit="G"),
        cores=cores or usual.cores,
    )
    visible = await visible_devices(homelab)
    nodes = node_rooms(visible.clusters)
    candidates = nodes if kind == "vm" else [*nodes, *rooms(room for room in visible.devices if room.kind != "node")]
    if not candidates:
        raise NotFound(
            "The free resources of machines are unknown", next_step=Advice("Measure them first", tools.network_discover)
        )
    order = rank_rooms(candidates, need)
    fits = [room for room in order if not room.objections]
    others = [room for room in order if room.objections]
    return {
        "wanted": f"{usual.about}: {size(need.memory)} memory, {size(need.disk)} disk, {count_of(need.cores, 'core')}",
        "fits": [{"where": room.name, "kind": room.kind, "because": "; ".join(room.reasons)} for room in fits[:limit]],
        "does_not_fit": {room.name: "; ".join(room.objections) for room in others[:limit]},
        "looked_at": len(order),
        **(
            {}
            if fits
            else {
                "next": either(
                    "Free something",
                    Advice("ask for less with {memory}, {disk} or {cores}", memory="", disk="", cores=""),
                )
            }
        ),
    }
