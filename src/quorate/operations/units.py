"""Sizes, shares and times as people read them, in few characters."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from quorate.pve.errors import BadArgument

_UNITS = ("", "K", "M", "G", "T", "P")


def size(count: float) -> str:
    """Bytes in binary units: 1536 MiB is "1.5G"."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    text = f"{value:.1f}" if value < 10 and unit else f"{value:.0f}"
    return text.removesuffix(".0") + _UNITS[unit]


def used_of(used: float, whole: float) -> str:
    """ "2.1G/4G", or nothing if the whole is not known."""
    return f"{size(used)}/{size(whole)}" if whole else ""


def percent(share: float) -> str:
    return f"{share * 100:.0f}%"


def shortlist(things: Sequence[object], most: int) -> str:
    """The first of them by name, and how many more there are."""
    more = f" and {len(things) - most} more" if len(things) > most else ""
    return ", ".join(str(one) for one in things[:most]) + more


def duration(seconds: float) -> str:
    """The two largest units: "3d 4h", "12m 5s"."""
    left = int(seconds)
    parts: list[str] = []
    for length, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        count, left = divmod(left, length)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def moment(epoch: float) -> str:
    """A time in UTC, to the second."""
    return datetime.datetime.fromtimestamp(epoch, datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")


_AGO = re.compile(r"^(?P<count>\d+)\s*(?P<unit>[smhdw])$")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
When = Annotated[str, Meta(description="2026-01-31 08:00 (UTC), or how long ago: 30m, 2h, 1d")]


def parse_moment(text: str, *, now: float) -> float:
    """The time that a `When` names."""
    ago = _AGO.match(text.strip())
    if ago:
        return now - int(ago["count"]) * _SECONDS[ago["unit"]]
    try:
        given = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadArgument(f"{text!r} is no time", next_step="Write 2026-01-31 08:00, or 2h for two hours ago") from None
    return (given if given.tzinfo else given.replace(tzinfo=datetime.UTC)).timestamp()


_SIZE = re.compile(r"^\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGTP]?)(?:i?B)?\s*$", re.I)


def parse_size(text: str | float, *, unit: str) -> int:
    """Bytes of "32G", "512M", "1.5 GiB" or, without a unit, of a number in `unit` (K, M, G, T)."""
    found = _SIZE.match(str(text))
    if found is None:
        raise BadArgument(f"{text!r} is not a size", next_step=f"Write 512M, 32G or 1.5T; a bare number means {unit}iB")
    return int(float(found["number"]) * 1024 ** _UNITS.index(found["unit"].upper() or unit))
