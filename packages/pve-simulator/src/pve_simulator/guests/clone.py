"""The work of clone and template tasks: full copies, base images and linked clones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pve_simulator.cluster.firewall import Firewalls
from pve_simulator.guests import drives, new_guests
from pve_simulator.guests.drives import Drive, Identities, disks, is_unused_key
from pve_simulator.guests.guest import Guest, Value, config_path
from pve_simulator.guests.start_requirements import warn_about_nesting
from pve_simulator.guests.status import SAVED_STATE
from pve_simulator.guests.tool_output import cancel_mirror, copy_image, make_file_system, mirror_image, rsync_statistics
from pve_simulator.nodes.tasks import TaskContext, TaskError, Work
from pve_simulator.storage import volumes
from pve_simulator.storage.storages import Volume
from pve_simulator.storage.volume_names import base_name, format_of, has_feature, is_base
from pve_simulator.world import World

_CONVERT_SECONDS = {"qemu": 1.0, "lxc": 0.1}
_NOT_COPIED = frozenset({"parent", "lock", "template", "snaptime", "snapstate", *SAVED_STATE})


@dataclass(slots=True)
class ClonePlan:
    """A clone after all synchronous checks have passed."""

    world: World
    source: Guest
    newid: int
    config: dict[str, Value]
    drives: list[Drive]
    full: set[str]  # keys of the drives to copy in full
    snapname: str | None = None
    storage: str | None = None
    format: str | None = None
    target: str | None = None
    pool: str | None = None
    created: list[Volume] = field(default_factory=list)  # volumes created so far

    @property
    def source_node(self) -> str:
        return self.source.node


def new_config(world: World, source: Guest, config: Mapping[str, Value]) -> dict[str, Value]:
    """The configuration of the clone without disks: a new identity, no history of the source."""
    copied = {key: value for key, value in config.items() if key not in _NOT_COPIED and not is_unused_key(key)}
    identities = world.part(Identities)
    for key, value in copied.items():
        if drives.is_net(key):
            copied[key] = identities.with_new_mac(str(value))
    if source.kind == "qemu":
        copied["smbios1"] = _with_new_uuid(str(copied.get("smbios1", "")), identities.uuid())
        if "vmgenid" in copied:
            copied["vmgenid"] = identities.uuid()
    return copied


def _with_new_uuid(smbios: str, uuid: str) -> str:
    others = [part for part in smbios.split(",") if part and not part.startswith("uuid=")]
    return ",".join([*others, f"uuid={uuid}"])


def clone_vm(plan: ClonePlan) -> Work:
    """The VM exists with the lock `clone` as soon as the task starts."""

    async def work(context: TaskContext) -> None:
        if plan.newid in plan.world.guests:
            path = config_path(plan.source_node, "qemu", plan.newid)
            raise TaskError(f"close (rename) atomic file '/etc/pve/{path}' failed: File exists")
        context.log(f"creating a clone of VM {plan.source.vmid} with ID {plan.newid}")
        clone = _enter(plan, "clone")
        with _undo_on_failure(plan, clone):
            if plan.source.running and plan.full:
                async with context.config_lock(plan.source):
                    await _make_disks(context, plan, clone)
            else:
                await _make_disks(context, plan, clone)
            _finish(plan, clone)

    return work


def clone_container(plan: ClonePlan) -> Work:
    """Both containers are locked while the task runs: the source with `disk`, the new one with `create`."""

    async def work(context: TaskContext) -> None:
        other = plan.world.guests.get(plan.newid)
        if other is not None:
            raise TaskError(f"{other.word} {plan.newid} already exists on node '{other.node}'")
        with plan.source.hold_lock("disk"):
            clone = _enter(plan, "create")
            with _undo_on_failure(plan, clone):
                context.log(f"creating a clone of container {plan.source.vmid} with ID {plan.newid}")
                await _make_disks(context, plan, clone)
                warn_about_nesting(context, clone)
                _finish(plan, clone)

    return work


def _enter(plan: ClonePlan, lock: str) -> Guest:
    clone = Guest(plan.newid, plan.source.kind, plan.source_node, {**plan.config, "lock": lock})
    clone.system = replace(plan.source.system)
    plan.world.add_guest(clone)
    plan.world.part(Firewalls).copy_guest(plan.source.vmid, plan.newid)
    return clone


@contextmanager
def _undo_on_failure(plan: ClonePlan, clone: Guest) -> Iterator[None]:
    """Remove everything of a clone that fails or is interrupted."""
    try:
        with volumes.free_on_failure(plan.world, plan.source_node, plan.created, "clone failed: "):
            yield
    except BaseException:
        new_guests.abandon(plan.world, clone)
        raise


async def _make_disks(context: TaskContext, plan: ClonePlan, clone: Guest) -> None:
    for drive in plan.drives:
        if drive.key in plan.full:
            volume = await _copy(context, plan, drive)
        else:
            volume = await _link(context, plan, drive)
        stored = drive.with_volume(volume.volid, volumes.size_text(volume.size))
        if drive.is_cloudinit and "size=" not in stored:  # a drive gets its size when copied
            stored = f"{stored},size={volumes.size_text(volume.size)}"
        clone.config[drive.key] = stored
        clone.touch()


async def _copy(context: TaskContext, plan: ClonePlan, drive: Drive) -> Volume:
    source = volumes.existing(plan.world, plan.source_node, drive.volid)
    storage_id = plan.storage or drive.storage
    container = plan.source.kind == "lxc"
    context.log(f"create full clone of {'mountpoint' if container else 'drive'} {drive.key} ({drive.volid})")
    name = f"vm-{plan.newid}-cloudinit" if drive.is_cloudinit else None
    volume = volumes.copy(
        plan.world, source, plan.source_node, storage_id, plan.newid, plan.source.kind, fmt=plan.format, name=name
    )
    plan.created.append(volume)
    context.log(*volumes.allocation_log(plan.world.storages[storage_id], volume))
    if container:
        await copy_files(context, plan.world, volume)
        return volume
    context.log(f"allocated target volume '{volume.volid}'")
    if plan.source.running and plan.snapname is None and not drive.is_cloudinit:
        await mirror_image(context, drive.key, volume)
        cancel_mirror(context.log, plan.source, drive.key, context.clock.now())
    else:
        await copy_image(context, volume)
    return volume


async def copy_files(context: TaskContext, world: World, volume: Volume) -> None:
    """Fill a container's new volume by rsync."""
    if volume.format == "raw":
        context.log(*make_file_system(world, volume))
    await context.sleep(min(20.0, 1.0 + volume.used / 2**31))
    context.log(*rsync_statistics(volume.used))


