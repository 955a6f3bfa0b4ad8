"""Charts of load over time: from recorded points to panels and lines, and to a picture."""

from __future__ import annotations

import asyncio
import datetime
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from quorate.hints import Advice, tools
from quorate.operations.registry import IllustratedFacts
from quorate.problems import BadArgument, NotConfigured
from quorate.tools.metric_series import MEASURES, Series, Subject, Unit, downsample, label, statistics, unit_of, zone


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
# Measures with two directions: both are drawn, or in a large comparison their sum. Of other measures, the first field
# that a subject has is drawn.
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
    series: list[Series], timeframe: str, cf: str, show: list[str], timezone: str | None, *, svg: bool = False
) -> IllustratedFacts | dict[str, Any]:
    """All of the series in one picture, a panel for each measure or field; as SVG, its text is among the facts."""
    where = zone(timezone)
    draw = await asyncio.to_thread(_drawing)
    if not any(len(row) > 1 for history in series for row in history.rows):
        raise BadArgument(f"Nothing is recorded for the {_SPANS[timeframe]}", next_step="Use another timeframe")
    subjects = [history.subject for history in series]
    kinds = {subject.kind for subject in subjects}
    usual = [*(("cpu", "memory") if kinds & {"guest", "node"} else ()), *(("disk",) if "storage" in kinds else ())]
    names = list(dict.fromkeys(show or usual))
    if len(names) > PANELS_AT_MOST:
        raise BadArgument(f"{len(names)} panels are too many for a picture", next_step=f"Show {PANELS_AT_MOST} at most")
    panels = {name: panel for name in names if (panel := _panel(name, series, peaks=cf == "MAX")) is not None}
    if not panels:
        raise BadArgument(
            f"There is nothing to draw: {', '.join(names)} was not recorded for {_names(subjects)}",
            why="A stopped guest has no load, a VM does not report how full its disk is, a storage has only disk",
            next_step=Advice("Without {chart} you see which fields there are", chart=True),
        )
    span = _span(series)
    chart = Chart(
        title=f"{_names(subjects)}: {_SPANS[timeframe]}" + (", peaks" if cf == "MAX" else ""),
        panels=list(panels.values()),
        zone=where,
        zone_label=f"Time in {label(where, *span)}",
        span=span,
    )
    facts = _facts(chart, subjects, [name for name in names if name not in panels])
    drawn = await asyncio.to_thread(draw, chart, svg=svg)
    return {**facts, "svg": drawn.decode()} if svg else IllustratedFacts(facts, (drawn,))


def _span(series: list[Series]) -> tuple[float, float]:
    """The whole timeframe, or only its recorded part if the recording began in its second half."""
    times = [row["time"] for history in series for row in history.rows]
    first = min(row["time"] for history in series for row in history.rows if len(row) > 1)
    begin, end = min(times), max(times)
    if first - begin > (end - begin) / 2:
        begin = first
    return begin, max(end, begin + 60)


def _drawing() -> Callable[..., bytes]:
    """matplotlib is large and optional: it is imported for the first chart and never before."""
    try:
        from quorate.tools.chart_png import draw
    except ImportError as error:
        raise NotConfigured(
            "Charts need matplotlib, which is not installed",
            why=f"Python said: {error}",
            next_step=Advice("Install it with `pip install 'quorate[charts]'` and restart Quorate").then(
                Advice("without {chart} you get the same history as numbers", tools.metrics_get, chart=True), "; "
            ),
        ) from None
    return draw


def _names(subjects: list[Subject]) -> str:
    """The names, as far as the title has room for them."""
    title = _short(subjects[0].label)
    for number, subject in enumerate(subjects[1:], start=1):
        longer = f"{title}, {_short(subject.label)}"
        if len(longer) > TITLE_LENGTH:
            return f"{title} and {len(subjects) - number} more"
        title = longer
    return title


# -- from series to lines ----------------------------------------------------------------------------------------------


