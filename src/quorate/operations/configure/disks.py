"""Disks of VMs and mount points of containers: adding, growing, moving, detaching, attaching, destroying."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.operations.config_change import (
    Config,
    pending_changes,
    read_config,
    refuse_protected,
    write_config,
)
from quorate.operations.configure.disk_checks import (
    exactly,
    existing_disk,
    format_of,
    free_slot,
    gibibytes,
    guard_boot,
    import_size,
    overcommitted,
    refuse_cdrom,
    refuse_in_snapshot,
    require_room,
    size_of,
    storage_of,
    storage_with_room,
    unused_disk,
    wanted_bytes,
)
from quorate.operations.disk_images import FIRMWARE_DRIVES, disk_format, working_storage
from quorate.operations.plan import Call, Plan, guest_call
from quorate.operations.readiness import only_for_vms
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.operations.units import parse_size
from quorate.operations.units import size as shown
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.errors import BadArgument, Conflict

MAKING_INTERVAL, MAKING_LOOKS = 3.0, 20

Disk = Annotated[str, Meta(description="scsi0, rootfs, mp0 …")]
Size = Annotated[int | str, Meta(description="32G; a bare number is GiB")]
Format = Literal["raw", "qcow2", "vmdk"]
Settings = Annotated[dict[str, Any], Meta(description="ssd, discard, iothread, cache, backup, ro …")]


@operation(risk=Risk.CHANGE)
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
    found = await pve.guest(guest)
    only_for_vms(found, "format", format, "Leave it out; the storage decides")
    only_for_vms(found, "import_from", import_from, "Give a size; a container cannot import disks")
    config = await read_config(found)
    slot = free_slot(found, config, disk)
    wanted = wanted_bytes(size, slot, import_from)
    source = await import_size(pve, found, import_from, wanted) if import_from else 0
    row = await storage_with_room(pve, found, storage, max(wanted, source), force=force)
    chosen = disk_format(row, format, slot) if found.is_vm else None
    extraction = await working_storage(pve, found.row.node, import_from, row) if import_from else None
    volume = f"{row.storage}:{0 if import_from else gibibytes(wanted)}"
    parts = {
        "volume": volume,
        **({"import-from": import_from} if import_from else {}),
        **FIRMWARE_DRIVES.get(slot, {}),
        **({"format": chosen} if chosen else {}),
        **_mount(found, slot, path),
        **_texts(options),
    }
    says = f"Add {slot} on {row.storage} to {found}" + (f" from {import_from}" if import_from else "")
    add = write_config(
        found,
        config,
        says,
        set={slot: values.build(parts, "volume"), **({"import-working-storage": extraction} if extraction else {})},
        slow=True,
        settled=_comes_to_be(pve, found, lambda now: slot in now),
    )
    grow = [_resize_call(found, slot, wanted)] if import_from and wanted > source else []
    return Plan(
        f"Add a disk to {found}",
        (add, *grow),
        facts={"disk": slot, "storage": row.storage, **({"format": chosen} if chosen else {})},
        warnings=overcommitted(row, max(wanted, source)),
        next_step=None if not found.is_vm else "Make a file system on it inside the VM",
        after=_state_of(found, slot),
    )


@operation(risk=Risk.CHANGE)
async def disk_resize(
    pve: Cluster,
    guest: GuestRef,
    size: Annotated[str, Meta(description="New size such as 64G, or +10G more")],
    disk: Annotated[str, Meta(description="Default: the boot disk")] | None = None,
    force: Annotated[bool, Meta(description="Overcommit a full storage")] = False,
) -> Plan:
    """Grow a disk or mount point. Shrinking is not possible."""
    found = await pve.guest(guest)
    config = await read_config(found)
    key = existing_disk(found, config, disk or values.boot_disk(config, is_vm=found.is_vm))
    refuse_cdrom(key, str(config[key]), "resized")
    now = size_of(str(config[key]))
    more = size.strip().startswith("+")
    given = parse_size(size.strip().removeprefix("+"), unit="G")
    wanted = now + given if more else given
    summary = f"Grow {key} of {found}" + (f" from {shown(now)} to {shown(wanted)}" if now or not more else "")
    if now and wanted < now:
        raise BadArgument(
            f"{key} of {found} has {shown(now)} and cannot be shrunk to {shown(wanted)}",
            why="PVE only grows disks; cutting one off would lose what is at its end",
            next_step="Add a smaller one with disk_add, copy the data inside the guest, then detach this one",
        )
    if wanted == now:
        return Plan(summary, unchanged=(f"{key} of {found} has {shown(now)} already",))
    volume = values.volume_of(str(config[key]))
    if volume.endswith(".qcow2"):
        await refuse_in_snapshot(found, config, volume, f"{key} of {found} cannot grow now")
    row = await storage_of(pve, found, volume)
    require_room(row, wanted - now, force=force)
    return Plan(
        summary,
        (_resize_call(found, key, given if more else wanted, more=more, digest=config.get("digest"), leads_to=wanted),),
        warnings=overcommitted(row, wanted - now),
        next_step="Grow the partition and the file system inside the VM, unless its OS does so at boot"
        if found.is_vm
        else None,
        after=_state_of(found, key),
    )


@operation(risk=Risk.CHANGE)
async def disk_move(
    pve: Cluster,
    guest: GuestRef,
    disk: Disk,
    storage: str,
    format: Format | None = None,
    delete: Annotated[bool, Meta(description="Remove the source once copied; else it stays as unused")] = True,
) -> Plan:
    """Move a disk or mount point to another storage, or to another format."""
    found = await pve.guest(guest)
    only_for_vms(found, "format", format, "Leave it out; the storage decides")
    config = await read_config(found)
    key = existing_disk(found, config, disk)
    refuse_cdrom(key, str(config[key]), "moved")
    volume = values.volume_of(str(config[key]))
    summary = f"Move {key} of {found} ({volume}) to {storage}"
    row = await storage_with_room(pve, found, storage, 0, force=True)
    if volume.partition(":")[0] == storage and format in (None, format_of(volume)):
        return Plan(summary, unchanged=(f"{key} of {found} is on {storage} already",))
    require_room(row, size_of(str(config[key])))
    if not found.is_vm and found.row.status == "running":
        raise Conflict(
            f"{found} is running, and PVE moves only the volumes of stopped containers",
            next_step="Shut it down first with guest_power action=shutdown",
        )
    if delete:
        await refuse_in_snapshot(
            found, config, volume, f"{volume} cannot be removed after the move", "or move it with delete=false"
        )

    async def moved() -> bool:
        return values.volume_of(str((await found.get("config")).get(key, ""))) != volume

    params: dict[str, Any] = {
        "disk" if found.is_vm else "volume": key,
        "storage": storage,
        "format": format,
        "delete": int(delete),
        "digest": config.get("digest"),
    }
    how = "move_disk" if found.is_vm else "move_volume"
    call = guest_call(found, "POST", how, summary, settled=moved, **params)
    return Plan(summary, (call,), after=_state_of(found, key))


@operation(risk=Risk.CHANGE)
async def disk_detach(
    pve: Cluster,
    guest: GuestRef,
    disk: Disk,
    force: Annotated[bool, Meta(description="Even the disk it boots from")] = False,
) -> Plan:
    """Detach a disk or mount point. Its data stay, as unusedN; disk_attach brings it back."""
    found = await pve.guest(guest)
    config = await read_config(found)
    key = existing_disk(found, config, disk)
    volume = values.volume_of(str(config[key]))
    guard_boot(found, config, key, "detached", force=force)
    refuse_protected(found, config, key)
    keeps = values.is_disk(key, str(config[key])) and ":" in volume
    call = write_config(found, config, f"Detach {key} ({volume}) from {found}", delete=[key], slow=True)
    return Plan(
        f"Detach {key} from {found}",
        (call,),
        facts={"volume": volume},
        warnings=_while_it_runs(found, key) if keeps else (),
        after=_detached(found, key, volume),
    )


@operation(risk=Risk.CHANGE)
async def disk_attach(
    pve: Cluster,
    guest: GuestRef,
    disk: Annotated[str, Meta(description="unused0 …; may be left out if there is one")] | None = None,
    slot: Annotated[str, Meta(description="Bus or slot: scsi, scsi1, mp0 …")] | None = None,
    path: Annotated[str, Meta(description="Where a container mounts it")] | None = None,
    options: Settings | None = None,
) -> Plan:
    """Attach a detached disk (unusedN) again."""
    found = await pve.guest(guest)
    config = await read_config(found)
    key = unused_disk(found, config, disk)
    volume = values.volume_of(str(config[key]))
    target = free_slot(found, config, slot)
    parts = {"volume": volume, **_mount(found, target, path), **_texts(options)}
    says = f"Attach {volume} to {found} as {target}"
    call = write_config(found, config, says, set={target: values.build(parts, "volume")}, slow=True,
                        settled=_comes_to_be(pve, found, lambda now: target in now))  # fmt: skip
    boots = not found.is_vm or values.boot_disk(config, is_vm=True)
    return Plan(
        says,
        (call,),
        facts={"disk": target, "volume": volume},
        next_step=None if boots else f"To boot from it: guest_configure boot=[{target}]",
        after=_state_of(found, target),
    )


@operation(risk=Risk.DESTROY)
async def disk_destroy(
    pve: Cluster,
    guest: GuestRef,
    disk: Annotated[str, Meta(description="unused0, or scsi1 of a VM")],
    force: Annotated[bool, Meta(description="Even the disk it boots from")] = False,
) -> Plan:
    """Destroy a disk and all data on it, for good."""
    found = await pve.guest(guest)
    config = await read_config(found)
    key = existing_disk(found, config, disk)
    volume = values.volume_of(str(config[key]))
    attached = values.bus_of(key) != "unused"
    guard_boot(found, config, key, "destroyed", force=force)
    if attached and not found.is_vm:
        raise Conflict(
            f"{key} of {found} is in use", next_step=f"Detach it first with disk_detach disk={key}, then destroy it"
        )
    if ":" not in volume or (attached and not values.is_disk(key, str(config[key]))):
        raise BadArgument(f"{key} of {found} holds no data of its own", next_step="disk_detach takes the drive out")
    refuse_protected(found, config, key)
    await refuse_in_snapshot(found, config, volume, f"{volume} cannot be destroyed")
    held = size_of(str(config[key]))
    says = f"Destroy {volume}" + (f" ({shown(held)})" if held else "") + f", {key} of {found}, with all data on it"
    call = write_config(found, config, says, delete=[key], slow=True, force=attached)
    return Plan(says, (call,), facts={"volume": volume}, after=_gone(found, key))


# -- parts of calls ----------------------------------------------------------------------------------------------------


def _mount(guest: Guest, slot: str, path: str | None) -> dict[str, str]:
    if guest.is_vm:
        if path is not None:
            raise BadArgument("path goes with containers only", next_step="Leave it out and mount it inside the VM")
        return {}
    if path is None or not path.startswith("/"):
        raise BadArgument(f"{guest} needs a path to mount {slot} at", next_step="Give path, such as /data")
    return {"mp": path}


def _texts(options: Mapping[str, Any] | None) -> dict[str, str]:
    return {key: str(int(value)) if isinstance(value, bool) else str(value) for key, value in (options or {}).items()}


def _resize_call(
    guest: Guest, key: str, size: int, *, more: bool = False, digest: str | None = None, leads_to: int | None = None
) -> Call:
    async def grown() -> bool:
        return size_of(str((await guest.get("config")).get(key, ""))) >= (leads_to or size)

    text = ("+" if more else "") + exactly(size)
    says = f"Grow {key} of {guest} " + (f"by {shown(size)}" if more else f"to {shown(size)}")
    return guest_call(guest, "PUT", "resize", says, settled=grown, disk=key, size=text, digest=digest)


def _comes_to_be(pve: Cluster, guest: Guest, there: Callable[[Config], bool]) -> Callable[[], Awaitable[bool]]:
    """A container's mount point is made within the call itself, which may go on after its answer was lost."""

    async def look() -> bool:
        for _ in range(0 if guest.is_vm else MAKING_LOOKS):
            if there(await guest.get("config")):
                return True
            await pve.clock.sleep(MAKING_INTERVAL)
        return there(await guest.get("config"))

    return look


