"""Load of guests, nodes and storages: its history in a few numbers, and who uses the most now."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import OMITTED, Advice, ArgumentHint, tools
from quorate.operations.arguments import refuse_combination
from quorate.operations.registry import GuestRefs, IllustratedFacts, Risk, Table, operation
from quorate.problems import BadArgument, Problem
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.inventory import Resource
from quorate.pve.tasks import gather_bounded
from quorate.tools import charts
from quorate.tools.metric_series import (
    LIMITS,
    MEASURES,
    Consolidation,
    Series,
    Statistics,
    Subject,
    Timeframe,
    Unit,
    as_list,
    downsample,
    find_subjects,
    read,
    seconds_until_full,
    statistics,
    trend,
    unit_of,
)
from quorate.units import Quantity, count_of, duration, load_of, moment, percent, size, used_of

COLUMNS = ("field", "unit", "min", "mean", "p95", "max", "last", "trend")
FORESEEABLE_DAYS = 1000
FILLING = {"used": "total", "rootused": "roottotal", "disk": "maxdisk"}
"""Fields that can fill up, and the field that holds their size."""


def table(series: Series, timeframe: str, cf: str, show: list[str], points: int) -> Table:
    fields = _fields(series, show)
    numbers = {name: statistics(series.points(name)) for name in fields}
    units = {name: unit_of(name, numbers[name].max) for name in fields}
    rows = [_row(name, units[name], numbers[name]) for name in fields]
    facts = {**_frame(series, timeframe, cf), **_forecast(series, numbers)}
    if points and fields:
        facts["points"] = _points(series, units, points, peak=cf == "MAX")
    return Table(COLUMNS, rows, len(rows), facts=facts)


def _fields(series: Series, show: list[str]) -> list[str]:
    """The requested fields, else all that changed or could have."""
    if not show:
        return [
            name
            for name in series.fields
            if name not in LIMITS and (name in ("cpu", "mem") or any(value for _, value in series.points(name)))
        ]
    requested = {name: [field for field in MEASURES.get(name, (name,)) if field in series.fields] for name in show}
    unknown = [name for name, fields in requested.items() if not fields]
    if unknown and series.fields:
        raise BadArgument(
            f"Nothing is recorded as {', '.join(unknown)} for {series.subject.label}",
            next_step=f"Available: {', '.join(series.fields)}",
        )
    return list(dict.fromkeys(field for fields in requested.values() for field in fields))


def _row(name: str, unit: Unit, numbers: Statistics) -> list[Any]:
    shown = [unit.of(value) for value in (numbers.min, numbers.mean, numbers.p95, numbers.max, numbers.last)]
    return [name, unit.name, *shown, trend(numbers, unit)]


def _frame(series: Series, timeframe: str, cf: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"of": series.subject.label, "timeframe": timeframe, "cf": cf}
    measured = [row for row in series.rows if len(row) > 1]
    if not measured:
        return facts | {"note": "Nothing was recorded in this time"}
    facts |= {"from": moment(measured[0]["time"]), "to": moment(measured[-1]["time"]), "step": duration(series.step)}
    limits: dict[str, str] = {}
    for name in LIMITS:
        if value := series.last(name):
            unit = unit_of(name, value)
            limits[name] = f"{unit.of(value):g} {unit.name}".strip()
    facts["limits"] = limits
    if series.subject.kind == "guest" and "cpu" not in series.fields:
        facts["note"] = "The guest did not run in this time"
    return facts


def _forecast(series: Series, numbers: dict[str, Statistics]) -> dict[str, Any]:
    """The time until each resource that can fill up is full at this rate."""
    forecast = {}
    for name, whole in FILLING.items():
        if name in numbers:
            left = seconds_until_full(numbers[name], series.points(name), series.last(whole))
            if left is not None and left < FORESEEABLE_DAYS * 86400:
                forecast[name] = f"full in about {left / 86400:.0f} days at this pace"
    return {"forecast": forecast} if forecast else {}


def _points(series: Series, units: dict[str, Unit], count: int, *, peak: bool) -> dict[str, Any]:
    rows = [row for row in series.rows if any(name in row for name in units)]
    columns = ["time", *(f"{name} {unit.name}".strip() for name, unit in units.items())]
    return {
        "columns": columns,
        "rows": [
            [moment(row["time"]), *(unit.of(row[name]) if name in row else None for name, unit in units.items())]
            for row in downsample(rows, count, peak=peak)
        ],
    }


SUBJECTS_AT_MOST = 8
SERIES_AT_ONCE = 8


@operation(
    toolset="metrics",
    risk=Risk.READ,
    search_words="graph chart history load cpu memory traffic over time busy last night week day month trend",
    example="guest=docker01",
)
async def metrics_get(
    pve: Cluster,
    guest: GuestRefs | None = None,
    node: Annotated[str | list[str], Meta(description="With storage: its node")] | None = None,
    storage: Annotated[str | list[str], Meta(description="name or node/name")] | None = None,
    chart: Annotated[bool | Literal["svg"], Meta(description="Draw it; several are compared in one picture")] = False,
    show: Annotated[
        str | list[str], Meta(description="cpu, memory, disk, diskio, network, or fields such as netin, loadavg")
    ]
    | None = None,
    timeframe: Annotated[Timeframe, Meta(description="Default: hour, for a chart day")] | None = None,
    cf: Consolidation = "AVERAGE",
    points: Annotated[int, Meta(ge=0, le=300, description="Also return this many points")] = 0,
    timezone: Annotated[str, Meta(description="Of a chart: Europe/Berlin")] | None = None,
) -> Table | IllustratedFacts | dict[str, Any]:
    """Load of a guest, node or storage over time: min, mean, p95, max, last and trend per field, or a chart of it."""
    if chart:
        refuse_combination(
            ArgumentHint("chart", True),
            {"points": points or None},
            Advice("It is for numbers; leave {chart} out", chart=OMITTED),
        )
    else:
        refuse_combination("numbers", {"timezone": timezone}, Advice("It is for charts; give {chart}", chart=True))
    subjects = await find_subjects(pve, guest, node, storage)
    if len(subjects) > (SUBJECTS_AT_MOST if chart else 1):
        raise _too_many(len(subjects), chart=bool(chart))
    span = timeframe or ("day" if chart else "hour")
    series: list[Series] = await gather_bounded(
        SERIES_AT_ONCE, [partial(read, pve, subject, span, cf) for subject in subjects]
    )
    if chart:
        return await charts.draw_charts(series, span, cf, as_list(show), timezone, svg=chart == "svg")
    return table(series[0], span, cf, as_list(show), points)


def _too_many(count: int, *, chart: bool) -> BadArgument:
    if not chart:
        return BadArgument(
            f"Numbers are shown for one at a time, not for {count}",
            next_step=Advice("{chart} compares several", chart=True).then(
                Advice("find the guests that use most", tools.metrics_top), "; "
            ),
        )
    return BadArgument(
        f"{count} lines are too many to tell apart",
        next_step=Advice(f"Give at most {SUBJECTS_AT_MOST}; find the ones that matter", tools.metrics_top),
    )


READS_AT_ONCE = 16
HISTORIES_AT_MOST = 200
"""How many guests are asked for their rates: each is a request of its own."""

_RATES = {"diskio": ("diskread", "diskwrite"), "network": ("netin", "netout")}
_USED = {
    "cpu": lambda row: row.cpu * row.maxcpu,
    "memory": lambda row: row.mem,
    "disk": lambda row: row.disk or row.maxdisk,
}


@operation(
    toolset="metrics",
    risk=Risk.READ,
    search_words="guest uses most eating hogging cpu memory disk network busiest heaviest slow noisy",
)
async def metrics_top(
    pve: Cluster,
    by: Annotated[
        Literal["cpu", "memory", "disk", "diskio", "network"],
        Meta(description="diskio, network: mean of the last hour"),
    ] = "cpu",
    node: str | None = None,
    limit: Annotated[int, Meta(ge=1, le=100)] = 10,
) -> Table:
    """The guests that use the most of a resource, largest first."""
    if node is not None:
        await pve.inventory.node(node)
    here = [row for row in await pve.inventory.guests() if node in (None, row.node) and not row.template]
    running = [row for row in here if row.status == "running"]
    if by in _RATES:
        return await _by_rate(pve, running, by, limit)
    guests = here if by == "disk" else running
    guests.sort(key=lambda row: (-_USED[by](row), row.vmid))
    columns = ("vmid", "name", "type", "node", *_COLUMNS[by])
    rows = [[row.vmid, row.name, row.kind, row.node, *_SHOWN[by](row)] for row in guests[:limit]]
    keys = [-_USED[by](row) for row in guests[:limit]]
    return Table(columns, rows, len(rows), facts=_share(by, guests, rows), keys=keys)


_COLUMNS = {"cpu": ("cores_used", "load"), "memory": ("mem", "share"), "disk": ("disk", "status")}
_SHOWN: dict[str, Any] = {
    "cpu": lambda row: [
        round(row.cpu * row.maxcpu, 2),
        load_of(row.cpu, row.maxcpu, text=f"{percent(row.cpu)} of {row.maxcpu:g}"),
    ],
    "memory": lambda row: [used_of(row.mem, row.maxmem), percent(row.mem / row.maxmem) if row.maxmem else ""],
    # PVE does not know how full the disk of a VM is, only how large it is
    "disk": lambda row: [used_of(row.disk, row.maxdisk) if row.disk else _allocated_size(row.maxdisk), row.status],
}


def _allocated_size(whole: float) -> str:
    return Quantity(f"{size(whole)} given", {"total": int(whole)})


def _share(by: str, guests: list[Resource], rows: list[list[Any]]) -> dict[str, Any]:
    whole = sum(_USED[by](row) for row in guests)
    if not whole or len(rows) == len(guests) or by == "disk":
        return {"of": f"{count_of(len(guests), 'guest')}"}
    shown = sum(_USED[by](row) for row in guests[: len(rows)])
    return {"of": f"{len(guests)} running guests", "these_use": f"{percent(shown / whole)} of what all of them use"}


# -- rates -------------------------------------------------------------------------------------------------------------


async def _by_rate(pve: Cluster, running: list[Resource], by: str, limit: int) -> Table:
    """The busiest guests of the last recorded hour; the inventory only counts the total since a guest's start."""
    first, second = _RATES[by]

    def since_start(row: Resource) -> float:
        return float(getattr(row, first) + getattr(row, second)) / max(row.uptime, 1)

    asked = sorted(running, key=since_start, reverse=True)[:HISTORIES_AT_MOST]
    histories: list[Series | None] = await gather_bounded(READS_AT_ONCE, [partial(_hour, pve, row) for row in asked])
    means = [
        (_mean(series, first), _mean(series, second), row)
        for row, series in zip(asked, histories, strict=True)
        if series is not None and series.points(first)
    ]
    means.sort(key=lambda each: (-(each[0] + each[1]), each[2].vmid))
    rows = [
        [row.vmid, row.name, row.kind, row.node, _rate(inward), _rate(outward), _rate(inward + outward)]
        for inward, outward, row in means[:limit]
    ]
    names = ("read", "written") if by == "diskio" else ("in", "out")
    facts: dict[str, Any] = {"of": f"{len(running)} running guests", "over": "the last hour, on average"}
    if len(running) > len(asked):
        facts["left_out"] = f"{len(running) - len(asked)} guests that did little since their start; narrow with node"
    if silent := [str(row.vmid) for row, series in zip(asked, histories, strict=True) if series is None]:
        facts["no_answer_for"] = silent[:20]
    keys = [-(inward + outward) for inward, outward, _ in means[:limit]]
    return Table(("vmid", "name", "type", "node", *names, "together"), rows, len(rows), facts=facts, keys=keys)


async def _hour(pve: Cluster, row: Resource) -> Series | None:
    """The last hour of a guest; None if it cannot be read, so that a guest of an offline node does not hide others."""
    try:
        guest = Guest(pve, row)
        return await read(pve, Subject("guest", str(guest), guest.path()), "hour")
    except Problem:
        return None


def _mean(series: Series, field: str) -> float:
    points = series.points(field)
    return statistics(points).mean if points else 0.0


def _rate(value: float) -> str:
    unit = unit_of("network", value)
    return Quantity(f"{unit.of(value):g} {unit.name}", round(value, 1))
