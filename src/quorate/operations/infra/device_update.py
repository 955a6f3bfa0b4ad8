"""Changing a device: its services, containers, name and logins, and the hardware of guests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from quorate.homelab.homelab import Homelab
from quorate.homelab.infra import device_changes as asked
from quorate.homelab.infra import units
from quorate.homelab.infra.device_backup import SECTIONS
from quorate.homelab.machines import Machine
from quorate.homelab.workloads import request
from quorate.homelab.workloads.engines import find_workload
from quorate.inside import names, services
from quorate.operations.infra.backup import backup_steps
from quorate.operations.infra.devices import DeviceRef, find_device, unit_step
from quorate.operations.machine import machine_action
from quorate.operations.machine_services import require_service_allowed
from quorate.operations.plan import Action, ActionResult, Call, Perform, Plan, StepContext, Target
from quorate.operations.registry import Risk, operation
from quorate.operations.units import parse_size
from quorate.operations.workloads.lifecycle import workload_power
from quorate.operations.workloads.queries import describe_workload
from quorate.problems import Conflict, NotConfigured


@operation(
    risk=Risk.CHANGE,
    idempotent=True,
    search_words="change update device configuration service restart container image hostname ssh security",
)
async def device_update(
    homelab: Homelab,
    device: DeviceRef,
    changes: Annotated[
        dict[str, Any],
        Meta(
            description="services {name: restart|stop|enable…|{unit,enabled,running}}, workloads {name: stop|{image,"
            "ports,volumes,env,memory,cpus,restart}}, "
            "network {hostname}, security {ssh_password_login, ssh_root_login}, resources {cores, memory} of a guest"
        ),
    ],
    backup: Annotated[bool, Meta(description="Back up its configuration first, for infra_rollback")] = True,
) -> Plan:
    """Change a device: services, containers, host name, SSH logins, and cores or memory of a guest."""
    ref, machine, _ = await find_device(homelab, device)
    wanted = asked.parse_changes(changes)
    if machine.transport.system != "posix" and wanted != asked.Changes(resources=wanted.resources):
        raise NotConfigured(f"That is not supported for this device: {machine} is not a POSIX system")
    steps: list[Call | Action] = [*await _workloads(homelab, ref, machine, wanted)]
    for name, action in wanted.services.items():
        if isinstance(action, asked.ServiceChange):
            steps += await _unit(homelab, machine, name, action)
        else:
            steps.append(_service(homelab, machine, name, action))
    steps += _of_system(machine, wanted)
    if wanted.resources != asked.ResourceChange():
        steps.append(await _resources(machine, wanted.resources))
    if not steps:
        return Plan(f"Update {machine}", unchanged=(f"{machine} already has these settings",))
    facts: dict[str, Any] = {}
    if backup:
        sections = [one for one in SECTIONS if one != "packages"]
        first, facts = backup_steps(homelab, [(ref, machine)], sections, "before-update")
        steps = [*first, *steps]
    replaces = any(isinstance(one, asked.WorkloadChange) for one in wanted.workloads.values()) or any(
        isinstance(one, asked.ServiceChange) and one.unit is not None for one in wanted.services.values()
    )
    grave = replaces or wanted.security != asked.SecurityChange()
    return Plan(f"Update {machine}", tuple(steps), facts=facts, risk=Risk.DESTROY if grave else None)


async def _workloads(homelab: Homelab, ref: str, machine: Machine, wanted: asked.Changes) -> list[Call | Action]:
    steps: list[Call | Action] = []
    for name, change in wanted.workloads.items():
        if isinstance(change, asked.WorkloadChange):
            steps.append(await _replacement_step(homelab, machine, name, change))
        else:
            steps += (await workload_power(homelab, ref, name, change)).calls
    return steps


async def _replacement_step(homelab: Homelab, machine: Machine, name: str, change: asked.WorkloadChange) -> Action:
    engine, old = await find_workload(machine, homelab.clock, name, None)
    if change.image is not None:
        request.image(change.image)
    memory = parse_size(change.memory, unit="M") if change.memory else None
    spec = asked.apply_workload_change(await engine.spec_of(name), change, memory)

    async def perform(context: StepContext) -> ActionResult:
        now = await engine.find(name)
        if now is None or now.id != old.id:
            raise Conflict(f"{name} has changed since it was planned", next_step="Nothing was done; look at it again")
        done = await engine.deploy(spec, context.report, replace=True)
        return ActionResult({"workload": describe_workload(done.workload)})

    named = {**msgspec.to_builtins(change), **({"env": sorted(change.env)} if change.env else {})}  # values are secrets
    settings = " ".join(f"{key}={value}" for key, value in named.items())
    return machine_action(
        machine, f"Replace {old} on {machine}: {settings}", f"{engine.name} replace {name} {settings}", perform
    )


def _service(homelab: Homelab, machine: Machine, given: str, action: asked.ServiceAction) -> Action:
    name = names.require_service(given, machine.transport.system)
    require_service_allowed(homelab.command_rules, machine.transport, name, action)

    async def perform(context: StepContext) -> ActionResult:
        before, after = await services.control(
            machine.with_root().transport, homelab.clock, name, action, wait=context.wait
        )
        return ActionResult(
            {"before": before.summary, "now": after.summary, "enabled": after.enabled}, running=after.busy
        )

    return machine_action(machine, f"{action.capitalize()} {name} on {machine}", f"{action} {name}", perform)


async def _unit(homelab: Homelab, machine: Machine, given: str, change: asked.ServiceChange) -> list[Action]:
    """First its file, then whether it starts at boot, then whether it runs."""
    name = names.require_service(given, machine.transport.system)
    steps = []
    if change.unit is not None and await units.read_unit(machine, name) != change.unit:
        steps.append(unit_step(homelab, machine, name, change.unit))
    if change.enabled is not None:
        steps.append(_service(homelab, machine, name, "enable" if change.enabled else "disable"))
    if change.running is not None:
        steps.append(_service(homelab, machine, name, "start" if change.running else "stop"))
    return steps


def _of_system(machine: Machine, wanted: asked.Changes) -> list[Action]:
    found = []
    hostname = wanted.network.hostname
    if hostname is not None:
        summary, line = f"Set the hostname of {machine} to {hostname}", f"hostname {hostname}"
        found.append(machine_action(machine, summary, line, _by(lambda: asked.set_hostname(machine, hostname))))
    if wanted.security != asked.SecurityChange():
        asked.require_login_afterwards(machine, wanted.security)
        line = f"{asked.SSHD_FILE}: {'; '.join(asked.sshd_lines(wanted.security)[0])}"
        summary = f"Set who may log in to {machine}"
        found.append(machine_action(machine, summary, line, _by(lambda: asked.set_sshd(machine, wanted.security))))
    return found


def _by(work: Callable[[], Awaitable[None]]) -> Perform:
    async def perform(_: StepContext) -> ActionResult:
        await work()
        return ActionResult()

    return perform


async def _resources(machine: Machine, wanted: asked.ResourceChange) -> Action:
    from quorate.operations.guests.options import guest_configure

    cluster, guest = machine.where, machine.guest
    if cluster is None or guest is None:
        raise NotConfigured(
            f"Other resources are not supported for this device: the hardware of {machine} is fixed",
            next_step="Limits of its containers are set under workloads: {name: {memory, cpus}}",
        )
    given = msgspec.to_builtins(wanted)
    plan = await guest_configure(cluster, guest.vmid, **given)

    async def perform(context: StepContext) -> ActionResult:
        return ActionResult(await context.carry_out(cluster, plan, context.wait, context.report))

    settings = " ".join(f"{name}={value}" for name, value in given.items())
    target = Target.of_guest(guest)
    return Action(plan.summary, f"configure {guest.label} {settings}", perform, target, tuple(plan.api_calls), cluster)
