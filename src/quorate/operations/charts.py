"""Charts of load over time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from quorate.operations import series, zones
from quorate.operations.registry import GuestRefs, Illustrated, Risk, operation
from quorate.operations.series import Consolidation, Series, Subject, Timeframe, Unit
from quorate.pve.cluster import Cluster
from quorate.pve.errors import BadArgument, NotConfigured
from quorate.pve.tasks import gather_bounded

if TYPE_CHECKING:
    from quorate.charts import Chart, Line, Panel

SUBJECTS_AT_MOST = 8
READS_AT_ONCE = 8

Metric = Literal["cpu", "memory", "disk", "diskio", "network"]
Names = Annotated[str | list[str], Meta(description="One or several")]

# For every metric: its name, the fields to draw (the first that a subject has of each group), and the limit's field.
_TITLES = {
    "cpu": "CPU load",
    "memory": "Memory in use",
    "disk": "Disk space in use",
    "diskio": "Disk reads and writes",
    "network": "Network traffic",
}
_SINGLE = {"cpu": ("cpu",), "memory": ("mem", "memused"), "disk": ("used", "disk", "rootused")}
_PAIRS = {"diskio": ("diskread", "diskwrite"), "network": ("netin", "netout")}
_PAIR_NAMES = {"diskio": ("read", "written"), "network": ("in", "out")}
_LIMITS = {"memory": ("maxmem", "memtotal"), "disk": ("total", "maxdisk", "roottotal")}

_SPANS = {
    "hour": "last hour",
    "day": "last day",
    "week": "last week",
    "month": "last month",
    "year": "last year",
    "decade": "last ten years",
}


@operation(toolset="metrics", risk=Risk.READ)
async def metrics_chart(
    pve: Cluster,
    guests: GuestRefs | None = None,
    nodes: Names | None = None,
    storages: Annotated[str | list[str], Meta(description="name or node/name, one or several")] | None = None,
    show: Annotated[list[Metric], Meta(description="Default cpu and memory; disk for storages")] | None = None,
    timeframe: Annotated[Timeframe, Meta(description="decade: nodes only")] = "day",
    cf: Consolidation = "AVERAGE",
    timezone: Annotated[str, Meta(description="Such as Europe/Berlin; default: the server's")] | None = None,
) -> Illustrated:
    """Draw load over time as a picture; several guests, nodes or storages are compared in one chart."""
    where = zones.zone(timezone)
    drawing = _drawing()
    subjects = await _subjects(pve, guests, nodes, storages)
    found: list[Series] = await gather_bounded(
        READS_AT_ONCE, [partial(series.read, pve, subject, timeframe, cf) for subject in subjects]
    )
    times = [row["time"] for one in found for row in one.rows]
    if not times:
        raise BadArgument(f"Nothing is recorded for the {_SPANS[timeframe]}", next_step="Take another timeframe")
    metrics = list(dict.fromkeys(show or _default(subjects)))
    panels = [panel for metric in metrics if (panel := _panel(metric, found)) is not None]
    if not panels:
        raise BadArgument(
            f"There is nothing to draw: {', '.join(metrics)} was not recorded for {_names(subjects)}",
            why="A stopped guest has no load, a VM does not tell how full its disk is, a storage has only disk",
            next_step="metrics_get shows which fields there are",
        )
    span = (min(times), max(times))
    chart = drawing.Chart(
        title=f"{_names(subjects)}: {_SPANS[timeframe]}" + (", peaks" if cf == "MAX" else ""),
        panels=panels,
        zone=where,
        zone_label=f"Local time: {zones.label(where, *span)}" if timezone is None else zones.label(where, *span),
        span=span,
    )
    return Illustrated(_facts(chart, metrics), (await asyncio.to_thread(drawing.draw, chart),))


def _drawing() -> Any:
    """matplotlib is large and optional: it is imported for the first chart and never before."""
    try:
        from quorate import charts
    except ImportError as error:
        raise NotConfigured(
            "Charts need matplotlib, which is not installed beside Quorate",
            why=f"Python said: {error}",
            next_step="Install it with `pip install 'quorate[charts]'` and start Quorate anew; "
            "metrics_get gives the same history as numbers",
        ) from None
    return charts


async def _subjects(
    pve: Cluster, guests: int | str | list[int | str] | None, nodes: Any, storages: Any
) -> list[Subject]:
    found = [await series.guest_subject(pve, ref) for ref in _listed(guests)]
    found += [await series.node_subject(pve, name) for name in _listed(nodes)]
    found += [await series.storage_subject(pve, name) for name in _listed(storages)]
    found = list({subject.path: subject for subject in found}.values())
    if not found:
        raise BadArgument("Nothing to draw is given", next_step="Give guests, nodes or storages")
    if len(found) > SUBJECTS_AT_MOST:
        raise BadArgument(
            f"{len(found)} lines are too many to tell apart",
            next_step=f"Give at most {SUBJECTS_AT_MOST}; metrics_top finds the ones that matter",
        )
    return found


def _listed(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [] if given is None else [given]


def _default(subjects: list[Subject]) -> list[str]:
    kinds = {subject.kind for subject in subjects}
    return [*(("cpu", "memory") if kinds & {"guest", "node"} else ()), *(("disk",) if "storage" in kinds else ())]


def _names(subjects: list[Subject]) -> str:
    labels = [subject.label for subject in subjects]
    return ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")


# -- from series to lines ----------------------------------------------------------------------------------------------


def _panel(metric: str, found: list[Series]) -> Panel | None:
    drawn = list(_drawn(metric, found))
    if not drawn:
        return None
    largest = max(value for _, one, field, _ in drawn for _, value in one.points(field))
    limit = _limit(metric, found)
    unit = series.unit_of(drawn[0][2], max(largest, limit or 0.0))
    paired, alone = metric in _PAIRS, len(found) == 1
    lines = [_line(index, one, field, second, unit, metric, alone) for index, one, field, second in drawn]
    charts = _drawing()
    panel: Panel = charts.Panel(
        title=_TITLES[metric],
        unit=unit.name,
        lines=lines,
        limit=None if limit is None else (f"given: {unit.of(limit):g} {unit.name}", limit / unit.size),
        styles=_PAIR_NAMES[metric] if paired and not alone else None,
    )
    return panel


def _drawn(metric: str, found: list[Series]) -> Iterator[tuple[int, Series, str, bool]]:
    """Every line of the panel: the number of its subject, its points, its field, whether it is a pair's second."""
    for index, one in enumerate(found):
        if metric in _PAIRS:
            for second, field in enumerate(_PAIRS[metric]):
                if one.points(field):
                    yield index, one, field, bool(second)
            continue
        field = _first(one, _SINGLE[metric])
        if field and any(value for _, value in one.points(field)):
            yield index, one, field, False


