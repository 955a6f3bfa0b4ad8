"""The time zone of this machine, by name."""

from __future__ import annotations

import datetime
import os
import time
import zoneinfo
from pathlib import Path

from quorate.problems import BadArgument

_LOCAL_TIME = Path("/etc/localtime")


def zone(name: str | None) -> datetime.tzinfo:
    """The named zone, or this machine's own."""
    if name is None:
        return _local()
    found = _find_zone(name)
    if found is None:
        raise BadArgument(f"There is no time zone {name!r}", next_step="Name it like Europe/Berlin, Asia/Tokyo or UTC")
    return found


def label(where: datetime.tzinfo, begin: float, end: float) -> str:
    """The zone as a reader needs it: its name, and what was in force in this time: "Europe/Berlin (CET, UTC+1)"."""
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
    """From TZ or /etc/localtime; a zone without a name is shown by its current offset from UTC."""
    target = str(_LOCAL_TIME.resolve()) if _LOCAL_TIME.exists() else ""
    for name in (os.environ.get("TZ", "").lstrip(":"), target.partition("zoneinfo/")[2]):
        if name and (found := _find_zone(name)):
            return found
    if time.localtime().tm_gmtoff == 0:
        return datetime.UTC
    return datetime.datetime.now().astimezone().tzinfo or datetime.UTC


def _find_zone(name: str) -> zoneinfo.ZoneInfo | None:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return None
