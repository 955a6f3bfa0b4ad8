"""Disks of VMs and mount points of containers: add, attach, detach, move, grow, destroy."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NAMED, Advice, Sentence, tools
from quorate.operations.arguments import refuse_misplaced
from quorate.operations.exemptions import DETACHED_DISK, DETACHING, MOVING, NEW_DISK
from quorate.operations.plan import Call, Plan, guest_call
from quorate.operations.preconditions import only_for_vms
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.problems import BadArgument, Conflict
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.tools.disk_checks import (
    FIRMWARE_DRIVES,
    disk_format,
    exact_size,
    existing_disk,
    format_of,
    free_slot,
    gibibytes,
    guard_boot,
    import_size,
    refuse_cdrom,
    refuse_in_snapshot,
    requested_bytes,
    size_of,
    space_warnings,
    storage_of,
    storage_with_room,
    unused_disk,
    with_room,
    working_storage,
)
from quorate.tools.disk_moves import ALL, plan_disk_moves
from quorate.tools.guest_options import ConfigEdit, read_config, refuse_protected, write_config
from quorate.tools.start_obstacles import plan_recreation
from quorate.units import parse_size
from quorate.units import size as shown

MAKING_INTERVAL, MAKING_LOOKS = 3.0, 20

Format = Literal["raw", "qcow2", "vmdk"]
Settings = Annotated[dict[str, Any], Meta(description="ssd, discard, iothread, cache, backup, ro …")]


def mount(guest: Guest, slot: str, path: str | None) -> dict[str, str]:
    if guest.is_vm:
        if path is not None:
            raise BadArgument(
                Sentence("{path} applies to containers only", path=NAMED),
                next_step="Leave it out and mount it inside the VM",
            )
        return {}
    if path is None or not path.startswith("/"):
        raise BadArgument(
            f"{guest} needs a path to mount {slot} at", next_step=Advice("Give {path}, such as /data", path=NAMED)
        )
    return {"mp": path}


def texts(options: Mapping[str, Any] | None) -> dict[str, str]:
    return {key: str(int(value)) if isinstance(value, bool) else str(value) for key, value in (options or {}).items()}


def resize_call(guest: Guest, key: str, size: int, *, more: bool = False, digest: str | None = None) -> Call:
    text = ("+" if more else "") + exact_size(size)
    summary = f"Grow {key} of {guest} " + (f"by {shown(size)}" if more else f"to {shown(size)}")
    return guest_call(guest, "PUT", "resize", summary, disk=key, size=text, digest=digest)


async def wait_for_slot(pve: Cluster, guest: Guest, slot: str) -> bool:
    """A container's mount point is created within the call itself, which may continue after its answer was lost."""
    for _ in range(0 if guest.is_vm else MAKING_LOOKS):
        if slot in await guest.get("config"):
            return True
        await pve.clock.sleep(MAKING_INTERVAL)
    return slot in await guest.get("config")


async def report_slot(guest: Guest, key: str) -> Mapping[str, Any]:
    entries = await guest.get("pending")
    waiting = values.pending_changes(entries)
    if key in waiting:
        return {
            "waits_for_restart": {key: waiting[key]},
            "next": Advice("A restart applies it", tools.guest_power(guest=guest.vmid, action="reboot")),
        }
    return {key: next((str(entry["value"]) for entry in entries if entry["key"] == key and "value" in entry), "")}


Size = Annotated[int | str, Meta(description="32G; a bare number is GiB")]


