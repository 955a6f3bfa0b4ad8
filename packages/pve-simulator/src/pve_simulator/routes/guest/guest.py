"""Guests: lists, creation, templates, deletion, features and addresses."""

from __future__ import annotations

from typing import Any

from pve_simulator.guest_os.agents import NO_MAC, by_interface, with_link_local
from pve_simulator.guests import clone, guest_volumes, status
from pve_simulator.guests.create_container import create_container
from pve_simulator.guests.create_vm import create_vm
from pve_simulator.guests.drives import disks
from pve_simulator.guests.guest import Guest, Value
from pve_simulator.guests.new_guests import leave_pool
from pve_simulator.guests.update import check_protection
from pve_simulator.http.refusals import failure
from pve_simulator.http.routing import GUEST, LXC, Call, route
from pve_simulator.nodes.tasks import TaskContext, TaskError
from pve_simulator.routes.guest.config import existing_snapshot
from pve_simulator.routes.guest.disks import removal_log
from pve_simulator.routes.replication import Replication
from pve_simulator.storage import volumes
from pve_simulator.storage.backup_jobs import BackupJobs
from pve_simulator.storage.restore import restore_guest
from pve_simulator.storage.storages import FILE_BASED
from pve_simulator.storage.volume_names import Feature, format_of, has_feature
from pve_simulator.world import ListOrder, World


@route("POST /nodes/{node}/{kind}")
def new_guest(call: Call) -> Any:
    if call.params.get("archive") is not None or call.params.get("restore"):
        return restore_guest(call, call.kind)
    return create_vm(call) if call.kind == "qemu" else create_container(call)


@route(f"POST {GUEST}/template")
def convert(call: Call) -> str | None:
    guest, disk = call.guest(), call.params.get("disk")
    guest.check_lock()
    if guest.snapshots:
        raise failure(f"unable to create template, because {guest.word} contains snapshots")
    if guest.template and disk is None:
        raise failure("you can't convert a template to a template")
    if guest.running:
        what = "if VM is running" if call.kind == "qemu" else "if the CT is running"
        raise failure(f"you can't convert a {guest.word} to template {what}")
    upid = call.start_guest_task("template", clone.convert(call.world, guest, disk))
    return upid if call.kind == "qemu" else None  # PVE returns no UPID for a container


_SECONDS = 0.5
_STOP_SECONDS = 0.5


@route(f"DELETE {GUEST}")
def delete(call: Call) -> str:
    if call.params.get("skiplock"):
        call.root_only("skiplock")
    guest, force = call.guest(), bool(call.params.get("force"))
    tolerated = ("suspended",) if guest.kind == "qemu" else ()
    running = f"VM {guest.vmid} is running - destroy failed"
    if guest.kind == "lxc":
        running = f"unable to destroy CT {guest.vmid} - container is running"
    _check(call, guest)
    if guest.running and not force:
        raise failure(running)
    if guest.kind == "lxc":
        guest.check_lock()

    async def work(context: TaskContext) -> None:
        async with context.config_lock(guest):
            _check(call, call.guest())
            if guest.running and not force:
                raise TaskError(running)
            if not call.params.get("skiplock"):
                guest.check_lock(*tolerated)
            if guest.running:
                context.log(f"WARN: forced to stop CT {guest.vmid} before destroying!")
                await context.sleep(_STOP_SECONDS)
                guest.stop_running()
            await _destroy(call, context, guest)

    return call.start_guest_task("destroy", work)


def _check(call: Call, guest: Guest) -> None:
    """Refuse to delete a guest for reasons other than that it is running."""
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
    volids = guest_volumes.all_volumes(guest)
    if call.params.get("destroy-unreferenced-disks"):
        volids += [volume.volid for volume in volumes.owned_by(world, guest.node, guest.vmid)]
    for volid in dict.fromkeys(volids):
        _remove_volume(world, context, guest, volid)
    _forget_access(world, guest.vmid)
    if call.params.get("purge"):
        context.log(f"purging {guest.word} {guest.vmid} from related configurations..")
        _purge(world, context, guest)
    world.remove_guest(guest)


