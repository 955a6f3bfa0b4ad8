"""Decommissioning a device: what depends on it is moved, or the call is refused."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from quorate.hints import DEVICE_DECOMMISSION, GUEST_DELETE, Advice, append_advice
from quorate.homelab.devices.device import Device
from quorate.homelab.devices.store import Devices
from quorate.homelab.homelab import Homelab
from quorate.homelab.infra.dependants import Dependants, find_dependants
from quorate.homelab.infra.workload_move import Move, prepare_move
from quorate.homelab.machines import Machine, find_machine
from quorate.homelab.workloads.engines import list_engines
from quorate.operations.hosts.parameters import HostRef
from quorate.operations.hosts.registry import host_remove
from quorate.operations.infra.devices import DeviceRef, bare, find_device
from quorate.operations.machine import machine_action
from quorate.operations.plan import Action, ActionResult, Plan, StepContext, Target
from quorate.operations.registry import Risk, operation
from quorate.operations.workloads.queries import describe_workload
from quorate.problems import BadArgument, Conflict, NotConfigured, Problem


@operation(
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
                DEVICE_DECOMMISSION(move_to="…"),
                DEVICE_DECOMMISSION(force=True),
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
        warnings=tuple(f"Ignored: {one}" for one in (*left[:20], *needed.running[:20])),
    )


def _require_plain(machine: Machine) -> None:
    if machine.kind == "host":
        return
    way_out = (
        Advice("Remove the node with `pvecm delnode` on another node")
        if machine.kind == "node"
        else Advice("Delete the guest", GUEST_DELETE)
    )
    raise NotConfigured(
        f"Decommissioning is not supported for this device: {machine} belongs to a cluster",
        next_step=way_out,
    )


async def _moves(
    homelab: Homelab, machine: Machine, needed: Dependants, other: Machine, *, data: bool, force: bool
) -> list[Move]:
    """Every container on the target, checked before the first is touched."""
    if str(other) == str(machine):
        raise BadArgument(f"{other} is the device itself", next_step="Name another host")
    if not needed.workloads:
        return []
    engines_there = await list_engines(other, homelab.clock)
    found = []
    for engine, one in needed.workloads:
        target = next((each for each in engines_there if each.name == engine.name), engines_there[0])
        move = await prepare_move(engine, target, one.name)
        if move.volumes and not data and not force:
            raise Conflict(
                f"{one} has data in {', '.join(map(str, move.volumes))}",
                next_step=Advice("{data} moves it, too", data=True).then(
                    Advice("{force} starts it there without data", force=True), "; "
                ),
            )
        found.append(move)
    return found


def _move_steps(machine: Machine, other: Machine, move: Move, *, data: bool) -> tuple[Action, Action]:
    """A step on each of the two machines, so that the rules of both apply."""
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
