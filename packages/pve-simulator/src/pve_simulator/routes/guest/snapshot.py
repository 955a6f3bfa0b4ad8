"""Snapshots of guests: take, describe, roll back, delete, with the tree of parents and the saved memory.

Most refusals come from inside the task.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pve_simulator.guest_os.machine import Machines
from pve_simulator.guests import power
from pve_simulator.guests.drives import Drive, Identities, add_unused, all_drives, disks, is_unused_key
from pve_simulator.guests.guest import GIB, Guest, Snapshot, Value, size_of_drive, task_type
from pve_simulator.guests.guest_volumes import Log, silent
from pve_simulator.guests.options import normalize_description
from pve_simulator.guests.power import SECONDS, GuestAddress
from pve_simulator.guests.status import SAVED_STATE, running_hardware
from pve_simulator.guests.tool_output import amount
from pve_simulator.http.refusals import existing, failure
from pve_simulator.http.routing import GUEST, Call, route
from pve_simulator.nodes.tasks import TaskContext, TaskError, Work
from pve_simulator.routes.guest.config import existing_snapshot, shown_snapshot
from pve_simulator.storage import volumes
from pve_simulator.storage.storages import Volume
from pve_simulator.storage.volume_names import format_of, has_feature
from pve_simulator.world import ListOrder, World

# Options that a snapshot does not contain.
_NOT_KEPT = frozenset({"parent", "lock", "description", "vmstate", "snaptime", "snapstate"})
_SECONDS_PER_DISK = 0.5


def create_work(address: GuestAddress, name: str, description: str, *, vmstate: bool) -> Work:
    """Take a snapshot; memory is saved only for running VMs."""

    async def work(context: TaskContext) -> None:
        guest = address.load()
        with ExitStack() as held:
            async with context.config_lock(guest):
                _check_can_snapshot(address.world, guest, name)
                held.enter_context(guest.hold_lock("snapshot"))
                snapshot = held.enter_context(_prepare_snapshot(address.world, guest, name, description))
            if vmstate and guest.running:
                volume = power.state_volume(context, address.world, guest, name, state_storage(address.world, guest))
                snapshot.vmstate = True
                snapshot.config |= {"vmstate": volume.volid, **running_hardware(guest)}
                await _save_memory(context, guest, volume)
            for drive in disks(guest.config):
                if guest.kind == "qemu":
                    context.log(f"snapshotting 'drive-{drive.key}' ({drive.volid})")
                    if guest.running and format_of(drive.volid) == "qcow2":
                        context.log("internal qemu snapshot")
                await context.sleep(_SECONDS_PER_DISK)
            snapshot.state = None
            guest.config["parent"] = name
            guest.touch()

    return work


def _check_can_snapshot(world: World, guest: Guest, name: str) -> None:
    if guest.template:
        raise TaskError("you can't take a snapshot if it's a template")
    guest.check_lock()
    if name in guest.snapshots:
        raise TaskError(f"snapshot name '{name}' already used")
    if not can_snapshot(world, guest):
        raise TaskError("snapshot feature is not available")


def can_snapshot(world: World, guest: Guest) -> bool:
    """Whether all disks support snapshots."""
    return all(
        drive.storage in world.storages
        and has_feature(world.storages[drive.storage], drive.volid, format_of(drive.volid), "snapshot")
        for drive in disks(guest.config)
    )


@contextmanager
def _prepare_snapshot(world: World, guest: Guest, name: str, description: str) -> Iterator[Snapshot]:
    """Add the new snapshot to the configuration; remove it again unless its state is cleared at the end."""
    parent = guest.config.get("parent")
    snapshot = Snapshot(
        name,
        int(world.clock.now()),
        _kept_config(guest.config),
        description,
        None if parent is None else str(parent),
        state="prepare",
        files=world.part(Machines).snapshot_files(guest),
    )
    guest.snapshots[name] = snapshot
    try:
        yield snapshot
    finally:
        if snapshot.state is not None:
            guest.snapshots.pop(name, None)
            _free_state(world, guest, snapshot)
        guest.touch()


def _kept_config(config: dict[str, Value]) -> dict[str, Value]:
    return {key: value for key, value in config.items() if key not in _NOT_KEPT and not is_unused_key(key)}


async def _save_memory(context: TaskContext, guest: Guest, volume: Volume) -> None:
    context.log(f"saving VM state and RAM using storage '{volume.volid.partition(':')[0]}'")
    seconds = max(1, min(4, guest.memory // GIB))
    for second in range(seconds):
        context.log(f"{amount(volume.used * second // seconds, 2)} in {second}s")
        await context.sleep(1.0)
    context.log(f"completed saving the VM state in {seconds}s, saved {amount(volume.used, 2)}")


def state_storage(world: World, guest: Guest) -> str:
    """The storage for memory: the configured one, else that of a shared disk, else that of the first disk."""
    configured = guest.config.get("vmstatestorage")
    if configured:
        return str(configured)
    used = [drive.storage for drive in disks(guest.config) if drive.storage in world.storages]
    shared = [storage_id for storage_id in used if world.storages[storage_id].shared]
    return next(iter(shared + used), "local")


def _free_state(world: World, guest: Guest, snapshot: Snapshot) -> None:
    volid = snapshot.config.pop("vmstate", None)
    if volid is not None:
        volumes.free(world, guest.node, str(volid))


def _free_left_cloudinit(world: World, guest: Guest, log: Log = silent) -> None:
    """Delete a cloud-init image without references: it can be regenerated."""
    configs = (guest.config, guest.pending, *(snapshot.config for snapshot in guest.snapshots.values()))
    named = {drive.volid for config in configs for drive in all_drives(config)}
    for volume in volumes.owned_by(world, guest.node, guest.vmid):
        if volume.volid not in named and Drive("", "", volume.volid).is_cloudinit:
            log(f"found unused cloudinit disk '{volume.volid}', removing it")
            volumes.free(world, guest.node, volume.volid)


def delete_work(address: GuestAddress, name: str) -> Work:
    """Remove a snapshot; its children get its parent."""

    async def work(context: TaskContext) -> None:
        guest = address.load()
        snapshot = _snapshot(guest, name)
        with ExitStack() as held:
            async with context.config_lock(guest):
                held.enter_context(guest.hold_lock("snapshot-delete"))
                if guest.template:
                    raise TaskError("you can't delete a snapshot if vm is a template")
                snapshot.state = "delete"
            for _ in disks(snapshot.config):
                await context.sleep(_SECONDS_PER_DISK)
            _free_state(address.world, guest, snapshot)
            forget(guest, snapshot)
            _free_left_cloudinit(address.world, guest)

    return work


def forget(guest: Guest, snapshot: Snapshot) -> None:
    """Remove a snapshot from the tree, and keep disks that only it refers to as unused."""
    del guest.snapshots[snapshot.name]
    for other in guest.snapshots.values():
        if other.parent == snapshot.name:
            other.parent = snapshot.parent
    if guest.config.get("parent") == snapshot.name:
        if snapshot.parent is None:
            del guest.config["parent"]
        else:
            guest.config["parent"] = snapshot.parent
    known = {drive.volid for drive in disks(guest.config)}
    known |= {drive.volid for other in guest.snapshots.values() for drive in disks(other.config)}
    for drive in disks(snapshot.config):
        if drive.volid not in known:
            add_unused(guest.config, drive.volid)
    guest.touch()


def _snapshot(guest: Guest, name: str) -> Snapshot:
    return existing(guest.snapshots.get(name), TaskError(f"snapshot '{name}' does not exist"))


def roll_back_work(address: GuestAddress, name: str, start: Work | None, user: str) -> Work:
    """Roll back: the guest is stopped, and runs again if memory was saved or `start` is set."""

    async def work(context: TaskContext) -> None:
        guest = address.load()
        with ExitStack() as held:
            async with context.config_lock(guest):
                snapshot = _check_can_roll_back(address.world, guest, name)
                if guest.running:
                    await context.sleep(SECONDS[guest.kind]["stop"])
                    guest.stop_running()
                held.enter_context(guest.hold_lock("rollback"))
            for _ in disks(snapshot.config):
                await context.sleep(_SECONDS_PER_DISK)
            _apply(address.world, guest, snapshot)
            _free_left_cloudinit(address.world, guest, context.log)
        if snapshot.vmstate:
            await context.sleep(SECONDS[guest.kind]["start"])
            guest.start_running(context.clock.now(), address.world.nodes[guest.node].next_pid())
        elif start is not None:
            kind = task_type(guest.kind, "start")
            address.world.tasks.start(guest.node, kind, str(guest.vmid), user, start, inside=True)

    return work


def _check_can_roll_back(world: World, guest: Guest, name: str) -> Snapshot:
    if guest.template:
        raise TaskError("you can't rollback if vm is a template")
    snapshot = _snapshot(guest, name)
    later = list(guest.snapshots.values())[list(guest.snapshots).index(name) + 1 :]
    for drive in disks(snapshot.config):
        storage = world.storages.get(drive.storage)
        blocked = any(drive.volid == other.volid for each in later for other in disks(each.config))
        if storage is not None and storage.type == "zfspool" and blocked:
            raise TaskError(f"can't rollback, '{name}' is not most recent snapshot on '{drive.volid}'")
    if snapshot.state is not None:
        raise TaskError(f"unable to rollback to incomplete snapshot (snapstate = {snapshot.state})")
    guest.check_lock()
    return snapshot


def _apply(world: World, guest: Guest, snapshot: Snapshot) -> None:
    """Make the snapshot's configuration current; later disks become unused."""
    kept = {key: value for key, value in guest.config.items() if is_unused_key(key) or key in ("description", "lock")}
    in_snapshot = {drive.volid for drive in disks(snapshot.config)}
    for drive in disks(guest.config):
        if drive.volid not in in_snapshot:
            add_unused(kept, drive.volid)
    for key in [key for key, value in kept.items() if is_unused_key(key) and value in in_snapshot]:
        del kept[key]
    restored = {key: value for key, value in snapshot.config.items() if key not in SAVED_STATE}
    guest.config.clear()
    guest.config.update(restored | kept)
    guest.config["parent"] = snapshot.name
    if "vmgenid" in guest.config:  # tells the guest's system that time has jumped
        guest.config["vmgenid"] = world.part(Identities).uuid()
    guest.pending.clear()
    guest.pending_delete.clear()
    _restore_sizes(world, guest)
    world.part(Machines).restore_files(guest, snapshot.files)
    guest.touch()