def _refuse_used_base(world: World, guest: Guest) -> None:
    """Refuse to delete a template with linked clones."""
    for volid in guest_volumes.all_volumes(guest):
        if guest_volumes.owns(world, guest, volid):
            storage = world.storages.get(volumes.split_volid(volid)[0])
            volume = None if storage is None or storage.disabled else storage.volume(guest.node, volid)
            if storage is not None and volume is not None and any(volumes.clones_of(storage, guest.node, volume)):
                raise TaskError(f"base volume '{volid}' is still in use by linked cloned")


def _remove_volume(world: World, context: TaskContext, guest: Guest, volid: str) -> None:
    """Log a volume that cannot be removed and continue."""
    if not guest_volumes.owns(world, guest, volid):
        return
    try:
        volume = volumes.find(world, guest.node, volid)
        if volume is not None:
            volumes.free(world, guest.node, volid)
            context.log(*removal_log(world, volume))
            return
        storage = world.storages[volid.partition(":")[0]]
        if storage.type in FILE_BASED:
            path = volumes.path_of(storage, volid.partition(":")[2])
            context.log(f"disk image '{path}' does not exist")
    except TaskError as error:
        context.warn(f"Could not remove disk '{volid}', check manually: {error}")


def _forget_access(world: World, vmid: int) -> None:
    """Remove its pool membership and its ACL entries."""
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


@route("GET /nodes/{node}/{kind}")
def list_guests(call: Call) -> list[dict[str, Any]]:
    rows = [
        status.list_row(call.world, guest, full=bool(call.params.get("full")))
        for guest in call.world.guests_on(call.node, call.kind)
        if call.allowed(f"/vms/{guest.vmid}", "VM.Audit")
    ]
    return call.world.part(ListOrder).shuffle(rows)


@route(f"GET {GUEST}/feature")
def feature(call: Call) -> dict[str, Any]:
    guest = call.guest() if call.kind == "lxc" else call.located_vm()
    snapname = call.params.get("snapname")
    config = guest.config if snapname is None else existing_snapshot(guest, snapname).config
    has = _all_have(call.world, config, call.params["feature"], of_snapshot=snapname is not None)
    return {"hasFeature": int(has)} | ({"nodes": _nodes_of(call.world, guest)} if call.kind == "qemu" else {})


def _all_have(world: World, config: dict[str, Value], feature: Feature, *, of_snapshot: bool) -> bool:
    return all(
        drive.storage in world.storages
        and has_feature(
            world.storages[drive.storage], drive.volid, format_of(drive.volid), feature, of_snapshot=of_snapshot
        )
        for drive in disks(config)
    )


def _nodes_of(world: World, guest: Guest) -> list[str]:
    """The nodes that can reach all disks: only its own if any disk is local."""
    nodes = list(world.nodes)
    for drive in disks(guest.config):
        storage = world.storages.get(drive.storage)
        if storage is not None:
            nodes = [node for node in nodes if storage.on_node(node) and (storage.shared or node == guest.node)]
    return nodes


@route(f"GET {LXC}/interfaces")
def container_interfaces(call: Call) -> list[dict[str, Any]] | None:
    guest = call.find_guest()
    if guest is None or not guest.running:
        return None
    rows = [_container_interface("lo", NO_MAC, [("127.0.0.1", 8), ("::1", 128)])]
    for name, addresses in by_interface(guest).items():
        rows.append(_container_interface(name, addresses[0].mac.lower(), with_link_local(addresses)))
    return rows


def _container_interface(name: str, mac: str, addresses: list[tuple[str, int]]) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "hwaddr": mac, "hardware-address": mac}
    row["ip-addresses"] = [
        {"ip-address": ip, "prefix": str(prefix), "ip-address-type": "inet6" if ":" in ip else "inet"}
        for ip, prefix in addresses
    ]
    for ip, prefix in addresses:
        row.setdefault("inet6" if ":" in ip else "inet", f"{ip}/{prefix}")
    return row
