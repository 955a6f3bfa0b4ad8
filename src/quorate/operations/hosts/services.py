"""Services of hosts: systemd, OpenRC, runit, s6, init scripts."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import HOST_SERVICE
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.selection import Selection, select
from quorate.operations.hosts.parameters import HostRefs
from quorate.operations.hosts.several import answer_each, plan_each
from quorate.operations.machine import machine_label
from quorate.operations.machine_services import (
    COLUMNS,
    ServiceAction,
    ServiceState,
    control_action,
    describe_service,
    list_services,
)
from quorate.operations.plan import Action, Plan
from quorate.operations.registry import Risk, Table, operation, page

MOST = 500


@operation(
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
    table = page(COLUMNS, await list_services(into, state or "all"), limit=MOST, offset=0)
    table.facts = origin
    return table


async def _of_several(chosen: Selection, service: str | None, state: ServiceState) -> Table:
    async def ask(one: Machine) -> list[list[Any]]:
        if service is None:
            return await list_services(one.transport, state)
        status = await describe_service(one.transport, service, 0)
        return [[status[name] for name in COLUMNS]]

    return await answer_each(chosen, ask, COLUMNS)


@operation(
    risk=Risk.CHANGE,
    shown_by=("host_service", "host", "service"),
    search_words="restart start stop enable disable reload service daemon unit on host server systemctl nginx docker",
    example="host=docker01 service=docker action=restart",
)
async def host_service_control(homelab: Homelab, host: HostRefs, service: str, action: ServiceAction) -> Plan:
    """Control a service on hosts and check the result; enable: start it at boot."""

    async def prepare(one: Machine) -> Action:
        shown = HOST_SERVICE(host=one.name)
        return control_action(homelab.command_rules, homelab.clock, one.with_root(), service, action, shown)

    return await plan_each(homelab, host, f"{action.capitalize()} {service} on", prepare, ("before", "now", "enabled"))
