"""The table of measurements: each with its target, and the limit beyond which `make bench` fails."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

BUSY = 0.2
"""The share of waiting for a core above which wall time says more about the machine than about Quorate."""


@dataclass(frozen=True, slots=True)
class Row:
    section: str
    what: str
    value: float
    unit: str
    target: float
    limit: float
    """The target plus room for noise; a figure beyond it is a regression."""
    remark: str = ""
    busy: float = 0.0
    """The share of the time that the measured processes waited for a core."""

    @property
    def is_over(self) -> bool:
        return self.value > self.limit and self.busy <= BUSY

    @property
    def verdict(self) -> str:
        if self.value <= self.target:
            return "ok"
        if self.value <= self.limit:
            return "above target"
        return "OVER" if self.is_over else f"not judged, the machine is busy ({self.busy:.0%})"


@dataclass(slots=True)
class Table:
    rows: list[Row] = field(default_factory=list)
    title: str = ""
    """The section of the next row."""

    def section(self, title: str) -> None:
        self.title = title
        sys.stdout.write(f"\n{title}\n")

    def add(
        self,
        what: str,
        value: float,
        unit: str,
        target: float,
        *,
        room: float = 1.0,
        remark: str = "",
        busy: float = 0.0,
    ) -> None:
        """`room`: how many times the target a noisy machine may take; 1 for figures that do not depend on time."""
        row = Row(self.title, what, value, unit, target, round(target * room, 2), remark, busy)
        self.rows.append(row)
        limits = f"target {row.target:g}, limit {row.limit:g}"
        sys.stdout.write(f"  {what:<52} {value:>9.4g} {unit:<4} {limits:<28} {row.verdict:<14} {remark}\n")
        sys.stdout.flush()

    @property
    def over(self) -> list[str]:
        """The figures beyond their limits, each by its section and name."""
        return [f"{row.section}: {row.what}" for row in self.rows if row.is_over]


def ratio(ours: Sequence[float], floor: Sequence[float]) -> float:
    """The median of pairs measured one after the other, so that a busy moment affects both."""
    return statistics.median(time / other for time, other in zip(ours, floor, strict=True))
