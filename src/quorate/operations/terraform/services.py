"""Services that OpenTofu or Terraform creates: plan, apply, refresh, destroy."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import TERRAFORM_APPLY, TERRAFORM_PLAN, Advice
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import machine
from quorate.operations.hosts.parameters import HostRef
from quorate.operations.plan import Plan
from quorate.operations.registry import Risk, operation
from quorate.operations.services.parameters import ServiceName, ServiceSettings, template_of
from quorate.operations.services.terraform import applying, destroying, planned, workspace
from quorate.problems import NotFound

Longest = Annotated[float, Meta(ge=5, le=600, description="Longest time; the first one fetches providers")]


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words="terraform opentofu tofu plan what would be created changed destroyed",
    example="service=registry host=nas",
)
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
    step = Advice("Apply exactly this plan", TERRAFORM_APPLY(service=template.id, host=host, plan=saved.hash))
    return {**saved.as_dict(), "next": "Nothing to do" if saved.empty else step}


@operation(
    risk=Risk.CHANGE,
    idempotent=False,
    search_words="apply terraform opentofu tofu plan carry out saved plan",
    example="service=registry host=nas plan=0123456789abcdef",
)
async def terraform_apply(
    home: Homelab,
    service: ServiceName,
    host: HostRef,
    plan: Annotated[str, Meta(description="As terraform_plan named it")],
) -> Plan:
    """Apply exactly the plan that terraform_plan has shown. DESTROY if it destroys or replaces anything."""
    template = template_of(home, service)
    place = await machine(home, host)
    return applying(home, place, template, await workspace(home, place, template).saved(plan))


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words="terraform opentofu drift refresh state differs from reality",
    example="service=registry host=nas",
)
async def terraform_refresh(
    home: Homelab, service: ServiceName, host: HostRef, seconds: Longest = 50
) -> dict[str, Any]:
    """Drift: what differs from what Terraform created. Changes nothing."""
    template = template_of(home, service)
    place = await machine(home, host)
    if not workspace(home, place, template).applied:
        raise NotFound(
            f"{template.title} was not created on {place} from here",
            next_step=Advice("Plan it first", TERRAFORM_PLAN(service=template.id)),
        )
    saved = await planned(home, place, template, {}, "refresh", seconds)
    told = saved.as_dict()
    return {
        "service": template.id,
        "host": str(place),
        "drifted": bool(saved.drift or saved.outputs),
        "drift": told.get("drift", []),
        **({"outputs_changed": told["outputs_changed"]} if saved.outputs else {}),
    }


@operation(
    risk=Risk.DESTROY,
    search_words="terraform opentofu destroy everything it made tear down",
    example="service=registry host=nas",
)
async def terraform_destroy(home: Homelab, service: ServiceName, host: HostRef) -> Plan:
    """Destroy everything that Terraform made for a service on a host, with its data."""
    return await destroying(home, await machine(home, host), template_of(home, service))
