"""Cloning guests, and turning them into templates."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NAMED, Advice, Sentence, either, tools
from quorate.operations.placement import oversize_warnings, pick_storage
from quorate.operations.plan import Call, Plan, Target, guest_call
from quorate.operations.preconditions import (
    AttachedVolume,
    data_volumes,
    existing_snapshot,
    has_feature,
    only_for_vms,
    refuse_locked,
    snapshots_of,
    storages_on,
    volumes,
)
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster, Guest
from quorate.tools.clone_settings import Changes, prepare
from quorate.tools.guest_readiness import WaitFor, parse_goal
from quorate.tools.new_guest_devices import CloudInit
from quorate.tools.new_guests import Amount, NewGuest, Pool, check_pool, namesake_warning, risk_of_creation
from quorate.tools.storages import require
from quorate.units import size


@operation(
    toolset="provision",
    risk=Risk.CHANGE,
    risk_of=risk_of_creation,
    least=Risk.CHANGE,
    search_words="copy duplicate clone template new vm based test",
    example="guest=debian-13-cloud name=web01",
)
async def guest_clone(
    pve: Cluster,
    guest: GuestRef,
    name: str | None = None,
    vmid: Annotated[int, Meta(ge=100, le=999999999, description="Default: next free")] | None = None,
    full: Annotated[bool, Meta(description="Default: linked from a template, else full")] | None = None,
    node: Annotated[str, Meta(description="Another node; needs shared storage")] | None = None,
    storage: Annotated[str, Meta(description="For the copied disks")] | None = None,
    format: Literal["raw", "qcow2", "vmdk"] | None = None,
    snapshot: Annotated[str, Meta(description="Clone this state")] | None = None,
    pool: Pool | None = None,
    description: str | None = None,
    tags: Annotated[list[str], Meta(description="Instead of the source's")] | None = None,
    cores: int | None = None,
    memory: Annotated[Amount, Meta(description="4G, or MiB")] | None = None,
    disk: Annotated[str, Meta(description="New size of the boot disk, such as 32G")] | None = None,
    bridge: str | None = None,
    vlan: Annotated[int, Meta(ge=1, le=4094)] | None = None,
    cloud_init: CloudInit | None = None,
    start: bool = False,
    wait_for: WaitFor | None = None,
) -> Plan:
    """Clone a guest or template into a new guest, as a full copy or linked to the template's disks."""
    source = await pve.guest(guest)
    only_for_vms(source, "format", format, "Leave it out; the storage decides")
    status, config = await source.get("status/current"), await source.get("config")
    refuse_locked(source, status)
    if snapshot is not None:
        existing_snapshot(source, await snapshots_of(source), snapshot)
        config = await source.get(f"snapshot/{snapshot}/config")
    copies = await _decide_mode(source, full, snapshot, wants_copy=bool(storage or format))
    if copies:
        _refuse_running_container(source, status, snapshot)
    target = (await pve.inventory.online_node(node or source.row.node)).node
    await _check_storages(pve, source, config, target, storage)
    await check_pool(pve, pool)
    goal = parse_goal(wait_for, is_vm=source.is_vm)
    changes = Changes(
        tags, cores, memory, disk, bridge, vlan, cloud_init, needs_agent=goal is not None and goal.is_agent
    )
    prepared = await prepare(pve, source, config, target, changes)
    warnings = [
        *await namesake_warning(pve, name),
        *(await _room_warnings(pve, source, config, storage) if copies else ()),
        *_consistency_warnings(source, status, snapshot),
        *await oversize_warnings(pve, target, prepared.memory or int(status.get("maxmem") or 0)),
        *prepared.warnings,
    ]
    mode = "full" if copies else "linked"
    params: dict[str, Any] = {
        "name" if source.is_vm else "hostname": name,
        "full": int(copies),
        "target": target if target != source.row.node else None,
        "storage": storage,
        "format": format,
        "snapname": snapshot,
        "pool": pool,
        "description": description,
    }

    def create(clone: Target) -> Call:
        summary = f"Clone {source} to {clone} on {target} ({mode})"
        return guest_call(source, "POST", "clone", summary, newid=int(clone.id), **params)

    clone_name = name or f"Copy-of-{'VM' if source.is_vm else 'CT'}-{source.row.name}"
    new = NewGuest(
        source.row.kind,
        clone_name,
        target,
        create,
        finish=prepared.calls,
        start=start,
        wait_for=goal,
        pool=pool,
        facts={"name": clone_name, "mode": mode, **({"chosen": prepared.chosen} if prepared.chosen else {})},
        warnings=tuple(warnings),
    )
    return await new.plan(pve, vmid)


# -- what PVE would refuse, and why ------------------------------------------------------------------------------------


