"""Sizes, shares and times: texts for people, in few characters, that carry their values for programs."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any

from msgspec import Meta

from quorate.problems import BadArgument

_UNITS = ("", "K", "M", "G", "T", "P")


class Quantity(str):
    """A text for people that carries its value for programs: bytes, seconds, a fraction, an ISO time."""

    __slots__ = ("value",)
    value: Any

    def __new__(cls, text: str, value: Any) -> Quantity:
        quantity = super().__new__(cls, text)
        quantity.value = value
        return quantity


def moment(epoch: float) -> Quantity:
    """A time in UTC, to the second."""
    text = datetime.datetime.fromtimestamp(epoch, datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    return Quantity(text, text.replace(" ", "T"))


@lru_cache(4096)  # a list has thousands of sizes, most of them alike
def size(count: float) -> Quantity:
    """Bytes in binary units: 1536 MiB is "1.5G"."""
    return Quantity(_in_binary_units(count), int(count))


def _in_binary_units(count: float) -> str:
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    text = f"{value:.1f}" if value < 10 and unit else f"{value:.0f}"
    return text.removesuffix(".0") + _UNITS[unit]


def used_of(used: float, whole: float) -> str:
    """ "2.1G/4G", or nothing if the whole is not known."""
    return Quantity(f"{size(used)}/{size(whole)}", {"used": int(used), "total": int(whole)}) if whole else ""


def unused_size(whole: float) -> str:
    """The size of something that is not in use: "4G"."""
    return Quantity(size(whole), {"used": 0, "total": int(whole)}) if whole else ""


def percent(share: float) -> Quantity:
    return Quantity(f"{share * 100:.0f}%", round(share, 4))


def load_of(share: float, cores: float, *, text: str) -> Quantity:
    """How busy a number of cores is; the caller provides the text."""
    return Quantity(text, {"load": round(share, 4), "cores": int(cores) if cores == int(cores) else cores})


def yes(flag: object) -> str:
    """For a column that is empty where a flag is not set."""
    return Quantity("yes", True) if flag else ""


def yes_or_no(flag: object) -> Quantity:
    return Quantity("yes" if flag else "no", bool(flag))


def count_of(count: int, singular: str, plural: str = "") -> str:
    """ "1 guest", "2 guests"; the plural is given if it takes more than an s."""
    return f"1 {singular}" if count == 1 else f"{count} {plural or singular + 's'}"


def shortlist(things: Sequence[object], limit: int) -> str:
    """The first of them by name, and how many more there are."""
    more = f" and {len(things) - limit} more" if len(things) > limit else ""
    return ", ".join(map(str, things[:limit])) + more


def duration(seconds: float) -> Quantity:
    """The two largest units: "3d 4h", "12m 5s"; "3d" if it is not even an hour more."""
    value = round(seconds, 3)
    return Quantity(_in_two_units(seconds), int(value) if value == int(value) else value)


def span(seconds: float) -> str:
    """Where the largest unit says enough: "3d", "12m"."""
    return _in_two_units(seconds).partition(" ")[0] if seconds >= 60 else "less than 1m"


def ago(seconds: float) -> str:
    """ "3d ago", "12m ago", "just now"."""
    return f"{span(seconds)} ago" if seconds >= 60 else "just now"


def _in_two_units(seconds: float) -> str:
    left = int(seconds)
    parts: list[str] = []
    for length, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        count, left = divmod(left, length)
        if parts:
            return " ".join([*parts, *([f"{count}{unit}"] if count else [])])
        if count or unit == "s":
            parts.append(f"{count}{unit}")
    return parts[0]


def iso_times(facts: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The same facts with these times as programs read them."""
    return {**facts, **{name: moment(facts[name]).value for name in names if facts.get(name) is not None}}


_SPAN = re.compile(r"^(?P<count>\d{1,9})\s*(?P<unit>[smhdw])$")
_CLOCK = re.compile(r"^(?P<hour>[01]?\d|2[0-3]):(?P<minute>[0-5]\d)$")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
LONGEST_SPAN = 365 * 86_400
_LAST_MOMENT = 253_402_214_400.0  # the last day that a date can name, in any time zone
When = Annotated[str, Meta(description="2026-01-31 08:00 (UTC), or how long ago: 30m, 2h, 1d")]


def parse_moment(text: str, *, now: float, ahead: bool = False) -> float:
    """The time that a `When` names. `ahead`: a length of time, such as 2h or in 2h, counts from now on, not back.
    A time of day that is not `ahead` is the last such time."""
    span = _SPAN.match(text.strip().removeprefix("in ") if ahead else text.strip())
    if span:
        length = int(span["count"]) * _SECONDS[span["unit"]]
        return now + length if ahead else max(0.0, now - length)
    if not ahead and (clock := _CLOCK.match(text.strip())):
        midnight = now - now % 86400
        seconds = midnight + int(clock["hour"]) * 3600 + int(clock["minute"]) * 60
        return seconds if seconds <= now else seconds - 86400
    try:
        time = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        example = "2h for in two hours" if ahead else "08:00 (UTC), or 2h for two hours ago"
        raise BadArgument(f"{text!r} is not a time", next_step=f"Write 2026-01-31 08:00, or {example}") from None
    seconds = (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp()
    return min(max(0.0, seconds), _LAST_MOMENT)


def parse_span(text: str) -> float:
    """The seconds of "30m", "8h" or "7d"."""
    match = _SPAN.match(text.strip())
    if match is None or not int(match["count"]):
        raise BadArgument(f"{text!r} is not a length of time", next_step="Write 30m, 8h or 7d")
    seconds = int(match["count"]) * _SECONDS[match["unit"]]
    if seconds > LONGEST_SPAN:
        raise BadArgument(f"{text!r} is too long", next_step="Write at most 365d")
    return float(seconds)


_SIZE = re.compile(r"^\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGTP]?)(?:i?B)?\s*$", re.I)


def parse_size(text: str | float, *, unit: str) -> int:
    """Bytes of "32G", "512M", "1.5 GiB" or, without a unit, of a number in `unit` (K, M, G, T)."""
    match = _SIZE.match(str(text))
    if match is None:
        raise BadArgument(f"{text!r} is not a size", next_step=f"Write 512M, 32G or 1.5T; a bare number means {unit}iB")
    return int(float(match["number"]) * 1024 ** _UNITS.index(match["unit"].upper() or unit))
