"""Snapshots of guests: take, describe, roll back, delete. Most refusals come from inside the task."""

from __future__ import annotations

from quorate.sim import power, snapshots
from quorate.sim.guests import Kind
from quorate.sim.power import GuestAddress
from quorate.sim.refusals import failure
from quorate.sim.routing import Call, route
from quorate.sim.tasks import Work

_QEMU = "/nodes/{node}/qemu/{vmid}/snapshot"
_LXC = "/nodes/{node}/lxc/{vmid}/snapshot"
_RESERVED = {"qemu": ("current", "pending"), "lxc": ("current", "vzdump")}


@route(f"POST {_QEMU}")
def take_vm_snapshot(call: Call) -> str:
    return _take(call, "qemu", "qmsnapshot")


@route(f"POST {_LXC}")
def take_container_snapshot(call: Call) -> str:
    return _take(call, "lxc", "vzsnapshot")


def _take(call: Call, kind: Kind, task: str) -> str:
    name = call.params["snapname"]
    if name in _RESERVED[kind]:
        raise failure(f"unable to use snapshot name '{name}' (reserved name)")
    description = call.params.get("description", "")
    vmstate = bool(call.params.get("vmstate"))
    return call.start_task(
        task, str(call.vmid), snapshots.create(_address(call, kind), name, description, vmstate=vmstate)
    )


@route(f"PUT {_QEMU}/{{snapname}}/config")
def describe_vm_snapshot(call: Call) -> None:
    _describe(call, "qemu")


@route(f"PUT {_LXC}/{{snapname}}/config")
def describe_container_snapshot(call: Call) -> None:
    _describe(call, "lxc")


def _describe(call: Call, kind: Kind) -> None:
    guest = call.guest(kind)
    guest.check_lock()
    snapshot = guest.snapshots.get(call.params["snapname"])
    if snapshot is None:
        raise failure(f"snapshot '{call.params['snapname']}' does not exist")
    if "description" in call.params:
        snapshot.description = call.params["description"]
        guest.touch()


@route(f"DELETE {_QEMU}/{{snapname}}")
def delete_vm_snapshot(call: Call) -> str:
    work = snapshots.delete(_address(call, "qemu"), call.params["snapname"])
    return call.start_task("qmdelsnapshot", str(call.vmid), work)


@route(f"DELETE {_LXC}/{{snapname}}")
def delete_container_snapshot(call: Call) -> str:
    work = snapshots.delete(_address(call, "lxc"), call.params["snapname"])
    return call.start_task("vzdelsnapshot", str(call.vmid), work)


@route(f"POST {_QEMU}/{{snapname}}/rollback")
def roll_back_vm(call: Call) -> str:
    return call.start_task("qmrollback", str(call.vmid), _rollback(call, "qemu"))


@route(f"POST {_LXC}/{{snapname}}/rollback")
def roll_back_container(call: Call) -> str:
    return call.start_task("vzrollback", str(call.vmid), _rollback(call, "lxc"))


def _rollback(call: Call, kind: Kind) -> Work:
    address, start = _address(call, kind), None
    if call.params.get("start"):
        call.require(f"/vms/{call.vmid}", "VM.PowerMgmt")
        start = power.start(address)
    return snapshots.roll_back(address, call.params["snapname"], start, call.authid)


def _address(call: Call, kind: Kind) -> GuestAddress:
    return GuestAddress(call.world, call.node, kind, call.vmid)
