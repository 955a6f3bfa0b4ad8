"""Status and power of guests: synchronous checks here, the work of the tasks in `guests.power`."""

from __future__ import annotations

from typing import Any

from pve_simulator.cluster import ha_manager
from pve_simulator.guests import power, status
from pve_simulator.guests.power import GuestAddress
from pve_simulator.http.refusals import failure
from pve_simulator.http.routing import GUEST, LXC, QEMU, Call, route
from pve_simulator.nodes.tasks import TaskContext, Work
from pve_simulator.routes.guest.snapshot import state_storage


@route(f"GET {GUEST}/status/current")
def current(call: Call) -> dict[str, Any]:
    return status.current(call.world, call.guest())


@route(f"POST {GUEST}/status/start")
def start(call: Call) -> str:
    call.root_only("skiplock", "migratedfrom", "stateuri", "migration_type", "migration_network", "targetstorage")
    guest = call.find_guest()
    if guest is not None and guest.kind == "lxc" and guest.running:
        raise failure(f"CT {call.vmid} already running")
    work = power.start(GuestAddress.of(call), skiplock=_skiplock(call))
    return _ha_task(call, "started") or call.start_guest_task("start", work)


@route(f"POST {GUEST}/status/stop")
async def stop(call: Call) -> str:
    call.root_only("skiplock", "keepActive", "migratedfrom")
    _require_running_container(call)
    requested = _ha_task(call, "stopped", stop_now=True)
    if requested:
        return requested
    overruled = await _overrule_shutdown(call, "qmshutdown" if call.kind == "qemu" else "vzshutdown")
    work = power.stop(GuestAddress.of(call), skiplock=_skiplock(call))
    return call.start_guest_task("stop", _after_note(overruled, work))


@route(f"POST {GUEST}/status/shutdown")
def shut_down(call: Call) -> str:
    call.root_only("skiplock", "keepActive")
    _require_running_container(call)
    address, force_stop = GuestAddress.of(call), bool(call.params.get("forceStop"))
    guest = call.find_guest()
    if guest is not None and guest.paused and not force_stop:
        raise failure("VM is paused - cannot shutdown")
    requested = _ha_task(call, "stopped")
    if requested:
        return requested
    if guest is not None and guest.paused:
        return call.start_guest_task("shutdown", power.stop(address, skiplock=_skiplock(call)))
    timeout = call.params.get("timeout", None if call.kind == "qemu" else power.DEFAULT_SHUTDOWN_TIMEOUT)
    work = power.shutdown(address, timeout=timeout, force_stop=force_stop, skiplock=_skiplock(call))
    return call.start_guest_task("shutdown", work)


@route(f"POST {GUEST}/status/reboot")
def reboot(call: Call) -> str:
    guest = call.find_guest() if call.kind == "lxc" else call.located_vm()
    if guest is not None and guest.paused:
        raise failure("VM is paused - cannot shutdown")
    if guest is None or not guest.running:
        raise failure(f"VM {call.vmid} not running")  # PVE says VM for containers as well
    work = power.reboot(GuestAddress.of(call), timeout=call.params.get("timeout"))
    return call.start_guest_task("reboot", work)


@route(f"POST {QEMU}/status/reset")
def reset(call: Call) -> str:
    call.root_only("skiplock")
    _require_running_vm(call)
    return call.start_guest_task("reset", power.reset(GuestAddress.of(call), skiplock=_skiplock(call)))


@route(f"POST {QEMU}/status/suspend")
def suspend_vm(call: Call) -> str:
    call.root_only("skiplock")
    _require_running_vm(call)
    if not call.params.get("todisk"):
        return call.start_guest_task("pause", power.pause(GuestAddress.of(call), skiplock=_skiplock(call)))
    call.require(f"/vms/{call.vmid}", "VM.Config.Disk")
    storage_id = call.params.get("statestorage") or state_storage(call.world, call.guest())
    storage = call.world.storage(storage_id)
    call.require(f"/storage/{storage_id}", "Datastore.AllocateSpace")
    work = power.suspend_to_disk(GuestAddress.of(call), storage, skiplock=_skiplock(call))
    return call.start_guest_task("suspend", work)


@route(f"POST {QEMU}/status/resume")
def resume_vm(call: Call) -> str:
    call.root_only("skiplock", "nocheck")
    if call.located_vm().lock != "suspended":
        _require_running_vm(call)
    return call.start_guest_task("resume", power.resume(GuestAddress.of(call), skiplock=_skiplock(call)))


@route(f"POST {LXC}/status/suspend")
def suspend_container(call: Call) -> str:
    _require_running_container(call)
    return call.start_guest_task("suspend", power.checkpoint_container(GuestAddress.of(call)))


@route(f"POST {LXC}/status/resume")
def resume_container(call: Call) -> str:
    guest = call.find_guest()
    if guest is not None and guest.running:
        raise failure(f"CT {call.vmid} already running")
    return call.start_guest_task("resume", power.restore_container(GuestAddress.of(call)))


def _skiplock(call: Call) -> bool:
    return bool(call.params.get("skiplock"))


def _require_running_vm(call: Call) -> None:
    if not call.located_vm().running:
        raise failure(f"VM {call.vmid} not running")


def _require_running_container(call: Call) -> None:
    """Only containers are refused at once; for a stopped VM the task fails."""
    guest = call.find_guest()
    if call.kind == "lxc" and (guest is None or not guest.running):
        raise failure(f"CT {call.vmid} not running")


async def _overrule_shutdown(call: Call, kind: str) -> list[str]:
    """Abort running shutdown tasks of the guest, if requested; returns the log lines about them."""
    if not call.params.get("overrule-shutdown"):
        return []
    ended = [str(task.upid) for task in call.world.tasks.active(kind=kind, target=str(call.vmid))]
    for upid in ended:
        await call.world.tasks.cancel(upid)
    return [f"overruled {kind} tasks: {', '.join(ended)}"] if ended else []


def _after_note(lines: list[str], work: Work) -> Work:
    async def log_and_work(context: TaskContext) -> None:
        context.log(*lines)
        await work(context)

    return log_and_work


def _ha_task(call: Call, state: str, *, stop_now: bool = False) -> str | None:
    """The task that passes the request to the HA manager."""
    guest = call.find_guest()
    if guest is None or call.world.managed_by_ha(guest) is None:
        return None
    name = "hastart" if state == "started" else "hastop"
    return call.start_task(
        name, str(call.vmid), ha_manager.notify_manager(GuestAddress.of(call), state, stop_now=stop_now)
    )
