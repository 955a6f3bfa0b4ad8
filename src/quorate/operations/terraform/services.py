"""Services that OpenTofu or Terraform creates: plan, apply, refresh, destroy."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import TERRAFORM_APPLY, TERRAFORM_PLAN, Advice
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.selection import PROGRAMS_AT_ONCE, Limits, select
from quorate.homelab.terraform import SHOWN, Workspace
from quorate.operations.hosts.parameters import HostRefs
from quorate.operations.hosts.several import describe_each, plan_each
from quorate.operations.plan import Plan
from quorate.operations.registry import Risk, Table, operation
from quorate.operations.services.parameters import ServiceName, ServiceSettings, template_of
from quorate.operations.services.terraform import PLAN_SECONDS, plan_apply, plan_changes, plan_destroy, workspace
from quorate.problems import BadArgument, NotFound

Longest = Annotated[float, Meta(ge=5, le=600, description="Maximum seconds; the first run fetches providers")]


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words="terraform opentofu tofu plan what would be created changed destroyed",
    example="service=registry host=nas",
)
async def terraform_plan(
    homelab: Homelab,
    service: ServiceName,
    host: HostRefs,
    settings: ServiceSettings | None = None,
    seconds: Longest = 50,
) -> dict[str, Any] | Table:
    """Plan a Terraform service and keep the plan: what would be created, changed, destroyed. Nothing is applied."""
    template = template_of(homelab, service)

    plans: dict[str, str] = {}

    async def describe(machine: Machine) -> dict[str, Any]:
        saved = await plan_changes(homelab, machine, template, settings or {}, seconds=seconds)
        if not saved.empty:
            plans[machine.ref] = saved.hash
        step = Advice(
            "Apply exactly this plan", TERRAFORM_APPLY(service=template.id, host=machine.ref, plan=saved.hash)
        )
        destroyed = {"destroys": list(saved.destroys[:SHOWN])} if saved.destroys else {}
        return {**saved.as_dict(), **destroyed, "next": "Nothing to do" if saved.empty else step}

    columns = ("plan", "counts", "destroys", "drift", "outputs_changed")
    chosen, limits = await select(homelab, host), Limits.same_for_each(seconds, PROGRAMS_AT_ONCE)
    found = await describe_each(chosen, describe, columns, limits=limits)
    if isinstance(found, Table) and plans:
        apply = TERRAFORM_APPLY(service=template.id, host=list(plans), plan=list(plans.values()))
        found.facts["next"] = Advice("Apply exactly these plans", apply)
    return found


@operation(
    risk=Risk.CHANGE,
    idempotent=False,
    search_words="apply terraform opentofu tofu plan carry out saved plan",
    example="service=registry host=nas plan=0123456789abcdef",
)
async def terraform_apply(
    homelab: Homelab,
    service: ServiceName,
    host: HostRefs,
    plan: Annotated[str | list[str], Meta(description="From terraform_plan; for several hosts, one each")],
) -> Plan:
    """Apply exactly the plan that terraform_plan has shown. DESTROY if it destroys or replaces anything."""
    template = template_of(homelab, service)
    plans = [plan] if isinstance(plan, str) else plan

    async def prepare(machine: Machine) -> Plan:
        at = workspace(homelab, machine, template)
        return plan_apply(homelab, machine, template, await at.load_plan(_own(at, machine, plans)))

    return await plan_each(homelab, host, f"Apply the plan for {template.title} on", prepare, ("done",))


def _own(at: Workspace, machine: Machine, plans: list[str]) -> str:
    """The plan that was made for this host."""
    if len(plans) == 1:
        return plans[0]
    own = [one for one in plans if at.has(one)]
    if len(own) != 1:
        raise BadArgument(
            f"{len(own) or 'None'} of the plans {'are' if own else 'is'} for {machine}",
            next_step=Advice("Give one plan for each host", TERRAFORM_PLAN(host=machine.ref)),
        )
    return own[0]


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words="terraform opentofu drift refresh state differs from reality",
    example="service=registry host=nas",
)
async def terraform_refresh(
    homelab: Homelab, service: ServiceName, host: HostRefs, seconds: Longest = 50
) -> dict[str, Any] | Table:
    """Drift: what differs from what Terraform created. Changes nothing."""
    template = template_of(homelab, service)

    async def describe(machine: Machine) -> dict[str, Any]:
        if not workspace(homelab, machine, template).applied:
            raise NotFound(
                f"{template.title} was not created on {machine} by this server",
                next_step=Advice("Plan it first", TERRAFORM_PLAN(service=template.id)),
            )
        saved = await plan_changes(homelab, machine, template, {}, "refresh", seconds)
        found = saved.as_dict()
        return {
            "service": template.id,
            "host": str(machine),
            "drifted": bool(saved.drift or saved.outputs),
            "drift": found.get("drift", []),
            **({"outputs_changed": found["outputs_changed"]} if saved.outputs else {}),
        }

    columns = ("drifted", "drift", "outputs_changed")
    chosen, limits = await select(homelab, host), Limits.same_for_each(seconds, PROGRAMS_AT_ONCE)
    return await describe_each(chosen, describe, columns, limits=limits)


@operation(
    risk=Risk.DESTROY,
    search_words="terraform opentofu destroy everything it made tear down",
    example="service=registry host=nas",
)
async def terraform_destroy(homelab: Homelab, service: ServiceName, host: HostRefs) -> Plan:
    """Destroy everything that Terraform created for a service on hosts, including its data."""
    template = template_of(homelab, service)

    async def prepare(machine: Machine) -> Plan:
        return await plan_destroy(homelab, machine, template)

    limits = Limits.same_for_each(PLAN_SECONDS, PROGRAMS_AT_ONCE)
    return await plan_each(homelab, host, f"Destroy {template.title} on", prepare, ("destroyed",), limits=limits)
