"""What a chart is made of, before anybody draws it."""

from __future__ import annotations

import datetime
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    times: list[float]
    values: list[float]
    """In the panel's unit; not-a-number where nothing was measured, which leaves a gap."""
    colour: int = 0
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
