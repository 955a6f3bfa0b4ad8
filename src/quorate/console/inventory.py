"""Nodes, guests and storages with their load, a page for each guest, and the map."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from quorate.console.actions import FILE_RESTORE, guest_actions, is_browsable
from quorate.console.activity import task_title
from quorate.console.clusters import ClusterRows
from quorate.console.login import PATIENCE_SECONDS, Person
from quorate.console.overview import describe_node, describe_storages
from quorate.console.templates import HEADERS, PATH, query
from quorate.console.timeline import Summary, summaries
from quorate.homelab.map_drawing import MAX_DEVICES
from quorate.operations.registry import Table
from quorate.pipeline.redaction import clean
from quorate.pipeline.sites import CLUSTER
from quorate.problems import BadArgument, NotFound, Problem, Unreachable
from quorate.pve.lookup import Resource
from quorate.state.trail import Filters, seconds_of
from quorate.surfaces.web.replies import reply
from quorate.units import parse_size, size

if TYPE_CHECKING:
    from quorate.console.console import Console

PAGE = 100
HISTORY = 20
MAP_ROWS = 1000
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
        names = console.clusters.names(person)
        cluster = fields["cluster"] if fields["cluster"] in names else next(iter(names), "")
        listed = await console.clusters.read(cluster, person) if cluster else ClusterRows()
        rows = listed.rows
        guests = _matching([row for row in rows if row.is_guest], fields)
        return await console.show(
            request,
            person,
            "inventory.html",
            cluster=cluster,
            fields=fields,
            problem=listed.problem,
            age=listed.describe_age(services.now),
            nodes=[describe_node(row) for row in sorted(rows, key=lambda row: row.node) if row.type == "node"],
            storages=describe_storages(rows),
            guests=[_guest(row) for row in guests[start : start + PAGE]],
            total=len(guests),
            start=start,
            earlier=query(f"{PATH}/inventory", fields, offset=max(0, start - PAGE)) if start else "",
            later=query(f"{PATH}/inventory", fields, offset=start + PAGE) if start + PAGE < len(guests) else "",
        )

    async def show_guest(request: Request, person: Person) -> Response:
        ref, cluster = request.path_params["ref"], request.query_params.get("cluster")
        where = services.where(request.query_params)
        if elsewhere := await console.clusters.complete_address(request, person):
            return elsewhere
        await console.clusters.require_answer(person, cluster, ref)
        of_guest = {"guest": ref, **where}
        facts = await services.facts(person, "guest_get", **of_guest, detail=True)
        snapshots, _ = await services.rows_or_problem(person, "snapshot_list", **of_guest)
        backups, _ = await services.rows_or_problem(person, "backup_list", **of_guest)
        tasks, _ = await services.rows_or_problem(person, "task_list", **of_guest, limit=HISTORY)
        history: list[Summary] = []
        if person.is_operator:
            filters = Filters(target=str(facts.get("vmid", ref)), cluster=cluster)
            entries = await services.trail.entries(filters, HISTORY)
            history = summaries(
                clean([entry for entry in entries[::-1] if person.reaches(str(entry.get("cluster", "")))])
            )
        return await console.show(
            request,
            person,
            "guest.html",
            guest=facts,
            cluster=cluster or "",
            snapshots=snapshots,
            backups=backups,
            tasks=[{**where, **task, "title": task_title(task, {})} for task in tasks],
            history=history,
            restorable=services.offers(person, FILE_RESTORE) and any(map(is_browsable, backups)),
            actions=guest_actions(lambda tool: services.offers(person, tool), facts),
            where=query("", where),
        )

    async def show_map(request: Request, person: Person) -> Response:
        """The map, or the page without it if a cluster takes longer to answer: then the page loads it as a part."""
        part = "/part/" in request.url.path
        chosen, devices, problem, late = request.query_params.get("segment") or None, [], "", False
        segments: list[str] = []
        try:
            async with asyncio.timeout(None if part else PATIENCE_SECONDS):
                data = await services.data(person, "network_map", segment=chosen, limit=MAP_ROWS)
            devices = [{**device, "link": _link(device)} for device in services.as_rows(data)]
            segments = sorted((data.facts if isinstance(data, Table) else data).get("segments", {}))
        except Problem as error:
            problem = str(error)
        except TimeoutError:
            late = True
        return await console.show(
            request,
            person,
            "part_map.html" if part else "map.html",
            devices=devices,
            problem=problem,
            segments=segments,
            chosen=chosen,
            later=query(f"{PATH}/part/map", {"segment": chosen}) if late else "",
            picture=query(f"{PATH}/map.svg", {"segment": chosen}) if len(devices) <= MAX_DEVICES else "",
        )

    async def draw_map(request: Request, person: Person) -> Response:
        segment = request.query_params.get("segment") or None
        facts = await services.facts(person, "network_map", format="svg", segment=segment)
        if "svg" not in facts:
            raise NotFound("There is no map")
        return Response(str(facts["svg"]), media_type="image/svg+xml", headers=HEADERS)

    def _link(device: Mapping[str, Any]) -> str:
        """The page about a device; empty if it has none."""
        cluster, _, name = str(device.get("host") or "").rpartition("/")
        if not cluster:
            return f"{PATH}/hosts/{quote(name)}" if name else ""
        where = services.where({CLUSTER: cluster})
        return query(f"{PATH}/guests/{name}" if name.isdigit() else f"{PATH}/inventory", where)

    return [
        ("/inventory", show),
        ("/guests/{ref}", show_guest),
        ("/map", show_map),
        ("/part/map", show_map),
        ("/map.svg", draw_map),
    ]


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


WIDTH, HEIGHT = 120, 28
POINTS = 60
CHART_POINTS = 300
KINDS = ("guest", "node", "storage")
_SHOWN = {"storage": "used"}
"""What a sparkline shows; the use of the processors otherwise."""
_WHOLE = {"mem": "maxmem", "memused": "memtotal", "swapused": "swaptotal", "disk": "maxdisk", "rootused": "roottotal",
          "used": "total"}  # fmt: skip
"""Fields that are a part of something, and the limit that says of how much."""
_CHARTS = {"CPU": ("cpu",), "Memory": ("mem",), "Network": ("netin", "netout"), "Disk": ("diskread", "diskwrite")}
_LABELS = {"netin": "in", "netout": "out", "diskread": "read", "diskwrite": "written", "mem": "used", "cpu": "used"}
_RATE_UNITS = ("B/s", "kB/s", "MB/s", "GB/s")
_EMPTY = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"/>'


def chart_routes(console: Console) -> list[tuple[Any, ...]]:
    services = console.services

    async def load(request: Request, person: Person, count: int) -> Mapping[str, Any]:
        kind = request.path_params["kind"]
        if kind not in KINDS:
            raise BadArgument("Charts show a guest, a node or a storage")
        return await services.facts(
            person,
            "metrics_get",
            **{kind: request.path_params["ref"]},
            **services.where(request.query_params),
            timeframe=request.query_params.get("timeframe", "hour"),
            points=count,
        )

    async def sparkline(request: Request, person: Person) -> Response:
        """A picture that a page loads when it comes into view; what cannot be read leaves it empty."""
        cluster = request.query_params.get(CLUSTER)
        try:
            if console.clusters.is_silent(cluster, person):
                raise Unreachable(f"{cluster} does not answer")  # pictures must not hold up the next page
            facts = await load(request, person, POINTS)
            text = draw(facts, _SHOWN.get(request.path_params["kind"], "cpu"))
        except Problem:
            text = _EMPTY
        return Response(text, media_type="image/svg+xml", headers=HEADERS | {"Cache-Control": "private, max-age=60"})

    async def series(request: Request, person: Person) -> Response:
        """The charts of one subject: times in seconds, and for each chart its title, the end of its axis, its lines."""
        facts = await load(request, person, CHART_POINTS)
        rows = facts["points"]["rows"] if "points" in facts else []
        return reply(200, {"times": [seconds_of(row[0]) for row in rows], "charts": charts_of(facts)})

    return [("/spark/{kind}/{ref:path}", sparkline), ("/series/{kind}/{ref:path}", series)]


def charts_of(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    columns = _columns(facts)
    charts = []
    for title, fields in _CHARTS.items():
        lines = {name: columns[name] for name in fields if name in columns}
        if not lines:
            continue
        unit = max((unit for unit, _ in lines.values()), key=lambda unit: (*_RATE_UNITS, unit).index(unit))
        charts.append(
            {
                "title": f"{title} ({unit})",
                "top": _top(next(iter(lines)), unit, facts.get("limits", {})),
                "lines": [
                    {"label": _LABELS.get(name, name), "values": _in_unit(values, own, unit)}
                    for name, (own, values) in lines.items()
                ],
            }
        )
    return charts


def _columns(facts: Mapping[str, Any]) -> dict[str, tuple[str, list[float | None]]]:
    """The unit and the values of each field."""
    points = facts.get("points") or {"columns": ["time"], "rows": []}
    columns = {}
    for number, heading in enumerate(points["columns"][1:], 1):
        name, _, unit = heading.partition(" ")
        columns[name] = unit, [row[number] for row in points["rows"]]
    return columns


def _in_unit(values: Iterable[float | None], own: str, unit: str) -> list[float | None]:
    """Rates of one chart share its unit."""
    if own == unit:
        return list(values)
    factor = 1000.0 ** (_RATE_UNITS.index(own) - _RATE_UNITS.index(unit))
    return [None if value is None else value * factor for value in values]


def _top(field: str, unit: str, limits: Mapping[str, Any]) -> float | None:
    """Where the axis ends: an idle machine must not look busy. None for rates, which have no limit."""
    if unit == "%":
        return 100.0
    limit = limits.get(_WHOLE.get(field, ""))
    return parse_size(str(limit), unit="B") / parse_size(f"1 {unit}", unit="B") if limit else None


def draw(facts: Mapping[str, Any], field: str) -> str:
    """A line from 0 to the whole, or to the largest value of what has no limit."""
    unit, points = _columns(facts).get(field, ("", []))
    values = [value for value in points if value is not None]
    if len(values) < 2:
        return _EMPTY
    step, top = WIDTH / (len(values) - 1), _top(field, unit, facts.get("limits", {})) or max(*values, 1.0)
    line = " ".join(f"{at * step:.1f},{HEIGHT - 1 - (HEIGHT - 2) * value / top:.1f}" for at, value in enumerate(values))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
        f'<polyline points="{line}" fill="none" stroke="#3b82c4" stroke-width="1.5" stroke-linejoin="round"/></svg>'
    )
