"""Moving guests to other nodes."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NAMED, Advice, either
from quorate.operations.ha_moves import HaMove, is_under_ha, refuse_where_it_would_not_stay
from quorate.operations.placement import oversize_warnings, pick_storage
from quorate.operations.plan import Plan, guest_call
from quorate.operations.preconditions import (
    AttachedVolume,
    passes_on_cd_drive,
    refuse_locked,
    replication_jobs,
    snapshots_of,
    storages_on,
    volumes,
)
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster, Guest
from quorate.units import size

Mode = Literal["live", "restart", "offline"]

# Storages whose snapshots go along when a disk is sent to another node; elsewhere only those inside qcow2 files do.
_SENDS_SNAPSHOTS = ("zfspool", "btrfs")
LINKED_CLONES = "linked_clones"
"""The fact that names disks which PVE will refuse to copy."""
_LINKED = re.compile(r"\b(?P<base>(?:base|basevol)-\d+-disk-\d+)[^/]*/")
"""`tank:base-9000-disk-0/vm-105-disk-0`; a thin LVM volume does not show what it builds on."""


@operation(
    toolset="provision",
    risk=Risk.CHANGE,
    search_words=(
        "offload overloaded balance move guest vm container over another other host live evacuate node maintenance"
    ),
    example="guest=homeassistant node=pve2",
)
async def guest_migrate(
    pve: Cluster,
    guest: GuestRef,
    node: Annotated[str, Meta(description="Target node")],
    mode: Annotated[Mode, Meta(description="Default: live (VM) or restart (container) if it runs")] | None = None,
    with_local_disks: Annotated[bool, Meta(description="Copy local disks of a running VM, too")] = False,
    target_storage: Annotated[str, Meta(description="For local disks, or old:new,…")] | None = None,
) -> Plan:
    """Migrate a guest to another node, after checking what prevents it."""
    source = await pve.guest(guest)
    await _check_target(pve, source, node)
    status, config = await asyncio.gather(source.get("status/current"), source.get("config"))
    refuse_locked(source, status)
    running = status.get("status") == "running"
    mode = _decide_mode(source, mode, running=running)
    if managed := is_under_ha(source):
        await refuse_where_it_would_not_stay(pve, source, node)
    verdict = await _preconditions(pve, source, node)
    _refuse_bound(source, node, verdict, config)
    if mode == "live":
        _refuse_unmovable(source, verdict)
    mapping = await _storage_map(pve, source, node, target_storage)
    local = await local_volumes(pve, source, config)
    await _refuse_unreachable(pve, source, node, volumes(config), mapping)
    await refuse_snapshots(pve, source, node, local, mode)
    _refuse_uncopied(source, local, mode, with_local_disks=with_local_disks)
    if mode != "live":
        await refuse_untransferable(pve, source, node, local, mapping)
    summary = f"Migrate {source} from {source.row.node} to {node} ({mode})"
    arrived = (await HaMove.expect(pve, source, node)).has_settled if managed else None
    call = guest_call(
        source,
        "POST",
        "migrate",
        summary,
        arrived=arrived,
        target=node,
        **_migrate_parameters(source, mode, target_storage, with_local_disks=with_local_disks),
    )
    copied = [f"{disk}" + (f" {size(disk.size)}" if disk.size else "") for disk in local]
    linked = _linked_clones(local)
    return Plan(
        summary,
        (call,),
        facts={
            "mode": mode,
            "copied_disks": copied,
            **({LINKED_CLONES: [str(disk) for disk in linked]} if linked else {}),
        },
        warnings=(
            *_warnings(source, mode, verdict),
            *(_linked_warning(disk) for disk in linked),
            *await oversize_warnings(pve, node, int(status.get("maxmem") or 0)),
        ),
    )


def _migrate_parameters(guest: Guest, mode: Mode, storage: str | None, *, with_local_disks: bool) -> dict[str, Any]:
    how = {"live": {"online": 1}, "restart": {"restart": 1}, "offline": {}}[mode]
    if guest.is_vm:
        return {**how, "with-local-disks": 1 if with_local_disks else None, "targetstorage": storage}
    return {**how, "target-storage": storage}


async def _check_target(pve: Cluster, guest: Guest, node: str) -> None:
    await pve.inventory.online_node(node)
    if node == guest.row.node:
        others = [
            row.node for row in await pve.inventory.of_type("node") if row.status == "online" and row.node != node
        ]
        hint = f"The others are {', '.join(sorted(others))}" if others else "No other node is online"
        raise BadArgument(f"{guest} is already on {node}", next_step=hint)


def _decide_mode(guest: Guest, mode: Mode | None, *, running: bool) -> Mode:
    if mode is None or (not running and mode != "offline"):
        return ("live" if guest.is_vm else "restart") if running else "offline"
    if mode == "offline" and running:
        raise Conflict(
            f"{guest} is running, so it cannot be moved offline",
            next_step=either("Shut it down first", Advice("use {mode}", mode="live" if guest.is_vm else "restart")),
        )
    if mode == "live" and not guest.is_vm:
        raise BadArgument(
            f"{guest} is a container, and PVE cannot move containers live",
            next_step=Advice("Use {mode}: it is shut down, moved and started again", mode="restart"),
        )
    if mode == "restart" and guest.is_vm:
        raise BadArgument(
            f"{guest} is a VM, which is moved live or offline", next_step=Advice("Use {mode}", mode="live")
        )
    return mode


async def _preconditions(pve: Cluster, guest: Guest, node: str) -> dict[str, Any]:
    """PVE's own check of the move; for containers it has one since version 9."""
    if (await pve.facts()).find("GET", guest.path("migrate")) is None:
        return {}
    answer = await guest.get("migrate", target=node)
    return {key.replace("-", "_"): value for key, value in answer.items()}


