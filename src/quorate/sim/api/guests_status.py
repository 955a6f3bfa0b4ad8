"""Status and power of guests. (S) cases refuse at once, (T) cases fail inside the task: see `quorate.sim.power`."""

from __future__ import annotations

from typing import Any

from quorate.sim import ha_manager, power, status
from quorate.sim.guests import Guest, Kind
from quorate.sim.power import GuestAddress
from quorate.sim.refusals import failure
from quorate.sim.routing import Call, route

QEMU = "/nodes/{node}/qemu/{vmid}"
LXC = "/nodes/{node}/lxc/{vmid}"


@route("GET /nodes/{node}/qemu")
def list_vms(call: Call) -> list[dict[str, Any]]:
    return _visible(call, "qemu", full=bool(call.params.get("full")))


@route("GET /nodes/{node}/lxc")
def list_containers(call: Call) -> list[dict[str, Any]]:
    return _visible(call, "lxc", full=False)


def _visible(call: Call, kind: Kind, *, full: bool) -> list[dict[str, Any]]:
    return [
        status.list_row(call.world, guest, full=full)
        for guest in call.world.guests_on(call.node, kind)
        if call.allowed(f"/vms/{guest.vmid}", "VM.Audit")
    ]


@route(f"GET {QEMU}/status/current")
def vm_status(call: Call) -> dict[str, Any]:
    return status.current(call.world, call.guest("qemu"))


@route(f"GET {LXC}/status/current")
def container_status(call: Call) -> dict[str, Any]:
    return status.current(call.world, call.guest("lxc"))


@route(f"POST {QEMU}/status/start")
def start_vm(call: Call) -> str:
    call.root_only("skiplock", "migratedfrom", "stateuri", "migration_type", "migration_network", "targetstorage")
    return _ha_task(call, "qemu", "started") or call.start_task(
        "qmstart", str(call.vmid), power.start(_address(call, "qemu"), skiplock=_skiplock(call))
    )


@route(f"POST {LXC}/status/start")
def start_container(call: Call) -> str:
    call.root_only("skiplock")
    guest = call.find_guest("lxc")
    if guest is not None and guest.running:
        raise failure(f"CT {call.vmid} already running")
    return _ha_task(call, "lxc", "started") or call.start_task(
        "vzstart", str(call.vmid), power.start(_address(call, "lxc"), skiplock=_skiplock(call))
    )


@route(f"POST {QEMU}/status/stop")
async def stop_vm(call: Call) -> str:
    call.root_only("skiplock", "keepActive", "migratedfrom")
    requested = _ha_task(call, "qemu", "stopped", stop_now=True)
    if requested:
        return requested
    await _overrule_shutdown(call, "qmshutdown")
    work = power.stop(_address(call, "qemu"), skiplock=_skiplock(call))
    return call.start_task("qmstop", str(call.vmid), work)


@route(f"POST {LXC}/status/stop")
async def stop_container(call: Call) -> str:
    call.root_only("skiplock")
    _running_container(call)
    requested = _ha_task(call, "lxc", "stopped", stop_now=True)
    if requested:
        return requested
    await _overrule_shutdown(call, "vzshutdown")
    work = power.stop(_address(call, "lxc"), skiplock=_skiplock(call))
    return call.start_task("vzstop", str(call.vmid), work)


@route(f"POST {QEMU}/status/shutdown")
def shut_down_vm(call: Call) -> str:
    call.root_only("skiplock", "keepActive")
    address, force_stop = _address(call, "qemu"), bool(call.params.get("forceStop"))
    guest = call.find_guest("qemu")
    if guest is not None and guest.paused and not force_stop:
        raise failure("VM is paused - cannot shutdown")
    requested = _ha_task(call, "qemu", "stopped")
    if requested:
        return requested
    if guest is not None and guest.paused:
        return call.start_task("qmshutdown", str(call.vmid), power.stop(address, skiplock=_skiplock(call)))
    work = power.shutdown(address, timeout=call.params.get("timeout"), force_stop=force_stop, skiplock=_skiplock(call))
    return call.start_task("qmshutdown", str(call.vmid), work)


@route(f"POST {LXC}/status/shutdown")
def shut_down_container(call: Call) -> str:
    _running_container(call)
    work = power.shutdown(
        _address(call, "lxc"),
        timeout=call.params.get("timeout", power.DEFAULT_SHUTDOWN_TIMEOUT),
        force_stop=bool(call.params.get("forceStop")),
    )
    return _ha_task(call, "lxc", "stopped") or call.start_task("vzshutdown", str(call.vmid), work)