async def _decide_mode(source: Guest, full: bool | None, snapshot: str | None, *, wants_copy: bool) -> bool:
    """True to copy the disks. Default: link them if the source is a template and its storage can, else copy."""
    if full is False and wants_copy:
        raise BadArgument(
            Sentence("{storage} and {format} cannot be combined with a linked clone", storage=NAMED, format=NAMED),
            why="Its disks stay on the storage of their base disks",
            next_step=either("Leave them out", Advice("ask for {full}", full=True)),
        )
    if full or (full is None and (wants_copy or not source.row.template)):
        return True
    if await has_feature(source, "clone", snapshot):
        return False
    if full is None:
        return True
    raise Conflict(
        f"No linked clone of {source} is possible",
        why="Its storage cannot link to these disks"
        if source.row.template or snapshot
        else "It is not a template, and disks can only be linked to a template's (on some storages to a snapshot's)",
        next_step=either(
            Advice("Give {full}", full=True),
            *(() if source.row.template else (Advice("make it a template", tools.guest_template(guest=source.vmid)),)),
        ),
    )


def _refuse_running_container(source: Guest, status: dict[str, Any], snapshot: str | None) -> None:
    if not source.is_vm and status.get("status") == "running" and snapshot is None:
        raise Conflict(
            f"{source} is running, and a running container can only be copied from a snapshot",
            next_step=either(
                Advice(
                    "Take a snapshot and give it as {snapshot}", tools.snapshot_create(guest=source.vmid), snapshot=""
                ),
                "shut the container down first",
            ),
        )


async def _check_storages(
    pve: Cluster, source: Guest, config: dict[str, Any], target: str, storage: str | None
) -> None:
    """Refuse a storage that cannot hold the disks, and a node that cannot reach what the clone will use."""
    content = "images" if source.is_vm else "rootdir"
    here = source.row.node
    chosen = await pick_storage(pve, here, content, requested=storage) if storage else None
    for name in sorted({storage or volume.storage for volume in data_volumes(config)}):
        await require(pve, f"make disks on {name}", f"/storage/{name}", "Datastore.AllocateSpace")
    if target == here:
        return
    known = await storages_on(pve, here, {volume.storage for volume in volumes(config) if volume.on_storage})
    way_out = Advice(f"Choose a shared storage, or clone on {here} and migrate the clone", tools.guest_migrate)
    if chosen is not None:
        await pick_storage(pve, target, content, requested=storage)
        if not chosen.shared:
            raise Conflict(
                f"Storage {storage} is not shared, so {target} cannot use disks made on {here}", next_step=way_out
            )
    used = [
        volume
        for volume in volumes(config)
        if volume.on_storage and (chosen is None or volume not in data_volumes(config))
    ]
    local = [volume for volume in used if volume.storage in known and not known[volume.storage].shared]
    if local:
        raise Conflict(
            f"{source} cannot be cloned to {target}: it uses local storage of {here}",
            why=f"Local disks: {', '.join(str(volume) for volume in local)}",
            next_step=way_out,
        )


# -- what the caller should know ---------------------------------------------------------------------------------------


async def _room_warnings(pve: Cluster, source: Guest, config: dict[str, Any], storage: str | None) -> list[str]:
    known = await storages_on(pve, source.row.node)
    by_storage: dict[str, list[AttachedVolume]] = {}
    for volume in data_volumes(config):
        by_storage.setdefault(storage or volume.storage, []).append(volume)
    warnings = []
    for name, copied in by_storage.items():
        row, needed = known.get(name), sum(volume.size for volume in copied)
        if row is not None and row.maxdisk and needed > row.maxdisk - row.disk:
            free = size(row.maxdisk - row.disk)
            warnings.append(f"Storage {name} has {free} free, and the disks can grow to {size(needed)}")
    return warnings


def _consistency_warnings(source: Guest, status: dict[str, Any], snapshot: str | None) -> list[str]:
    if source.is_vm and status.get("status") == "running" and snapshot is None:
        return [f"{source} is running: the clone's disks will be as if the power had failed"]
    return []


@operation(
    toolset="provision",
    risk=Risk.DESTROY,
    search_words="base image convert turn vm template golden",
    example="guest=win11",
)
async def guest_template(pve: Cluster, guest: GuestRef) -> Plan:
    """Convert a stopped guest into a template. It can never run again; this cannot be undone."""
    source = await pve.guest(guest)
    status = await source.get("status/current")
    if source.row.template:
        return Plan(f"Convert {source} to a template", unchanged=(f"{source} is already a template",))
    refuse_locked(source, status)
    if status.get("status") != "stopped":
        raise Conflict(
            f"{source} is running, and only a stopped guest can become a template",
            next_step=Advice("Shut it down first", tools.guest_power(guest=source.vmid, action="shutdown")),
        )
    snapshots = await snapshots_of(source)
    if snapshots:
        raise Conflict(
            f"{source} has snapshots, and a template cannot have any",
            why=f"They are {', '.join(row['name'] for row in snapshots)}",
            next_step=Advice(
                "Delete them, or make a full clone and convert that", tools.snapshot_delete(guest=source.vmid)
            ),
        )

    summary = f"Convert {source} on {source.row.node} to a template"
    return Plan(
        summary,
        (guest_call(source, "POST", "template", summary, task_unnamed=True),),
        warnings=("This cannot be undone: a template never runs again, it is only cloned",),
        next_step=Advice("Clone guests from it", tools.guest_clone(guest=source.vmid)),
    )
