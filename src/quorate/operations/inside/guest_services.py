"""Services inside guests: systemd, OpenRC, Windows."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import GUEST_SERVICE
from quorate.operations.inside.parameters import WayName
from quorate.operations.machine import guest_machine, machine_label
from quorate.operations.machine_services import (
    COLUMNS,
    ServiceAction,
    ServiceState,
    control_action,
    describe_service,
    list_services,
)
from quorate.operations.plan import Plan
from quorate.operations.registry import GuestRef, Risk, Table, operation, page
from quorate.pve.cluster import Cluster


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words=(
        "postgres up alive server start service daemon running active failed enabled inside guest systemd unit "
        "status nginx docker"
    ),
    example="guest=pihole",
)
async def guest_service(
    pve: Cluster,
    guest: GuestRef,
    service: Annotated[str, Meta(description="One service; default: list them")] | None = None,
    log_lines: Annotated[int, Meta(ge=0, le=200, description="Lines of that service's log")] = 5,
    state: Annotated[ServiceState, Meta(description="Which to list")] = "all",
    limit: Annotated[int, Meta(ge=1, le=500)] = 100,
    offset: Annotated[int, Meta(ge=0)] = 0,
    way: WayName | None = None,
) -> dict[str, Any] | Table:
    """The state of a service inside a guest, or a list of its services."""
    found = await guest_machine(pve, guest, way)
    origin = {"guest": machine_label(found), "way": found.transport.description}
    if service is not None:
        return origin | await describe_service(found.transport, service, log_lines)
    table = page(COLUMNS, await list_services(found.transport, state), limit=limit, offset=offset)
    table.facts = origin
    return table


@operation(
    risk=Risk.CHANGE,
    shown_by=("guest_service", "guest", "service", "way"),
    search_words=(
        "restart start stop enable disable reload service daemon web server inside guest systemd unit nginx docker"
    ),
    example="guest=nginx-proxy service=nginx action=restart",
)
async def guest_service_control(
    pve: Cluster,
    guest: GuestRef,
    service: str,
    action: ServiceAction,
    way: WayName | None = None,
) -> Plan:
    """Control a service inside a guest and check the result; enable: start it with the system."""
    found = await guest_machine(pve, guest, way)
    shown = GUEST_SERVICE(guest=found.guest.vmid if found.guest else guest)
    step = control_action(pve.command_rules, pve.clock, found, service, action, shown)
    facts = {"guest": machine_label(found), "way": found.transport.description}
    return Plan(f"{action.capitalize()} {service} in {found.guest}", (step,), facts=facts)
