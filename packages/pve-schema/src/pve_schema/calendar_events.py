"""Calendar events: the next time of a schedule such as `sat 02:30` or `*/15`.

    [weekdays] [[year-]month-day] [hour:]minute[:second]

Every part may be a list, a range (`mon..fri`, `8..17`), a star, or a step (`*/15`, `0/15`). Times are UTC.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_NAMED = {
    "minutely": "*:*", "hourly": "*:00", "daily": "00:00", "weekly": "mon 00:00", "monthly": "*-1 00:00",
    "quarterly": "1,4,7,10-1 00:00", "semiannually": "1,7-1 00:00", "semi-annually": "1,7-1 00:00",
    "yearly": "1-1 00:00", "annually": "1-1 00:00",
}  # fmt: skip
_FURTHEST_DAYS = 5 * 366
_RHYTHM_DAYS = 2 * 364 + 1
_DAY = 24 * 3600
_ALL_MINUTES = frozenset(range(60))
_ALL_HOURS = frozenset(range(24))


class Unparsable(ValueError):
    """A text that is not a calendar event."""


@dataclass(frozen=True, slots=True)
class CalendarEvent:
    """The times of a schedule."""

    weekdays: frozenset[int]
    years: frozenset[int] | None
    months: frozenset[int]
    days: frozenset[int]
    hours: frozenset[int]
    minutes: frozenset[int]
    seconds: frozenset[int]

    def next_after(self, now: float) -> int | None:
        """The first such time after `now`, None if there is none within a few years."""
        start = datetime.fromtimestamp(int(now), UTC) + timedelta(seconds=1)
        years = [year for year in self.years or () if year >= start.year]
        begin = max(start, datetime(min(years), 1, 1, tzinfo=UTC)) if years else start
        for offset in range(_FURTHEST_DAYS):
            day = (begin + timedelta(days=offset)).replace(hour=0, minute=0, second=0)
            if self._names_day(day):
                moment = self._first_on(day, start)
                if moment is not None:
                    return int(moment.timestamp())
        return None

    def is_rarer_than(self, other: CalendarEvent, now: float) -> bool:
        """Whether this event comes less often from now on, or leaves a longer time without a run."""
        runs, gap = self._rhythm(now)
        other_runs, other_gap = other._rhythm(now)
        on_the_last_day = len(self.hours) * len(self.minutes) * len(self.seconds)  # may be just outside the period
        return runs + on_the_last_day < other_runs or gap > other_gap

    def _rhythm(self, now: float) -> tuple[int, int]:
        """The number of runs within two years, and the longest time without one, in seconds."""
        today = datetime.fromtimestamp(int(now), UTC).replace(hour=0, minute=0, second=0)
        times = sorted(
            hour * 3600 + minute * 60 + second
            for hour in self.hours
            for minute in self.minutes
            for second in self.seconds
        )
        days = [day for day in range(1, _RHYTHM_DAYS) if self._names_day(today + timedelta(days=day))]
        if not days:
            return 0, _RHYTHM_DAYS * _DAY
        edges = zip([0, *days], [*days, _RHYTHM_DAYS], strict=True)
        between_days = [(later - earlier) * _DAY - times[-1] + times[0] for earlier, later in edges]
        within_a_day = [later - earlier for earlier, later in pairwise(times)]
        return len(days) * len(times), max(between_days + within_a_day)

    def _names_day(self, day: datetime) -> bool:
        return (
            day.weekday() in self.weekdays
            and day.month in self.months
            and day.day in self.days
            and (self.years is None or day.year in self.years)
        )

    def _first_on(self, day: datetime, start: datetime) -> datetime | None:
        for hour in sorted(self.hours):
            for minute in sorted(self.minutes):
                for second in sorted(self.seconds):
                    when = day.replace(hour=hour, minute=minute, second=second)
                    if when >= start:
                        return when
        return None


def parse_calendar_event(text: str) -> CalendarEvent:
    """Parse a calendar event."""
    parts = _NAMED.get(text.strip().lower(), text.strip().lower()).split()
    if not parts:
        raise Unparsable(text)
    weekdays = frozenset(range(7))
    if re.match(r"[a-z]", parts[0]):
        weekdays = _weekdays(parts.pop(0))
    years, months, days = None, frozenset(range(1, 13)), frozenset(range(1, 32))
    if parts and re.search(r"\d-|\*-", parts[0]) and ":" not in parts[0]:
        years, months, days = _date(parts.pop(0))
    hours, minutes, seconds = _ALL_HOURS, _ALL_MINUTES, frozenset({0})
    if parts:
        hours, minutes, seconds = _time(parts.pop(0))
    else:
        hours, minutes = frozenset({0}), frozenset({0})
    if parts:
        raise Unparsable(text)
    return CalendarEvent(weekdays, years, months, days, hours, minutes, seconds)


def calendar_errors(text: object) -> dict[str, str]:
    """PVE's error for a schedule that it cannot parse."""
    try:
        parse_calendar_event("daily" if text is None else str(text))
    except Unparsable:
        why = f"unable to parse calendar event '{text}' - unable to parse calendar event"
        return {"schedule": f"invalid format - invalid calendar event '{text}' - {why}\n\n"}
    return {}


def _weekdays(text: str) -> frozenset[int]:
    days: set[int] = set()
    for part in text.split(","):
        first, dots, last = part.partition("..")
        start = _weekday(first)
        end = _weekday(last) if dots else start
        if end < start:
            raise Unparsable(text)
        days.update(range(start, end + 1))
    return frozenset(days)


def _weekday(text: str) -> int:
    full = {"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}
    if text[:3] in _DAYS and (len(text) == 3 or text in full):
        return _DAYS.index(text[:3])
    raise Unparsable(text)


def _date(text: str) -> tuple[frozenset[int] | None, frozenset[int], frozenset[int]]:
    parts = text.split("-")
    if len(parts) not in (2, 3):
        raise Unparsable(text)
    years = None
    if len(parts) == 3:
        year = parts.pop(0)
        years = None if year == "*" else _numbers(year, 1970, 2100)
    return years, _numbers(parts[0], 1, 12), _numbers(parts[1], 1, 31)


def _time(text: str) -> tuple[frozenset[int], frozenset[int], frozenset[int]]:
    parts = text.split(":")
    if len(parts) == 1:
        return _ALL_HOURS, _numbers(parts[0], 0, 59), frozenset({0})
    if len(parts) > 3:
        raise Unparsable(text)
    seconds = _numbers(parts[2], 0, 59) if len(parts) == 3 else frozenset({0})
    return _numbers(parts[0], 0, 23), _numbers(parts[1], 0, 59), seconds


def _numbers(text: str, lowest: int, highest: int) -> frozenset[int]:
    numbers: set[int] = set()
    for part in text.split(","):
        values, slash, step = part.partition("/")
        if slash and not step.isdecimal():
            raise Unparsable(text)
        first, dots, last = values.partition("..")
        if values == "*":
            start, end = lowest, highest
        elif first.isdecimal() and (last.isdecimal() if dots else not last):
            start = int(first)
            end = int(last) if dots else highest if slash else start
        else:
            raise Unparsable(text)
        if not lowest <= start <= end <= highest or (slash and int(step) == 0):
            raise Unparsable(text)
        numbers.update(range(start, end + 1, int(step) if slash else 1))
    return frozenset(numbers)
