"""Services of hosts, and their logs."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import tools
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.selection import Selection, select
from quorate.inside.logs import Excerpt, read_log
from quorate.operations.plan import Action, Plan
from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import BadArgument, SudoRefused
from quorate.tools.hosts import HostRefs
from quorate.tools.machines import (
    SERVICE_COLUMNS,
    ServiceAction,
    ServiceState,
    control_action,
    describe_service,
    list_services,
    machine_label,
)
from quorate.tools.several_hosts import answer_each, plan_each
from quorate.units import When, parse_moment

MOST = 500


@operation(
    toolset="hosts",
    risk=Risk.LOOK_INSIDE,
    search_words="service daemon unit on host server running failed enabled systemd status nginx docker sshd",
    example="host=docker01 service=docker",
)
async def host_service(
    homelab: Homelab,
    host: HostRefs,
    service: Annotated[str, Meta(description="Default: list them")] | None = None,
    state: Annotated[ServiceState, Meta(description="Default: all; failed for several hosts")] | None = None,
) -> dict[str, Any] | Table:
    """The state of a service on hosts, or a list of their services."""
    chosen = await select(homelab, host)
    if chosen.several:
        return await _of_several(chosen, service, state or "failed")
    into = chosen.machines[0].transport
    origin = {"host": machine_label(chosen.machines[0]), "way": into.description}
    if service is not None:
        return origin | await describe_service(into, service, 5)
    table = page(SERVICE_COLUMNS, await list_services(into, state or "all"), limit=MOST, offset=0)
    table.facts = origin
    return table


async def _of_several(chosen: Selection, service: str | None, state: ServiceState) -> Table:
    async def ask(machine: Machine) -> list[list[Any]]:
        if service is None:
            return await list_services(machine.transport, state)
        status = await describe_service(machine.transport, service, 0)
        return [[status[name] for name in SERVICE_COLUMNS]]

    return await answer_each(chosen, ask, SERVICE_COLUMNS)


@operation(
    toolset="hosts",
    risk=Risk.CHANGE,
    shown_by=("host_service", "host", "service"),
    search_words="restart start stop enable disable reload service daemon unit on host server systemctl nginx docker",
    example="host=docker01 service=docker action=restart",
)
async def host_service_control(homelab: Homelab, host: HostRefs, service: str, action: ServiceAction) -> Plan:
    """Control a service on hosts and check the result; enable: start it at boot."""

    async def prepare(machine: Machine) -> Action:
        shown = tools.host_service(host=machine.name)
        return control_action(homelab.command_rules, homelab.clock, machine.with_root(), service, action, shown)

    return await plan_each(homelab, host, f"{action.capitalize()} {service} on", prepare, ("before", "now", "enabled"))


SEVERAL_LINES = 20
LONGEST_LINE = 500


@operation(
    toolset="hosts",
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

    async def ask(machine: Machine, count: int) -> Excerpt:
        asked = {"unit": unit, "path": path, **times, "pattern": pattern, "lines": count, "now": now}
        try:  # the journal shows a plain login only its own lines
            excerpt = await read_log(machine.with_root().transport, **asked)  # type: ignore[arg-type]
        except SudoRefused:
            excerpt = await read_log(machine.transport, **asked)  # type: ignore[arg-type]
            excerpt = dataclasses.replace(excerpt, source=f"{excerpt.source}, only what this login may read")
        return dataclasses.replace(excerpt, lines=[line[:LONGEST_LINE] for line in excerpt.lines])

    chosen = await select(homelab, host)
    if chosen.several:
        count = min(lines, SEVERAL_LINES)

        unread: list[str] = []

        async def rows(machine: Machine) -> list[list[Any]]:
            excerpt = await ask(machine, count)
            if excerpt.unread and not excerpt.cut:
                unread.append(machine_label(machine))
            return [[line] for line in excerpt.lines]

        table = await answer_each(chosen, rows, ("line",))
        if unread:
            table.facts["note"] = f"Only the end of the log was searched on {', '.join(sorted(unread))}"
        return table
    [only] = chosen.machines
    excerpt = await ask(only, lines)
    more = {"next": "There are more lines further back; narrow them, or raise lines"} if excerpt.cut else {}
    if excerpt.unread and not excerpt.cut:
        more = {"note": "Only the end of the log was searched; it reaches further back"}
    return {"host": machine_label(only), "from": excerpt.source, "log": excerpt.lines or "nothing matches", **more}
