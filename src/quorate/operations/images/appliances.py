"""Container templates: those on the storages, and those that Proxmox and TurnKey offer."""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.operations import stored
from quorate.operations.images.local_files import place_for, present
from quorate.operations.placement import pick_node
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.storage.volumes import StorageNames, names
from quorate.operations.stored import Volume
from quorate.operations.units import size
from quorate.pve.cluster import Cluster
from quorate.pve.errors import BadArgument, NotFound

COLUMNS = ("template", "present_on", "size", "section", "about")
PLACES_SHOWN = 4


@operation(risk=Risk.READ)
async def template_list(
    pve: Cluster,
    show: Literal["all", "present", "available"] = "all",
    search: Annotated[str, Meta(description="Part of name or description")] | None = None,
    node: str | None = None,
    storage: StorageNames | None = None,
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Container templates: present on storages, and available for template_download. VMs: guest_list template=true."""
    where = await stored.places(pve, storages=names(storage), node=node, content=["vztmpl"])
    volumes, trouble = await stored.read(pve, where, content="vztmpl") if show != "available" else ([], [])
    offered = await _offered(pve, await pick_node(pve, node)) if show != "present" else []
    rows = _rows(volumes, {str(row["template"]): row for row in offered})
    if search:
        rows = [row for row in rows if search.lower() in f"{row[0]} {row[4]}".lower()]
    table = page(COLUMNS, rows, limit=limit, offset=offset)
    table.facts = {"not_read": trouble} if trouble else {}
    if table.next_offset is not None:
        table.note = "narrow with search or show"
    return table


async def _offered(pve: Cluster, node: str) -> list[dict[str, Any]]:
    return list(await pve.get(f"/nodes/{node}/aplinfo"))


def _rows(volumes: list[Volume], offered: dict[str, dict[str, Any]]) -> list[list[Any]]:
    """Those that are there first, then those that can be had."""
    held: dict[str, list[Volume]] = {}
    for volume in volumes:
        held.setdefault(volume.name.removeprefix("vztmpl/"), []).append(volume)
    rows = [_row(name, held.get(name, []), offered.get(name, {})) for name in {**held, **offered}]
    return sorted(rows, key=lambda row: (not row[1], row[0]))


def _row(name: str, volumes: list[Volume], offer: dict[str, Any]) -> list[Any]:
    where = [volume.storage if volume.shared else f"{volume.storage} on {volume.node}" for volume in volumes]
    more = f" +{len(where) - PLACES_SHOWN}" if len(where) > PLACES_SHOWN else ""
    return [
        name,
        ", ".join(where[:PLACES_SHOWN]) + more,
        size(volumes[0].size) if volumes else "",
        offer.get("section", ""),
        offer.get("headline", ""),
    ]


@operation(risk=Risk.CHANGE, idempotent=True)
async def template_download(
    pve: Cluster,
    template: Annotated[str, Meta(description="File or package name; debian-13-standard takes its newest")],
    storage: str | None = None,
    node: str | None = None,
) -> Plan:
    """Download a container template from the appliance list to a storage."""
    place = await place_for(pve, "vztmpl", storage=storage, node=node, room=0)
    name = choose(template, await _offered(pve, place.node))
    existing = await present(pve, place, "vztmpl", name)
    says = f"Download {place.storage}:vztmpl/{name} on {place.node}"
    facts = {"volume": f"{place.storage}:vztmpl/{name}"}
    if existing:
        return Plan(says, unchanged=(f"{existing} is there already ({size(existing.size)})",), facts=facts)

    async def arrived() -> bool:
        return await present(pve, place, "vztmpl", name) is not None

    params = {"storage": place.storage, "template": name}
    target = Target("storage", place.storage, node=place.node)
    call = Call(says, "POST", f"/nodes/{place.node}/aplinfo", params, target, settled=arrived, task_id=name)
    return Plan(says, (call,), facts=facts)


def choose(wanted: str, offered: list[dict[str, Any]]) -> str:
    """The template that is meant: by its file name, or the newest version of a package."""
    every = [str(row["template"]) for row in offered]
    wanted = wanted.rpartition("/")[2]
    if wanted in every:
        return wanted
    of_package = [row for row in offered if wanted.lower() in (row.get("package"), row.get("os"))]
    versions = sorted(of_package, key=lambda row: _numbers(str(row.get("version", ""))))
    if len({row.get("package") for row in versions}) == 1:
        return str(versions[-1]["template"])
    near = [name for name in every if wanted.lower() in name.lower()] or difflib.get_close_matches(
        wanted, every, 4, 0.4
    )
    if not near:
        raise NotFound(f"The appliance list has no template {wanted!r}", next_step="template_list shows what it has")
    raise BadArgument(
        f"The appliance list has no template called just {wanted!r}", next_step=f"Choose from {', '.join(near[:6])}"
    )


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]
