"""Nodes, guests and storages with their load, a page for each guest, and the map."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from quorate.operations.units import duration, size
from quorate.pipeline.sanitization import clean
from quorate.problems import NotFound, Problem
from quorate.pve.lookup import Resource
from quorate.state.trail import Filters
from quorate.surfaces.web.console.person import ConsoleServices, Person
from quorate.surfaces.web.console.templates import HEADERS, PATH, query

if TYPE_CHECKING:
    from quorate.surfaces.web.console.console import Console

PAGE = 100
HISTORY = 20
_ORDERS = {
    "name": lambda row: (row.name or "", row.vmid),
    "vmid": lambda row: row.vmid,
    "cpu": lambda row: -row.cpu,
    "memory": lambda row: -(row.mem / row.maxmem if row.maxmem else 0.0),
}


def inventory_routes(console: Console) -> list[tuple[Any, ...]]:
    services = console.services

    async def show(request: Request, person: Person) -> Response:
        given = {name: request.query_params.get(name, "").strip() for name in ("search", "status", "sort", "cluster")}
        start = _offset(request)
        sites = [site.name for site in services.pipeline.sites.open_to(person.caller)]
        cluster = given["cluster"] if given["cluster"] in sites else (sites[0] if sites else "")
        rows: list[Resource] = []
        problem = ""
        try:
            if sites:
                async with services.pipeline.inventory(_argument(services, cluster), person.caller) as inventory:
                    rows = await inventory.rows()
        except Problem as found:
            problem = str(found)
        guests = _matching([row for row in rows if row.is_guest], given)
        return await console.show(
            request,
            person,
            "inventory.html",
            cluster=cluster,
            given=given,
            problem=problem,
            nodes=[_node(row) for row in sorted(rows, key=lambda row: row.node) if row.type == "node"],
            storages=_storages(rows),
            guests=[_guest(row) for row in guests[start : start + PAGE]],
            total=len(guests),
            start=start,
            earlier=query(f"{PATH}/inventory", given, offset=max(0, start - PAGE)) if start else "",
            later=query(f"{PATH}/inventory", given, offset=start + PAGE) if start + PAGE < len(guests) else "",
        )

    async def show_guest(request: Request, person: Person) -> Response:
        ref, cluster = request.path_params["ref"], request.query_params.get("cluster")
        where = {"guest": ref, **services.where(request.query_params)}
        facts = await services.facts(person, "guest_get", **where, detail=True)
        snapshots, _ = await services.rows_or_problem(person, "snapshot_list", **where)
        backups, _ = await services.rows_or_problem(person, "backup_list", **where)
        tasks, _ = await services.rows_or_problem(person, "task_list", **where, limit=HISTORY)
        history = []
        if person.is_operator:
            filters = Filters(target=str(facts.get("vmid", ref)), cluster=cluster)
            found = await services.trail.entries(filters, HISTORY)
            history = clean([one for one in found[::-1] if person.reaches(str(one.get("cluster", "")))])
        return await console.show(
            request,
            person,
            "guest.html",
            guest=facts,
            cluster=cluster or "",
            snapshots=snapshots,
            backups=backups,
            tasks=tasks,
            history=history,
        )

    async def show_map(request: Request, person: Person) -> Response:
        devices, problem = await services.rows_or_problem(person, "network_map", limit=1000)
        return await console.show(request, person, "map.html", devices=devices, problem=problem)

    async def draw_map(_: Request, person: Person) -> Response:
        facts = await services.facts(person, "network_map", format="svg")
        if "svg" not in facts:
            raise NotFound("There is no map")
        return Response(str(facts["svg"]), media_type="image/svg+xml", headers=HEADERS)

    return [
        ("/inventory", show),
        ("/guests/{ref}", show_guest),
        ("/map", show_map),
        ("/map.svg", draw_map),
    ]


def _argument(services: ConsoleServices, cluster: str) -> str | None:
    return cluster if services.pipeline.sites.several else None


def _offset(request: Request) -> int:
    text = request.query_params.get("offset", "")
    return min(int(text), 1_000_000) if text.isascii() and text.isdigit() and len(text) < 8 else 0


def _matching(guests: Iterable[Resource], given: dict[str, str]) -> list[Resource]:
    wanted = given["search"].casefold()
    found = [
        row
        for row in guests
        if (not given["status"] or row.status == given["status"])
        and (not wanted or wanted in f"{row.vmid} {row.name} {row.node} {row.tags} {row.pool}".casefold())
    ]
    return sorted(found, key=_ORDERS.get(given["sort"], _ORDERS["vmid"]))


def _node(row: Resource) -> dict[str, Any]:
    return {
        "name": row.node,
        "status": row.status,
        "cpu": row.cpu,
        "memory": row.mem / row.maxmem if row.maxmem else 0.0,
        "memory_text": f"{size(row.mem)} of {size(row.maxmem)}",
        "cores": row.maxcpu,
        "uptime": duration(row.uptime) if row.uptime else "",
    }


def _guest(row: Resource) -> dict[str, Any]:
    return {
        "vmid": row.vmid,
        "name": row.name or f"{row.kind} {row.vmid}",
        "kind": "template" if row.template else row.kind,
        "node": row.node,
        "status": row.status,
        "running": row.status == "running",
        "cpu": row.cpu,
        "memory": row.mem / row.maxmem if row.maxmem else 0.0,
        "memory_text": f"{size(row.mem)} of {size(row.maxmem)}",
        "tags": row.tag_list,
    }


def _storages(rows: Iterable[Resource]) -> list[dict[str, Any]]:
    """A shared one once, however many nodes reach it."""
    found = {(row.storage, "" if row.shared else row.node): row for row in rows if row.type == "storage"}
    return [_storage(row) for _, row in sorted(found.items())]


def _storage(row: Resource) -> dict[str, Any]:
    return {
        "name": row.storage,
        "node": "shared" if row.shared else row.node,
        "type": row.plugintype,
        "status": row.status,
        "share": row.disk / row.maxdisk if row.maxdisk else 0.0,
        "text": f"{size(row.disk)} of {size(row.maxdisk)}" if row.maxdisk else "size not known",
    }
