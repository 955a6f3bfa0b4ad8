"""Listing container templates: those on the storages, and those that Proxmox and TurnKey offer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.operations import stored_volumes
from quorate.operations.placement import pick_node
from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.storage.volumes import StorageNames, names
from quorate.operations.stored_volumes import StoredVolume
from quorate.operations.units import size
from quorate.pve.cluster import Cluster

COLUMNS = ("template", "present_on", "size", "section", "about")
PLACES_SHOWN = 4


@operation(
    risk=Risk.READ,
    search_words="container templates appliances lxc available download",
)
async def template_list(
    pve: Cluster,
    show: Literal["all", "present", "available"] = "all",
    search: Annotated[str, Meta(description="Part of name or description")] | None = None,
    node: str | None = None,
    storage: StorageNames | None = None,
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Container templates: present on storages, and available for image_download. VMs: guest_list template=true."""
    volumes, trouble = (
        await stored_volumes.survey(pve, storages=names(storage), node=node, content="vztmpl")
        if show != "available"
        else ([], [])
    )
    offers = await read_appliances(pve, await pick_node(pve, node)) if show != "present" else []
    rows = _rows(volumes, {str(row["template"]): row for row in offers})
    if search:
        rows = [row for row in rows if search.lower() in f"{row[0]} {row[4]}".lower()]
    table = page(COLUMNS, rows, limit=limit, offset=offset)
    table.facts = {"not_read": trouble} if trouble else {}
    if table.next_offset is not None:
        table.note = "narrow with search or show"
    return table


async def read_appliances(pve: Cluster, node: str) -> list[dict[str, Any]]:
    return list(await pve.get(f"/nodes/{node}/aplinfo"))


def _rows(volumes: list[StoredVolume], offered: dict[str, dict[str, Any]]) -> list[list[Any]]:
    """Templates on the storages first, then those that can be downloaded."""
    held: dict[str, list[StoredVolume]] = {}
    for volume in volumes:
        held.setdefault(volume.name.removeprefix("vztmpl/"), []).append(volume)
    rows = [_row(name, held.get(name, []), offered.get(name, {})) for name in {**held, **offered}]
    return sorted(rows, key=lambda row: (not row[1], row[0]))


def _row(name: str, volumes: list[StoredVolume], offer: dict[str, Any]) -> list[Any]:
    where = [volume.storage if volume.shared else f"{volume.storage} on {volume.node}" for volume in volumes]
    more = f" +{len(where) - PLACES_SHOWN}" if len(where) > PLACES_SHOWN else ""
    return [
        name,
        ", ".join(where[:PLACES_SHOWN]) + more,
        size(volumes[0].size) if volumes else "",
        offer.get("section", ""),
        offer.get("headline", ""),
    ]
