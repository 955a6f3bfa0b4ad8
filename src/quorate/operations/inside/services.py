"""Services inside guests: systemd, OpenRC, Windows."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.inside import names, services
from quorate.inside.reaching import way_into
from quorate.inside.service_state import Service
from quorate.operations.inside.parameters import WayName, needs_of, target_of
from quorate.operations.plan import Action, Performed, Plan
from quorate.operations.registry import GuestRef, Risk, Table, operation, page
from quorate.pve.cluster import Cluster
from quorate.pve.tasks import Report

COLUMNS = ("service", "state", "enabled", "description")


@operation(risk=Risk.LOOK_INSIDE)
async def guest_service(
    pve: Cluster,
    guest: GuestRef,
    service: Annotated[str, Meta(description="One service; default: list them")] | None = None,
    log_lines: Annotated[int, Meta(ge=0, le=200, description="Of one service's log")] = 5,
    state: Annotated[Literal["active", "failed", "all"], Meta(description="Which to list")] = "all",
    limit: Annotated[int, Meta(ge=1, le=500)] = 100,
    offset: Annotated[int, Meta(ge=0)] = 0,
    way: WayName | None = None,
) -> dict[str, Any] | Table:
    """How a service inside a guest stands, or a list of its services."""
    found = await pve.guest(guest)
    into = await way_into(pve, found, prefer=way)
    place = {"guest": found.label, "way": into.description}
    if service is not None:
        name = names.service(service, into.system)
        return place | _described(await services.status(into, name, log_lines=log_lines))
    wanted = [one for one in await services.every(into) if state == "all" or one.state == state]
    rows = [[one.name, one.told, one.enabled, one.description] for one in sorted(wanted, key=lambda one: one.name)]
    table = page(COLUMNS, rows, limit=limit, offset=offset)
    table.facts = place
    return table


def _described(service: Service) -> dict[str, Any]:
    return {
        "service": service.name,
        "manager": service.manager,
        "state": service.told,
        "enabled": service.enabled,
        "description": service.description,
        "pid": service.pid or None,
        "since": service.since,
        "ended": service.result,
        "log": service.log,
    }


@operation(risk=Risk.CHANGE)
async def guest_service_control(
    pve: Cluster,
    guest: GuestRef,
    service: str,
    action: Literal["start", "stop", "restart", "reload", "enable", "disable"],
    way: WayName | None = None,
) -> Plan:
    """Control a service inside a guest and see that it is as wanted; enable: start it with the system."""
    found = await pve.guest(guest)
    into = await way_into(pve, found, prefer=way)
    name = names.service(service, into.system)

    async def perform(wait: float, report: Report | None) -> Performed:
        del report
        before, after = await services.control(into, pve.clock, name, action, wait=wait)
        later = f"It is still at it: guest_service guest={found.vmid} service={after.name} shows how it goes on"
        return Performed(_changed(before, after), running=after.busy, next_step=later if after.busy else None)

    return Plan(
        f"{action.capitalize()} {name} in {found}",
        (
            Action(
                f"{action.capitalize()} the service {name}",
                f"{into.description}: {action} service {name}",
                perform,
                target_of(found),
                needs_of(found, into),
            ),
        ),
        facts={"guest": found.label, "way": into.description},
    )


def _changed(before: Service, after: Service) -> dict[str, Any]:
    return {
        "service": after.name,
        "before": before.told,
        "now": after.told,
        "enabled": after.enabled,
        **({"pid": after.pid} if after.pid else {}),
    }
