"""Logs of hosts: the journal, or files."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from msgspec import Meta

from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.selection import select
from quorate.inside.logs import Excerpt, read_log
from quorate.operations.hosts.parameters import HostRefs
from quorate.operations.hosts.several import answer_each
from quorate.operations.machine import machine_label
from quorate.operations.registry import Risk, Table, operation
from quorate.operations.units import When, parse_moment
from quorate.problems import BadArgument, SudoRefused

SEVERAL_LINES = 20
LONGEST_LINE = 500


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words="log journal journalctl syslog messages errors on host server what happened since unit tail grep",
    example="host=nas lines=20",
)
async def host_logs(
    homelab: Homelab,
    host: HostRefs,
    unit: Annotated[str, Meta(description="Service")] | None = None,
    path: Annotated[str, Meta(description="Log file, instead of the journal")] | None = None,
    since: When | None = None,
    until: When | None = None,
    pattern: Annotated[str, Meta(description="Regular expression")] | None = None,
    lines: Annotated[int, Meta(ge=1, le=2000, description="Last lines; 20 each for several hosts")] = 100,
) -> dict[str, Any] | Table:
    """The last matching lines of the journal or of a log file on hosts."""
    if unit and path:
        raise BadArgument("unit and path cannot be combined", next_step="Give the unit, or the file with a pattern")
    now = homelab.clock.time()
    times = {name: parse_moment(text, now=now) if text else None for name, text in (("since", since), ("until", until))}

    async def ask(one: Machine, count: int) -> Excerpt:
        asked = {"unit": unit, "path": path, **times, "pattern": pattern, "lines": count, "now": now}
        try:  # the journal shows a plain login only its own lines
            found = await read_log(one.with_root().transport, **asked)  # type: ignore[arg-type]
        except SudoRefused:
            found = await read_log(one.transport, **asked)  # type: ignore[arg-type]
            found = dataclasses.replace(found, source=f"{found.source}, only what this login may read")
        return dataclasses.replace(found, lines=[line[:LONGEST_LINE] for line in found.lines])

    chosen = await select(homelab, host)
    if chosen.several:
        count = min(lines, SEVERAL_LINES)

        unread: list[str] = []

        async def rows(one: Machine) -> list[list[Any]]:
            found = await ask(one, count)
            if found.unread and not found.cut:
                unread.append(machine_label(one))
            return [[line] for line in found.lines]

        table = await answer_each(chosen, rows, ("line",))
        if unread:
            table.facts["note"] = f"Only the end of the log was searched on {', '.join(sorted(unread))}"
        return table
    [only] = chosen.machines
    found = await ask(only, lines)
    more = {"next": "There are more lines further back; narrow them, or raise lines"} if found.cut else {}
    if found.unread and not found.cut:
        more = {"note": "Only the end of the log was searched; it reaches further back"}
    return {"host": machine_label(only), "from": found.source, "log": found.lines or "nothing matches", **more}
