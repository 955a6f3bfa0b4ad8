"""Taking a device out of service: who depends on it is moved, or it is refused."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from quorate.homelab.devices.device import Device
from quorate.homelab.devices.store import Devices
from quorate.homelab.home import Homelab
from quorate.homelab.infra.dependants import Dependants, dependants
from quorate.homelab.infra.moving import Move, prepared
from quorate.homelab.machines import Machine, machine
from quorate.homelab.workloads.engines import engines
from quorate.operations.hosts.parameters import HostRef, machine_action
from quorate.operations.hosts.registering import host_remove
from quorate.operations.infra.meant import DeviceRef, meant
from quorate.operations.plan import Action, Performed, Plan, Target
from quorate.operations.registry import Risk, operation
from quorate.operations.workloads.reading import described
from quorate.problems import BadArgument, Conflict, NotConfigured, Problem
from quorate.pve.tasks import Report


@operation(risk=Risk.DESTROY)
async def device_decommission(
    home: Homelab,
    device: DeviceRef,
    move_to: Annotated[HostRef, Meta(description="Where its containers go")] | None = None,
    data: Annotated[bool, Meta(description="Move what is in their volumes, too")] = False,
    force: Annotated[bool, Meta(description="Although others depend on it; what is not moved stays on it")] = False,
) -> Plan:
    """Take a device out of service: find who depends on it, move its containers, then forget the host and mark it
    retired on the map. Refused while anything depends on it that is not moved. The machine itself is not erased."""
    ref, place, known = await meant(home, device)
    _require_plain(place)
    needed = await dependants(home, ref, place)
    other = await machine(home, move_to) if move_to else None
    moves = await _moves(home, place, needed, other, data=data, force=force) if other else []
    left = needed.told if not move_to else [*needed.others, *([needed.unknown] if needed.unknown else [])]
    if left and not force:
        raise Conflict(
            f"{place} is still needed",
            why="; ".join(left[:10]),
            next_step="Move the containers with move_to, see to the others, or take it away all the same: force=true",
            facts={"dependants": left},
        )
    steps = [step for move in moves if other for step in _moving(place, other, move, data=data)]
    forget = _forgetting(home, ref, place, known, forced=force)
    return Plan(
        f"Decommission {place}",
        (*steps, forget),
        facts={"moved": [move.workload.name for move in moves], **({"left_there": left} if left else {})},
        warnings=tuple(f"Although {one}" for one in left[:20]),
    )


def _require_plain(place: Machine) -> None:
    if place.kind == "host":
        return
    way = "pvecm delnode on another node takes it out" if place.kind == "node" else "guest_delete removes it"
    raise NotConfigured(
        f"Decommissioning is not supported for this device: {place} belongs to a cluster",
        next_step=f"Its cluster keeps it; {way}",
    )


async def _moves(
    home: Homelab, place: Machine, needed: Dependants, other: Machine, *, data: bool, force: bool
) -> list[Move]:
    """Every container over there, checked before the first is touched."""
    if str(other) == str(place):
        raise BadArgument(f"{other} is the device itself", next_step="Name another host")
    if not needed.workloads:
        return []
    there = await engines(other, home.clock)
    found = []
    for engine, one in needed.workloads:
        target = next((each for each in there if each.name == engine.name), there[0])
        move = await prepared(engine, target, one.name)
        if move.volumes and not data and not force:
            raise Conflict(
                f"{one} has data in {', '.join(map(str, move.volumes))}",
                next_step="data=true moves it, too; force=true starts it empty over there",
            )
        found.append(move)
    return found


def _moving(place: Machine, other: Machine, move: Move, *, data: bool) -> tuple[Action, Action]:
    """A step on each of the two machines, so that the rules of both count."""
    name, image = move.workload.name, move.spec.image

    async def make_ready(wait: float, report: Report | None) -> Performed:
        del wait
        return Performed({"image": "was fetched" if await move.make_ready(report) else "is there"})

    async def carry(wait: float, report: Report | None) -> Performed:
        del wait
        try:
            done = await move.carry(report, data=data)
        except Problem as problem:
            again = "What was moved before it stays moved; call again to go on from here"
            problem.next_step = f"{problem.next_step or ''} {again}".strip()
            raise
        return Performed({"workload": described(done.workload)})

    says = f"Move {move.workload} from {place} to {other}" + (" with its volumes" if data and move.volumes else "")
    line = f"move {move.source.name} {name} {image} to {other}" + (" with volumes" if data else "")
    return (
        machine_action(other, f"Make {other} ready for {name}", f"{move.target.name} pull {image}", make_ready),
        machine_action(place, says, line, carry),
    )


def _forgetting(home: Homelab, ref: str, place: Machine, known: Device | None, *, forced: bool) -> Action:
    async def perform(wait: float, report: Report | None) -> Performed:
        done: dict[str, str] = {}
        if await home.hosts.find(ref):
            if forced:
                await home.hosts.remove(ref)
            else:
                for step in (await host_remove(home, ref)).calls:
                    assert isinstance(step, Action), "a host has no API"
                    await step.perform(wait, report)
            done["host"] = f"{ref} is forgotten"
        if known is not None:
            await Devices(home.store).missed([known.id], home.clock.time(), "retired")
            done["device"] = f"{known} is marked as retired"
        return Performed(done)

    return Action(f"Forget {place}", f"forget {ref} and mark it as retired", perform, Target("host", place.name))
