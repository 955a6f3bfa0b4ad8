"""Changing what disks and mount points a guest has: attaching, detaching, moving, growing. No data is lost by it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.operations.config_change import pending_changes, read_config, refuse_protected, write_config
from quorate.operations.configure.disk_calls import (
    Format,
    Settings,
    comes_to_be,
    mount,
    resize_call,
    state_of,
    texts,
)
from quorate.operations.configure.disk_checks import (
    existing_disk,
    format_of,
    free_slot,
    guard_boot,
    overcommitted,
    refuse_cdrom,
    refuse_in_snapshot,
    require_room,
    size_of,
    storage_of,
    storage_with_room,
    unused_disk,
)
from quorate.operations.misplaced import refuse_misplaced
from quorate.operations.plan import Plan, guest_call
from quorate.operations.readiness import only_for_vms
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.operations.units import parse_size
from quorate.operations.units import size as shown
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.errors import BadArgument, Conflict

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


@operation(risk=Risk.CHANGE)
async def disk_change(
    pve: Cluster,
    guest: GuestRef,
    action: Annotated[
        Literal["attach", "detach", "move", "resize"],
        Meta(description="attach: an unusedN; detach: keep it as unusedN; move: to another storage or format"),
    ],
    disk: Annotated[str, Meta(description="scsi0, rootfs, mp0, unused0 …; resize takes the boot disk by default")]
    | None = None,
    size: Annotated[str, Meta(description="resize: 64G, or +10G more")] | None = None,
    storage: Annotated[str, Meta(description="move")] | None = None,
    format: Annotated[Format, Meta(description="move")] | None = None,
    delete: Annotated[bool, Meta(description="move: remove the source once copied (default), or keep it as unusedN")]
    | None = None,
    slot: Annotated[str, Meta(description="attach: bus or slot: scsi, scsi1, mp0 …")] | None = None,
    path: Annotated[str, Meta(description="attach: where a container mounts it")] | None = None,
    options: Settings | None = None,
    force: Annotated[bool, Meta(description="detach: even the boot disk; resize: overcommit a full storage")]
    | None = None,
) -> Plan:
    """Attach, detach, move or grow a disk or mount point. Its data stay; shrinking is not possible."""
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
    says = f"Attach {volume} to {guest} as {target}"
    call = write_config(guest, config, says, set={target: values.build(parts, "volume")}, slow=True,
                        settled=comes_to_be(pve, guest, lambda now: target in now))  # fmt: skip
    boots = not guest.is_vm or values.boot_disk(config, is_vm=True)
    return Plan(
        says,
        (call,),
        facts={"disk": target, "volume": volume},
        next_step=None if boots else f"To boot from it: guest_configure boot=[{target}]",
        after=state_of(guest, target),
    )


async def _detach(guest: Guest, disk: str | None, *, force: bool) -> Plan:
    """Detach a disk or mount point. Its data stay, as unusedN."""
    config = await read_config(guest)
    key = existing_disk(guest, config, disk)
    volume = values.volume_of(str(config[key]))
    guard_boot(guest, config, key, "detached", force=force)
    refuse_protected(guest, config, key)
    keeps = values.is_disk(key, str(config[key])) and ":" in volume
    call = write_config(guest, config, f"Detach {key} ({volume}) from {guest}", delete=[key], slow=True)
    return Plan(
        f"Detach {key} from {guest}",
        (call,),
        facts={"volume": volume},
        warnings=_while_it_runs(guest, key) if keeps else (),
        after=_detached(guest, key, volume),
    )


def _while_it_runs(guest: Guest, key: str) -> tuple[str, ...]:
    if guest.row.status != "running":
        return ()
    return (f"{guest} is running; what is mounted from {key} inside has to be unmounted first",)


def _detached(guest: Guest, key: str, volume: str) -> Callable[[], Awaitable[Mapping[str, Any]]]:
    async def look() -> Mapping[str, Any]:
        entries = await guest.get("pending")
        if key in pending_changes(entries):
            return {"waits_for_restart": [key], "next": "It goes when the guest is off: guest_power action=reboot"}
        kept = (str(entry["key"]) for entry in entries if str(entry.get("value", "")) == volume)
        slot = next((name for name in kept if values.bus_of(name) == "unused"), None)
        return (
            {"kept_as": slot, "next": f"disk_change action=attach disk={slot} brings it back, disk_destroy removes it"}
            if slot
            else {}
        )

    return look


async def _move(
    pve: Cluster, guest: Guest, disk: str | None, storage: str | None, format: str | None, *, delete: bool
) -> Plan:
    """Move a disk or mount point to another storage, or to another format."""
    if storage is None:
        raise BadArgument("action=move needs storage", next_step="storage_list shows them; the same one with format=")
    only_for_vms(guest, "format", format, "Leave it out; the storage decides")
    config = await read_config(guest)
    key = existing_disk(guest, config, disk)
    refuse_cdrom(key, str(config[key]), "moved")
    volume = values.volume_of(str(config[key]))
    summary = f"Move {key} of {guest} ({volume}) to {storage}"
    row = await storage_with_room(pve, guest, storage, 0, force=True)
    if volume.partition(":")[0] == storage and format in (None, format_of(volume)):
        return Plan(summary, unchanged=(f"{key} of {guest} is on {storage} already",))
    require_room(row, size_of(str(config[key])))
    if not guest.is_vm and guest.row.status == "running":
        raise Conflict(
            f"{guest} is running, and PVE moves only the volumes of stopped containers",
            next_step="Shut it down first with guest_power action=shutdown",
        )
    if delete:
        await refuse_in_snapshot(
            guest, config, volume, f"{volume} cannot be removed after the move", "or move it with delete=false"
        )

    async def moved() -> bool:
        return values.volume_of(str((await guest.get("config")).get(key, ""))) != volume

    params: dict[str, Any] = {
        "disk" if guest.is_vm else "volume": key,
        "storage": storage,
        "format": format,
        "delete": int(delete),
        "digest": config.get("digest"),
    }
    how = "move_disk" if guest.is_vm else "move_volume"
    call = guest_call(guest, "POST", how, summary, settled=moved, **params)
    return Plan(summary, (call,), after=state_of(guest, key))


async def _resize(pve: Cluster, guest: Guest, disk: str | None, size: str | None, *, force: bool) -> Plan:
    """Grow a disk or mount point."""
    if size is None:
        raise BadArgument("action=resize needs size", next_step="Give the new size such as 64G, or +10G for that more")
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
            why="PVE only grows disks; cutting one off would lose what is at its end",
            next_step="Add a smaller one with disk_add, copy the data inside the guest, then detach this one",
        )
    if wanted == now:
        return Plan(summary, unchanged=(f"{key} of {guest} has {shown(now)} already",))
    volume = values.volume_of(str(config[key]))
    if volume.endswith(".qcow2"):
        await refuse_in_snapshot(guest, config, volume, f"{key} of {guest} cannot grow now")
    row = await storage_of(pve, guest, volume)
    require_room(row, wanted - now, force=force)
    return Plan(
        summary,
        (resize_call(guest, key, given if more else wanted, more=more, digest=config.get("digest"), leads_to=wanted),),
        warnings=overcommitted(row, wanted - now),
        next_step="Grow the partition and the file system inside the VM, unless its OS does so at boot"
        if guest.is_vm
        else None,
        after=state_of(guest, key),
    )
