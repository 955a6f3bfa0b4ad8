"""Converting guests to templates."""

from __future__ import annotations

from quorate.sim import templates
from quorate.sim.guests import Guest
from quorate.sim.refusals import failure
from quorate.sim.routing import Call, route


@route("POST /nodes/{node}/qemu/{vmid}/template")
def convert_vm(call: Call) -> str:
    guest = call.guest("qemu")
    disk = call.params.get("disk")
    _check_convertible(guest)
    if guest.template and disk is None:
        raise failure("you can't convert a template to a template")
    if guest.running:
        raise failure("you can't convert a VM to template if VM is running")
    return call.start_task("qmtemplate", str(guest.vmid), templates.convert(call.world, guest, disk))


@route("POST /nodes/{node}/lxc/{vmid}/template")
def convert_container(call: Call) -> None:
    """PVE starts a task here as well but does not say which."""
    guest = call.guest("lxc")
    _check_convertible(guest)
    if guest.template:
        raise failure("you can't convert a template to a template")
    if guest.running:
        raise failure("you can't convert a CT to template if the CT is running")
    call.start_task("vztemplate", str(guest.vmid), templates.convert(call.world, guest))


def _check_convertible(guest: Guest) -> None:
    guest.check_lock()
    if guest.snapshots:
        raise failure(f"unable to create template, because {guest.word} contains snapshots")
