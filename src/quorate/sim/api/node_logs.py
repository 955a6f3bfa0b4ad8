"""System log and journal of a node."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from quorate.sim.node_logs import Entry, entries
from quorate.sim.routing import Answer, Call, route

_DEFAULT_LIMIT = 50


@route("GET /nodes/{node}/syslog")
def syslog(call: Call) -> Answer:
    params = call.params
    found = _between(_entries(call), _seconds(params.get("since")), _seconds(params.get("until")))
    if "service" in params:
        found = [entry for entry in found if entry.unit == params["service"].removesuffix(".service")]
    lines = [entry.line(call.node) for entry in found] or ["-- No entries --"]
    start = int(params.get("start", 0))
    limit = int(params.get("limit", _DEFAULT_LIMIT)) or len(lines)
    rows = [{"n": number + 1, "t": text} for number, text in enumerate(lines)]
    return Answer(rows[start : start + limit], total=len(lines))


@route("GET /nodes/{node}/journal")
def journal(call: Call) -> list[str]:
    """The lines between two cursors, which come first and last."""
    params: dict[str, Any] = call.params
    known = _entries(call)
    marked = [(entry.cursor(position), entry) for position, entry in enumerate(known)]
    cursors = [cursor for cursor, _ in marked]
    if params.get("startcursor") in cursors:
        marked = marked[cursors.index(params["startcursor"]) :]
    if params.get("endcursor") in cursors:
        marked = [pair for pair in marked if cursors.index(pair[0]) <= cursors.index(params["endcursor"])]
    since, until = params.get("since"), params.get("until")
    marked = [pair for pair in marked if pair[1] in _between([pair[1]], since, until)]
    if "lastentries" in params:
        marked = marked[len(marked) - min(len(marked), params["lastentries"]) :]
    if not marked:
        return []
    return [marked[0][0], *(entry.line(call.node) for _, entry in marked), marked[-1][0]]


def _entries(call: Call) -> list[Entry]:
    return entries(call.world, call.world.nodes[call.node])


def _between(found: list[Entry], since: float | None, until: float | None) -> list[Entry]:
    return [
        entry for entry in found if (since is None or entry.time >= since) and (until is None or entry.time <= until)
    ]


def _seconds(text: str | None) -> float | None:
    """A time such as `2026-01-15 08:00`; the schema has checked its form, but not that there is such a day."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
