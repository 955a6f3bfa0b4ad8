"""Cloning guests. PVE refuses most errors at once; a non-shared target on another node fails in the task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pve_simulator.guests.clone import ClonePlan, clone_container, clone_vm, new_config
from pve_simulator.guests.drives import Drive, all_drives
from pve_simulator.guests.guest import Guest, Value
from pve_simulator.guests.options import normalize_description
from pve_simulator.http.parameters import split_pairs
from pve_simulator.http.refusals import failure, forbidden
from pve_simulator.http.routing import LXC, QEMU, Call, route
from pve_simulator.nodes.tasks import config_lock
from pve_simulator.storage import volumes
from pve_simulator.storage.storages import FILE_BASED
from pve_simulator.storage.volume_names import Feature, format_of, has_feature


@route(f"POST {QEMU}/clone")
def clone_virtual_machine(call: Call) -> str:
    target = _check_destination(call)
    guest = call.located_vm()
    guest.check_lock()
    config = _config_to_clone(call, guest)
    full = _full(call, guest)
    _check_storage_access(call, "VM", config, target)
    _check_bridges(call, config)
    newid = call.params["newid"]
    if call.world.find_guest(call.node, "qemu", newid) is not None:
        raise failure(f"unable to create VM {newid}: config file already exists")
    plan = _plan(call, guest, config, target)
    for drive in sorted(all_drives(config), key=lambda drive: drive.key):
        if drive.is_cdrom and not drive.is_cloudinit:
            continue  # the clone keeps the CD-ROM
        copied = full or drive.is_cloudinit or drive.key == "tpmstate0"
        if drive.key == "tpmstate0" and guest.running and full and plan.snapname is None:
            raise failure("cannot clone TPM state while VM is running")
        _check_vm_feature(call, drive, copied=copied)
        plan.drives.append(drive)
        plan.full |= {drive.key} if copied else set()
    _drop_drives(plan)
    own_name = guest.config.get("name", guest.vmid)
    plan.config["name"] = call.params.get("name") or f"Copy-of-VM-{own_name}"
    return call.start_guest_task("clone", clone_vm(plan))


@route(f"POST {LXC}/clone")
async def clone_lxc_container(call: Call) -> str:
    target = _check_destination(call)
    guest = call.guest()
    async with config_lock(call.world.clock, guest):  # until a conversion to a template is done
        call.guest().check_lock()
    newid = call.params["newid"]
    other = call.world.guests.get(newid)
    if other is not None:
        raise failure(f"{other.word} {newid} already exists on node '{other.node}'")
    full = _full(call, guest)
    config = _config_to_clone(call, guest)
    plan = _plan(call, guest, config, target)
    for drive in all_drives(config):
        _check_container_drive(call, guest, drive, full=full)
        plan.drives.append(drive)
        plan.full |= {drive.key} if full else set()
    _check_bridges(call, config)
    if target is not None and not _all_shared(call, config):
        raise failure(f"can't clone CT to node '{target}' (CT uses local storage)")
    _drop_drives(plan)
    plan.config["hostname"] = call.params.get("hostname") or guest.name
    return call.start_guest_task("clone", clone_container(plan))


def _check_destination(call: Call) -> str | None:
    """Check pool, node and storage of the clone; the node only if it differs."""
    pool = call.params.get("pool")
    if pool is not None and pool not in call.world.access.pools:
        raise forbidden(f"pool '{pool}' does not exist")
    target: str | None = call.params.get("target")
    target = None if target in (call.node, "localhost") else target
    if target is not None and target not in call.world.nodes:
        raise failure(f"no such cluster node '{target}'")
    storage_id = call.params.get("storage")
    if storage_id is not None:
        storage = volumes.usable_storage(call.world, call.node, storage_id)
        if target is not None:
            volumes.usable_storage(call.world, target, storage_id)
            if not storage.shared:
                raise failure(f"can't clone to non-shared storage '{storage_id}'")
    return target


def _config_to_clone(call: Call, guest: Guest) -> dict[str, Value]:
    snapname = call.params.get("snapname")
    if snapname is None:
        return guest.config
    if snapname not in guest.snapshots:
        raise failure(f"snapshot '{snapname}' does not exist")
    snapshot = guest.snapshots[snapname]
    return snapshot.config | ({"description": snapshot.description} if snapshot.description else {})


def _full(call: Call, guest: Guest) -> bool:
    """Whether to make a full clone: the default, except for templates."""
    full = bool(call.params.get("full", not guest.template))
    if not full:
        for name in ("storage", "format"):
            if name in call.params:
                raise failure(f"parameter '{name}' not allowed for linked clones")
    return full


def _plan(call: Call, guest: Guest, config: dict[str, Value], target: str | None) -> ClonePlan:
    params: dict[str, Any] = call.params
    plan = ClonePlan(call.world, guest, params["newid"], new_config(call.world, guest, config), [], set())
    plan.snapname, plan.storage, plan.format = (params.get(name) for name in ("snapname", "storage", "format"))
    plan.target, plan.pool = target, params.get("pool")
    if params.get("description"):
        plan.config["description"] = normalize_description(guest.kind, params["description"])
    return plan


def _drop_drives(plan: ClonePlan) -> None:
    """Remove the drives; each is added when its volume exists."""
    for drive in plan.drives:
        plan.config.pop(drive.key, None)


def _check_storage_access(call: Call, word: str, config: dict[str, Value], target: str | None) -> None:
    for storage_id in _storages(call, config):
        call.require(f"/storage/{storage_id}", "Datastore.AllocateSpace")
    if target is not None and not _all_shared(call, config):
        raise failure(f"can't clone {word} to node '{target}' ({word} uses local storage)")


def _storages(call: Call, config: dict[str, Value]) -> Iterator[str]:
    for drive in all_drives(config):
        if not drive.is_cdrom or drive.is_cloudinit:
            yield call.params.get("storage") or drive.storage


def _all_shared(call: Call, config: dict[str, Value]) -> bool:
    storages = set(_storages(call, config))
    storages |= {drive.storage for drive in all_drives(config) if drive.is_cdrom and not drive.is_cloudinit}
    known = call.world.storages
    return all(storage_id in known and known[storage_id].shared for storage_id in storages)


def _check_bridges(call: Call, config: dict[str, Value]) -> None:
    for key, value in config.items():
        if key.startswith("net") and key[3:].isdecimal():
            options = split_pairs(str(value))
            if "bridge" in options:
                tag = f"/{options['tag']}" if "tag" in options else ""
                call.require(f"/sdn/zones/localnetwork/{options['bridge']}{tag}", "SDN.Use")


def _check_vm_feature(call: Call, drive: Drive, *, copied: bool) -> None:
    of_snapshot = "snapname" in call.params and not drive.is_cloudinit
    storage = volumes.usable_storage(call.world, call.node, drive.storage)
    feature: Feature = "copy" if copied else "clone"
    if not has_feature(storage, drive.volid, format_of(drive.volid), feature, of_snapshot=of_snapshot):
        what = "a snapshot of " if of_snapshot else ""
        kind = "Full" if copied else "Linked"
        raise failure(f"{kind} clone feature is not supported for {what}'{drive.volid}' ({drive.key})")


def _check_container_drive(call: Call, guest: Guest, drive: Drive, *, full: bool) -> None:
    if drive.is_bind_mount:
        kind = "device" if drive.volid.startswith("/dev/") else "bind"
        raise failure(f"unable to clone mountpoint '{drive.key}' (type {kind})")
    call.require(f"/storage/{call.params.get('storage') or drive.storage}", "Datastore.AllocateSpace")
    of_snapshot = "snapname" in call.params
    if full:
        if guest.running and not of_snapshot:
            raise failure("Full clone of a running container is only possible from a snapshot")
        return
    storage = volumes.usable_storage(call.world, call.node, drive.storage)
    fmt = format_of(drive.volid)
    in_file = storage.type in FILE_BASED and storage.type != "btrfs" and fmt == "raw"
    if in_file or not has_feature(storage, drive.volid, fmt, "clone", of_snapshot=of_snapshot):
        raise failure(f"Linked clone feature for '{drive.volid}' is not available")
