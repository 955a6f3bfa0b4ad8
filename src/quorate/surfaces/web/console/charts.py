"""Recorded load as small pictures and as points for the charts of a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from quorate.problems import BadArgument, Problem
from quorate.state.trail import seconds_of
from quorate.surfaces.web.console.person import Person
from quorate.surfaces.web.console.templates import HEADERS
from quorate.surfaces.web.replies import reply

if TYPE_CHECKING:
    from quorate.surfaces.web.console.console import Console

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
        found = await services.facts(
            person,
            "metrics_get",
            **{kind: request.path_params["ref"]},
            **services.where(request.query_params),
            timeframe=request.query_params.get("timeframe", "hour"),
            points=count,
        )
        return found.get("points") or {"columns": ["time"], "rows": []}

    async def sparkline(request: Request, person: Person) -> Response:
        """A picture that a page loads when it comes into view; what cannot be read leaves it empty."""
        try:
            found = await points(request, person, POINTS)
            text = draw(found, _SHOWN.get(request.path_params["kind"], "cpu"))
        except Problem:
            text = _EMPTY
        return Response(text, media_type="image/svg+xml", headers=HEADERS | {"Cache-Control": "private, max-age=60"})

    async def series(request: Request, person: Person) -> Response:
        """Columns for the chart: times in seconds, then one list for each field."""
        found = await points(request, person, CHART_POINTS)
        times = [seconds_of(row[0]) for row in found["rows"]]
        columns = [[row[number] for row in found["rows"]] for number in range(1, len(found["columns"]))]
        return reply(200, {"names": found["columns"][1:], "times": times, "columns": columns})

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
