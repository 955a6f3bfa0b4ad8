"""OpenTofu and Terraform step by step: plan, apply of exactly that plan, drift, destroy."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from quorate.homelab.home import Homelab
from quorate.homelab.machines import machine
from quorate.operations.hosts.parameters import HostRef
from quorate.operations.plan import Plan
from quorate.operations.registry import Risk, operation
from quorate.operations.services.by_terraform import applying, destroying, planned, workspace
from quorate.operations.services.parameters import ServiceName, ServiceSettings, template_of
from quorate.problems import NotFound

Longest = Annotated[float, Meta(ge=5, le=600, description="Longest time; the first one fetches providers")]


@operation(risk=Risk.LOOK_INSIDE)
async def terraform_plan(
    home: Homelab,
    service: ServiceName,
    host: HostRef,
    settings: ServiceSettings | None = None,
    seconds: Longest = 50,
) -> dict[str, Any]:
    """Plan a Terraform service and keep the plan: what would be created, changed, destroyed. Nothing is applied."""
    template = template_of(home, service)
    place = await machine(home, host)
    saved = await planned(home, place, template, settings or {}, seconds=seconds)
    step = f"terraform_apply service={template.id} host={host} plan={saved.hash} carries out exactly this"
    return {**saved.told(), "next": "Nothing is to be done" if saved.empty else step}


@operation(risk=Risk.CHANGE, idempotent=False)
async def terraform_apply(
    home: Homelab,
    service: ServiceName,
    host: HostRef,
    plan: Annotated[str, Meta(description="As terraform_plan named it")],
) -> Plan:
    """Carry out exactly the plan that terraform_plan has shown. DESTROY if it destroys or replaces anything."""
    template = template_of(home, service)
    place = await machine(home, host)
    return applying(home, place, template, await workspace(home, place, template).saved(plan))


@operation(risk=Risk.LOOK_INSIDE)
async def terraform_refresh(
    home: Homelab, service: ServiceName, host: HostRef, seconds: Longest = 50
) -> dict[str, Any]:
    """Drift: what differs from what Terraform made. Only looks."""
    template = template_of(home, service)
    place = await machine(home, host)
    if not workspace(home, place, template).applied:
        raise NotFound(f"{template.title} was not made on {place} from here", next_step="terraform_plan begins it")
    saved = await planned(home, place, template, {}, "refresh", seconds)
    told = saved.told()
    return {
        "service": template.id,
        "host": str(place),
        "drifted": bool(saved.drift or saved.outputs),
        "drift": told.get("drift", []),
        **({"outputs_changed": told["outputs_changed"]} if saved.outputs else {}),
    }


@operation(risk=Risk.DESTROY)
async def terraform_destroy(home: Homelab, service: ServiceName, host: HostRef) -> Plan:
    """Destroy everything that Terraform made for a service on a host, with its data."""
    return await destroying(home, await machine(home, host), template_of(home, service))
