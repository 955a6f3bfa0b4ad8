"""Attaching, detaching, moving and growing disks and mount points. No data is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import (
    DISK_ADD,
    DISK_CHANGE,
    DISK_DESTROY,
    GUEST_CONFIGURE,
    GUEST_POWER,
    NAMED,
    STORAGE_LIST,
    Advice,
    Sentence,
)
from quorate.operations.argument_checks import refuse_misplaced
from quorate.operations.config_change import ConfigEdit, read_config, refuse_protected, write_config
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
    format_of,
    free_slot,
    guard_boot,
    refuse_cdrom,
    refuse_in_snapshot,
    size_of,
    space_warnings,
    storage_of,
    storage_with_room,
    unused_disk,
    with_room,
)
from quorate.operations.exemptions import DETACHED_DISK, DETACHING, MOVING
from quorate.operations.plan import Plan, guest_call
from quorate.operations.preconditions import only_for_vms
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.operations.units import parse_size
from quorate.operations.units import size as shown
from quorate.problems import BadArgument, Conflict
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest

_BELONGS_TO = {
    "slot": ("attach",),
    "path": ("attach",),
    "options": ("attach",),
    "storage": ("move",),
    "format": ("move",),
    "delete": ("move",),
    "size": ("resize",),
    "force": ("detach", "resize"),
}


@operation(
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
        Literal["attach", "detach", "move", "resize"],
        Meta(description="detach keeps it as unusedN; attach takes one"),
    ],
    disk: Annotated[str, Meta(description="scsi0, rootfs, mp0, unused0 …; resize: default the boot disk")]
    | None = None,
    size: Annotated[str, Meta(description="resize: 64G, or +10G more")] | None = None,
    storage: Annotated[str, Meta(description="move")] | None = None,
    format: Annotated[Format, Meta(description="move")] | None = None,
    delete: Annotated[bool, Meta(description="move: false keeps the source as unusedN")] | None = None,
    slot: Annotated[str, Meta(description="attach: bus or slot: scsi, scsi1, mp0 …")] | None = None,
    path: Annotated[str, Meta(description="attach: where a container mounts it")] | None = None,
    options: Settings | None = None,
    force: Annotated[bool, Meta(description="Detach the boot disk, overcommit a storage")] | None = None,
) -> Plan:
    """Attach, detach, move or grow a disk or mount point. Its data stays; shrinking is not possible."""
    given = {"slot": slot, "path": path, "options": options, "storage": storage, "format": format, "delete": delete}
    refuse_misplaced("action", action, {**given, "size": size, "force": force}, _BELONGS_TO)
    found = await pve.guest(guest)
    match action:
        case "attach":
            return await _attach(pve, found, disk, slot, path, options)
        case "detach":
            return await _detach(found, disk, force=bool(force))
        case "move":
            return await _move(pve, found, disk, storage, format, delete=delete is not False)
        case "resize":
            return await _resize(pve, found, disk, size, force=bool(force))


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
    settled = wait_for_config(pve, guest, lambda now: target in now)
    call = write_config(guest, config, summary, edit, slow=True, settled=settled)
    boots = not guest.is_vm or values.boot_disk(config, is_vm=True)
    return Plan(
        summary,
        (call,),
        facts={"disk": target, "volume": volume},
        next_step=None if boots else Advice("To boot from it", GUEST_CONFIGURE(guest=guest.vmid, boot=f"[{target}]")),
        after=state_of(guest, target),
    )


async def _detach(guest: Guest, disk: str | None, *, force: bool) -> Plan:
    """Detach a disk or mount point. Its data stays, as unusedN."""
    config = await read_config(guest)
    key = existing_disk(guest, config, disk)
    volume = values.volume_of(str(config[key]))
    guard_boot(guest, config, key, "detached", force=force)
    refuse_protected(guest, config, key)
    keeps = values.is_disk(key, str(config[key])) and ":" in volume
    call = write_config(guest, config, f"Detach {key} ({volume}) from {guest}", ConfigEdit(delete=[key]), slow=True)
    return Plan(
        f"Detach {key} from {guest}",
        (call,),
        facts={"volume": volume},
        warnings=await _unmount_warnings(guest, key) if keeps else (),
        after=_detach_report(guest, key, volume),
    )


async def _unmount_warnings(guest: Guest, key: str) -> tuple[str, ...]:
    if await guest.status() != "running":
        return ()
    return (f"{guest} is running; unmount {key} inside it first",)


def _detach_report(guest: Guest, key: str, volume: str) -> Callable[[], Awaitable[Mapping[str, Any]]]:
    async def look() -> Mapping[str, Any]:
        entries = await guest.get("pending")
        if key in values.pending_changes(entries):
            return {
                "waits_for_restart": [key],
                "next": Advice("It is removed when the guest is off", GUEST_POWER(guest=guest.vmid, action="reboot")),
            }
        kept = (str(entry["key"]) for entry in entries if str(entry.get("value", "")) == volume)
        slot = next((name for name in kept if values.bus_of(name) == "unused"), None)
        return (
            {
                "kept_as": slot,
                "next": Advice(
                    "Attach it again, or destroy it",
                    DISK_CHANGE(guest=guest.vmid, action="attach", disk=slot),
                    DISK_DESTROY(guest=guest.vmid, disk=slot),
                ),
            }
            if slot
            else {}
        )

    return look


async def _move(
    pve: Cluster, guest: Guest, disk: str | None, storage: str | None, format: str | None, *, delete: bool
) -> Plan:
    """Move a disk or mount point to another storage, or to another format."""
    if storage is None:
        raise BadArgument(
            Sentence("{action} needs {storage}", action="move", storage=NAMED),
            next_step=Advice("Choose one", STORAGE_LIST).then(Advice("the same one needs {format}", format=""), "; "),
        )
    only_for_vms(guest, "format", format, "Leave it out; the storage decides")
    config = await read_config(guest)
    key = existing_disk(guest, config, disk)
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
            next_step=Advice("Shut it down first", GUEST_POWER(guest=guest.vmid, action="shutdown")),
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
    return Plan(summary, (call,), after=state_of(guest, key))


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
    now = size_of(str(config[key]))
    more = size.strip().startswith("+")
    given = parse_size(size.strip().removeprefix("+"), unit="G")
    wanted = now + given if more else given
    summary = f"Grow {key} of {guest}" + (f" from {shown(now)} to {shown(wanted)}" if now or not more else "")
    if now and wanted < now:
        raise BadArgument(
            f"{key} of {guest} has {shown(now)} and cannot be shrunk to {shown(wanted)}",
            why="PVE only grows disks; shrinking would lose the data at the end",
            next_step=Advice(
                "Add a smaller one, copy the data inside the guest, then detach this one", DISK_ADD(guest=guest.vmid)
            ),
        )
    if wanted == now:
        return Plan(summary, unchanged=(f"{key} of {guest} already has {shown(now)}",))
    volume = values.volume_of(str(config[key]))
    if volume.endswith(".qcow2"):
        await refuse_in_snapshot(guest, config, volume, f"{key} of {guest} cannot grow now")
    row = await with_room(pve, await storage_of(pve, guest, volume), wanted - now, force=force)
    return Plan(
        summary,
        (resize_call(guest, key, given if more else wanted, more=more, digest=config.get("digest")),),
        warnings=space_warnings(row, wanted - now),
        next_step="Grow the partition and the file system inside the VM, unless its OS does so at boot"
        if guest.is_vm
        else None,
        after=state_of(guest, key),
    )