def _first(one: Series, fields: tuple[str, ...]) -> str:
    return next((field for field in fields if field in one.fields), "")


def _limit(metric: str, found: list[Series]) -> float | None:
    """The size of what is used: drawn for a single subject; in a comparison everyone has another."""
    if len(found) > 1 or metric not in _LIMITS:
        return None
    return found[0].last(_first(found[0], _LIMITS[metric]))


def _line(index: int, one: Series, field: str, second: bool, unit: Unit, metric: str, alone: bool) -> Line:
    numbers = series.statistics(one.points(field))
    name = one.subject.label
    if alone:
        name = _PAIR_NAMES[metric][second] if metric in _PAIRS else "in use"
    charts = _drawing()
    line: Line = charts.Line(
        label=f"{name}\nmean {unit.of(numbers.mean):g}, max {unit.of(numbers.max):g}",
        times=[row["time"] for row in one.rows],
        values=[row[field] / unit.size if field in row else math.nan for row in one.rows],
        colour=int(second) if alone else index,
        dashed=second and not alone,
        in_legend=alone or not second,
    )
    return line


def _facts(chart: Chart, metrics: list[str]) -> dict[str, Any]:
    """What the picture shows, for whoever cannot see it."""
    shown = {
        f"{panel.title} ({panel.unit})": [line.label.replace("\n", ": ") for line in panel.lines if line.in_legend]
        for panel in chart.panels
    }
    missing = [_TITLES[metric] for metric in metrics if _TITLES[metric] not in {panel.title for panel in chart.panels}]
    note = {"not_recorded": missing} if missing else {}
    return {"chart": chart.title, "time_zone": chart.zone_label, "shown": shown, **note}
