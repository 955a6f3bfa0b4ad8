"""Services that Ansible installs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import Advice, see, tools
from quorate.homelab.ansible import checked_tags, play, require_ansible
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.secrets import question_about
from quorate.homelab.selection import PROGRAMS_AT_ONCE, Limits, select
from quorate.homelab.services.catalogue import VERSION, Ansible, Template
from quorate.homelab.services.compose import wait_until_healthy
from quorate.homelab.services.installations import (
    ChosenSettings,
    Installation,
    Installations,
    choose,
    machine_address,
    machine_ref,
)
from quorate.operations.plan import Plan
from quorate.operations.registry import Risk, Table, operation
from quorate.problems import BadArgument, Conflict, NotFound, Refused, TaskFailed
from quorate.pve.tasks import Report
from quorate.tools.hosts import HostRefs
from quorate.tools.machines import machine_action
from quorate.tools.service_compose import (
    ServiceName,
    ServiceSettings,
    bind_secrets,
    install_exclusively,
    template_of,
    work_exclusively,
)
from quorate.tools.several_hosts import describe_each, plan_each


async def check(
    homelab: Homelab, machine: Machine, template: Template, settings: Mapping[str, Any], tags: Sequence[str],
    seconds: float, report: Report | None,
) -> dict[str, Any]:  # fmt: skip
    """Run the playbook in check mode: the changes that it would make, with a diff."""
    chosen = await _choose_settings(homelab, machine, template, settings)
    if chosen.references:
        raise Refused(
            f"A check would send stored secrets to {machine} without asking for approval",
            why=f"{question_about(chosen.references, str(machine))}, in check mode too",
            next_step=Advice(
                "Use env: or file: references, or run it, which needs a person's approval", tools.ansible_run
            ),
        )
    run = await play(
        machine, _ansible(template).playbook, chosen.values, homelab.settings.work,
        check=True, tags=checked_tags(tags), seconds=seconds, report=report,
    )  # fmt: skip
    return {"would_change": run.changed, **run.as_dict()}


async def install(
    homelab: Homelab, machine: Machine, template: Template, settings: Mapping[str, Any], tags: Sequence[str] = ()
) -> Plan:
    require_ansible()
    playbook = _ansible(template).playbook
    chosen = await _choose_settings(homelab, machine, template, settings)
    chosen_tags = checked_tags(tags)

    async def work(report: Report) -> dict[str, Any]:
        run = await play(
            machine, playbook, chosen.values, homelab.settings.work, check=False, tags=chosen_tags, report=report
        )
        if fault := await wait_until_healthy(machine, template, chosen.values, homelab.clock, report):
            raise TaskFailed(f"The playbook ran, but {template.title} is not healthy", why=fault, facts=run.as_dict())
        return {"changed": run.changed, **run.as_dict(), **({"health": "ok"} if template.health else {})}

    entry = Installation(
        template.id,
        machine_ref(machine),
        "ansible",
        "installing",
        chosen.version,
        chosen.without_secrets,
        at=machine_address(machine),
    )
    hidden = tuple(chosen.values[name] for name in chosen.secret)
    summary = f"Run the playbook of {template.title} on {machine}"
    listed = " ".join(f"{name}={value}" for name, value in chosen.without_secrets.items())
    only = f" --tags {','.join(chosen_tags)}" if chosen_tags else ""
    line = f"ansible-playbook {template.id}{only} ({listed})"
    plan = Plan(
        summary,
        (machine_action(machine, summary, line, install_exclusively(homelab, entry, work, hidden), writes=True),),
        facts={"host": machine.name, "settings": chosen.without_secrets},
        next_step=see("See what it would change", tools.ansible_check(service=template.id, host=machine.name)),
    )
    return bind_secrets(plan, chosen.references, str(machine))


async def uninstall(homelab: Homelab, machine: Machine, template: Template, *, data: bool) -> Plan:
    require_ansible()
    playbook = _ansible(template).uninstall
    if not playbook:
        raise Conflict(
            f"The catalog does not say how to remove {template.title}",
            next_step="Add `uninstall` to its template, or remove it manually",
        )
    ledger, reference = Installations(homelab.store), machine_ref(machine)
    installed = await ledger.find(reference, template.id)
    if installed is None:
        raise NotFound(f"{template.title} was not installed on {machine} by this server")
    variables = {**installed.settings, "data": data}

    async def work(report: Report) -> dict[str, Any]:
        run = await play(machine, playbook, variables, homelab.settings.work, check=False, report=report)
        await ledger.forget(reference, template.id)
        return {"removed": template.id, **run.as_dict()}

    summary = f"Remove {template.title} from {machine}" + (" with its data" if data else "")
    perform = work_exclusively(homelab, reference, template.id, work)
    return Plan(
        summary, (machine_action(machine, summary, f"ansible-playbook {template.id} uninstall data={data}", perform),)
    )


async def _choose_settings(
    homelab: Homelab, machine: Machine, template: Template, settings: Mapping[str, Any]
) -> ChosenSettings:
    installed = await Installations(homelab.store).find(machine_ref(machine), template.id)
    missing = [
        name for name, parameter in template.parameters.items() if parameter.type == "secret" and name not in settings
    ]
    if installed and installed.method == "ansible" and missing:
        raise BadArgument(
            f"The secret {missing[0]!r} has to be given again",
            why="Ansible keeps no readable copy of it",
            next_step=Advice(
                f"Give a reference; `{VERSION}` is a setting there too", tools.service_install, tools.ansible_run
            ),
        )
    return await choose(template, settings, installed.settings if installed else {}, homelab.secret_store)


def _ansible(template: Template) -> Ansible:
    template.method("ansible")
    assert template.ansible is not None
    return template.ansible


SPARE_SECONDS = 5.0
"""Reserved for reporting that a playbook takes too long."""
Tags = Annotated[list[str], Meta(description="Only tasks with one of these tags")]


@operation(
    toolset="services",
    risk=Risk.LOOK_INSIDE,
    search_words="try playbook ansible check mode dry run diff what would change on host",
    example="service=node-exporter host=nas",
)
async def ansible_check(
    homelab: Homelab,
    service: ServiceName,
    host: HostRefs,
    report: Report,
    tags: Tags | None = None,
    extra_vars: ServiceSettings | None = None,
    seconds: Annotated[float, Meta(ge=5, le=600, description="Maximum seconds")] = 50,
) -> dict[str, Any] | Table:
    """Try the playbook of a service on hosts in check mode: what it would change, with a diff. Changes nothing."""
    template = template_of(homelab, service)
    chosen = await select(homelab, host)

    async def describe(machine: Machine) -> dict[str, Any]:
        own = None if chosen.several else report  # tasks of one host, or hosts
        return await check(homelab, machine, template, extra_vars or {}, tags or (), seconds, own)

    columns = ("would_change", "counts", "diff")
    limits = Limits.same_for_each(seconds + SPARE_SECONDS, PROGRAMS_AT_ONCE)
    return await describe_each(chosen, describe, columns, limits=limits, report=report)


@operation(
    toolset="services",
    risk=Risk.CHANGE,
    search_words="run playbook ansible tags extra vars provision configure host install by ansible",
    example="service=node-exporter host=nas tags=settings",
)
async def ansible_run(
    homelab: Homelab,
    service: ServiceName,
    host: HostRefs,
    tags: Tags | None = None,
    extra_vars: ServiceSettings | None = None,
) -> Plan:
    """Run the playbook of a service on hosts, or those of its tasks that have a tag."""
    template = template_of(homelab, service)

    async def prepare(machine: Machine) -> Plan:
        return await install(homelab, machine, template, extra_vars or {}, tags or ())

    return await plan_each(homelab, host, f"Run the playbook of {template.title} on", prepare, ("changed", "health"))