def _refuse_bound(guest: Guest, node: str, verdict: dict[str, Any], config: dict[str, Any]) -> None:
    """Refuse because of devices and files of the node that cannot be migrated, or HA rules that forbid it."""
    mapped = _mapped_devices(verdict)
    if devices := [device for device in verdict.get("local_resources") or [] if device not in mapped]:
        raise Conflict(
            f"{guest} uses devices of {guest.row.node}: {', '.join(map(str, devices))}",
            next_step="Take them out of its configuration first, or use resource mappings that the target has, too",
        )
    objections = (verdict.get("not_allowed_nodes") or {}).get(node) or {}
    objections = {key.replace("-", "_"): value for key, value in objections.items()}
    if missing := objections.get("unavailable_resources"):
        raise Conflict(
            f"{node} lacks resource mappings of {guest}: {', '.join(map(str, missing))}",
            next_step="Map them on that node, or choose another",
        )
    if blocking := objections.get("blocking_ha_resources"):
        names = ", ".join(f"{resource.get('sid')} ({resource.get('cause')})" for resource in blocking)
        raise Conflict(f"HA rules keep {guest} away from {node}", why=f"Blocked by {names}", next_step="See the rules")
    for volume in volumes(config):
        if not volume.on_storage and not volume.shared:
            raise Conflict(
                f"{volume} of {guest} is a path of {guest.row.node} that is not migrated with it",
                next_step="Take it out first, or mark it shared=1 if every node has it",
            )


