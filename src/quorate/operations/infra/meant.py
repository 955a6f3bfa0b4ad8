"""Which machine is meant by a device."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from quorate.homelab.devices.device import Device
from quorate.homelab.devices.store import Devices
from quorate.homelab.home import Homelab
from quorate.homelab.machines import Machine, machine
from quorate.problems import NotFound

DeviceRef = Annotated[int | str, Meta(description="Id of network_map, or as host_exec names it")]


async def meant(home: Homelab, device: int | str) -> tuple[str, Machine, Device | None]:
    """How tools name it, the machine, and the device of the map if it is on it."""
    devices = Devices(home.store)
    try:
        known = await devices.find(device)
    except NotFound:
        known = None
    is_number = isinstance(device, int) or device.isdecimal()
    if known is None and is_number:
        raise NotFound(f"There is no device {device}", next_step="network_map shows the devices with their ids")
    ref = str(device)
    if known is not None and is_number:
        if not known.refs:
            raise NotFound(
                f"{known} is known from the network alone", next_step="Register it with host_register, to log in there"
            )
        ref = known.refs[0]
    return ref, await machine(home, ref), known