def _panel(measure: str, series: list[Series], *, peaks: bool) -> Panel | None:
    fields = MEASURES.get(measure, (measure,))
    paired = measure in _PAIR_NAMES and len(series) <= PAIRS_AT_MOST
    summed = measure in _PAIR_NAMES and not paired
    if summed:
        series, fields = [_sum_directions(history, measure) for history in series], (measure,)
    drawn = list(_panel_lines(series, fields, paired=paired))
    if not drawn:
        return None
    limit = _limit(measure, series)
    largest = max(value for _, history, field, _ in drawn for _, value in history.points(field))
    unit = unit_of(drawn[0][2], max(largest, limit or 0.0))
    lines = []
    for index, history, field, second in drawn:
        names = [_short(history.subject.label)] if len(series) > 1 else []
        names += (
            [_PAIR_NAMES[measure][second]]
            if paired
            else []
            if names
            else ["in use" if measure in MEASURES else measure]
        )
        color, dashed = (index, second) if len(series) > 1 else (int(second), False)
        lines.append(_line(" ".join(names), history, field, unit, color=color, dashed=dashed, peaks=peaks))
    return Panel(
        title=_TITLES.get(measure, measure) + (f", {' + '.join(_PAIR_NAMES[measure])}" if summed else ""),
        unit=unit.name,
        lines=lines,
        legend_title=f"mean / max, {unit.name}" if unit.name else "mean / max",
        limit=None if limit is None else (f"limit: {unit.of(limit):g} {unit.name}", limit / unit.size),
    )


def _sum_directions(history: Series, measure: str) -> Series:
    """Both directions as one, because a comparison of many would have too many lines."""
    first, second = MEASURES[measure]
    rows = [
        {"time": row["time"], measure: row[first] + row[second]}
        if first in row and second in row
        else {"time": row["time"]}
        for row in history.rows
    ]
    return Series(history.subject, rows)


def _panel_lines(
    series: list[Series], fields: tuple[str, ...], *, paired: bool
) -> Iterator[tuple[int, Series, str, bool]]:
    """Every line of the panel: the number of its subject, its points, its field, whether it is a pair's second."""
    for index, history in enumerate(series):
        if paired:
            yield from (
                (index, history, field, bool(second)) for second, field in enumerate(fields) if history.points(field)
            )
            continue
        field = _first(history, fields)
        if any(value for _, value in history.points(field)):
            yield index, history, field, False


def _first(history: Series, fields: tuple[str, ...]) -> str:
    return next((field for field in fields if field in history.fields), "")


def _limit(measure: str, series: list[Series]) -> float | None:
    """The limit: drawn for a single subject; in a comparison each has its own."""
    if len(series) > 1 or measure not in _LIMITS:
        return None
    return series[0].last(_first(series[0], _LIMITS[measure]))


def _short(label: str) -> str:
    return label if len(label) <= LABEL_LENGTH else f"{label[: LABEL_LENGTH - 9]}…{label[-8:]}"


def _line(name: str, history: Series, field: str, unit: Unit, *, color: int, dashed: bool, peaks: bool) -> Line:
    numbers = statistics(history.points(field))
    rows = downsample(history.rows, POINTS_DRAWN, peak=peaks)
    return Line(
        label=f"{name}: {unit.of(numbers.mean):g} / {unit.of(numbers.max):g}",
        times=[row["time"] for row in rows],
        values=[row[field] / unit.size if field in row else math.nan for row in rows],
        color=color,
        dashed=dashed,
    )


def _facts(chart: Chart, subjects: list[Subject], missing: list[str]) -> dict[str, Any]:
    """The content of the picture in words, for readers who cannot see it."""
    shown = {
        f"{panel.title} ({panel.legend_title})": dict(line.label.rsplit(": ", 1) for line in panel.lines)
        for panel in chart.panels
    }
    facts: dict[str, Any] = {"chart": chart.title, "time": chart.zone_label, "shown": shown}
    if missing:
        facts["not_recorded"] = missing
    drawn = {label for lines in shown.values() for label in lines}
    if len(subjects) > 1 and (
        quiet := [
            subject.label for subject in subjects if not any(label.startswith(_short(subject.label)) for label in drawn)
        ]
    ):
        facts["without_data"] = quiet
    return facts
