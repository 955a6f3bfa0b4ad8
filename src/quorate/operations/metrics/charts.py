"""Charts of load over time: from recorded points to panels and lines, and to a picture."""

from __future__ import annotations

import asyncio
import datetime
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from quorate.hints import METRICS_GET, Advice
from quorate.operations.metrics import series, time_zones
from quorate.operations.metrics.series import MEASURES, Series, Unit
from quorate.operations.metrics.subjects import Subject
from quorate.operations.registry import IllustratedFacts
from quorate.problems import BadArgument, NotConfigured


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    times: list[float]
    values: list[float]
    """In the panel's unit; not-a-number where nothing was measured, which leaves a gap."""
    color: int = 0
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    unit: str
    lines: list[Line]
    legend_title: str
    limit: tuple[str, float] | None = None
    """A horizontal line with its name, such as the memory a guest was given."""


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    panels: list[Panel]
    zone: datetime.tzinfo
    zone_label: str
    span: tuple[float, float]


PANELS_AT_MOST = 8
POINTS_DRAWN = 480  # more than this only blurs a line
PAIRS_AT_MOST = 3  # subjects with a line for each direction
LABEL_LENGTH, TITLE_LENGTH = 28, 60

_TITLES = {
    "cpu": "CPU load, share of the cores",
    "memory": "Memory in use",
    "disk": "Disk space in use",
    "diskio": "Disk reads and writes",
    "network": "Network traffic",
}
# Of the fields of a measure, the first that a subject has is drawn; of these, both, or in a large comparison their sum.
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


async def draw_charts(
    found: list[Series], timeframe: str, cf: str, show: list[str], timezone: str | None, *, svg: bool = False
) -> IllustratedFacts | dict[str, Any]:
    """All of the series in one picture, a panel for each measure or field; as SVG, its text is among the facts."""
    where = time_zones.zone(timezone)
    draw = await asyncio.to_thread(_drawing)
    if not any(len(row) > 1 for one in found for row in one.rows):
        raise BadArgument(f"Nothing is recorded for the {_SPANS[timeframe]}", next_step="Use another timeframe")
    subjects = [one.subject for one in found]
    wanted = list(dict.fromkeys(show or _default(subjects)))
    if len(wanted) > PANELS_AT_MOST:
        raise BadArgument(
            f"{len(wanted)} panels are too many for a picture", next_step=f"Show {PANELS_AT_MOST} at most"
        )
    panels = {name: panel for name in wanted if (panel := _panel(name, found, peaks=cf == "MAX")) is not None}
    if not panels:
        raise BadArgument(
            f"There is nothing to draw: {', '.join(wanted)} was not recorded for {_names(subjects)}",
            why="A stopped guest has no load, a VM does not report how full its disk is, a storage has only disk",
            next_step=Advice("Without {chart} you see which fields there are", chart=True),
        )
    span = _span(found)
    chart = Chart(
        title=f"{_names(subjects)}: {_SPANS[timeframe]}" + (", peaks" if cf == "MAX" else ""),
        panels=list(panels.values()),
        zone=where,
        zone_label=f"Time in {time_zones.label(where, *span)}",
        span=span,
    )
    facts = _facts(chart, subjects, [name for name in wanted if name not in panels])
    drawn = await asyncio.to_thread(draw, chart, svg=svg)
    return {**facts, "svg": drawn.decode()} if svg else IllustratedFacts(facts, (drawn,))


def _span(found: list[Series]) -> tuple[float, float]:
    """All of the time, unless most of it is empty because the recording began late."""
    times = [row["time"] for one in found for row in one.rows]
    first = min(row["time"] for one in found for row in one.rows if len(row) > 1)
    begin, end = min(times), max(times)
    if first - begin > (end - begin) / 2:
        begin = first
    return begin, max(end, begin + 60)


def _drawing() -> Callable[..., bytes]:
    """matplotlib is large and optional: it is imported for the first chart and never before."""
    try:
        from quorate.operations.chart_png import draw
    except ImportError as error:
        raise NotConfigured(
            "Charts need matplotlib, which is not installed",
            why=f"Python said: {error}",
            next_step=Advice("Install it with `pip install 'quorate[charts]'` and restart Quorate").then(
                Advice("without {chart} you get the same history as numbers", METRICS_GET, chart=True), "; "
            ),
        ) from None
    return draw


