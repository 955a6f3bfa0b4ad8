"""Charts of load over time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.operations.metrics import series, zones
from quorate.operations.metrics.chart_parts import Chart, Line, Panel
from quorate.operations.metrics.series import Consolidation, Series, Subject, Timeframe, Unit
from quorate.operations.registry import GuestRefs, Illustrated, Risk, operation
from quorate.pve.cluster import Cluster
from quorate.pve.errors import BadArgument, NotConfigured
from quorate.pve.tasks import gather_bounded

SUBJECTS_AT_MOST = 8
READS_AT_ONCE = 8
POINTS_DRAWN = 480  # more than this only blurs a line
PAIRS_AT_MOST = 3  # subjects with a line for each direction
LABEL_LENGTH, TITLE_LENGTH = 28, 60

Metric = Literal["cpu", "memory", "disk", "diskio", "network"]
Names = Annotated[str | list[str], Meta(description="One or several")]

# Of the fields of a metric, the first that a subject has is drawn; of a pair, both, or in a large comparison their sum.
_TITLES = {
    "cpu": "CPU load, share of the cores",
    "memory": "Memory in use",
    "disk": "Disk space in use",
    "diskio": "Disk reads and writes",
    "network": "Network traffic",
}
_SINGLE = {
    "cpu": ("cpu",),
    "memory": ("mem", "memused"),
    "disk": ("used", "disk", "rootused"),
    "diskio": ("diskio",),
    "network": ("network",),
}
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


@operation(risk=Risk.READ)
async def metrics_chart(
    pve: Cluster,
    guests: GuestRefs | None = None,
    nodes: Names | None = None,
    storages: Annotated[str | list[str], Meta(description="name or node/name, one or several")] | None = None,
    show: Annotated[Metric | list[Metric], Meta(description="Default cpu, memory; disk for storages")] | None = None,
    timeframe: Annotated[Timeframe, Meta(description="decade: nodes only")] = "day",
    cf: Consolidation = "AVERAGE",
    timezone: Annotated[str, Meta(description="Such as Europe/Berlin; default: the server's")] | None = None,
) -> Illustrated:
    """Draw load over time as a picture; several guests, nodes or storages are compared in one chart."""
    where = zones.zone(timezone)
    draw = await asyncio.to_thread(_drawing)
    subjects = await _subjects(pve, guests, nodes, storages)
    found: list[Series] = await gather_bounded(
        READS_AT_ONCE, [partial(series.read, pve, subject, timeframe, cf) for subject in subjects]
    )
    if not any(len(row) > 1 for one in found for row in one.rows):
        raise BadArgument(f"Nothing is recorded for the {_SPANS[timeframe]}", next_step="Take another timeframe")
    metrics = list(dict.fromkeys(_listed(show) or _default(subjects)))
    panels = [panel for metric in metrics if (panel := _panel(metric, found, peaks=cf == "MAX")) is not None]
    if not panels:
        raise BadArgument(
            f"There is nothing to draw: {', '.join(metrics)} was not recorded for {_names(subjects)}",
            why="A stopped guest has no load, a VM does not tell how full its disk is, a storage has only disk",
            next_step="metrics_get shows which fields there are",
        )
    span = _span(found)
    chart = Chart(
        title=f"{_names(subjects)}: {_SPANS[timeframe]}" + (", peaks" if cf == "MAX" else ""),
        panels=panels,
        zone=where,
        zone_label=f"Time in {zones.label(where, *span)}",
        span=span,
    )
    return Illustrated(_facts(chart, metrics, subjects), (await asyncio.to_thread(draw, chart),))


def _span(found: list[Series]) -> tuple[float, float]:
    """All of the time, unless most of it is empty because the recording began late."""
    times = [row["time"] for one in found for row in one.rows]
    first = min(row["time"] for one in found for row in one.rows if len(row) > 1)
    begin, end = min(times), max(times)
    if first - begin > (end - begin) / 2:
        begin = first
    return begin, max(end, begin + 60)


def _drawing() -> Callable[[Chart], bytes]:
    """matplotlib is large and optional: it is imported for the first chart and never before."""
    try:
        from quorate.charts import draw
    except ImportError as error:
        raise NotConfigured(
            "Charts need matplotlib, which is not installed beside Quorate",
            why=f"Python said: {error}",
            next_step="Install it with `pip install 'quorate[charts]'` and start Quorate anew; "
            "metrics_get gives the same history as numbers",
        ) from None
    return draw


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
    """As many names as a title has room for."""
    told = _short(subjects[0].label)
    for number, subject in enumerate(subjects[1:], start=1):
        longer = f"{told}, {_short(subject.label)}"
        if len(longer) > TITLE_LENGTH:
            return f"{told} and {len(subjects) - number} more"
        told = longer
    return told


# -- from series to lines ----------------------------------------------------------------------------------------------


def _panel(metric: str, found: list[Series], *, peaks: bool) -> Panel | None:
    paired = metric in _PAIRS and len(found) <= PAIRS_AT_MOST
    fields = _PAIRS[metric] if paired else _SINGLE[metric]
    if metric in _PAIRS and not paired:
        found = [_summed(one, metric) for one in found]
    drawn = list(_drawn(found, fields, paired=paired))
    if not drawn:
        return None
    limit = _limit(metric, found)
    largest = max(value for _, one, field, _ in drawn for _, value in one.points(field))
    unit = series.unit_of(drawn[0][2], max(largest, limit or 0.0))
    lines = []
    for index, one, field, second in drawn:
        names = [_short(one.subject.label)] if len(found) > 1 else []
        names += [_PAIR_NAMES[metric][second]] if paired else [] if names else ["in use"]
        colour, dashed = (index, second) if len(found) > 1 else (int(second), False)
        lines.append(_line(" ".join(names), one, field, unit, colour=colour, dashed=dashed, peaks=peaks))
    return Panel(
        title=_TITLES[metric] + (f", {' + '.join(_PAIR_NAMES[metric])}" if metric in _PAIRS and not paired else ""),
        unit=unit.name,
        lines=lines,
        legend_title=f"mean / max, {unit.name}",
        limit=None if limit is None else (f"limit: {unit.of(limit):g} {unit.name}", limit / unit.size),
    )


def _summed(one: Series, metric: str) -> Series:
    """Both directions as one: a comparison of many would drown in lines otherwise."""
    first, second = _PAIRS[metric]
    rows = [
        {"time": row["time"], metric: row[first] + row[second]}
        if first in row and second in row
        else {"time": row["time"]}
        for row in one.rows
    ]
    return Series(one.subject, rows)


def _drawn(found: list[Series], fields: tuple[str, ...], *, paired: bool) -> Iterator[tuple[int, Series, str, bool]]:
    """Every line of the panel: the number of its subject, its points, its field, whether it is a pair's second."""
    for index, one in enumerate(found):
        if paired:
            yield from ((index, one, field, bool(second)) for second, field in enumerate(fields) if one.points(field))
            continue
        field = _first(one, fields)
        if any(value for _, value in one.points(field)):
            yield index, one, field, False


