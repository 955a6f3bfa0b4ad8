"""Services that OpenTofu or Terraform creates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quorate.hints import SERVICE_LIST, Advice, see
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.services.health import wait_until_healthy
from quorate.homelab.services.installations import Installation, Installations, machine_address, machine_ref
from quorate.homelab.services.programs import private_folder, ssh_of, trusted_keys, write_private
from quorate.homelab.services.settings import choose
from quorate.homelab.services.template import Template
from quorate.homelab.terraform import Kind, SavedPlan, Workspace
from quorate.operations.machine import machine_action
from quorate.operations.plan import Plan
from quorate.operations.registry import Risk
from quorate.operations.services.parameters import install_exclusively, work_exclusively
from quorate.problems import BadArgument, NotFound, Refused, TaskFailed
from quorate.pve.tasks import Report

PLAN_SECONDS = 300.0


def workspace(homelab: Homelab, machine: Machine, template: Template) -> Workspace:
    template.method("terraform")
    return Workspace(homelab.settings.work, machine_ref(machine), template.id)


async def plan_changes(
    homelab: Homelab, machine: Machine, template: Template, given: Mapping[str, Any], kind: Kind = "apply",
    seconds: float = PLAN_SECONDS,
) -> SavedPlan:  # fmt: skip
    at = workspace(homelab, machine, template)
    chosen = await choose(template, given, at.values(), homelab.secret_store)
    if chosen.references:
        raise Refused(
            f"Terraform takes no stored secret ({', '.join(sorted(chosen.references))})",
            why="Planning already passes it to providers, before a person can approve where it is sent",
            next_step="Use an env: or file: reference",
        )
    return await at.plan(template, chosen.values, _host(homelab, machine, at), kind, seconds)


async def install(homelab: Homelab, machine: Machine, template: Template, given: Mapping[str, Any]) -> Plan:
    saved = await plan_changes(homelab, machine, template, given)
    return plan_apply(homelab, machine, template, saved)


def plan_apply(homelab: Homelab, machine: Machine, template: Template, saved: SavedPlan) -> Plan:
    """Apply exactly that plan; its risk depends on what it removes."""
    at = workspace(homelab, machine, template)
    does = f"Apply the plan for {template.title} on {machine}: {_count_changes(saved)}"
    if saved.empty:
        return Plan(does, unchanged=("Everything matches",), facts=saved.as_dict())
    values = at.planned_values(saved.hash)
    hidden = {name for name, one in template.parameters.items() if one.type == "secret"}
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
    warnings = tuple(f"{one} is destroyed" for one in saved.destroys[:20])
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
            next_step=see("See what was", SERVICE_LIST),
        )
    saved = await plan_changes(homelab, machine, template, {}, "destroy")
    ledger, where = Installations(homelab.store), machine_ref(machine)
    does = f"Destroy {template.title} on {machine}: {len(saved.changes)} resources"

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


def _count_changes(saved: SavedPlan) -> str:
    return ", ".join(f"{count} to {name}" for name, count in saved.counts.items()) or "outputs only"


def _host(homelab: Homelab, machine: Machine, at: Workspace) -> dict[str, str]:
    """Variables that a template may declare; those that it does not are ignored."""
    found = {"host_name": machine.name}
    if machine.target is not None:
        folder = private_folder(at.folder)
        write_private(folder / "known_hosts", trusted_keys(ssh_of(machine, homelab.ssh)))
        found |= {
            "host_address": machine.target.host,
            "host_port": str(machine.target.port),
            "host_user": machine.target.user,
            "host_key": str(machine.target.key or ""),
            "host_known_hosts": str(folder / "known_hosts"),
        }
    return found
