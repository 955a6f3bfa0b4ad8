"""Storages and what they hold."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.units import percent, used_of
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource

COLUMNS = ("storage", "nodes", "type", "shared", "trouble", "used", "content")
NODES_SHOWN = 4


@operation(risk=Risk.READ)
async def storage_list(
    pve: Cluster,
    node: Annotated[str, Meta(description="Only storages of this node")] | None = None,
    content: Annotated[
        str | None,
        Meta(description="Only storages for this content: images, rootdir, iso, vztmpl, backup, snippets, import"),
    ] = None,
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Storages with type, use and content types; a shared storage is one row."""
    if node is not None:
        await pve.inventory.node(node)
    rows = [
        row
        for row in await pve.inventory.of_type("storage")
        if (node is None or row.node == node) and (content is None or content in row.content.split(","))
    ]
    groups: dict[tuple[str, str], list[Resource]] = {}
    for row in rows:
        groups.setdefault((row.storage, "" if row.shared else row.node), []).append(row)
    return page(COLUMNS, (_row(groups[key]) for key in sorted(groups)), limit=limit, offset=offset)


def _row(places: list[Resource]) -> list[Any]:
    """One storage: local ones stand for themselves, a shared one for all its nodes."""
    best = next((place for place in places if place.status == "available"), places[0])
    names = sorted(place.node for place in places)
    more = f"+{len(names) - NODES_SHOWN}" if len(names) > NODES_SHOWN else ""
    return [
        best.storage,
        ",".join(names[:NODES_SHOWN]) + more,
        best.plugintype,
        "yes" if best.shared else "",
        "" if best.status == "available" else best.status,
        f"{used_of(best.disk, best.maxdisk)} {percent(best.disk / best.maxdisk)}" if best.maxdisk else "",
        ",".join(sorted(best.content.split(","))),
    ]
