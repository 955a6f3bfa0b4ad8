"""Recorded load (RRD): its points, and what they say in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quorate.operations.metrics.subjects import Subject
from quorate.problems import BadArgument
from quorate.pve.cluster import Cluster

Timeframe = Literal["hour", "day", "week", "month", "year", "decade"]
Consolidation = Literal["AVERAGE", "MAX"]

MEASURES = {
    "cpu": ("cpu",),
    "memory": ("mem", "memused"),
    "disk": ("used", "disk", "rootused"),
    "diskio": ("diskread", "diskwrite"),
    "network": ("netin", "netout"),
}
"""Measures by their usual names, and PVE's fields: of guests, nodes and storages, or of both directions."""

LIMITS = ("maxcpu", "maxmem", "maxdisk", "memtotal", "swaptotal", "roottotal", "total")
"""Fields that are limits of other fields."""

_SHARES = frozenset({"cpu", "iowait"})
_BYTES = frozenset(
    {
        "mem", "maxmem", "memhost", "disk", "maxdisk", "memtotal", "memused", "memavailable", "swaptotal", "swapused",
        "roottotal", "rootused", "arcsize", "total", "used",
    }
)  # fmt: skip
_RATES = frozenset({"netin", "netout", "network", "diskread", "diskwrite", "diskio"})

STEADY = 0.05
"""A change of less than this part of the mean is not a trend."""


@dataclass(frozen=True, slots=True)
class Series:
    """The points of a subject, oldest first; a field that was not measured is missing in its row."""

    subject: Subject
    rows: list[dict[str, float]]

    @property
    def step(self) -> float:
        return self.rows[1]["time"] - self.rows[0]["time"] if len(self.rows) > 1 else 0.0

    @property
    def fields(self) -> list[str]:
        """Every field that was measured at least once, in PVE's order."""
        return list(dict.fromkeys(name for row in self.rows for name in row if name != "time"))

    def points(self, field: str) -> list[tuple[float, float]]:
        return [(row["time"], row[field]) for row in self.rows if field in row]

    def last(self, field: str) -> float | None:
        return next((row[field] for row in reversed(self.rows) if field in row), None)


async def read(pve: Cluster, subject: Subject, timeframe: str, cf: str = "AVERAGE") -> Series:
    if timeframe == "decade":
        await _check_decade(pve, subject)
    rows = await pve.get(f"{subject.path}/rrddata", timeframe=timeframe, cf=cf)
    return Series(subject, [_numbers(row) for row in rows or []])


async def _check_decade(pve: Cluster, subject: Subject) -> None:
    if subject.kind != "node":
        raise BadArgument(f"PVE keeps a decade for nodes only, not for {subject.label}", next_step="Take year")
    version = str((await pve.version()).get("version", ""))
    if int(version.partition(".")[0] or 0) < 9:
        raise BadArgument(f"PVE {version} keeps no decade", why="That requires PVE 9", next_step="Take year")


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in row.items() if value is not None and math.isfinite(float(value))}


# -- a few numbers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Statistics:
    min: float
    mean: float
    p95: float
    max: float
    last: float
    change: float
    """The rise of the regression line from the first point to the last."""
    fit: float
    """The share of the variance that the line explains, 0 to 1."""


def statistics(points: Sequence[tuple[float, float]]) -> Statistics:
    numbers = [value for _, value in points]
    ordered = sorted(numbers)
    rank = max(0, math.ceil(0.95 * len(ordered)) - 1)
    change, fit = _line(points)
    mean = math.fsum(numbers) / len(numbers)
    return Statistics(ordered[0], mean, ordered[rank], ordered[-1], numbers[-1], change, fit)


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Least squares: the rise over the whole time, and the coefficient of determination."""
    count = len(points)
    middle_time = math.fsum(time for time, _ in points) / count
    middle = math.fsum(value for _, value in points) / count
    spread = math.fsum((time - middle_time) ** 2 for time, _ in points)
    variation = math.fsum((value - middle) ** 2 for _, value in points)
    if not spread or not variation:
        return 0.0, 0.0
    together = math.fsum((time - middle_time) * (value - middle) for time, value in points)
    return together / spread * (points[-1][0] - points[0][0]), together**2 / (spread * variation)


def trend(found: Statistics, unit: Unit) -> str:
    """ "steady", or how much it went up or down over the whole time; "fluctuating" when no line describes it."""
    if abs(found.change) < STEADY * abs(found.mean) or not found.change:
        return "steady"
    if found.fit < 0.3:
        return "fluctuating"
    return f"{unit.of(found.change):+g}"


def seconds_until_full(found: Statistics, points: Sequence[tuple[float, float]], whole: float | None) -> float | None:
    """When it would be full at this rate; None if it does not clearly grow."""
    if not whole or found.fit < 0.5 or found.change <= 0:
        return None
    pace = found.change / (points[-1][0] - points[0][0])
    return max(0.0, whole - found.last) / pace


def downsample(rows: Sequence[dict[str, float]], count: int, *, peak: bool) -> list[dict[str, float]]:
    """At most `count` rows: neighbors are merged, by their mean or their peak, at the time of the last of them."""
    width = max(1, math.ceil(len(rows) / count))
    return [_merge_rows(rows[start : start + width], peak) for start in range(0, len(rows), width)]


def _merge_rows(rows: Sequence[dict[str, float]], peak: bool) -> dict[str, float]:
    merged: dict[str, float] = {"time": rows[-1]["time"]}
    for field in dict.fromkeys(name for row in rows for name in row if name != "time"):
        values = [row[field] for row in rows if field in row]
        merged[field] = max(values) if peak else math.fsum(values) / len(values)
    return merged


# -- units -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unit:
    """What numbers are shown in: `of` divides them by the unit's size and rounds to what matters."""

    name: str
    size: float = 1.0

    def of(self, value: float) -> float:
        scaled = value / self.size
        return round(scaled, 1 if abs(scaled) >= 10 else 2)


_BINARY = tuple(Unit(name, 1024.0**power) for power, name in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB")))
_DECIMAL = tuple(Unit(name, 1000.0**power) for power, name in enumerate(("B/s", "kB/s", "MB/s", "GB/s")))


def unit_of(field: str, largest: float) -> Unit:
    """The unit in which the largest value of this field reads best."""
    if field in _SHARES:
        return Unit("%", 0.01)
    if field.startswith("pressure"):
        return Unit("%")
    if field in _BYTES:
        return _choose_unit(_BINARY, largest)
    if field in _RATES:
        return _choose_unit(_DECIMAL, largest)
    return Unit("")


def _choose_unit(units: Sequence[Unit], largest: float) -> Unit:
    return next((unit for unit in reversed(units) if abs(largest) >= unit.size), units[0])
