"""Cloud-init of virtual machines."""

from __future__ import annotations

from typing import Any

from quorate.sim import cloudinit
from quorate.sim.routing import Call, route
from quorate.sim.update_guest import config_file_lock

_PATH = "/nodes/{node}/qemu/{vmid}/cloudinit"


@route(f"GET {_PATH}")
def pending(call: Call) -> list[dict[str, Any]]:
    return cloudinit.rows(call.world, call.guest("qemu"))


@route(f"PUT {_PATH}")
async def regenerate(call: Call) -> None:
    """Write the drive anew, so that it has the settings of now."""
    guest = call.guest("qemu")
    async with config_file_lock(call.world, guest):
        call.guest("qemu").check_lock()
        guest.cloudinit = cloudinit.settings(guest.effective_config())


@route(f"GET {_PATH}/dump")
def dump(call: Call) -> str:
    guest = call.guest("qemu")
    match call.params["type"]:
        case "user":
            return cloudinit.user_data(guest)
        case "network":
            return cloudinit.network_data(call.world, guest)
        case _:
            return cloudinit.meta_data(call.world, guest)
