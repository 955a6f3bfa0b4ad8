"""Migration of guests: preconditions, the task, and remote migration."""

from __future__ import annotations

from typing import Any

from pve_simulator.cluster.ha_manager import HaManager
from pve_simulator.guests import migration, remote_migration
from pve_simulator.guests.drives import all_drives
from pve_simulator.guests.guest import Guest, task_type
from pve_simulator.guests.local_volumes import StorageMap, local_volumes, parse_storage_map
from pve_simulator.guests.migration import Migration
from pve_simulator.guests.power import GuestAddress
from pve_simulator.http.parameters import split_pairs
from pve_simulator.http.refusals import bad_parameters, failure
from pve_simulator.http.routing import GUEST, LXC, QEMU, Call, route
from pve_simulator.nodes.tasks import TaskContext, TaskError
from pve_simulator.routes.replication import Replication
from pve_simulator.storage import volumes


@route(f"GET {QEMU}/migrate", needs_quorum=True)
def vm_preconditions(call: Call) -> dict[str, Any]:
    guest = call.guest()
    guest.check_lock()
    blocked = _unavailable_storages(call, guest)
    for node in call.world.nodes:
        if missing := migration.missing_mappings(call.world, guest, node):
            blocked.setdefault(node, {})["unavailable-resources"] = missing
    mapped = migration.mapped_devices(call.world, guest)
    dependent = _add_blocking_resources(call, guest, blocked)
    nodes = [node for node in call.world.nodes if node != call.node]
    preconditions: dict[str, Any] = {
        "running": int(guest.running),
        "allowed_nodes": [node for node in nodes if node not in blocked],
        "not_allowed_nodes": {node: blocked.get(node, {}) for node in nodes},  # also those that are allowed
        "local_disks": [volume.as_dict() for volume in local_volumes(call.world, guest)],
        "local_resources": migration.local_devices(call.world, guest),
        "mapped-resources": list(mapped),
        "mapped-resource-info": mapped,
    }
    if call.world.version_at_least(9, 0):
        preconditions["has-dbus-vmstate"] = 1
    return preconditions | dependent


@route(f"GET {LXC}/migrate")
def container_preconditions(call: Call) -> dict[str, Any]:
    guest = call.guest()
    guest.check_lock()
    blocked: dict[str, dict[str, Any]] = {}
    dependent = _add_blocking_resources(call, guest, blocked)
    nodes = [node for node in call.world.nodes if node != call.node]
    return {
        "running": int(guest.running),
        "allowed-nodes": [node for node in nodes if node not in blocked],
        "not-allowed-nodes": blocked,
    } | dependent


def _unavailable_storages(call: Call, guest: Guest) -> dict[str, dict[str, Any]]:
    blocked: dict[str, dict[str, Any]] = {}
    for storage_id in sorted({drive.storage for drive in all_drives(guest.config)}):
        storage = call.world.storages.get(storage_id)
        for node in call.world.nodes:
            if storage is not None and node != call.node and (storage.disabled or not storage.on_node(node)):
                blocked.setdefault(node, {}).setdefault("unavailable_storages", []).append(storage_id)
    return blocked