def _mapped_devices(verdict: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Devices that a mapping names. PVE also lists them as local, but they can be migrated."""
    named: dict[str, dict[str, Any]] = {key: {} for key in verdict.get("mapped_resources") or ()}
    return named | (verdict.get("mapped_resource_info") or {})


def _refuse_unmovable(guest: Guest, verdict: dict[str, Any]) -> None:
    stuck = [
        f"{device} ({info['name']})" if info.get("name") else device
        for device, info in _mapped_devices(verdict).items()
        if not info.get("live-migration")
    ]
    if stuck:
        raise Conflict(
            f"{guest} runs with mapped devices that cannot be migrated live: {', '.join(stuck)}",
            next_step="Shut it down first, then move it",
        )


async def _storage_map(pve: Cluster, guest: Guest, node: str, text: str | None) -> dict[str, str]:
    """Storage -> storage on the target; "" stands for all that are not named."""
    mapping: dict[str, str] = {}
    for part in (text or "").replace(";", ",").split(","):
        source, colon, goal = part.strip().rpartition(":")
        if goal and goal != "1":  # "1" means: each to its own name
            await pick_storage(pve, node, "images" if guest.is_vm else "rootdir", requested=goal)
            mapping[source if colon else ""] = goal
    return mapping


async def local_volumes(pve: Cluster, guest: Guest, config: dict[str, Any]) -> list[AttachedVolume]:
    """The disks that only the guest's own node has; they are copied."""
    if drives := [key for key, value in config.items() if passes_on_cd_drive(key, value)]:
        raise Conflict(
            f"{guest} uses the CD drive of {guest.row.node} ({', '.join(sorted(drives))})",
            next_step="Eject it first: PVE does not migrate a VM with a drive of its node",
        )
    known = await storages_on(pve, guest.row.node, {volume.storage for volume in volumes(config) if volume.on_storage})
    local = [
        volume
        for volume in volumes(config)
        if volume.on_storage and not volume.shared and volume.storage in known and not known[volume.storage].shared
    ]
    for volume in local:
        if volume.cdrom and not volume.is_cloudinit:
            raise Conflict(
                f"{guest} has a CD image of {guest.row.node} in its drive: {volume}",
                next_step="Eject it first, or take the image from a shared storage",
            )
    return local


async def _refuse_unreachable(
    pve: Cluster, guest: Guest, node: str, attached: list[AttachedVolume], mapping: dict[str, str]
) -> None:
    used = {volume.storage for volume in attached if volume.on_storage}
    here = await storages_on(pve, guest.row.node, used)
    available = await storages_on(pve, node, used & here.keys())
    # PVE checks what these credentials cannot see.
    lacking = {name for name in used if name in here and name not in available}
    lacking -= lacking if "" in mapping else set(mapping)
    if lacking:
        content = "images" if guest.is_vm else "rootdir"
        choice = sorted(name for name, row in available.items() if content in row.content.split(","))
        raise Conflict(
            f"{node} does not have the storage {', '.join(sorted(lacking))} of {guest}",
            next_step=Advice("Give {target_storage}", target_storage=NAMED).then(
                Advice(f"storages of {node} for its disks: {', '.join(choice) or 'none'}"), "; "
            ),
        )


async def refuse_snapshots(pve: Cluster, guest: Guest, node: str, local: list[AttachedVolume], mode: Mode) -> None:
    """Snapshots of local disks can be migrated only while the guest is stopped, and only from some storages."""
    data = [disk for disk in local if not disk.is_cloudinit]
    names = [row["name"] for row in await snapshots_of(guest)] if data else []
    if not names or any(job.get("target") == node for job in await replication_jobs(pve, guest)):
        return
    known = await storages_on(pve, guest.row.node, {disk.storage for disk in data})
    stuck = [
        disk
        for disk in data
        if known[disk.storage].plugintype not in _SENDS_SNAPSHOTS and not disk.volid.endswith(".qcow2")
    ]
    if mode == "live" or stuck:
        way = "" if stuck else "shut it down and move it offline, "
        raise Conflict(
            f"{guest} has snapshots ({', '.join(names)}) on local disks, which are not migrated",
            why=f"Affected disks: {', '.join(str(disk) for disk in stuck or data)}",
            next_step=f"To move it, {way}delete the snapshots, or move its disks to a shared storage first",
        )


class LocalDisks(Conflict):
    """The guest could move if its local disks were copied."""


def _refuse_uncopied(guest: Guest, local: list[AttachedVolume], mode: Mode, *, with_local_disks: bool) -> None:
    data = [disk for disk in local if not disk.is_cloudinit]
    if mode == "live" and data and not with_local_disks:
        kind = Conflict if _linked_clones(local) else LocalDisks  # what a linked clone builds on is not copied
        raise kind(
            f"{guest} runs on local disks of {guest.row.node}: {', '.join(str(disk) for disk in data)}",
            why=f"{size(sum(disk.size for disk in data))} would be copied while it runs",
            next_step=either(
                Advice("Give {with_local_disks} to copy them", with_local_disks=True),
                "move them to a shared storage first",
            ),
        )


async def refuse_untransferable(
    pve: Cluster, guest: Guest, node: str, local: list[AttachedVolume], mapping: dict[str, str]
) -> None:
    """Disks of a stopped guest are sent as streams, and ZFS streams can only be received by ZFS."""
    here = await storages_on(pve, guest.row.node, {disk.storage for disk in local})
    available = await storages_on(pve, node)
    for disk in local:
        goal = mapping.get(disk.storage, mapping.get("", disk.storage))
        types = {row.plugintype for row in (here[disk.storage], available.get(goal)) if row is not None}
        if "zfspool" in types and len(types) > 1:
            live = Advice("Start it and use {mode} {with_local_disks}", mode="live", with_local_disks=True)
            raise Conflict(
                f"{disk} of {guest} cannot be sent from {disk.storage} to {goal}: ZFS disks can only be sent to ZFS",
                next_step=either(
                    *((live,) if guest.is_vm else ()), "choose a storage of the same type", "move the disk here first"
                ),
            )


def _linked_clones(local: list[AttachedVolume]) -> list[AttachedVolume]:
    """Linked clones on a local storage: the disk that they build on stays behind."""
    return [disk for disk in local if _LINKED.search(disk.volid)]


def _linked_warning(disk: AttachedVolume) -> str:
    clone = _LINKED.search(disk.volid)
    assert clone is not None
    return (
        f"{disk} is a linked clone of {clone['base']}, which stays behind, so PVE will refuse to copy it. Moving the "
        "disk to another storage first makes it a full copy"
    )


def _warnings(guest: Guest, mode: Mode, verdict: dict[str, Any]) -> list[str]:
    warnings = []
    if mode == "restart":
        warnings.append(f"{guest} is down while it moves")
    if is_under_ha(guest):
        warnings.append(f"The HA manager moves {guest} on its own schedule")
    if together := verdict.get("dependent_ha_resources"):
        warnings.append(f"HA rules also move: {', '.join(map(str, together))}")
    return warnings
