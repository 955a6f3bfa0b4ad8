"""Cloning guests and templates."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import GUEST_MIGRATE, GUEST_TEMPLATE, NAMED, SNAPSHOT_CREATE, Advice, Sentence, either
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
from quorate.operations.provision.new_guests import (
    NewGuest,
    Pool,
    check_pool,
    guest_path,
    namesake_warning,
    risk_of_creation,
    tag_list,
)
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.operations.stored_volumes import require
from quorate.operations.units import size
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster, Guest


@operation(
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
    start: bool = False,
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
    warnings = [
        *await namesake_warning(pve, name),
        *(await _room_warnings(pve, source, config, storage) if copies else ()),
        *_consistency_warnings(source, status, snapshot),
        *await oversize_warnings(pve, target, int(status.get("maxmem") or 0)),
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
        finish=lambda clone: [] if tags is None else [_tag_call(clone, tag_list(tags))],
        start=start,
        pool=pool,
        facts={"name": clone_name, "mode": mode},
        warnings=tuple(warnings),
    )
    return await new.plan(pve, vmid)


def _tag_call(clone: Target, tags: str | None) -> Call:
    """PVE's clone takes no tags, so they are set on the clone."""
    path = f"{guest_path(clone)}/config"

    given = {"delete": "tags"} if tags is None else {"tags": tags}
    return Call(f"Tag {clone} {tags or 'with nothing'}", "PUT", path, given, clone)


# -- what PVE would refuse, and why ------------------------------------------------------------------------------------


async def _decide_mode(source: Guest, full: bool | None, snapshot: str | None, *, wants_copy: bool) -> bool:
    """Whether the disks are copied. If that is left open: not of a template whose storage can link to its disks."""
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
            *(() if source.row.template else (Advice("make it a template", GUEST_TEMPLATE(guest=source.vmid)),)),
        ),
    )


def _refuse_running_container(source: Guest, status: dict[str, Any], snapshot: str | None) -> None:
    if not source.is_vm and status.get("status") == "running" and snapshot is None:
        raise Conflict(
            f"{source} is running, and a running container can only be copied from a snapshot",
            next_step=either(
                Advice("Take a snapshot and give it as {snapshot}", SNAPSHOT_CREATE(guest=source.vmid), snapshot=""),
                "shut the container down first",
            ),
        )


async def _check_storages(
    pve: Cluster, source: Guest, config: dict[str, Any], target: str, storage: str | None
) -> None:
    """The wanted storage holds such disks; another node can reach everything that the clone will use."""
    content = "images" if source.is_vm else "rootdir"
    here = source.row.node
    chosen = await pick_storage(pve, here, content, wanted=storage) if storage else None
    for name in sorted({storage or one.storage for one in data_volumes(config)}):
        await require(pve, f"make disks on {name}", f"/storage/{name}", "Datastore.AllocateSpace")
    if target == here:
        return
    known = await storages_on(pve, here, {one.storage for one in volumes(config) if one.on_storage})
    way_out = Advice(f"Choose a shared storage, or clone on {here} and migrate the clone", GUEST_MIGRATE)
    if chosen is not None:
        await pick_storage(pve, target, content, wanted=storage)
        if not chosen.shared:
            raise Conflict(
                f"Storage {storage} is not shared, so {target} cannot use disks made on {here}", next_step=way_out
            )
    used = [one for one in volumes(config) if one.on_storage and (chosen is None or one not in data_volumes(config))]
    local = [one for one in used if one.storage in known and not known[one.storage].shared]
    if local:
        raise Conflict(
            f"{source} cannot be cloned to {target}: it uses local storage of {here}",
            why=f"Local disks: {', '.join(str(one) for one in local)}",
            next_step=way_out,
        )


# -- what the caller should know ---------------------------------------------------------------------------------------


async def _room_warnings(pve: Cluster, source: Guest, config: dict[str, Any], storage: str | None) -> list[str]:
    known = await storages_on(pve, source.row.node)
    wanted: dict[str, list[AttachedVolume]] = {}
    for one in data_volumes(config):
        wanted.setdefault(storage or one.storage, []).append(one)
    warnings = []
    for name, copied in wanted.items():
        row, needed = known.get(name), sum(one.size for one in copied)
        if row is not None and row.maxdisk and needed > row.maxdisk - row.disk:
            free = size(row.maxdisk - row.disk)
            warnings.append(f"Storage {name} has {free} free, and the disks can grow to {size(needed)}")
    return warnings


def _consistency_warnings(source: Guest, status: dict[str, Any], snapshot: str | None) -> list[str]:
    if source.is_vm and status.get("status") == "running" and snapshot is None:
        return [f"{source} is running: the clone's disks will be as if the power had failed"]
    return []
