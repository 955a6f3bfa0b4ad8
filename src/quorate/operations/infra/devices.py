"""Devices: which machine one is, and the systemd units on it."""

from __future__ import annotations

import hashlib
from typing import Annotated

from msgspec import Meta

from quorate.hints import HOST_REGISTER, NETWORK_MAP, Advice, see
from quorate.homelab.devices.device import Device
from quorate.homelab.devices.store import Devices
from quorate.homelab.homelab import Homelab
from quorate.homelab.infra import units
from quorate.homelab.machines import Machine, find_machine
from quorate.operations.machine import machine_action
from quorate.operations.plan import Action, ActionResult, StepContext
from quorate.problems import NotFound

DeviceRef = Annotated[int | str, Meta(description="Id of network_map, or as host_exec names it")]


def bare(ref: str) -> str:
    """The host of `user@host`: it is the same device for every login."""
    return ref.rpartition("@")[2]


async def find_device(homelab: Homelab, device: int | str) -> tuple[str, Machine, Device | None]:
    """The reference that tools take, the machine, and its device on the map, if any."""
    devices = Devices(homelab.store)
    try:
        known = await devices.find(bare(device) if isinstance(device, str) else device)
    except NotFound:
        known = None
    is_number = isinstance(device, int) or device.isdecimal()
    if known is None and is_number:
        raise NotFound(f"There is no device {device}", next_step=see("See the devices with their ids", NETWORK_MAP))
    ref = str(device)
    if known is not None and is_number:
        if not known.refs:
            raise NotFound(
                f"{known} was only seen on the network",
                next_step=Advice("Register it to log in there", HOST_REGISTER),
            )
        ref = known.refs[0]
    return ref, await find_machine(homelab, ref), known


def is_named(homelab: Homelab, name: str) -> bool:
    """Whether the operator's patterns name the file; raises if they do not let it be written or its service started."""
    file, rules = units.file_of(name), homelab.command_rules
    if objection := rules.write_objection(file) or rules.objection(("systemctl", "restart", name)):
        raise objection
    return rules.allows_write(file)


def unit_step(homelab: Homelab, machine: Machine, name: str, text: str) -> Action:
    content, named = units.require_unit_text(name, text), is_named(homelab, name)

    async def perform(context: StepContext) -> ActionResult:
        return ActionResult(await units.install_unit(machine, homelab.clock, name, content, wait=context.wait))

    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    line = f"write {units.file_of(name)} (sha256 {digest}), enable and restart it"
    summary = f"Install the unit {name} on {machine} and start it"
    return machine_action(machine, summary, line, perform, writes=True, opens=not named)


def unit_removal(homelab: Homelab, machine: Machine, name: str) -> Action:
    async def perform(context: StepContext) -> ActionResult:
        return ActionResult(await units.remove_unit(machine, homelab.clock, name, wait=context.wait))

    line = f"stop and disable {name}, remove {units.file_of(name)}"
    return machine_action(machine, f"Remove the unit {name} from {machine}", line, perform, writes=True)
