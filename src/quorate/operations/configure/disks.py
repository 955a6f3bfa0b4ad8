"""Disks of VMs and mount points of containers: adding and destroying. What keeps their data is in disk_change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import DISK_CHANGE, GUEST_POWER, Advice
from quorate.operations.config_change import (
    ConfigEdit,
    read_config,
    refuse_protected,
    write_config,
)
from quorate.operations.configure.disk_calls import (
    Format,
    Settings,
    mount,
    resize_call,
    state_of,
    texts,
    wait_for_config,
)
from quorate.operations.configure.disk_checks import (
    existing_disk,
    free_slot,
    gibibytes,
    guard_boot,
    import_size,
    refuse_in_snapshot,
    size_of,
    space_warnings,
    storage_with_room,
    wanted_bytes,
)
from quorate.operations.disk_images import FIRMWARE_DRIVES, disk_format, working_storage
from quorate.operations.exemptions import NEW_DISK
from quorate.operations.plan import Plan
from quorate.operations.preconditions import only_for_vms
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.operations.units import size as shown
from quorate.problems import BadArgument, Conflict
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest

Size = Annotated[int | str, Meta(description="32G; a bare number is GiB")]


@operation(
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
        **mount(found, slot, path),
        **texts(options),
    }
    summary = f"Add {slot} on {row.storage} to {found}" + (f" from {import_from}" if import_from else "")
    working = {"import-working-storage": extraction} if extraction else {}
    add = write_config(
        found,
        config,
        summary,
        ConfigEdit({slot: values.build(parts, "volume"), **working}),
        slow=True,
        settled=wait_for_config(pve, found, lambda now: slot in now),
    )
    grow = [resize_call(found, slot, wanted)] if import_from and wanted > source else []
    return Plan(
        f"Add a disk to {found}",
        (add, *grow),
        facts={"disk": slot, "storage": row.storage, **({"format": chosen} if chosen else {})},
        warnings=space_warnings(row, max(wanted, source)),
        next_step=None if not found.is_vm else "Make a file system on it inside the VM",
        after=state_of(found, slot),
    )


@operation(
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
    found = await pve.guest(guest)
    config = await read_config(found)
    key = existing_disk(found, config, disk)
    volume = values.volume_of(str(config[key]))
    attached = values.bus_of(key) != "unused"
    guard_boot(found, config, key, "destroyed", force=force)
    if attached and not found.is_vm:
        raise Conflict(
            f"{key} of {found} is in use",
            next_step=Advice("Detach it first", DISK_CHANGE(guest=found.vmid, action="detach", disk=key)),
        )
    if ":" not in volume or (attached and not values.is_disk(key, str(config[key]))):
        raise BadArgument(
            f"{key} of {found} holds no data of its own",
            next_step=Advice("Take the drive out", DISK_CHANGE(guest=found.vmid, action="detach", disk=key)),
        )
    refuse_protected(found, config, key)
    await refuse_in_snapshot(found, config, volume, f"{volume} cannot be destroyed")
    held = size_of(str(config[key]))
    summary = f"Destroy {volume}" + (f" ({shown(held)})" if held else "") + f", {key} of {found}, with all data on it"
    call = write_config(found, config, summary, ConfigEdit(delete=[key], force=attached), slow=True)
    return Plan(summary, (call,), facts={"volume": volume}, after=_removal_report(found, key))


def _removal_report(guest: Guest, key: str) -> Callable[[], Awaitable[Mapping[str, Any]]]:
    async def look() -> Mapping[str, Any]:
        if key in values.pending_changes(await guest.get("pending")):
            return {
                "waits_for_restart": [key],
                "next": Advice("It is removed when the guest is off", GUEST_POWER(guest=guest.vmid, action="reboot")),
            }
        return {}

    return look