def _add_blocking_resources(call: Call, guest: Guest, blocked: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Add the HA resources that block a move of this guest or move along."""
    if not call.world.version_at_least(9, 0) or call.world.managed_by_ha(guest) is None:
        return {}
    dependent, blocking = call.world.part(HaManager).motion_of(guest.sid)
    for node, resources in blocking.items():
        if node != call.node:
            blocked.setdefault(node, {})["blocking-ha-resources"] = resources
    return {"dependent-ha-resources": dependent}


@route(f"POST {QEMU}/migrate")
def migrate_vm(call: Call) -> str:
    target = _check_target(call)
    call.root_only(*(name for name in ("force", "migration_type", "migration_network") if call.params.get(name)))
    guest = call.guest()
    guest.check_lock()
    online = bool(call.params.get("online"))
    if guest.running:
        if not online:
            raise failure("can't migrate running VM without --online")
        _check_replication(call, guest, target)
    storages = parse_storage_map("targetstorage", call.params.get("targetstorage"))
    _check_storage_map(call, storages, target, "images")
    if storages.identity or not storages.specified:
        _check_availability(call, guest, target)
    if call.world.managed_by_ha(guest) is not None:
        return _request_ha_migration(call, guest, target)
    request = Migration(GuestAddress.of(call), target, online=online, storages=storages)
    request.with_local_disks, request.force = bool(call.params.get("with-local-disks")), bool(call.params.get("force"))
    return call.start_task("qmigrate", str(guest.vmid), migration.run(request))


@route(f"POST {LXC}/migrate")
def migrate_container(call: Call) -> str:
    target = _check_target(call)
    guest = call.guest()
    online, restart = bool(call.params.get("online")), bool(call.params.get("restart"))
    if guest.running and not online and not restart:
        raise failure("can't migrate running container without --online or --restart")
    storages = parse_storage_map("target-storage", call.params.get("target-storage"))
    _check_storage_map(call, storages, target, "rootdir")
    if call.world.managed_by_ha(guest) is not None:
        return _request_ha_migration(call, guest, target)
    request = Migration(GuestAddress.of(call), target, online=online, restart=restart, storages=storages)
    request.timeout = call.params.get("timeout", 180)
    return call.start_task("vzmigrate", str(guest.vmid), migration.run(request))


def _check_target(call: Call) -> str:
    target: str = call.params["target"]
    if target == call.node:
        raise bad_parameters({"target": "target is local node."})
    if target not in call.world.nodes:
        raise failure(f"no such cluster node '{target}'")
    return target


def _check_replication(call: Call, guest: Guest, target: str) -> None:
    jobs = call.world.part(Replication).of_guest(guest.vmid)
    if jobs and not call.params.get("force") and all(job.target != target for job in jobs):
        raise failure(
            f"Cannot live-migrate replicated VM to node '{target}' - not a replication target. Use 'force' to override."
        )


def _check_storage_map(call: Call, storages: StorageMap, target: str, content: str) -> None:
    if storages.specified and not storages.identity:
        call.require(f"/vms/{call.vmid}", "VM.Config.Disk")
    for storage_id in storages.targets():
        call.require(f"/storage/{storage_id}", "Datastore.AllocateSpace")
        storage = volumes.usable_storage(call.world, target, storage_id)
        if content not in storage.content:
            what = "vm images" if content == "images" else "container directories"
            raise failure(f"storage '{storage_id}' does not support {what}")


def _check_availability(call: Call, guest: Guest, target: str) -> None:
    for drive in all_drives(guest.config):
        if ":" in drive.volid:
            volumes.usable_storage(call.world, target, drive.storage)


def _request_ha_migration(call: Call, guest: Guest, target: str) -> str:
    async def work(context: TaskContext) -> None:
        context.log(f"Requesting HA migration for {guest.word} {guest.vmid} to node {target}")
        await context.sleep(0.3)
        blocking = call.world.part(HaManager).request_move(guest.sid, "migrate", target)
        if blocking:
            context.log(f"cannot migrate resource '{guest.sid}' to node '{target}':")
            for each in blocking:
                context.log(
                    f"- resource '{each['sid']}' on target node '{target}'"
                    f" in negative affinity with resource '{guest.sid}'"
                )
            raise TaskError(f"command 'ha-manager migrate {guest.sid} {target}' failed: exit code 255")

    return call.start_task("hamigrate", str(guest.vmid), work)


@route(f"POST {GUEST}/remote_migrate")
def migrate_elsewhere(call: Call) -> str:
    guest, params = call.guest(), call.params
    guest.check_lock()
    if guest.kind == "lxc" and guest.running and not params.get("online") and not params.get("restart"):
        raise failure("can't migrate running container without --online or --restart")
    if call.world.managed_by_ha(guest) is not None:
        raise bad_parameters({"vmid": f"cannot migrate HA-managed {guest.word} to remote cluster"})
    endpoint = split_pairs(str(params["target-endpoint"]))
    if guest.kind == "qemu" and "fingerprint" in endpoint:  # otherwise PVE first fetches the remote certificate
        if call.world.part(Replication).of_guest(guest.vmid):
            raise failure("cannot remote-migrate replicated VM")
        if guest.running and not params.get("online"):
            raise failure("can't migrate running VM without --online")
    target, node = remote_migration.connect(endpoint)
    migration = remote_migration.RemoteMigration(
        call.world,
        guest,
        target,
        node,
        int(call.params.get("target-vmid", guest.vmid)),
        remote_migration.mapping(str(call.params["target-storage"])),
        remote_migration.mapping(str(call.params["target-bridge"])),
        bool(call.params.get("delete")),
    )
    return call.start_task(task_type(guest.kind, "migrate"), str(guest.vmid), remote_migration.run(migration))
