"""Nodes, guests and storages with their load, a page for each guest, and the map."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from quorate.console.login import ConsoleServices, Person
from quorate.console.templates import HEADERS, PATH, query
from quorate.pipeline.redaction import clean
from quorate.problems import BadArgument, NotFound, Problem
from quorate.pve.lookup import Resource
from quorate.state.trail import Filters, seconds_of
from quorate.surfaces.web.replies import reply
from quorate.units import duration, size

if TYPE_CHECKING:
    from quorate.console.console import Console

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
        fields = {name: request.query_params.get(name, "").strip() for name in ("search", "status", "sort", "cluster")}
        start = _offset(request)
        sites = [site.name for site in services.pipeline.sites.open_to(person.caller)]
        cluster = fields["cluster"] if fields["cluster"] in sites else (sites[0] if sites else "")
        rows: list[Resource] = []
        problem = ""
        try:
            if sites:
                async with services.pipeline.inventory(_argument(services, cluster), person.caller) as inventory:
                    rows = await inventory.rows()
        except Problem as error:
            problem = str(error)
        guests = _matching([row for row in rows if row.is_guest], fields)
        return await console.show(
            request,
            person,
            "inventory.html",
            cluster=cluster,
            fields=fields,
            problem=problem,
            nodes=[_node(row) for row in sorted(rows, key=lambda row: row.node) if row.type == "node"],
            storages=_storages(rows),
            guests=[_guest(row) for row in guests[start : start + PAGE]],
            total=len(guests),
            start=start,
            earlier=query(f"{PATH}/inventory", fields, offset=max(0, start - PAGE)) if start else "",
            later=query(f"{PATH}/inventory", fields, offset=start + PAGE) if start + PAGE < len(guests) else "",
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
            entries = await services.trail.entries(filters, HISTORY)
            history = clean([entry for entry in entries[::-1] if person.reaches(str(entry.get("cluster", "")))])
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


def _matching(guests: Iterable[Resource], fields: dict[str, str]) -> list[Resource]:
    text = fields["search"].casefold()
    matching = [
        row
        for row in guests
        if (not fields["status"] or row.status == fields["status"])
        and (not text or text in f"{row.vmid} {row.name} {row.node} {row.tags} {row.pool}".casefold())
    ]
    return sorted(matching, key=_ORDERS.get(fields["sort"], _ORDERS["vmid"]))


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
    storages = {(row.storage, "" if row.shared else row.node): row for row in rows if row.type == "storage"}
    return [_storage(row) for _, row in sorted(storages.items())]


def _storage(row: Resource) -> dict[str, Any]:
    return {
        "name": row.storage,
        "node": "shared" if row.shared else row.node,
        "type": row.plugintype,
        "status": row.status,
        "share": row.disk / row.maxdisk if row.maxdisk else 0.0,
        "text": f"{size(row.disk)} of {size(row.maxdisk)}" if row.maxdisk else "size not known",
    }


WIDTH, HEIGHT = 120, 28
POINTS = 60
CHART_POINTS = 300
KINDS = ("guest", "node", "storage")
_SHOWN = {"storage": "used"}
"""What a sparkline shows; the use of the processors otherwise."""
_EMPTY = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"/>'


def chart_routes(console: Console) -> list[tuple[Any, ...]]:
    services = console.services

    async def points(request: Request, person: Person, count: int) -> Mapping[str, Any]:
        kind = request.path_params["kind"]
        if kind not in KINDS:
            raise BadArgument("Charts show a guest, a node or a storage")
        facts = await services.facts(
            person,
            "metrics_get",
            **{kind: request.path_params["ref"]},
            **services.where(request.query_params),
            timeframe=request.query_params.get("timeframe", "hour"),
            points=count,
        )
        return facts.get("points") or {"columns": ["time"], "rows": []}

    async def sparkline(request: Request, person: Person) -> Response:
        """A picture that a page loads when it comes into view; what cannot be read leaves it empty."""
        try:
            facts = await points(request, person, POINTS)
            text = draw(facts, _SHOWN.get(request.path_params["kind"], "cpu"))
        except Problem:
            text = _EMPTY
        return Response(text, media_type="image/svg+xml", headers=HEADERS | {"Cache-Control": "private, max-age=60"})

    async def series(request: Request, person: Person) -> Response:
        """Columns for the chart: times in seconds, then one list for each field."""
        facts = await points(request, person, CHART_POINTS)
        times = [seconds_of(row[0]) for row in facts["rows"]]
        columns = [[row[number] for row in facts["rows"]] for number in range(1, len(facts["columns"]))]
        return reply(200, {"names": facts["columns"][1:], "times": times, "columns": columns})

    return [("/spark/{kind}/{ref:path}", sparkline), ("/series/{kind}/{ref:path}", series)]


def draw(points: Mapping[str, Any], field: str) -> str:
    """A line from 0 to the largest value."""
    number = next((at for at, name in enumerate(points["columns"]) if name.split()[0] == field), None)
    values = [row[number] for row in points["rows"] if row[number] is not None] if number is not None else []
    if len(values) < 2:
        return _EMPTY
    step, top = WIDTH / (len(values) - 1), max(*values, 1.0)
    line = " ".join(f"{at * step:.1f},{HEIGHT - 1 - (HEIGHT - 2) * value / top:.1f}" for at, value in enumerate(values))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
        f'<polyline points="{line}" fill="none" stroke="#3b82c4" stroke-width="1.5" stroke-linejoin="round"/></svg>'
    )