async def _link(context: TaskContext, plan: ClonePlan, drive: Drive) -> Volume:
    word = "mount point" if plan.source.kind == "lxc" else "drive"
    context.log(f"create linked clone of {word} {drive.key} ({drive.volid})")
    base = volumes.existing(plan.world, plan.source_node, drive.volid)
    kind, storage_id = plan.source.kind, drive.storage
    volume = volumes.allocate(plan.world, plan.source_node, storage_id, plan.newid, kind, base.size, linked_to=base)
    plan.created.append(volume)
    if plan.snapname is not None and volume.parent is not None:
        volume.parent = f"snap_{base.name}_{plan.snapname}"
    context.log(*volumes.link_log(plan.world.storages[storage_id], base, volume))
    await context.sleep(0.5)
    return volume


def _finish(plan: ClonePlan, clone: Guest) -> None:
    del clone.config["lock"]
    clone.node = plan.target or clone.node
    clone.addresses = new_guests.addresses_of(plan.world, clone)
    new_guests.enter_pool(plan.world.access, clone.vmid, plan.pool)
    clone.touch()


def convert(world: World, guest: Guest, only: str | None = None) -> Work:
    """Convert the guest to a template and its disks to base images; with `only`, just that disk."""

    async def work(context: TaskContext) -> None:
        async with context.config_lock(guest):
            if guest.kind == "qemu":
                _mark(guest)  # a container is marked at the end
            for drive in list(disks(guest.config)):
                if only in (None, drive.key) and not is_base(drive.volid):
                    await context.sleep(_CONVERT_SECONDS[guest.kind])
                    make_base(world, guest, drive)
            if guest.kind == "lxc":
                _mark(guest)

    return work


def _mark(guest: Guest) -> None:
    guest.config["template"] = 1
    guest.touch()


def make_base(world: World, guest: Guest, drive: Drive) -> None:
    """Rename one disk to a base image and update the configuration."""
    storage = volumes.usable_storage(world, guest.node, drive.storage)
    if not has_feature(storage, drive.volid, format_of(drive.volid), "template"):
        if guest.kind == "qemu":
            return
        raise TaskError(f"Template feature is not available for '{drive.volid}'")
    volume = volumes.rename(world, guest.node, drive.volid, base_name(drive.volid))
    guest.config[drive.key] = drive.with_volume(volume.volid)
    guest.touch()
