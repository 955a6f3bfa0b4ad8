"""Removing guests, with their disks and what the cluster knows about them."""

from __future__ import annotations

from quorate.sim import guest_volumes, volumes
from quorate.sim.api.guest_disks import removal_log
from quorate.sim.backup_jobs import BackupJobs
from quorate.sim.guests import Guest
from quorate.sim.new_guests import leave_pool
from quorate.sim.refusals import failure
from quorate.sim.replication import Replication
from quorate.sim.routing import Call, route
from quorate.sim.tasks import TaskContext, TaskError
from quorate.sim.update_guest import check_protection
from quorate.sim.world import World

_SECONDS = 0.5
_STOP_SECONDS = 0.5


@route("DELETE /nodes/{node}/qemu/{vmid}")
def delete_vm(call: Call) -> str:
    if call.params.get("skiplock"):
        call.root_only("skiplock")
    guest = call.guest("qemu")
    _check(call, guest)
    if guest.running:
        raise failure(f"VM {guest.vmid} is running - destroy failed")

    async def work(context: TaskContext) -> None:
        async with context.config_lock(guest):
            _check(call, call.guest("qemu"))
            if guest.running:
                raise TaskError(f"VM {guest.vmid} is running - destroy failed")
            if not call.params.get("skiplock"):
                guest.check_lock("suspended")
            await _destroy(call, context, guest)

    return call.start_task("qmdestroy", str(guest.vmid), work)


@route("DELETE /nodes/{node}/lxc/{vmid}")
def delete_container(call: Call) -> str:
    guest = call.guest("lxc")
    _check(call, guest)
    running = f"unable to destroy CT {guest.vmid} - container is running"
    force = bool(call.params.get("force"))
    if guest.running and not force:
        raise failure(running)
    guest.check_lock()

    async def work(context: TaskContext) -> None:
        async with context.config_lock(guest):
            _check(call, call.guest("lxc"))
            guest.check_lock()
            if guest.running and not force:
                raise TaskError(running)
            if guest.running:
                context.log(f"WARN: forced to stop CT {guest.vmid} before destroying!")
                await context.sleep(_STOP_SECONDS)
                guest.stop_running()
            await _destroy(call, context, guest)

    return call.start_task("vzdestroy", str(guest.vmid), work)


def _check(call: Call, guest: Guest) -> None:
    """What keeps a guest from being removed, apart from its running."""
    check_protection(guest.config, f"can't remove {guest.word} {guest.vmid}")
    if call.params.get("purge"):
        return
    if guest.sid in call.world.ha:
        raise failure(f"unable to remove {guest.word} {guest.vmid} - used in HA resources and purge parameter not set.")
    for job in call.world.part(Replication).of_guest(guest.vmid):
        raise failure(f"There is a replication job '{job.id}' for guest '{guest.vmid}' - Please remove that first.")


async def _destroy(call: Call, context: TaskContext, guest: Guest) -> None:
    world = call.world
    _refuse_used_base(world, guest)
    await context.sleep(_SECONDS)
    doomed = guest_volumes.all_volumes(guest)
    if call.params.get("destroy-unreferenced-disks"):
        doomed += [volume.volid for volume in volumes.owned_by(world, guest.node, guest.vmid)]
    for volid in dict.fromkeys(doomed):
        _remove_volume(world, context, guest, volid)
    _forget_access(world, guest.vmid)
    if call.params.get("purge"):
        context.log(f"purging {guest.word} {guest.vmid} from related configurations..")
        _purge(world, context, guest)
    world.remove_guest(guest)


def _refuse_used_base(world: World, guest: Guest) -> None:
    """A template stays as long as linked clones build on its disks."""
    for volid in guest_volumes.all_volumes(guest):
        if guest_volumes.owns(world, guest, volid):
            storage = world.storages.get(volumes.split_volid(volid)[0])
            volume = None if storage is None or storage.disabled else storage.volume(guest.node, volid)
            if storage is not None and volume is not None and any(volumes.clones_of(storage, guest.node, volume)):
                raise TaskError(f"base volume '{volid}' is still in use by linked cloned")


def _remove_volume(world: World, context: TaskContext, guest: Guest, volid: str) -> None:
    """A volume that cannot be removed is told, and the rest goes on."""
    if not guest_volumes.owns(world, guest, volid):
        return
    try:
        volume = volumes.find(world, guest.node, volid)
        if volume is not None:
            volumes.free(world, guest.node, volid)
            for line in removal_log(world, volume):
                context.log(line)
    except TaskError as error:
        context.warn(f"Could not remove disk '{volid}', check manually: {error}")


def _forget_access(world: World, vmid: int) -> None:
    """Its membership in a pool and the roles given on it."""
    leave_pool(world.access, vmid)
    for entry in [entry for entry in world.access.acl() if entry.path == f"/vms/{vmid}"]:
        world.access.revoke(entry.path, entry.role, entry.kind, entry.subject)


def _purge(world: World, context: TaskContext, guest: Guest) -> None:
    replication = world.part(Replication)
    for job in replication.of_guest(guest.vmid):
        replication.remove(job.id)
    world.part(BackupJobs).forget_guest(guest.vmid)
    if world.ha.pop(guest.sid, None) is not None:
        context.log(f"NOTE: removed {guest.word} {guest.vmid} from HA resource configuration.")
