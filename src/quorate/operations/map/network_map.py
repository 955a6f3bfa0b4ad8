"""The map: as data, as a picture, or as text that other tools render."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NETWORK_DISCOVER, NETWORK_SCAN, Advice, either
from quorate.homelab import map_drawing
from quorate.homelab.devices.sitemap import MapDevice, Sitemap
from quorate.homelab.devices.store import Devices, find_device
from quorate.homelab.devices.visibility import visible_devices
from quorate.homelab.homelab import Homelab
from quorate.homelab.map_drawing import Picture
from quorate.operations.registry import IllustratedFacts, Risk, Table, operation, page
from quorate.operations.units import When, moment, parse_moment, size
from quorate.problems import BadArgument, NotConfigured, NotFound


@operation(
    risk=Risk.READ,
    search_words=("map sitemap topology picture diagram draw network devices segments subnet svg png mermaid overview"),
)
async def network_map(
    homelab: Homelab,
    format: Annotated[
        Literal["data", "png", "svg", "mermaid"], Meta(description="data are rows; png and svg are pictures")
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
        raise NotFound("The map is empty", next_step=Advice("Find devices first", NETWORK_DISCOVER, NETWORK_SCAN))
    if count > map_drawing.MAX_DEVICES:
        raise BadArgument(
            f"{count} devices are too many for a picture",
            next_step=Advice(f"Narrow it with {{segment}}: {_networks(map_)}", segment=""),
        )
    facts = {"devices": count, "segments": [one.network for one in map_.segments], **_silent(map_)}
    if format == "mermaid":
        return {**facts, "mermaid": map_drawing.render_mermaid(map_)}
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
        wanted = ipaddress.ip_network(segment.strip(), strict=False)
    except ValueError:
        raise BadArgument(f"{segment!r} is not a segment", next_step=f"Available: {_networks(map_)}") from None
    found = [
        replace(
            one, devices=[_with_guests_in(one.network, spot) for spot in (*one.devices, *one.visitors)], visitors=[]
        )
        for one in map_.segments
        if one.network == str(wanted)
    ]
    if not found:
        raise NotFound(f"There is no segment {wanted} on the map", next_step=f"Available: {_networks(map_)}")
    return Sitemap(found, [], map_.silent)


def _with_guests_in(network: str, spot: MapDevice) -> MapDevice:
    """The spot without guests whose addresses are all in other segments."""
    return replace(spot, guests=[one for one in spot.guests if not one.addresses or one.address_in(network)])


def _networks(map_: Sitemap) -> str:
    return ", ".join(one.network for one in map_.segments) or "none yet"


def _table(map_: Sitemap, limit: int, offset: int) -> Table:
    rows = [_row(_own_segment(map_, spot) or network, on, spot) for network, on, spot in map_.everything()]
    columns = (
        "segment", "role", "name", "device", "address", "state", "on", "system", "cores", "memory", "containers",
        "host",
    )  # fmt: skip
    table = page(columns, rows, limit=limit, offset=offset)
    table.facts = {
        "segments": {
            one.network: {
                "gateways": one.gateways,
                **({"prefix": "assumed"} if one.assumed else {}),
                **({"also_here": [spot.name for spot in one.visitors]} if one.visitors else {}),
            }
            for one in map_.segments
        },
        **_silent(map_),
    }
    if not rows:
        table.note = Advice("Nothing is known yet; find devices first", NETWORK_DISCOVER, NETWORK_SCAN)
    return table


def _own_segment(map_: Sitemap, spot: MapDevice) -> str | None:
    """The segment of a guest's address where it differs from its node's, under which the map shows it."""
    if not spot.address:
        return None
    address = ipaddress.ip_address(spot.address)
    visited = (one.network for one in map_.segments if spot in one.visitors)
    return next((one for one in visited if address in ipaddress.ip_network(one)), None)


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
    wanted = known if device is None else [find_device(known, device)]
    begin = 0.0 if since is None else parse_moment(since, now=homelab.clock.time())
    changes = await Devices(homelab.store).changes([one.id for one in wanted], since=begin, limit=limit + 1)
    rows = [
        [moment(one.time), one.device, one.name, change["path"], change["old"], change["new"]]
        for one in changes[:limit]
        for change in one.changes
    ]
    table = page(("time", "device", "name", "what", "old", "new"), rows, limit=max(1, len(rows)), offset=0)
    if len(changes) > limit:
        table.note = "There are older changes: ask with a higher limit, for one device, or look at them with since"
    return table