def _first(one: Series, fields: tuple[str, ...]) -> str:
    return next((field for field in fields if field in one.fields), "")


def _limit(metric: str, found: list[Series]) -> float | None:
    """The size of what is used: drawn for a single subject; in a comparison everyone has another."""
    if len(found) > 1 or metric not in _LIMITS:
        return None
    return found[0].last(_first(found[0], _LIMITS[metric]))


def _short(label: str) -> str:
    return label if len(label) <= LABEL_LENGTH else f"{label[: LABEL_LENGTH - 9]}…{label[-8:]}"


def _line(name: str, one: Series, field: str, unit: Unit, *, colour: int, dashed: bool, peaks: bool) -> Line:
    numbers = series.statistics(one.points(field))
    rows = series.thinned(one.rows, POINTS_DRAWN, peak=peaks)
    return Line(
        label=f"{name}: {unit.of(numbers.mean):g} / {unit.of(numbers.max):g}",
        times=[row["time"] for row in rows],
        values=[row[field] / unit.size if field in row else math.nan for row in rows],
        colour=colour,
        dashed=dashed,
    )


def _facts(chart: Chart, metrics: list[str], subjects: list[Subject]) -> dict[str, Any]:
    """What the picture shows, for whoever cannot see it."""
    shown = {
        f"{panel.title} ({panel.legend_title})": dict(line.label.rsplit(": ", 1) for line in panel.lines)
        for panel in chart.panels
    }
    facts: dict[str, Any] = {"chart": chart.title, "time": chart.zone_label, "shown": shown}
    titles = [panel.title for panel in chart.panels]
    if missing := [metric for metric in metrics if not any(title.startswith(_TITLES[metric]) for title in titles)]:
        facts["not_recorded"] = missing
    drawn = {label for lines in shown.values() for label in lines}
    if len(subjects) > 1 and (
        quiet := [one.label for one in subjects if not any(label.startswith(_short(one.label)) for label in drawn)]
    ):
        facts["without_data"] = quiet
    return facts
