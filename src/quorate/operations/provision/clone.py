"""Cloning guests and templates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.operations.placement import next_vmid, pick_storage
from quorate.operations.plan import Plan, Target, guest_call
from quorate.operations.provision.new_guests import (
    check_pool,
    choose_vmid,
    facts_after,
    namesake_warning,
    next_call,
    start_call,
)
from quorate.operations.readiness import (
    Volume,
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
from quorate.operations.stored import require
from quorate.operations.units import size
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.errors import BadArgument, Conflict


@dataclass(frozen=True, slots=True)
class _Wish:
    """A clone as it was asked for, with what was left open decided."""

    guest: Guest
    name: str | None
    full: bool
    node: str
    storage: str | None
    format: str | None
    snapshot: str | None
    pool: str | None
    description: str | None
    start: bool
    warnings: tuple[str, ...]


@operation(risk=Risk.CHANGE)
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
    pool: str | None = None,
    description: str | None = None,
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
    ]
    wish = _Wish(source, name, copies, target, storage, format, snapshot, pool, description, start, tuple(warnings))
    if vmid is None:
        return await _plan_with_next_id(pve, wish)
    return _plan(pve, wish, await choose_vmid(pve, vmid))


async def _plan_with_next_id(pve: Cluster, wish: _Wish) -> Plan:
    """If somebody takes the id before PVE sees our call, the next one is tried."""
    return _plan(pve, wish, await next_vmid(pve), otherwise=partial(_plan_with_next_id, pve, wish))


def _plan(pve: Cluster, wish: _Wish, vmid: int, otherwise: Any = None) -> Plan:
    source = wish.guest
    name = wish.name or f"Copy-of-{'VM' if source.is_vm else 'CT'}-{source.row.name}"
    target = Target(source.row.kind, str(vmid), name, wish.node)
    mode = "full" if wish.full else "linked"
    says = f"Clone {source} to {target} on {wish.node} ({mode})"
    calls = [guest_call(source, "POST", "clone", says, **_clone_parameters(wish, vmid))]
    if wish.start:
        calls.append(start_call(pve, target))
    return Plan(
        says,
        tuple(calls),
        facts={"vmid": vmid, "name": name, "node": wish.node, "mode": mode},
        warnings=wish.warnings,
        after=facts_after(pve, target),
        next_step=next_call(target, started=wish.start),
        otherwise=otherwise,
    )


def _clone_parameters(wish: _Wish, vmid: int) -> dict[str, Any]:
    moves = wish.node != wish.guest.row.node
    return {
        "newid": vmid,
        "name" if wish.guest.is_vm else "hostname": wish.name,
        "full": int(wish.full),
        "target": wish.node if moves else None,
        "storage": wish.storage,
        "format": wish.format,
        "snapname": wish.snapshot,
        "pool": wish.pool,
        "description": wish.description,
    }


# -- what PVE would refuse, and why ------------------------------------------------------------------------------------


async def _decide_mode(source: Guest, full: bool | None, snapshot: str | None, *, wants_copy: bool) -> bool:
    """Whether the disks are copied. If that is left open: not of a template whose storage can link to its disks."""
    if full is False and wants_copy:
        raise BadArgument(
            "storage and format do not go with a linked clone",
            why="Its disks stay on the storage of the disks that they build on",
            next_step="Leave them out, or ask for full=true",
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
        else "It is no template, and disks can only be linked to a template's (on some storages to a snapshot's)",
        next_step="Ask for full=true" + ("" if source.row.template else ", or make it a template with guest_template"),
    )


def _refuse_running_container(source: Guest, status: dict[str, Any], snapshot: str | None) -> None:
    if not source.is_vm and status.get("status") == "running" and snapshot is None:
        raise Conflict(
            f"{source} is running, and a running container can only be copied from a snapshot",
            next_step="Take one with snapshot_create and give it as snapshot=, or shut the container down first",
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
    known = await storages_on(pve, here)
    way_out = f"Choose a shared storage, or clone on {here} and move the clone with guest_migrate"
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
            why=f"Local are {', '.join(str(one) for one in local)}",
            next_step=way_out,
        )


# -- what the caller should know ---------------------------------------------------------------------------------------


async def _room_warnings(pve: Cluster, source: Guest, config: dict[str, Any], storage: str | None) -> list[str]:
    known = await storages_on(pve, source.row.node)
    wanted: dict[str, list[Volume]] = {}
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
        return [f"{source} is running: the clone's disks will look as after a power cut"]
    return []
