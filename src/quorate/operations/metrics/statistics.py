"""The history of load, as a few numbers or as points."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from quorate.operations.metrics import series
from quorate.operations.metrics.series import Consolidation, Series, Statistics, Subject, Timeframe, Unit
from quorate.operations.registry import GuestRef, Risk, Table, operation
from quorate.operations.units import duration, moment
from quorate.pve.cluster import Cluster
from quorate.pve.errors import BadArgument

COLUMNS = ("field", "unit", "min", "mean", "p95", "max", "last", "trend")
FORESEEABLE_DAYS = 1000
FILLING = {"used": "total", "rootused": "roottotal", "disk": "maxdisk"}
"""What may run full, and the field that says how large it is."""


@operation(risk=Risk.READ)
async def metrics_get(
    pve: Cluster,
    guest: GuestRef | None = None,
    node: str | None = None,
    storage: Annotated[str, Meta(description="Name, or node/name")] | None = None,
    timeframe: Annotated[Timeframe, Meta(description="decade: nodes only")] = "hour",
    cf: Consolidation = "AVERAGE",
    fields: Annotated[str | list[str], Meta(description="Only these, such as cpu, mem, netin")] | None = None,
    points: Annotated[int, Meta(ge=0, le=300, description="Also this many points, thinned")] = 0,
) -> Table:
    """Load of a guest, node or storage over time: min, mean, p95, max, last, trend (change over the time) per field."""
    subject = await _subject(pve, guest, node, storage)
    found = await series.read(pve, subject, timeframe, cf)
    chosen = _chosen(found, [fields] if isinstance(fields, str) else fields)
    numbers = {name: series.statistics(found.points(name)) for name in chosen}
    units = {name: series.unit_of(name, numbers[name].max) for name in chosen}
    rows = [_row(name, units[name], numbers[name]) for name in chosen]
    facts = {**_frame(found, timeframe, cf), **_forecast(found, numbers)}
    if points and chosen:
        facts["points"] = _points(found, units, points, peak=cf == "MAX")
    return Table(COLUMNS, rows, len(rows), facts=facts)


async def _subject(pve: Cluster, guest: int | str | None, node: str | None, storage: str | None) -> Subject:
    if guest is not None and (node, storage) == (None, None):
        return await series.guest_subject(pve, guest)
    if guest is None and storage is not None:
        return await series.storage_subject(pve, storage, node)
    if guest is None and node is not None:
        return await series.node_subject(pve, node)
    raise BadArgument(
        "metrics_get wants one of guest, node and storage",
        next_step="A local storage takes its node beside it; metrics_chart and metrics_top compare several",
    )


def _chosen(found: Series, wanted: list[str] | None) -> list[str]:
    """The fields that are asked for, else all that moved or could have."""
    if wanted:
        unknown = [name for name in wanted if name not in found.fields]
        if unknown and found.fields:
            raise BadArgument(
                f"Nothing is recorded as {', '.join(unknown)} for {found.subject.label}",
                next_step=f"There are {', '.join(found.fields)}",
            )
        return [name for name in wanted if name in found.fields]
    return [
        name
        for name in found.fields
        if name not in series.LIMITS and (name in ("cpu", "mem") or any(value for _, value in found.points(name)))
    ]


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
    """When what can run full would be full, if it went on like this."""
    told = {}
    for name, whole in FILLING.items():
        if name in numbers:
            left = series.seconds_until_full(numbers[name], found.points(name), found.last(whole))
            if left is not None and left < FORESEEABLE_DAYS * 86400:
                told[name] = f"full in about {left / 86400:.0f} days at this pace"
    return {"forecast": told} if told else {}


def _points(found: Series, units: dict[str, Unit], count: int, *, peak: bool) -> dict[str, Any]:
    rows = [row for row in found.rows if any(name in row for name in units)]
    columns = ["time", *(f"{name} {unit.name}".strip() for name, unit in units.items())]
    return {
        "columns": columns,
        "rows": [
            [moment(row["time"]), *(unit.of(row[name]) if name in row else None for name, unit in units.items())]
            for row in series.thinned(rows, count, peak=peak)
        ],
    }