def _while_it_runs(guest: Guest, key: str) -> tuple[str, ...]:
    if guest.row.status != "running":
        return ()
    return (f"{guest} is running; what is mounted from {key} inside has to be unmounted first",)


# -- what became of it -------------------------------------------------------------------------------------------------


def _state_of(guest: Guest, key: str) -> Callable[[], Awaitable[Mapping[str, Any]]]:
    async def look() -> Mapping[str, Any]:
        entries = await guest.get("pending")
        waiting = pending_changes(entries)
        now = next((str(entry["value"]) for entry in entries if entry["key"] == key and "value" in entry), "")
        if key in waiting:
            return {"waits_for_restart": {key: waiting[key]}, "next": "guest_power action=reboot applies it"}
        return {key: now}

    return look


def _detached(guest: Guest, key: str, volume: str) -> Callable[[], Awaitable[Mapping[str, Any]]]:
    async def look() -> Mapping[str, Any]:
        entries = await guest.get("pending")
        if key in pending_changes(entries):
            return {"waits_for_restart": [key], "next": "It goes when the guest is off: guest_power action=reboot"}
        kept = (str(entry["key"]) for entry in entries if str(entry.get("value", "")) == volume)
        slot = next((name for name in kept if values.bus_of(name) == "unused"), None)
        return (
            {"kept_as": slot, "next": f"disk_attach disk={slot} brings it back, disk_destroy removes it"}
            if slot
            else {}
        )

    return look


def _gone(guest: Guest, key: str) -> Callable[[], Awaitable[Mapping[str, Any]]]:
    async def look() -> Mapping[str, Any]:
        if key in pending_changes(await guest.get("pending")):
            return {
                "waits_for_restart": [key],
                "next": "It goes when the guest is off: guest_power action=reboot",
            }
        return {}

    return look