@operation(
    toolset="configure",
    risk=Risk.CHANGE,
    exemptions=(NEW_DISK,),
    search_words="another tb new second extra additional drive disk volume mount point more storage guest vm",
    example="guest=docker01 size=20G",
)
async def disk_add(
    pve: Cluster,
    guest: GuestRef,
    size: Size | None = None,
    storage: str | None = None,
    disk: Annotated[str, Meta(description="Bus or slot: scsi, scsi1, virtio, mp0, efidisk0 …")] | None = None,
    path: Annotated[str, Meta(description="Where a container mounts it")] | None = None,
    format: Format | None = None,
    import_from: Annotated[str, Meta(description="Volume to copy in")] | None = None,
    options: Settings | None = None,
    force: Annotated[bool, Meta(description="Overcommit a full storage")] = False,
) -> Plan:
    """Add a disk to a VM or a mount point to a container."""
    target = await pve.guest(guest)
    only_for_vms(target, "format", format, "Leave it out; the storage decides")
    only_for_vms(target, "import_from", import_from, "Give a size; a container cannot import disks")
    config = await read_config(target)
    slot = free_slot(target, config, disk)
    requested = requested_bytes(size, slot, import_from)
    source = await import_size(pve, target, import_from, requested) if import_from else 0
    row = await storage_with_room(pve, target, storage, max(requested, source), force=force)
    chosen = disk_format(row, format, slot) if target.is_vm else None
    extraction = await working_storage(pve, target.row.node, import_from, row) if import_from else None
    volume = f"{row.storage}:{0 if import_from else gibibytes(requested)}"
    parts = {
        "volume": volume,
        **({"import-from": import_from} if import_from else {}),
        **FIRMWARE_DRIVES.get(slot, {}),
        **({"format": chosen} if chosen else {}),
        **mount(target, slot, path),
        **texts(options),
    }
    summary = f"Add {slot} on {row.storage} to {target}" + (f" from {import_from}" if import_from else "")
    working = {"import-working-storage": extraction} if extraction else {}
    add = write_config(
        target,
        config,
        summary,
        ConfigEdit({slot: values.build(parts, "volume"), **working}),
        slow=True,
        settled=partial(wait_for_slot, pve, target, slot),
    )
    grow = [resize_call(target, slot, requested)] if import_from and requested > source else []
    return Plan(
        f"Add a disk to {target}",
        (add, *grow),
        facts={"disk": slot, "storage": row.storage, **({"format": chosen} if chosen else {})},
        warnings=space_warnings(row, max(requested, source)),
        next_step=None if not target.is_vm else "Make a file system on it inside the VM",
        after=partial(report_slot, target, slot),
    )


@operation(
    toolset="configure",
    risk=Risk.DESTROY,
    search_words="wipe erase delete disk drive good unused data gone",
    example="guest=win11 disk=scsi0 force=true",
)
async def disk_destroy(
    pve: Cluster,
    guest: GuestRef,
    disk: Annotated[str, Meta(description="unused0, or scsi1 of a VM")],
    force: Annotated[bool, Meta(description="Even the disk it boots from")] = False,
) -> Plan:
    """Destroy a disk and all data on it, permanently."""
    target = await pve.guest(guest)
    config = await read_config(target)
    key = existing_disk(target, config, disk)
    volume = values.volume_of(str(config[key]))
    attached = values.bus_of(key) != "unused"
    guard_boot(target, config, key, "destroyed", force=force)
    if attached and not target.is_vm:
        raise Conflict(
            f"{key} of {target} is in use",
            next_step=Advice("Detach it first", tools.disk_change(guest=target.vmid, action="detach", disk=key)),
        )
    if ":" not in volume or (attached and not values.is_disk(key, str(config[key]))):
        raise BadArgument(
            f"{key} of {target} holds no data of its own",
            next_step=Advice("Take the drive out", tools.disk_change(guest=target.vmid, action="detach", disk=key)),
        )
    refuse_protected(target, config, key)
    await refuse_in_snapshot(target, config, volume, f"{volume} cannot be destroyed")
    disk_size = size_of(str(config[key]))
    summary = (
        f"Destroy {volume}"
        + (f" ({shown(disk_size)})" if disk_size else "")
        + f", {key} of {target}, with all data on it"
    )
    call = write_config(target, config, summary, ConfigEdit(delete=[key], force=attached), slow=True)
    return Plan(summary, (call,), facts={"volume": volume}, after=partial(_report_removal, target, key))


async def _report_removal(guest: Guest, key: str, kept: str | None = None) -> Mapping[str, Any]:
    """The removal as pending until a restart, else the slot in which a detached volume (`kept`) is now."""
    entries = await guest.get("pending")
    if key in values.pending_changes(entries):
        restart = tools.guest_power(guest=guest.vmid, action="reboot")
        return {"waits_for_restart": [key], "next": Advice("It is removed when the guest is off", restart)}
    unused = [str(entry["key"]) for entry in entries if kept is not None and str(entry.get("value", "")) == kept]
    slot = next((name for name in unused if values.bus_of(name) == "unused"), None)
    if slot is None:
        return {}
    attach = tools.disk_change(guest=guest.vmid, action="attach", disk=slot)
    destroy = tools.disk_destroy(guest=guest.vmid, disk=slot)
    return {"kept_as": slot, "next": Advice("Attach it again, or destroy it", attach, destroy)}


_BELONGS_TO = {
    "slot": ("attach",),
    "path": ("attach",),
    "options": ("attach",),
    "storage": ("move",),
    "format": ("move",),
    "delete": ("move",),
    "size": ("resize", "recreate"),
    "force": ("detach", "resize"),
}


