"""Services that OpenTofu or Terraform creates: plan, apply, refresh, destroy."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import Advice, see, tools
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.selection import PROGRAMS_AT_ONCE, Limits, select
from quorate.homelab.services.catalogue import Template
from quorate.homelab.services.compose import wait_until_healthy
from quorate.homelab.services.installations import Installation, Installations, choose, machine_address, machine_ref
from quorate.homelab.services.programs import private_folder, ssh_of, trusted_keys, write_private
from quorate.homelab.terraform import SHOWN, Kind, SavedPlan, Workspace
from quorate.operations.plan import Plan
from quorate.operations.registry import Risk, Table, operation
from quorate.problems import BadArgument, NotFound, Refused, TaskFailed
from quorate.pve.tasks import Report
from quorate.tools.hosts import HostRefs
from quorate.tools.machines import machine_action
from quorate.tools.service_compose import (
    ServiceName,
    ServiceSettings,
    install_exclusively,
    template_of,
    work_exclusively,
)
from quorate.tools.several_hosts import describe_each, plan_each
from quorate.units import count_of

PLAN_SECONDS = 300.0


def workspace(homelab: Homelab, machine: Machine, template: Template) -> Workspace:
    template.method("terraform")
    return Workspace(homelab.settings.work, machine_ref(machine), template.id)


async def plan_changes(
    homelab: Homelab, machine: Machine, template: Template, requested: Mapping[str, Any], kind: Kind = "apply",
    seconds: float = PLAN_SECONDS,
) -> SavedPlan:  # fmt: skip
    at = workspace(homelab, machine, template)
    chosen = await choose(template, requested, at.values(), homelab.secret_store)
    if chosen.references:
        raise Refused(
            f"Terraform takes no stored secret ({', '.join(sorted(chosen.references))})",
            why="Planning already passes it to providers, before a person can approve where it is sent",
            next_step="Use an env: or file: reference",
        )
    return await at.plan(template, chosen.values, _host(homelab, machine, at), kind, seconds)


async def install(homelab: Homelab, machine: Machine, template: Template, requested: Mapping[str, Any]) -> Plan:
    saved = await plan_changes(homelab, machine, template, requested)
    return plan_apply(homelab, machine, template, saved)


def plan_apply(homelab: Homelab, machine: Machine, template: Template, saved: SavedPlan) -> Plan:
    """Apply exactly that plan; its risk depends on what it removes."""
    at = workspace(homelab, machine, template)
    changes = ", ".join(f"{count} to {name}" for name, count in saved.counts.items()) or "outputs only"
    does = f"Apply the plan for {template.title} on {machine}: {changes}"
    if saved.empty:
        return Plan(does, unchanged=("Everything matches",), facts=saved.as_dict())
    values = at.planned_values(saved.hash)
    hidden = {name for name, parameter in template.parameters.items() if parameter.type == "secret"}
    shown = {name: value for name, value in values.items() if name not in hidden}
    secret = tuple(values[name] for name in hidden if name in values)
    homelab.secret_store.revealed.update(secret)  # the plan may have been made before this server was started
    entry = Installation(
        template.id,
        machine_ref(machine),
        "terraform",
        "installing",
        values.get("version", ""),
        shown,
        at=machine_address(machine),
    )

    async def work(report: Report) -> dict[str, Any]:
        facts = await at.apply(saved, report)
        if wrong := await wait_until_healthy(machine, template, values, homelab.clock, report):
            raise TaskFailed(f"{template.title} was created, but does not become healthy", why=wrong, facts=facts)
        return facts

    perform = install_exclusively(homelab, entry, work, secret)
    line = f"{Path(at.program).name} apply PLAN (what it does: {saved.content})"
    warnings = tuple(f"{resource} is destroyed" for resource in saved.destroys[:20])
    return Plan(
        does,
        (machine_action(machine, does, line, perform, writes=True),),
        facts=saved.as_dict(),
        warnings=warnings,
        risk=Risk.DESTROY if saved.destroys else None,
    )


async def uninstall(homelab: Homelab, machine: Machine, template: Template, *, data: bool) -> Plan:
    at = workspace(homelab, machine, template)
    if not at.applied:
        raise NotFound(f"{template.title} was not created on {machine} by this server")
    if not data:
        raise BadArgument(
            f"{template.title} was created by Terraform, which destroys things with their data",
            next_step=Advice("To confirm, use {data}", data=True),
        )
    return await plan_destroy(homelab, machine, template)


async def plan_destroy(homelab: Homelab, machine: Machine, template: Template) -> Plan:
    at = workspace(homelab, machine, template)
    if not at.applied:
        raise NotFound(
            f"{template.title} was not created on {machine} by this server",
            next_step=see("See what was", tools.service_list),
        )
    saved = await plan_changes(homelab, machine, template, {}, "destroy")
    ledger, where = Installations(homelab.store), machine_ref(machine)
    does = f"Destroy {template.title} on {machine}: {count_of(len(saved.changes), 'resource')}"

    async def work(report: Report) -> dict[str, Any]:
        facts = await at.apply(saved, report)
        await ledger.forget(where, template.id)
        at.forget()
        return {"destroyed": facts["done"]}

    line = (
        f"{Path(at.program).name} apply PLAN (what it does: {saved.content}; destroys {', '.join(saved.destroys[:20])})"
    )
    perform = work_exclusively(homelab, where, template.id, work)
    return Plan(does, (machine_action(machine, does, line, perform, writes=True),), facts=saved.as_dict())


def _host(homelab: Homelab, machine: Machine, at: Workspace) -> dict[str, str]:
    """Variables that a template may declare; those that it does not are ignored."""
    variables = {"host_name": machine.name}
    if machine.target is not None:
        folder = private_folder(at.folder)
        write_private(folder / "known_hosts", trusted_keys(ssh_of(machine, homelab.ssh)))
        variables |= {
            "host_address": machine.target.host,
            "host_port": str(machine.target.port),
            "host_user": machine.target.user,
            "host_key": str(machine.target.key or ""),
            "host_known_hosts": str(folder / "known_hosts"),
        }
    return variables


Longest = Annotated[float, Meta(ge=5, le=600, description="Maximum seconds; the first run fetches providers")]


@operation(
    toolset="terraform",
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
            "Apply exactly this plan", tools.terraform_apply(service=template.id, host=machine.ref, plan=saved.hash)
        )
        destroyed = {"destroys": list(saved.destroys[:SHOWN])} if saved.destroys else {}
        return {**saved.as_dict(), **destroyed, "next": "Nothing to do" if saved.empty else step}

    columns = ("plan", "counts", "destroys", "drift", "outputs_changed")
    chosen, limits = await select(homelab, host), Limits.same_for_each(seconds, PROGRAMS_AT_ONCE)
    answer = await describe_each(chosen, describe, columns, limits=limits)
    if isinstance(answer, Table) and plans:
        apply = tools.terraform_apply(service=template.id, host=list(plans), plan=list(plans.values()))
        answer.facts["next"] = Advice("Apply exactly these plans", apply)
    return answer


@operation(
    toolset="terraform",
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
    own = [candidate for candidate in plans if at.has(candidate)]
    if len(own) != 1:
        raise BadArgument(
            f"{len(own) or 'None'} of the plans {'are' if own else 'is'} for {machine}",
            next_step=Advice("Give one plan for each host", tools.terraform_plan(host=machine.ref)),
        )
    return own[0]


@operation(
    toolset="terraform",
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
                next_step=Advice("Plan it first", tools.terraform_plan(service=template.id)),
            )
        saved = await plan_changes(homelab, machine, template, {}, "refresh", seconds)
        facts = saved.as_dict()
        return {
            "service": template.id,
            "host": str(machine),
            "drifted": bool(saved.drift or saved.outputs),
            "drift": facts.get("drift", []),
            **({"outputs_changed": facts["outputs_changed"]} if saved.outputs else {}),
        }

    columns = ("drifted", "drift", "outputs_changed")
    chosen, limits = await select(homelab, host), Limits.same_for_each(seconds, PROGRAMS_AT_ONCE)
    return await describe_each(chosen, describe, columns, limits=limits)


@operation(
    toolset="terraform",
    risk=Risk.DESTROY,
    search_words="terraform opentofu destroy everything it made tear down",
    example="service=registry host=nas",
)
async def terraform_destroy(homelab: Homelab, service: ServiceName, host: HostRefs) -> Plan:
    """Destroy everything that Terraform created for a service on hosts, including its data."""
    template = template_of(homelab, service)
    prepare = partial(plan_destroy, homelab, template=template)
    limits = Limits.same_for_each(PLAN_SECONDS, PROGRAMS_AT_ONCE)
    return await plan_each(homelab, host, f"Destroy {template.title} on", prepare, ("destroyed",), limits=limits)
