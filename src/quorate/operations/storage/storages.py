"""Storages and their content."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

from msgspec import Meta

from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.units import Quantity, percent, used_of, yes
from quorate.problems import Problem
from quorate.pve.cluster import Cluster
from quorate.pve.lookup import Resource

COLUMNS = ("storage", "nodes", "type", "shared", "trouble", "used", "content")
NODES_SHOWN = 4


@operation(
    risk=Risk.READ,
    search_words="big size large backup storage eats space free full almost used datastores nas share zfs nfs pbs",
)
async def storage_list(
    pve: Cluster,
    node: str | None = None,
    content: Annotated[
        str | None,
        Meta(description="images, rootdir, iso, vztmpl, backup, snippets or import"),
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
        if (node is None or row.node == node) and (content is None or row.holds(content))
    ]
    groups: dict[tuple[str, str], list[Resource]] = {}
    for row in rows:
        groups.setdefault((row.storage, "" if row.shared else row.node), []).append(row)
    await _refresh_unreported_storages(pve, groups)
    return page(COLUMNS, (_row(groups[key]) for key in sorted(groups)), limit=limit, offset=offset)


async def _refresh_unreported_storages(pve: Cluster, groups: dict[tuple[str, str], list[Resource]]) -> None:
    """A storage that no node has reported as available may be new, so one of its nodes is asked."""
    online = (await pve.inventory.view()).online
    silent = {
        key: next((place.node for place in places if place.node in online), None)
        for key, places in groups.items()
        if all(place.status != "available" for place in places)
    }
    for node in sorted({node for node in silent.values() if node}):
        with suppress(Problem):  # its state stays unknown
            fresh = {row.storage: row for row in await pve.inventory.fresh_storages(node)}
            for key in (key for key, where in silent.items() if where == node and key[0] in fresh):
                groups[key] = [fresh[key[0]] if place.node == node else place for place in groups[key]]


def _usage(used: float, whole: float) -> str:
    if not whole:
        return ""
    return Quantity(f"{used_of(used, whole)} {percent(used / whole)}", {"used": int(used), "total": int(whole)})


def _row(places: list[Resource]) -> list[Any]:
    """One row: a local storage of one node, or a shared one of all its nodes."""
    best = next((place for place in places if place.status == "available"), places[0])
    names = sorted(place.node for place in places)
    more = f"+{len(names) - NODES_SHOWN}" if len(names) > NODES_SHOWN else ""
    return [
        best.storage,
        ",".join(names[:NODES_SHOWN]) + more,
        best.plugintype,
        yes(best.shared),
        "" if best.status == "available" else best.status,
        _usage(best.disk, best.maxdisk),
        ",".join(sorted(best.content.split(","))),
    ]