@operation(
    toolset="configure",
    risk=Risk.CHANGE,
    exemptions=(DETACHED_DISK, DETACHING, MOVING),
    search_words=(
        "disk keep swap nvme hdd migrate grow bigger resize extend enlarge root full space unplug detach attach "
        "unused move other faster storage ssd"
    ),
    example="guest=docker01 action=resize disk=scsi0 size=+10G",
)
async def disk_change(
    pve: Cluster,
    guest: GuestRef,
    action: Annotated[
        Literal["attach", "detach", "move", "resize", "recreate"],
        Meta(description="detach keeps it as unusedN; attach takes one; recreate: empty, if its volume is missing"),
    ],
    disk: Annotated[
        str | list[str],
        Meta(description="scsi0, rootfs, mp0, unused0 …; move: or several, or all; resize: default the boot disk"),
    ]
    | None = None,
    size: Annotated[str, Meta(description="64G; resize: or +10G more")] | None = None,
    storage: Annotated[str, Meta(description="move")] | None = None,
    format: Annotated[Format, Meta(description="move")] | None = None,
    delete: Annotated[bool, Meta(description="move: false keeps the source as unusedN")] | None = None,
    slot: Annotated[str, Meta(description="attach: bus or slot: scsi, scsi1, mp0 …")] | None = None,
    path: Annotated[str, Meta(description="attach: where a container mounts it")] | None = None,
    options: Settings | None = None,
    force: Annotated[bool, Meta(description="Detach the boot disk, overcommit a storage")] | None = None,
) -> Plan:
    """Attach, detach, move or grow disks or mount points. Data stays; no shrinking. Many guests: guest_bulk."""
    specific = {"slot": slot, "path": path, "options": options, "storage": storage, "format": format, "delete": delete}
    refuse_misplaced("action", action, {**specific, "size": size, "force": force}, _BELONGS_TO)
    target = await pve.guest(guest)
    if action == "move" and storage is not None and (isinstance(disk, list) or disk == ALL):
        only_for_vms(target, "format", format, "Leave it out; the storage decides")
        disks = disk if isinstance(disk, list) else [disk]
        return await plan_disk_moves(pve, [target], disks, storage, format=format, delete=delete is not False)
    if isinstance(disk, list):
        raise BadArgument(
            Sentence("{action} takes one {disk}", action=action, disk=NAMED), next_step="Call it for each of them"
        )
    match action:
        case "attach":
            return await _attach(pve, target, disk, slot, path, options)
        case "detach":
            return await _detach(target, disk, force=bool(force))
        case "move":
            return await _move(pve, target, disk, storage, format, delete=delete is not False)
        case "resize":
            return await _resize(pve, target, disk, size, force=bool(force))
        case "recreate":
            return await plan_recreation(pve, target, disk, size)


async def _attach(
    pve: Cluster,
    guest: Guest,
    disk: str | None,
    slot: str | None,
    path: str | None,
    options: Mapping[str, Any] | None,
) -> Plan:
    """Attach a detached disk (unusedN) again."""
    config = await read_config(guest)
    key = unused_disk(guest, config, disk)
    volume = values.volume_of(str(config[key]))
    target = free_slot(guest, config, slot)
    parts = {"volume": volume, **mount(guest, target, path), **texts(options)}
    summary = f"Attach {volume} to {guest} as {target}"
    edit = ConfigEdit({target: values.build(parts, "volume")})
    settled = partial(wait_for_slot, pve, guest, target)
    call = write_config(guest, config, summary, edit, slow=True, settled=settled)
    bootable = not guest.is_vm or values.boot_disk(config, is_vm=True)
    return Plan(
        summary,
        (call,),
        facts={"disk": target, "volume": volume},
        next_step=None
        if bootable
        else Advice("To boot from it", tools.guest_configure(guest=guest.vmid, boot=f"[{target}]")),
        after=partial(report_slot, guest, target),
    )


async def _detach(guest: Guest, disk: str | None, *, force: bool) -> Plan:
    """Detach a disk or mount point. Its data stays, as unusedN."""
    config = await read_config(guest)
    key = existing_disk(guest, config, disk)
    volume = values.volume_of(str(config[key]))
    guard_boot(guest, config, key, "detached", force=force)
    refuse_protected(guest, config, key)
    warnings: tuple[str, ...] = ()
    if values.is_disk(key, str(config[key])) and ":" in volume and await guest.status() == "running":
        warnings = (f"{guest} is running; unmount {key} inside it first",)
    call = write_config(guest, config, f"Detach {key} ({volume}) from {guest}", ConfigEdit(delete=[key]), slow=True)
    return Plan(
        f"Detach {key} from {guest}",
        (call,),
        facts={"volume": volume},
        warnings=warnings,
        after=partial(_report_removal, guest, key, kept=volume),
    )


