"""Reading the logs of the cluster and its nodes."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import NAMED, Advice, ArgumentHint, Sentence
from quorate.operations.arguments import refuse_combination
from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import BadArgument
from quorate.pve.cluster import Cluster
from quorate.units import When, moment, parse_moment

COLUMNS = ("time", "node", "user", "severity", "tag", "message")
LINE_SHOWN = 500
LINES_SEARCHED = 5000
CLUSTER_ENTRIES = 500
SEVERITIES = ("panic", "alert", "critical", "error", "warning", "notice", "info", "debug")
SERVICE_LOOKS_BACK = 86400.0

_CURSOR = re.compile(r"^s=[^ ]*;i=[0-9a-f]+;")


@dataclass(frozen=True, slots=True)
class LogFilter:
    """The lines that the caller wants to see."""

    begin: float | None
    end: float | None
    contains: tuple[str, ...]
    """Texts that are all in the line, in any case."""
    user: str | None = None
    problems: bool = False

    def has(self, line: str) -> bool:
        return all(text.lower() in line.lower() for text in self.contains)


@operation(
    toolset="nodes",
    risk=Risk.READ,
    search_words=(
        "syslog journal log messages dmesg events logged in changed happened audit kernel errors node cluster"
    ),
    example="node=pve1",
)
async def log_read(
    pve: Cluster,
    node: Annotated[str, Meta(description="Its journal; omit for the cluster's log")] | None = None,
    service: Annotated[str, Meta(description="Journal: only this unit, such as pvedaemon")] | None = None,
    user: Annotated[str, Meta(description="Cluster: only actions of this user")] | None = None,
    problems: Annotated[bool, Meta(description="Cluster: only warnings and worse")] | None = None,
    since: When | None = None,
    until: When | None = None,
    contains: Annotated[str | list[str], Meta(description="Only lines with this text, or with all of several")]
    | None = None,
    limit: Annotated[int, Meta(ge=1, le=500)] = 50,
    offset: Annotated[int, Meta(ge=0, description="Cluster only")] = 0,
) -> Table | dict[str, Any]:
    """The cluster's log (tasks, logins, changes; newest first), or the newest lines of a node's journal.

    Tasks have their own logs: task_get.
    """
    begin, end = (None if text is None else parse_moment(text, now=pve.clock.time()) for text in (since, until))
    if begin is not None and end is not None and begin > end:
        raise BadArgument("since is later than until", next_step="Swap them")
    texts = tuple(contains) if isinstance(contains, list) else () if contains is None else (contains,)
    if node is None:
        if service is not None:
            raise BadArgument(
                Sentence("{service} needs {node}", service=NAMED, node=NAMED),
                next_step=Advice("Every node has a journal of its own; give {node}", node=""),
            )
        selection = LogFilter(begin, end, texts, user, bool(problems))
        rows = [row for row in await pve.get("/cluster/log", max=CLUSTER_ENTRIES) if _fits(row, selection)]
        rows.sort(key=lambda row: -int(row.get("time", 0)))
        return page(COLUMNS, map(_entry, rows), limit=limit, offset=offset)
    others = {"user": user, "problems": problems, "offset": offset or None}
    refuse_combination(
        ArgumentHint("node"), others, "It is for the cluster's log; a journal takes service, since, until and contains"
    )
    return await _node_log(pve, node, service, LogFilter(begin, end, texts), limit)


# -- the journal of a node ---------------------------------------------------------------------------------------------


async def _node_log(pve: Cluster, node: str, service: str | None, selection: LogFilter, lines: int) -> dict[str, Any]:
    await pve.inventory.node(node)
    searched = LINES_SEARCHED if selection.contains else lines
    if service is None:
        entries = await _journal(pve, node, selection.begin, selection.end, searched)
    else:
        entries = await _unit(pve, node, service, selection.begin, selection.end, searched)
    entries = [line for line in entries if selection.has(line)]
    return {
        "node": node,
        "lines": [line if len(line) <= LINE_SHOWN else f"{line[:LINE_SHOWN]}…" for line in entries[-lines:]],
        "next": "" if entries else "Nothing matches; widen since, or leave service or contains out",
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
    """The log of one unit. PVE pages it from its beginning and takes times in the node's local time."""
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


# -- the cluster's log -------------------------------------------------------------------------------------------------


def _fits(row: Mapping[str, Any], selection: LogFilter) -> bool:
    at = float(row.get("time", 0))
    return (
        (selection.begin is None or at >= selection.begin)
        and (selection.end is None or at <= selection.end)
        and (selection.user is None or row.get("user") == selection.user)
        and (not selection.problems or int(row.get("pri", 6)) <= SEVERITIES.index("warning"))
        and selection.has(" ".join(str(row.get(key, "")) for key in ("node", "user", "tag", "msg")))
    )


def _entry(row: Mapping[str, Any]) -> list[Any]:
    severity = int(row.get("pri", 6))
    return [
        moment(row["time"]),
        row.get("node", ""),
        row.get("user", ""),
        SEVERITIES[severity] if 0 <= severity < len(SEVERITIES) else str(severity),
        row.get("tag", ""),
        str(row.get("msg", ""))[:LINE_SHOWN],
    ]