@route(f"POST {QEMU}/status/reboot")
def reboot_vm(call: Call) -> str:
    guest = _known_vm(call)
    if guest.paused:
        raise failure("VM is paused - cannot shutdown")
    _require_running(guest)
    work = power.reboot(_address(call, "qemu"), timeout=call.params.get("timeout"))
    return call.start_task("qmreboot", str(call.vmid), work)


@route(f"POST {LXC}/status/reboot")
def reboot_container(call: Call) -> str:
    guest = call.find_guest("lxc")
    if guest is None or not guest.running:
        raise failure(f"VM {call.vmid} not running")  # PVE says VM here
    work = power.reboot(_address(call, "lxc"), timeout=call.params.get("timeout"))
    return call.start_task("vzreboot", str(call.vmid), work)


@route(f"POST {QEMU}/status/reset")
def reset_vm(call: Call) -> str:
    call.root_only("skiplock")
    _require_running(_known_vm(call))
    work = power.reset(_address(call, "qemu"), skiplock=_skiplock(call))
    return call.start_task("qmreset", str(call.vmid), work)


@route(f"POST {QEMU}/status/suspend")
def suspend_vm(call: Call) -> str:
    call.root_only("skiplock")
    guest = _known_vm(call)
    _require_running(guest)
    if not call.params.get("todisk"):
        work = power.pause(_address(call, "qemu"), skiplock=_skiplock(call))
        return call.start_task("qmpause", str(call.vmid), work)
    call.require(f"/vms/{call.vmid}", "VM.Config.Disk")
    storage_id = call.params.get("statestorage") or _state_storage(guest)
    storage = call.world.storages.get(storage_id)
    if storage is None:
        raise failure(f"storage '{storage_id}' does not exist")
    call.require(f"/storage/{storage_id}", "Datastore.AllocateSpace")
    work = power.suspend_to_disk(_address(call, "qemu"), storage, skiplock=_skiplock(call))
    return call.start_task("qmsuspend", str(call.vmid), work)


@route(f"POST {QEMU}/status/resume")
def resume_vm(call: Call) -> str:
    call.root_only("skiplock", "nocheck")
    guest = _known_vm(call)
    if guest.lock != "suspended":
        _require_running(guest)
    work = power.resume(_address(call, "qemu"), skiplock=_skiplock(call))
    return call.start_task("qmresume", str(call.vmid), work)


@route(f"POST {LXC}/status/suspend")
def suspend_container(call: Call) -> str:
    _running_container(call)
    return call.start_task("vzsuspend", str(call.vmid), power.checkpoint_container(_address(call, "lxc"), "-s"))


@route(f"POST {LXC}/status/resume")
def resume_container(call: Call) -> str:
    guest = call.find_guest("lxc")
    if guest is not None and guest.running:
        raise failure(f"CT {call.vmid} already running")
    return call.start_task("vzresume", str(call.vmid), power.checkpoint_container(_address(call, "lxc"), "-r"))


def _address(call: Call, kind: Kind) -> GuestAddress:
    return GuestAddress(call.world, call.node, kind, call.vmid)


def _skiplock(call: Call) -> bool:
    return bool(call.params.get("skiplock"))


def _known_vm(call: Call) -> Guest:
    """The VM of the path, in the words of the calls that look for its process."""
    guest = call.find_guest("qemu")
    if guest is None:
        raise failure(f"unable to find configuration file for VM {call.vmid} on node '{call.node}'")
    return guest


def _require_running(guest: Guest) -> None:
    if not guest.running:
        raise failure(f"{guest.word} {guest.vmid} not running")


def _running_container(call: Call) -> None:
    guest = call.find_guest("lxc")
    if guest is None or not guest.running:
        raise failure(f"CT {call.vmid} not running")


def _state_storage(guest: Guest) -> str:
    """Where the memory goes if nobody says: the configured place, or beside the first disk."""
    configured = guest.config.get("vmstatestorage")
    if configured:
        return str(configured)
    for _, volume in guest.drives():
        if "/" not in volume or not volume.partition(":")[2].startswith("iso/"):
            return volume.partition(":")[0]
    return "local"


async def _overrule_shutdown(call: Call, kind: str) -> None:
    """End shutdown tasks that hold the guest, if the caller asked for it."""
    if call.params.get("overrule-shutdown"):
        for task in call.world.tasks.active(kind=kind, target=str(call.vmid)):
            await call.world.tasks.cancel(str(task.upid))


def _ha_task(call: Call, kind: Kind, state: str, *, stop_now: bool = False) -> str | None:
    """The task that passes the wish on to the HA manager, for a guest that it cares for."""
    guest = call.find_guest(kind)
    if guest is None or call.world.managed_by_ha(guest) is None:
        return None
    name = "hastart" if state == "started" else "hastop"
    return call.start_task(name, str(call.vmid), ha_manager.pass_on(_address(call, kind), state, stop_now=stop_now))