async def _move(
    pve: Cluster, guest: Guest, disk: str | None, storage: str | None, format: str | None, *, delete: bool
) -> Plan:
    """Move a disk or mount point to another storage, or to another format."""
    if storage is None:
        raise BadArgument(
            Sentence("{action} needs {storage}", action="move", storage=NAMED),
            next_step=Advice("Choose one", tools.storage_list).then(
                Advice("the same one needs {format}", format=""), "; "
            ),
        )
    only_for_vms(guest, "format", format, "Leave it out; the storage decides")
    config = await read_config(guest)
    key = existing_disk(guest, config, disk)
    if not (guest.is_vm and (values.is_cloudinit(str(config[key])) or values.bus_of(key) == "unused")):
        refuse_cdrom(key, str(config[key]), "moved")
    volume = values.volume_of(str(config[key]))
    summary = f"Move {key} of {guest} ({volume}) to {storage}"
    row = await storage_with_room(pve, guest, storage, 0, force=True)
    if volume.partition(":")[0] == storage and format in (None, format_of(volume)):
        return Plan(summary, unchanged=(f"{key} of {guest} is already on {storage}",))
    await with_room(pve, row, size_of(str(config[key])))
    if not guest.is_vm and await guest.status() == "running":
        raise Conflict(
            f"{guest} is running, and PVE moves only the volumes of stopped containers",
            next_step=Advice("Shut it down first", tools.guest_power(guest=guest.vmid, action="shutdown")).then(
                Advice("{disk} shuts it down, moves everything and starts it", disk=ALL), "; "
            ),
        )
    if key == "tpmstate0" and await guest.status() == "running":
        raise Conflict(
            f"{guest} is running, and QEMU does not copy the state of a TPM in use",
            next_step=Advice("Shut it down first", tools.guest_power(guest=guest.vmid, action="shutdown")),
        )
    if delete:
        await refuse_in_snapshot(
            guest,
            config,
            volume,
            f"{volume} cannot be removed after the move",
            Advice("move it with {delete}", delete=False),
        )

    params: dict[str, Any] = {
        "disk" if guest.is_vm else "volume": key,
        "storage": storage,
        "format": format,
        "delete": int(delete),
        "digest": config.get("digest"),
    }
    how = "move_disk" if guest.is_vm else "move_volume"
    call = guest_call(guest, "POST", how, summary, **params)
    return Plan(summary, (call,), after=partial(report_slot, guest, key))


async def _resize(pve: Cluster, guest: Guest, disk: str | None, size: str | None, *, force: bool) -> Plan:
    """Grow a disk or mount point."""
    if size is None:
        raise BadArgument(
            Sentence("{action} needs {size}", action="resize", size=NAMED),
            next_step="Give the new size such as 64G, or +10G for that more",
        )
    config = await read_config(guest)
    key = existing_disk(guest, config, disk or values.boot_disk(config, is_vm=guest.is_vm))
    refuse_cdrom(key, str(config[key]), "resized")
    current = size_of(str(config[key]))
    more = size.strip().startswith("+")
    amount = parse_size(size.strip().removeprefix("+"), unit="G")
    goal = current + amount if more else amount
    summary = f"Grow {key} of {guest}" + (f" from {shown(current)} to {shown(goal)}" if current or not more else "")
    if current and goal < current:
        raise BadArgument(
            f"{key} of {guest} has {shown(current)} and cannot be shrunk to {shown(goal)}",
            why="PVE only grows disks; shrinking would lose the data at the end",
            next_step=Advice(
                "Add a smaller one, copy the data inside the guest, then detach this one",
                tools.disk_add(guest=guest.vmid),
            ),
        )
    if goal == current:
        return Plan(summary, unchanged=(f"{key} of {guest} already has {shown(current)}",))
    volume = values.volume_of(str(config[key]))
    if volume.endswith(".qcow2"):
        await refuse_in_snapshot(guest, config, volume, f"{key} of {guest} cannot grow now")
    row = await with_room(pve, await storage_of(pve, guest, volume), goal - current, force=force)
    return Plan(
        summary,
        (resize_call(guest, key, amount if more else goal, more=more, digest=config.get("digest")),),
        warnings=space_warnings(row, goal - current),
        next_step="Grow the partition and the file system inside the VM, unless its OS does so at boot"
        if guest.is_vm
        else None,
        after=partial(report_slot, guest, key),
    )