def _default(subjects: list[Subject]) -> list[str]:
    kinds = {subject.kind for subject in subjects}
    return [*(("cpu", "memory") if kinds & {"guest", "node"} else ()), *(("disk",) if "storage" in kinds else ())]


def _names(subjects: list[Subject]) -> str:
    """As many names as a title has room for."""
    title = _short(subjects[0].label)
    for number, subject in enumerate(subjects[1:], start=1):
        longer = f"{title}, {_short(subject.label)}"
        if len(longer) > TITLE_LENGTH:
            return f"{title} and {len(subjects) - number} more"
        title = longer
    return title


# -- from series to lines ----------------------------------------------------------------------------------------------


def _panel(measure: str, found: list[Series], *, peaks: bool) -> Panel | None:
    fields = MEASURES.get(measure, (measure,))
    paired = measure in _PAIR_NAMES and len(found) <= PAIRS_AT_MOST
    summed = measure in _PAIR_NAMES and not paired
    if summed:
        found, fields = [_sum_directions(one, measure) for one in found], (measure,)
    drawn = list(_panel_lines(found, fields, paired=paired))
    if not drawn:
        return None
    limit = _limit(measure, found)
    largest = max(value for _, one, field, _ in drawn for _, value in one.points(field))
    unit = series.unit_of(drawn[0][2], max(largest, limit or 0.0))
    lines = []
    for index, one, field, second in drawn:
        names = [_short(one.subject.label)] if len(found) > 1 else []
        names += (
            [_PAIR_NAMES[measure][second]]
            if paired
            else []
            if names
            else ["in use" if measure in MEASURES else measure]
        )
        color, dashed = (index, second) if len(found) > 1 else (int(second), False)
        lines.append(_line(" ".join(names), one, field, unit, color=color, dashed=dashed, peaks=peaks))
    return Panel(
        title=_TITLES.get(measure, measure) + (f", {' + '.join(_PAIR_NAMES[measure])}" if summed else ""),
        unit=unit.name,
        lines=lines,
        legend_title=f"mean / max, {unit.name}" if unit.name else "mean / max",
        limit=None if limit is None else (f"limit: {unit.of(limit):g} {unit.name}", limit / unit.size),
    )


def _sum_directions(one: Series, measure: str) -> Series:
    """Both directions as one, because a comparison of many would have too many lines."""
    first, second = MEASURES[measure]
    rows = [
        {"time": row["time"], measure: row[first] + row[second]}
        if first in row and second in row
        else {"time": row["time"]}
        for row in one.rows
    ]
    return Series(one.subject, rows)


def _panel_lines(
    found: list[Series], fields: tuple[str, ...], *, paired: bool
) -> Iterator[tuple[int, Series, str, bool]]:
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


def _limit(measure: str, found: list[Series]) -> float | None:
    """The limit: drawn for a single subject; in a comparison each has its own."""
    if len(found) > 1 or measure not in _LIMITS:
        return None
    return found[0].last(_first(found[0], _LIMITS[measure]))


def _short(label: str) -> str:
    return label if len(label) <= LABEL_LENGTH else f"{label[: LABEL_LENGTH - 9]}…{label[-8:]}"


def _line(name: str, one: Series, field: str, unit: Unit, *, color: int, dashed: bool, peaks: bool) -> Line:
    numbers = series.statistics(one.points(field))
    rows = series.downsample(one.rows, POINTS_DRAWN, peak=peaks)
    return Line(
        label=f"{name}: {unit.of(numbers.mean):g} / {unit.of(numbers.max):g}",
        times=[row["time"] for row in rows],
        values=[row[field] / unit.size if field in row else math.nan for row in rows],
        color=color,
        dashed=dashed,
    )


def _facts(chart: Chart, subjects: list[Subject], missing: list[str]) -> dict[str, Any]:
    """What the picture shows, for readers who cannot see it."""
    shown = {
        f"{panel.title} ({panel.legend_title})": dict(line.label.rsplit(": ", 1) for line in panel.lines)
        for panel in chart.panels
    }
    facts: dict[str, Any] = {"chart": chart.title, "time": chart.zone_label, "shown": shown}
    if missing:
        facts["not_recorded"] = missing
    drawn = {label for lines in shown.values() for label in lines}
    if len(subjects) > 1 and (
        quiet := [one.label for one in subjects if not any(label.startswith(_short(one.label)) for label in drawn)]
    ):
        facts["without_data"] = quiet
    return facts
