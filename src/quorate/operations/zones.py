"""The time zone that people at this machine live in, by its name."""

from __future__ import annotations

import datetime
import os
import time
import zoneinfo
from pathlib import Path

from quorate.pve.errors import BadArgument

_LOCAL_TIME = Path("/etc/localtime")


def zone(name: str | None) -> datetime.tzinfo:
    """The named zone, or this machine's own."""
    if name is None:
        return _local()
    found = _named(name)
    if found is None:
        raise BadArgument(f"There is no time zone {name!r}", next_step="Name it like Europe/Berlin, Asia/Tokyo or UTC")
    return found


def label(where: datetime.tzinfo, begin: float, end: float) -> str:
    """The zone as a reader needs it: its name, and the abbreviations that held in this time."""
    moments = [datetime.datetime.fromtimestamp(each, where) for each in (begin, end)]
    short = "/".join(dict.fromkeys(str(each.tzname()) for each in moments))
    offset = "/".join(dict.fromkeys(f"UTC{each:%:z}".removesuffix(":00").replace("UTC+00", "UTC") for each in moments))
    name = getattr(where, "key", None) or short
    return ", ".join(dict.fromkeys((name, short, offset)))


def _local() -> datetime.tzinfo:
    """From TZ or /etc/localtime; a zone without a name has to do with its present distance from UTC."""
    target = str(_LOCAL_TIME.resolve()) if _LOCAL_TIME.exists() else ""
    for name in (os.environ.get("TZ", "").lstrip(":"), target.partition("zoneinfo/")[2]):
        if name and (found := _named(name)):
            return found
    if time.localtime().tm_gmtoff == 0:
        return datetime.UTC
    return datetime.datetime.now().astimezone().tzinfo or datetime.UTC


def _named(name: str) -> zoneinfo.ZoneInfo | None:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return None
