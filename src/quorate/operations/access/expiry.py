"""When users and tokens expire."""

from __future__ import annotations

import datetime
import re
from typing import Annotated, Any

from msgspec import Meta

from quorate.operations.units import moment
from quorate.pve.cluster import Cluster
from quorate.pve.errors import BadArgument

_AGE = re.compile(r"(?P<count>\d{1,5})(?P<unit>[hdw])")
_SECONDS = {"h": 3600, "d": 86400, "w": 604800}

Expire = Annotated[str | int, Meta(description="never, 12h, 90d, 2027-01-31 or a Unix time")]


def expiry(entry: dict[str, Any]) -> str:
    return moment(entry["expire"]) if entry.get("expire") else ""


def parse_expiry(pve: Cluster, given: str | int) -> int:
    """The Unix time of "never" (0), of an age from now on, or of a day in UTC."""
    text = str(given).strip().lower()
    if text in ("never", "0"):
        return 0
    now = int(pve.clock.time())
    if age := _AGE.fullmatch(text):
        return now + int(age["count"]) * _SECONDS[age["unit"]]
    try:
        at = int(text) if text.isdecimal() else int(_day(text).timestamp())
    except ValueError:
        raise BadArgument(
            f"{given!r} is not an expiry", next_step="Write never, 12h, 90d, 4w, 2027-01-31 or a Unix time"
        ) from None
    if at <= now:
        raise BadArgument(f"{given} is over already", next_step="Give a time to come, or never")
    return at


def _day(text: str) -> datetime.datetime:
    return datetime.datetime.combine(datetime.date.fromisoformat(text), datetime.time(), datetime.UTC)
