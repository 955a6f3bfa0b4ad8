"""What needs attention on the network, and where something new would fit."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NETWORK_DISCOVER, Advice, either
from quorate.homelab.devices.analysis import SEVERITIES, findings
from quorate.homelab.devices.suggestions import NEEDS, Room, node_rooms, rank_rooms, rooms
from quorate.homelab.devices.visibility import visible_devices
from quorate.homelab.homelab import Homelab
from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.units import parse_size, size
from quorate.problems import NotFound

Kind = Literal["service", "docker", "database", "backup", "monitoring", "vm"]
Size = Annotated[str, Meta(description="Such as 4G")]


@operation(
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
    seen = await visible_devices(homelab)
    devices, map_ = seen.devices, seen.map()
    found = findings(devices, map_, seen.hosts, homelab.clock.time())
    grave = SEVERITIES[: SEVERITIES.index(severity) + 1]
    rows = [[one.severity, one.kind, one.about, one.evidence, one.to_do] for one in found if one.severity in grave]
    table = page(("severity", "finding", "about", "evidence", "to_do"), rows, limit=limit, offset=offset)
    systems = Counter(one.facts.system.id for one in devices if one.facts and one.facts.system and one.facts.system.id)
    table.facts = {
        "devices": dict(Counter(one.state for one in devices)),
        "looked_into": sum(one.facts is not None for one in devices),
        "systems": dict(systems.most_common(20)),
        "segments": {
            one.network: len(one.devices) + sum(len(spot.guests) for spot in one.devices) for one in map_.segments
        },
        **({"no_answer": seen.silent} if seen.silent else {}),
    }
    if not any(one.facts for one in devices):
        table.note = Advice("No machine has been discovered yet", NETWORK_DISCOVER)
    return table


@operation(
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
    seen = await visible_devices(homelab)
    nodes = node_rooms(seen.clusters)
    candidates = nodes if kind == "vm" else [*nodes, *rooms(one for one in seen.devices if one.kind != "node")]
    if not candidates:
        raise NotFound(
            "The free resources of machines are unknown", next_step=Advice("Measure them first", NETWORK_DISCOVER)
        )
    order = rank_rooms(candidates, need)
    fits = [one for one in order if not one.objections]
    others = [one for one in order if one.objections]
    return {
        "wanted": f"{usual.about}: {size(need.memory)} memory, {size(need.disk)} disk, {need.cores} cores",
        "fits": [_fit(one) for one in fits[:limit]],
        "does_not_fit": {one.name: "; ".join(one.objections) for one in others[:limit]},
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


def _fit(room: Room) -> dict[str, Any]:
    return {"where": room.name, "kind": room.kind, "because": "; ".join(room.reasons)}
