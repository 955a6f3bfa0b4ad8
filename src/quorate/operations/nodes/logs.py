"""What nodes and the cluster have written down."""

from __future__ import annotations

import datetime
import re
from typing import Annotated, Any

from msgspec import Meta

from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.units import moment
from quorate.pve.cluster import Cluster
from quorate.pve.errors import BadArgument

LINE_SHOWN = 500
LINES_SEARCHED = 5000
CLUSTER_ENTRIES = 500
SEVERITIES = ("panic", "alert", "critical", "error", "warning", "notice", "info", "debug")
SERVICE_LOOKS_BACK = 86400.0

_AGO = re.compile(r"^(?P<count>\d+)\s*(?P<unit>[smhdw])$")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_CURSOR = re.compile(r"^s=[^ ]*;i=[0-9a-f]+;")

When = Annotated[str, Meta(description="2026-01-31 08:00 (UTC), or how long ago: 30m, 2h, 1d")]


@operation(risk=Risk.READ)
async def node_log(
    pve: Cluster,
    node: str,
    service: Annotated[str, Meta(description="Only this unit, such as pvedaemon")] | None = None,
    since: When | None = None,
    until: When | None = None,
    contains: Annotated[str, Meta(description="Only lines with this text")] | None = None,
    lines: Annotated[int, Meta(ge=1, le=500)] = 50,
) -> dict[str, Any]:
    """The newest lines of a node's journal that fit. Tasks have their own logs: task_get."""
    await pve.inventory.node(node)
    begin, end = (_moment(pve, text) for text in (since, until))
    if begin is not None and end is not None and begin > end:
        raise BadArgument("since is later than until", next_step="Swap them")
    if service is None:
        found = await _journal(pve, node, begin, end, LINES_SEARCHED if contains else lines)
    else:
        found = await _unit(pve, node, service, begin, end, LINES_SEARCHED if contains else lines)
    if contains is not None:
        found = [line for line in found if contains.lower() in line.lower()]
    return {
        "node": node,
        "lines": [line if len(line) <= LINE_SHOWN else f"{line[:LINE_SHOWN]}…" for line in found[-lines:]],
        "next": "" if found else "Nothing fits; widen since, or leave service or contains out",
    }


async def _journal(pve: Cluster, node: str, begin: float | None, end: float | None, lines: int) -> list[str]:
    """PVE takes either a range or a number of lines, not both; the first and last lines are cursors."""
    if begin is None and end is None:
        rows = await pve.get(f"/nodes/{node}/journal", lastentries=lines)
    else:
        span = {"since": begin, "until": end}
        rows = await pve.get(
            f"/nodes/{node}/journal", **{key: int(value) for key, value in span.items() if value is not None}
        )
    return [str(row) for row in rows if not _CURSOR.match(str(row))]


async def _unit(pve: Cluster, node: str, service: str, begin: float | None, end: float | None, lines: int) -> list[str]:
    """The log of one unit: PVE pages it from its beginning, and wants the node's own local time."""
    clock = await pve.get(f"/nodes/{node}/time")
    offset = clock["localtime"] - clock["time"]
    since = begin if begin is not None else (end or clock["time"]) - SERVICE_LOOKS_BACK
    span = {"since": _local(since + offset)} | ({} if end is None else {"until": _local(end + offset)})
    path = f"/nodes/{node}/syslog"
    first = await pve.client.request("GET", path, {"service": service, **span, "limit": 1})
    start = max(0, (first.total or 0) - lines)
    rows = await pve.get(path, service=service, **span, start=start, limit=lines)
    return [str(row["t"]) for row in rows if row["t"] not in ("no content", "-- No entries --")]


def _local(epoch: float) -> str:
    return datetime.datetime.fromtimestamp(epoch, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _moment(pve: Cluster, text: str | None) -> float | None:
    if text is None:
        return None
    ago = _AGO.match(text.strip())
    if ago:
        return pve.clock.time() - int(ago["count"]) * _SECONDS[ago["unit"]]
    try:
        given = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadArgument(f"{text!r} is no time", next_step="Write 2026-01-31 08:00, or 2h for two hours ago") from None
    return (given if given.tzinfo else given.replace(tzinfo=datetime.UTC)).timestamp()


@operation(risk=Risk.READ)
async def cluster_log(
    pve: Cluster,
    node: str | None = None,
    user: str | None = None,
    contains: Annotated[str, Meta(description="Only messages with this text")] | None = None,
    problems: Annotated[bool, Meta(description="Only warnings and worse")] = False,
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """The cluster's log, newest first: tasks, logins, changes."""
    rows = [
        row
        for row in await pve.get("/cluster/log", max=CLUSTER_ENTRIES)
        if (node is None or row.get("node") == node)
        and (user is None or row.get("user") == user)
        and (contains is None or contains.lower() in str(row.get("msg", "")).lower())
        and (not problems or int(row.get("pri", 6)) <= SEVERITIES.index("warning"))
    ]
    rows.sort(key=lambda row: -int(row.get("time", 0)))
    return page(("time", "node", "user", "severity", "tag", "message"), map(_entry, rows), limit=limit, offset=offset)


def _entry(row: dict[str, Any]) -> list[Any]:
    severity = int(row.get("pri", 6))
    return [
        moment(row["time"]),
        row.get("node", ""),
        row.get("user", ""),
        SEVERITIES[severity] if 0 <= severity < len(SEVERITIES) else str(severity),
        row.get("tag", ""),
        str(row.get("msg", ""))[:LINE_SHOWN],
    ]
