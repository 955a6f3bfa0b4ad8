"""The history of one guest, node or storage as a few numbers, and as points where they are requested."""

from __future__ import annotations

from typing import Any

from quorate.operations.metrics import series
from quorate.operations.metrics.series import MEASURES, Series, Statistics, Unit
from quorate.operations.registry import Table
from quorate.operations.units import duration, moment
from quorate.problems import BadArgument

COLUMNS = ("field", "unit", "min", "mean", "p95", "max", "last", "trend")
FORESEEABLE_DAYS = 1000
FILLING = {"used": "total", "rootused": "roottotal", "disk": "maxdisk"}
"""Fields that can fill up, and the field that holds their size."""


def table(found: Series, timeframe: str, cf: str, show: list[str], points: int) -> Table:
    fields = _fields(found, show)
    numbers = {name: series.statistics(found.points(name)) for name in fields}
    units = {name: series.unit_of(name, numbers[name].max) for name in fields}
    rows = [_row(name, units[name], numbers[name]) for name in fields]
    facts = {**_frame(found, timeframe, cf), **_forecast(found, numbers)}
    if points and fields:
        facts["points"] = _points(found, units, points, peak=cf == "MAX")
    return Table(COLUMNS, rows, len(rows), facts=facts)


def _fields(found: Series, show: list[str]) -> list[str]:
    """The requested fields, else all that changed or could have."""
    if not show:
        return [
            name
            for name in found.fields
            if name not in series.LIMITS and (name in ("cpu", "mem") or any(value for _, value in found.points(name)))
        ]
    meant = {name: [field for field in MEASURES.get(name, (name,)) if field in found.fields] for name in show}
    unknown = [name for name, fields in meant.items() if not fields]
    if unknown and found.fields:
        raise BadArgument(
            f"Nothing is recorded as {', '.join(unknown)} for {found.subject.label}",
            next_step=f"Available: {', '.join(found.fields)}",
        )
    return list(dict.fromkeys(field for fields in meant.values() for field in fields))


def _row(name: str, unit: Unit, numbers: Statistics) -> list[Any]:
    shown = [unit.of(value) for value in (numbers.min, numbers.mean, numbers.p95, numbers.max, numbers.last)]
    return [name, unit.name, *shown, series.trend(numbers, unit)]


def _frame(found: Series, timeframe: str, cf: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"of": found.subject.label, "timeframe": timeframe, "cf": cf}
    measured = [row for row in found.rows if len(row) > 1]
    if not measured:
        return facts | {"note": "Nothing was recorded in this time"}
    facts |= {"from": moment(measured[0]["time"]), "to": moment(measured[-1]["time"]), "step": duration(found.step)}
    limits: dict[str, str] = {}
    for name in series.LIMITS:
        if value := found.last(name):
            unit = series.unit_of(name, value)
            limits[name] = f"{unit.of(value):g} {unit.name}".strip()
    facts["limits"] = limits
    if found.subject.kind == "guest" and "cpu" not in found.fields:
        facts["note"] = "The guest did not run in this time"
    return facts


def _forecast(found: Series, numbers: dict[str, Statistics]) -> dict[str, Any]:
    """When a resource that can fill up would be full at this rate."""
    forecast = {}
    for name, whole in FILLING.items():
        if name in numbers:
            left = series.seconds_until_full(numbers[name], found.points(name), found.last(whole))
            if left is not None and left < FORESEEABLE_DAYS * 86400:
                forecast[name] = f"full in about {left / 86400:.0f} days at this pace"
    return {"forecast": forecast} if forecast else {}


def _points(found: Series, units: dict[str, Unit], count: int, *, peak: bool) -> dict[str, Any]:
    rows = [row for row in found.rows if any(name in row for name in units)]
    columns = ["time", *(f"{name} {unit.name}".strip() for name, unit in units.items())]
    return {
        "columns": columns,
        "rows": [
            [moment(row["time"]), *(unit.of(row[name]) if name in row else None for name, unit in units.items())]
            for row in series.downsample(rows, count, peak=peak)
        ],
    }
