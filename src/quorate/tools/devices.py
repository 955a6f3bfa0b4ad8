"""Devices: changing and decommissioning them, and the systemd units on them."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from quorate.hints import Advice, append_advice, tools
from quorate.homelab.devices.device import Device
from quorate.homelab.devices.store import Devices
from quorate.homelab.homelab import Homelab
from quorate.homelab.infra.backups import SECTIONS
from quorate.homelab.infra.devices import (
    SSHD_FILE,
    Changes,
    Move,
    ResourceChange,
    SecurityChange,
    ServiceAction,
    ServiceChange,
    WorkloadChange,
    apply_workload_change,
    bare,
    file_of,
    find_device,
    install_unit,
    parse_changes,
    prepare_move,
    read_unit,
    remove_unit,
    require_login_afterwards,
    require_unit_text,
    set_hostname,
    set_sshd,
    sshd_lines,
)
from quorate.homelab.infra.plans import Dependants, find_dependants
from quorate.homelab.machines import Machine, find_machine
from quorate.homelab.workloads.engines import find_workload, list_engines
from quorate.homelab.workloads.workload import parse_image
from quorate.inside import services
from quorate.inside.transport import require_service
from quorate.operations.plan import Action, ActionResult, Call, Perform, Plan, StepContext, Target
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, Conflict, NotConfigured, Problem
from quorate.tools.guest_options import guest_configure
from quorate.tools.hosts import HostRef, host_remove
from quorate.tools.infra_backup import DeviceRef, backup_steps
from quorate.tools.machines import machine_action, require_service_allowed
from quorate.tools.workload_lifecycle import workload_power
from quorate.tools.workloads import describe_workload
from quorate.units import parse_size


@operation(
    toolset="infra",
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
    requested = parse_changes(changes)
    if machine.transport.system != "posix" and requested != Changes(resources=requested.resources):
        raise NotConfigured(f"That is not supported for this device: {machine} is not a POSIX system")
    steps: list[Call | Action] = [*await _workloads(homelab, ref, machine, requested)]
    for name, action in requested.services.items():
        if isinstance(action, ServiceChange):
            steps += await _unit(homelab, machine, name, action)
        else:
            steps.append(_service(homelab, machine, name, action))
    steps += _of_system(machine, requested)
    if requested.resources != ResourceChange():
        steps.append(await _resources(machine, requested.resources))
    if not steps:
        return Plan(f"Update {machine}", unchanged=(f"{machine} already has these settings",))
    facts: dict[str, Any] = {}
    if backup:
        sections = [section for section in SECTIONS if section != "packages"]
        first, facts = backup_steps(homelab, [(ref, machine)], sections, "before-update")
        steps = [*first, *steps]
    replaces = any(isinstance(change, WorkloadChange) for change in requested.workloads.values()) or any(
        isinstance(change, ServiceChange) and change.unit is not None for change in requested.services.values()
    )
    destroys = replaces or requested.security != SecurityChange()
    return Plan(f"Update {machine}", tuple(steps), facts=facts, risk=Risk.DESTROY if destroys else None)


async def _workloads(homelab: Homelab, ref: str, machine: Machine, requested: Changes) -> list[Call | Action]:
    steps: list[Call | Action] = []
    for name, change in requested.workloads.items():
        if isinstance(change, WorkloadChange):
            steps.append(await _replacement_step(homelab, machine, name, change))
        else:
            steps += (await workload_power(homelab, ref, name, change)).calls
    return steps


async def _replacement_step(homelab: Homelab, machine: Machine, name: str, change: WorkloadChange) -> Action:
    engine, replaced = await find_workload(machine, homelab.clock, name, None)
    if change.image is not None:
        parse_image(change.image)
    memory = parse_size(change.memory, unit="M") if change.memory else None
    spec = apply_workload_change(await engine.spec_of(name), change, memory)

    async def perform(context: StepContext) -> ActionResult:
        current = await engine.find(name)
        if current is None or current.id != replaced.id:
            raise Conflict(f"{name} has changed since it was planned", next_step="Nothing was done; look at it again")
        done = await engine.deploy(spec, context.report, replace=True)
        return ActionResult({"workload": describe_workload(done.workload)})

    named = {**msgspec.to_builtins(change), **({"env": sorted(change.env)} if change.env else {})}  # values are secrets
    settings = " ".join(f"{key}={value}" for key, value in named.items())
    return machine_action(
        machine, f"Replace {replaced} on {machine}: {settings}", f"{engine.name} replace {name} {settings}", perform
    )


def _service(homelab: Homelab, machine: Machine, service: str, action: ServiceAction) -> Action:
    name = require_service(service, machine.transport.system)
    require_service_allowed(homelab.command_rules, machine.transport, name, action)

    async def perform(context: StepContext) -> ActionResult:
        before, after = await services.control(
            machine.with_root().transport, homelab.clock, name, action, wait=context.wait
        )
        return ActionResult(
            {"before": before.summary, "now": after.summary, "enabled": after.enabled}, running=after.busy
        )

    return machine_action(machine, f"{action.capitalize()} {name} on {machine}", f"{action} {name}", perform)


async def _unit(homelab: Homelab, machine: Machine, service: str, change: ServiceChange) -> list[Action]:
    """Steps in order: the file of the unit, enable or disable it, start or stop it."""
    name = require_service(service, machine.transport.system)
    steps = []
    if change.unit is not None and await read_unit(machine, name) != change.unit:
        steps.append(unit_step(homelab, machine, name, change.unit))
    if change.enabled is not None:
        steps.append(_service(homelab, machine, name, "enable" if change.enabled else "disable"))
    if change.running is not None:
        steps.append(_service(homelab, machine, name, "start" if change.running else "stop"))
    return steps


def _of_system(machine: Machine, requested: Changes) -> list[Action]:
    steps = []
    hostname = requested.network.hostname
    if hostname is not None:
        summary, line = f"Set the hostname of {machine} to {hostname}", f"hostname {hostname}"
        steps.append(machine_action(machine, summary, line, _by(lambda: set_hostname(machine, hostname))))
    if requested.security != SecurityChange():
        require_login_afterwards(machine, requested.security)
        line = f"{SSHD_FILE}: {'; '.join(sshd_lines(requested.security)[0])}"
        summary = f"Set who may log in to {machine}"
        steps.append(machine_action(machine, summary, line, _by(lambda: set_sshd(machine, requested.security))))
    return steps


def _by(work: Callable[[], Awaitable[None]]) -> Perform:
    async def perform(_: StepContext) -> ActionResult:
        await work()
        return ActionResult()

    return perform


async def _resources(machine: Machine, requested: ResourceChange) -> Action:
    cluster, guest = machine.where, machine.guest
    if cluster is None or guest is None:
        raise NotConfigured(
            f"Other resources are not supported for this device: the hardware of {machine} is fixed",
            next_step="Limits of its containers are set under workloads: {name: {memory, cpus}}",
        )
    limits = msgspec.to_builtins(requested)
    plan = await guest_configure(cluster, guest.vmid, **limits)

    async def perform(context: StepContext) -> ActionResult:
        return ActionResult(await context.carry_out(cluster, plan, context.wait, context.report))

    settings = " ".join(f"{name}={value}" for name, value in limits.items())
    target = Target.of_guest(guest)
    return Action(plan.summary, f"configure {guest.label} {settings}", perform, target, tuple(plan.api_calls), cluster)


@operation(
    toolset="infra",
    risk=Risk.DESTROY,
    search_words="retire decommission remove take out of service host device migrate move containers away",
)
async def device_decommission(
    homelab: Homelab,
    device: DeviceRef,
    move_to: Annotated[HostRef, Meta(description="Where its containers go")] | None = None,
    data: Annotated[bool, Meta(description="Also move the contents of their volumes")] = False,
    force: Annotated[bool, Meta(description="Even if others depend on it; what is not moved stays")] = False,
) -> Plan:
    """Decommission a device: find what depends on it, move its containers, then forget the host and mark it
    retired on the map. Refused while anything depends on it that is not moved. The machine itself is not erased."""
    ref, machine, known = await find_device(homelab, device)
    _require_plain(machine)
    ref = bare(ref)
    needed = await find_dependants(homelab, ref, machine)
    other = await find_machine(homelab, move_to) if move_to else None
    moves = await _moves(homelab, machine, needed, other, data=data, force=force) if other else []
    left = needed.sentences if not move_to else [*needed.others, *([needed.unknown] if needed.unknown else [])]
    if left and not force:
        raise Conflict(
            f"{machine} is still needed",
            why="; ".join([*left[:10], *needed.running[:10]]),
            next_step=Advice(
                "Name a host for its containers, handle the others, or decommission it anyway",
                tools.device_decommission(move_to="…"),
                tools.device_decommission(force=True),
            ),
            facts={"dependants": left, "still_runs": needed.running},
        )
    steps = [step for move in moves if other for step in _move_steps(machine, other, move, data=data)]
    forget = _forget_step(homelab, ref, machine, known, forced=force)
    return Plan(
        f"Decommission {machine}",
        (*steps, forget),
        facts={
            "moved": [move.workload.name for move in moves],
            **({"left_there": left} if left else {}),
            **({"still_runs": needed.running} if needed.running else {}),
        },
        warnings=tuple(f"Ignored: {dependant}" for dependant in (*left[:20], *needed.running[:20])),
    )


def _require_plain(machine: Machine) -> None:
    if machine.kind == "host":
        return
    way_out = (
        Advice("Remove the node with `pvecm delnode` on another node")
        if machine.kind == "node"
        else Advice("Delete the guest", tools.guest_delete)
    )
    raise NotConfigured(
        f"Decommissioning is not supported for this device: {machine} belongs to a cluster",
        next_step=way_out,
    )


async def _moves(
    homelab: Homelab, machine: Machine, needed: Dependants, other: Machine, *, data: bool, force: bool
) -> list[Move]:
    """The move of every container, each checked before the first is carried out."""
    if str(other) == str(machine):
        raise BadArgument(f"{other} is the device itself", next_step="Name another host")
    if not needed.workloads:
        return []
    engines_there = await list_engines(other, homelab.clock)
    moves = []
    for engine, workload in needed.workloads:
        target = next((candidate for candidate in engines_there if candidate.name == engine.name), engines_there[0])
        move = await prepare_move(engine, target, workload.name)
        if move.volumes and not data and not force:
            raise Conflict(
                f"{workload} has data in {', '.join(map(str, move.volumes))}",
                next_step=Advice("{data} moves it, too", data=True).then(
                    Advice("{force} starts it there without data", force=True), "; "
                ),
            )
        moves.append(move)
    return moves


def _move_steps(machine: Machine, other: Machine, move: Move, *, data: bool) -> tuple[Action, Action]:
    """A step on either machine, so that the rules of both apply."""
    name, image = move.workload.name, move.spec.image

    async def make_ready(context: StepContext) -> ActionResult:
        return ActionResult({"image": await move.prepare_image(context.report)})

    async def carry(context: StepContext) -> ActionResult:
        try:
            done = await move.execute(context.report, data=data)
        except Problem as problem:
            again = "What was moved before it stays moved; call again to continue from here"
            problem.advice = append_advice(problem.advice, again)
            raise
        return ActionResult({"workload": describe_workload(done.workload)})

    summary = f"Move {move.workload} from {machine} to {other}" + (" with its volumes" if data and move.volumes else "")
    line = f"move {move.source.name} {name} {image} to {other}" + (" with volumes" if data else "")
    return (
        machine_action(other, f"Make {other} ready for {name}", f"{move.target.name} pull {image}", make_ready),
        machine_action(machine, summary, line, carry),
    )


def _forget_step(homelab: Homelab, ref: str, machine: Machine, known: Device | None, *, forced: bool) -> Action:
    async def perform(context: StepContext) -> ActionResult:
        done: dict[str, str] = {}
        if await homelab.hosts.find(ref):
            if forced:
                await homelab.hosts.remove(ref)
            else:
                for step in (await host_remove(homelab, ref)).calls:
                    assert isinstance(step, Action), "a host has no API"
                    await step.perform(context)
            done["host"] = f"{ref} is forgotten"
        if known is not None:
            await Devices(homelab.store).mark_absent([known.id], homelab.clock.time(), "retired")
            done["device"] = f"{known} is marked as retired"
        return ActionResult(done)

    return Action(f"Forget {machine}", f"forget {ref} and mark it as retired", perform, Target("host", machine.name))


# -- units -------------------------------------------------------------------------------------------------------------


def is_named(homelab: Homelab, name: str) -> bool:
    """True if the operator's patterns name the unit's file; raises if they forbid to write it or to start the unit."""
    file, rules = file_of(name), homelab.command_rules
    if objection := rules.write_objection(file) or rules.objection(("systemctl", "restart", name)):
        raise objection
    return rules.allows_write(file)


def unit_step(homelab: Homelab, machine: Machine, name: str, text: str) -> Action:
    content, named = require_unit_text(name, text), is_named(homelab, name)

    async def perform(context: StepContext) -> ActionResult:
        return ActionResult(await install_unit(machine, homelab.clock, name, content, wait=context.wait))

    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    line = f"write {file_of(name)} (sha256 {digest}), enable and restart it"
    summary = f"Install the unit {name} on {machine} and start it"
    return machine_action(machine, summary, line, perform, writes=True, opens=not named)


def unit_removal(homelab: Homelab, machine: Machine, name: str) -> Action:
    async def perform(context: StepContext) -> ActionResult:
        return ActionResult(await remove_unit(machine, homelab.clock, name, wait=context.wait))

    line = f"stop and disable {name}, remove {file_of(name)}"
    return machine_action(machine, f"Remove the unit {name} from {machine}", line, perform, writes=True)
