"""The work of the clone tasks: a new guest with copies of the disks, or with disks that build on a template's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from quorate.sim import drives, new_guests, volumes
from quorate.sim.copying import show_copy
from quorate.sim.disks import Drive, is_unused_key
from quorate.sim.firewall import Firewalls
from quorate.sim.guests import Guest, Value, config_path
from quorate.sim.identities import Identities
from quorate.sim.storages import Volume
from quorate.sim.tasks import TaskContext, TaskError, Work
from quorate.sim.world import World

_NOT_COPIED = frozenset(
    {"parent", "lock", "template", "vmstate", "runningmachine", "runningcpu", "snaptime", "snapstate"}
)


@dataclass(slots=True)
class ClonePlan:
    """What a clone will be, after all that can be refused at once has been checked."""

    world: World
    source: Guest
    newid: int
    config: dict[str, Value]
    drives: list[Drive]
    full: set[str]  # the keys of the drives that are copied in full
    snapname: str | None = None
    storage: str | None = None
    format: str | None = None
    target: str | None = None
    pool: str | None = None
    made: list[str] = field(default_factory=list)  # the volumes made so far

    @property
    def source_node(self) -> str:
        return self.source.node


def new_config(world: World, source: Guest, config: Mapping[str, Value]) -> dict[str, Value]:
    """The configuration of the clone before it has disks: another identity, nothing of the source's past."""
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
    """The VM exists with the lock `clone` from the moment the task begins."""

    async def work(context: TaskContext) -> None:
        if plan.newid in plan.world.guests:
            path = config_path(plan.source_node, "qemu", plan.newid)
            raise TaskError(f"close (rename) atomic file '/etc/pve/{path}' failed: File exists")
        clone = _enter(plan, "clone")
        with _undone_on_failure(plan, clone):
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
        with plan.source.locked("disk"):
            clone = _enter(plan, "create")
            with _undone_on_failure(plan, clone):
                context.log(f"creating a clone of container {plan.source.vmid} with ID {plan.newid}")
                await _make_disks(context, plan, clone)
                _finish(plan, clone)

    return work


def _enter(plan: ClonePlan, lock: str) -> Guest:
    clone = Guest(plan.newid, plan.source.kind, plan.source_node, {**plan.config, "lock": lock})
    clone.system = replace(plan.source.system)
    plan.world.add_guest(clone)
    plan.world.part(Firewalls).copy_guest(plan.source.vmid, plan.newid)
    return clone


@contextmanager
def _undone_on_failure(plan: ClonePlan, clone: Guest) -> Iterator[None]:
    """Nothing of a clone stays behind if it fails or is interrupted."""
    try:
        yield
    except BaseException as error:
        for volid in plan.made:
            volumes.free(plan.world, plan.source_node, volid)
        new_guests.abandon(plan.world, clone)
        if isinstance(error, TaskError):
            raise TaskError(f"clone failed: {error}") from error
        raise


async def _make_disks(context: TaskContext, plan: ClonePlan, clone: Guest) -> None:
    for drive in plan.drives:
        if drive.key in plan.full:
            volume = await _copy(context, plan, drive)
        else:
            volume = await _link(context, plan, drive)
        clone.config[drive.key] = drive.with_volume(volume.volid, volumes.size_text(volume.size))
        clone.touch()


async def _copy(context: TaskContext, plan: ClonePlan, drive: Drive) -> Volume:
    source = volumes.existing(plan.world, plan.source_node, drive.volid)
    storage_id = plan.storage or drive.storage
    container = plan.source.kind == "lxc"
    context.log(f"create full clone of {'mountpoint' if container else 'drive'} {drive.key} ({drive.volid})")
    if drive.is_cloudinit:
        volume = _new_cloudinit(plan, source, storage_id)
    else:
        volume = volumes.copy(
            plan.world,
            source,
            plan.source_node,
            storage_id,
            plan.newid,
            plan.source.kind,
            fmt=plan.format,
        )
    plan.made.append(volume.volid)
    for line in volumes.allocation_log(plan.world.storages[storage_id], volume):
        context.log(line)
    await _show_copy(context, plan, drive, volume)
    return volume


def _new_cloudinit(plan: ClonePlan, source: Volume, storage_id: str) -> Volume:
    return volumes.allocate(
        plan.world,
        plan.source_node,
        storage_id,
        plan.newid,
        "qemu",
        source.size,
        name=f"vm-{plan.newid}-cloudinit",
    )


async def _show_copy(context: TaskContext, plan: ClonePlan, drive: Drive, volume: Volume) -> None:
    if plan.source.kind == "lxc":
        await context.sleep(min(20.0, 1.0 + volume.used / 2**31))
        context.log(f"Total file size: {volume.used:,} bytes")
        context.log(f"Total transferred file size: {volume.used:,} bytes")
    elif plan.source.running and plan.snapname is None and not drive.is_cloudinit:
        context.log(f"drive mirror is starting for drive-{drive.key}")
        await show_copy(context, volume.size, f"drive-{drive.key}: ", ", ready")
        context.log("all 'mirror' jobs are ready")
    else:
        await show_copy(context, volume.size)


async def _link(context: TaskContext, plan: ClonePlan, drive: Drive) -> Volume:
    word = "mount point" if plan.source.kind == "lxc" else "drive"
    context.log(f"create linked clone of {word} {drive.key} ({drive.volid})")
    base = volumes.existing(plan.world, plan.source_node, drive.volid)
    kind, storage_id = plan.source.kind, drive.storage
    volume = volumes.allocate(plan.world, plan.source_node, storage_id, plan.newid, kind, base.size, linked_to=base)
    plan.made.append(volume.volid)
    if plan.snapname is not None:
        volume.parent = f"snap_{base.name}_{plan.snapname}"
    for line in volumes.allocation_log(plan.world.storages[storage_id], volume):
        context.log(line)
    await context.sleep(0.5)
    return volume


def _finish(plan: ClonePlan, clone: Guest) -> None:
    del clone.config["lock"]
    clone.node = plan.target or clone.node
    clone.addresses = new_guests.addresses_of(plan.world, clone)
    new_guests.enter_pool(plan.world.access, clone.vmid, plan.pool)
    clone.touch()