def _restore_sizes(world: World, guest: Guest) -> None:
    for drive in disks(guest.config):
        volume = volumes.find(world, guest.node, drive.volid)
        size = size_of_drive(drive.text)
        if volume is not None and size and size != volume.size:
            volumes.resize(world, guest.node, drive.volid, size)


_ONE = f"{GUEST}/snapshot/{{snapname}}"
_RESERVED = {"qemu": ("current", "pending"), "lxc": ("current", "vzdump")}


@route(f"GET {GUEST}/snapshot")
def snapshots(call: Call) -> list[dict[str, Any]]:
    guest = call.guest()
    rows = [_snapshot_row(guest, snapshot) for snapshot in guest.snapshots.values()]
    here: dict[str, Any] = {
        "name": "current",
        "description": "You are here!",
        "running": int(guest.running),
        "digest": guest.digest(),
    }
    if "parent" in guest.config:
        here["parent"] = guest.config["parent"]
    return [*call.world.part(ListOrder).shuffle(rows), here]


def _snapshot_row(guest: Guest, snapshot: Snapshot) -> dict[str, Any]:
    row: dict[str, Any] = {"name": snapshot.name, "description": snapshot.description, "snaptime": snapshot.snaptime}
    if guest.kind == "qemu":
        row["vmstate"] = int(snapshot.vmstate)
    if snapshot.parent is not None:
        row["parent"] = snapshot.parent
    if snapshot.state is not None:
        row["snapstate"] = snapshot.state
    return row


