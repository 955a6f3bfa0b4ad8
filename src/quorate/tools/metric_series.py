"""Series of metrics of guests, nodes and storages: reading them, their statistics, units and time zones."""

from __future__ import annotations

import datetime
import math
import os
import time
import zoneinfo
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from quorate.hints import NAMED, Advice, either
from quorate.problems import BadArgument, NotFound
from quorate.pve.cluster import Cluster
from quorate.pve.lookup import Resource, View


@dataclass(frozen=True, slots=True)
class Subject:
    """A guest, a node, or a storage as a node sees it, whose load is shown."""

    kind: Literal["guest", "node", "storage"]
    label: str
    path: str


async def find_subjects(
    pve: Cluster,
    guests: int | str | list[int | str] | None,
    nodes: str | list[str] | None,
    storages: str | list[str] | None,
) -> list[Subject]:
    """The requested subjects, each once. Given together with storages, nodes say whose storages to show."""
    subjects = [await _guest(pve, ref) for ref in as_list(guests)]
    if storages is None:
        subjects += [await _node(pve, name) for name in as_list(nodes)]
    else:
        subjects += [await _storage(pve, name, node) for name in as_list(storages) for node in as_list(nodes) or [None]]
    if not subjects:
        raise BadArgument(
            "No guest, node or storage was specified",
            next_step=either(
                Advice("Give {guest}", guest=NAMED),
                Advice("{node}", node=NAMED),
                Advice("{storage}", storage=NAMED),
                conjunction=" or ",
            ),
        )
    return list({(subject.kind, subject.label): subject for subject in subjects}.values())


def as_list(value: Any) -> list[Any]:
    """One, several or none, as a list."""
    return value if isinstance(value, list) else [] if value is None else [value]


async def _guest(pve: Cluster, ref: int | str) -> Subject:
    guest = await pve.guest(ref)
    return Subject("guest", f"{guest.row.name or guest.row.kind} ({guest.vmid})", guest.path())


async def _node(pve: Cluster, name: str) -> Subject:
    row = await pve.inventory.node(name)
    return Subject("node", row.node, f"/nodes/{row.node}")


async def _storage(pve: Cluster, name: str, node: str | None) -> Subject:
    """A storage by its name, or by `node/name` where every node has its own of that name."""
    if "/" in name:
        node, _, name = name.partition("/")
    return await pve.inventory.decide_on_fresh_view(lambda view: _storage_in(view, name, node))


def _storage_in(view: View, name: str, node: str | None) -> Subject:
    rows = [row for row in view.of_type("storage") if row.storage == name]
    if not rows:
        names = sorted({row.storage for row in view.of_type("storage")})
        raise NotFound(f"There is no storage {name!r}", next_step=f"Available: {', '.join(names) or 'none'}")
    places = [row for row in rows if node in (None, row.node)]
    if not places:
        raise NotFound(f"Node {node} has no storage {name!r}", next_step=f"It is on {_nodes(rows)}")
    if len(places) > 1 and not places[0].shared:
        raise BadArgument(
            f"{len(places)} nodes have a storage {name!r} of their own",
            next_step=f"Say which, such as {places[0].node}/{name}; it is on {_nodes(places)}",
        )
    chosen = next((row for row in places if row.status == "available"), places[0])
    label = name if chosen.shared else f"{chosen.node}/{name}"
    return Subject("storage", label, f"/nodes/{chosen.node}/storage/{name}")


def _nodes(rows: Iterable[Resource]) -> str:
    return ", ".join(sorted(row.node for row in rows))


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


def trend(numbers: Statistics, unit: Unit) -> str:
    """ "steady", or how much it went up or down over the whole time; "fluctuating" when no line describes it."""
    if abs(numbers.change) < STEADY * abs(numbers.mean) or not numbers.change:
        return "steady"
    if numbers.fit < 0.3:
        return "fluctuating"
    return f"{unit.of(numbers.change):+g}"


def seconds_until_full(numbers: Statistics, points: Sequence[tuple[float, float]], whole: float | None) -> float | None:
    """The time until it is full at this rate; None if it does not clearly grow."""
    if not whole or numbers.fit < 0.5 or numbers.change <= 0:
        return None
    pace = numbers.change / (points[-1][0] - points[0][0])
    return max(0.0, whole - numbers.last) / pace


def downsample(rows: Sequence[dict[str, float]], count: int, *, peak: bool) -> list[dict[str, float]]:
    """Merge neighboring rows into at most `count`, by their mean or peak, at the time of the last of them."""
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
    """A unit to show numbers in; `of` divides a number by the size of the unit and rounds it."""

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


_LOCAL_TIME = Path("/etc/localtime")


def zone(name: str | None) -> datetime.tzinfo:
    """The named zone, or this machine's own."""
    if name is None:
        return _local()
    zone_info = _find_zone(name)
    if zone_info is None:
        raise BadArgument(f"There is no time zone {name!r}", next_step="Name it like Europe/Berlin, Asia/Tokyo or UTC")
    return zone_info


def label(where: datetime.tzinfo, begin: float, end: float) -> str:
    """The name of the zone and the offsets in force in this time, such as "Europe/Berlin (CET, UTC+1)"."""
    moments = [datetime.datetime.fromtimestamp(begin + (end - begin) * part / 12, where) for part in range(13)]
    in_force = dict.fromkeys((str(each.tzname()), _offset(each)) for each in moments)
    name = getattr(where, "key", "")
    if all(offset == "UTC" for _, offset in in_force):
        return "UTC" if name in ("", "UTC", "Etc/UTC") else f"{name} (UTC)"
    zones = " / ".join(", ".join(dict.fromkeys(each)) for each in in_force)
    return f"{name} ({zones})" if name else zones


def _offset(when: datetime.datetime) -> str:
    minutes = int((when.utcoffset() or datetime.timedelta()).total_seconds() // 60)
    if not minutes:
        return "UTC"
    hours, rest = divmod(abs(minutes), 60)
    return f"UTC{'-' if minutes < 0 else '+'}{hours}" + (f":{rest:02}" if rest else "")


def _local() -> datetime.tzinfo:
    """This machine's zone, from TZ or /etc/localtime; without a name, its current offset from UTC."""
    target = str(_LOCAL_TIME.resolve()) if _LOCAL_TIME.exists() else ""
    for name in (os.environ.get("TZ", "").lstrip(":"), target.partition("zoneinfo/")[2]):
        if name and (zone_info := _find_zone(name)):
            return zone_info
    if time.localtime().tm_gmtoff == 0:
        return datetime.UTC
    return datetime.datetime.now().astimezone().tzinfo or datetime.UTC


def _find_zone(name: str) -> zoneinfo.ZoneInfo | None:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return None