@route(f"POST {GUEST}/snapshot")
def take(call: Call) -> str:
    name = call.params["snapname"]
    reserved = name.lower() if name.lower() == "pending" else name
    if reserved in _RESERVED[call.kind]:
        raise failure(f"unable to use snapshot name '{reserved}' (reserved name)")
    if call.kind == "qemu":
        call.guest()  # a missing container fails only in the task
    description = normalize_description(call.kind, call.params.get("description", ""))
    vmstate = bool(call.params.get("vmstate"))
    work = create_work(GuestAddress.of(call), name, description, vmstate=vmstate)
    return call.start_guest_task("snapshot", work)


@route(f"PUT {_ONE}/config")
def describe(call: Call) -> None:
    guest, name = call.guest(), call.params["snapname"]
    guest.check_lock()
    snapshot = existing(guest.snapshots.get(name), f"snapshot '{name}' does not exist")
    if "description" in call.params:
        snapshot.description = normalize_description(guest.kind, call.params["description"])
        guest.touch()


@route(f"DELETE {_ONE}")
def delete(call: Call) -> str:
    return call.start_guest_task("delsnapshot", delete_work(GuestAddress.of(call), call.params["snapname"]))


@route(f"POST {_ONE}/rollback")
def roll_back(call: Call) -> str:
    address = GuestAddress.of(call)
    start = power.start(address) if call.params.get("start") else None
    return call.start_guest_task("rollback", roll_back_work(address, call.params["snapname"], start, call.authid))


@route(f"GET {GUEST}/snapshot/{{snapname}}/config")
def snapshot_config(call: Call) -> dict[str, Any]:
    return shown_snapshot(existing_snapshot(call.guest(), call.params["snapname"]))
