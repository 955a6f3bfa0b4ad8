"""Bulk actions: the same for many guests, with every outcome in one report."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NAMED, Advice, Sentence, either, tools
from quorate.operations.arguments import refuse_misplaced
from quorate.operations.exemptions import MOVING
from quorate.operations.placement import pick_storage
from quorate.operations.plan import Call, Plan, guest_call
from quorate.operations.preconditions import refuse_locked
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, NotFound
from quorate.pve.cluster import Cluster, Guest
from quorate.tools.backups import vzdump_call
from quorate.tools.disk_moves import ALL, plan_disk_moves
from quorate.tools.guest_options import check_tags, split_tags
from quorate.tools.guest_power import plan_each, plan_power
from quorate.tools.guests import Filter
from quorate.tools.snapshots import check_name, creation, name_from_time
from quorate.tools.storages import require
from quorate.units import count_of

MOST_GUESTS = 100

BulkAction = Literal["start", "shutdown", "reboot", "snapshot", "tag", "untag", "backup", "move_disks"]
_BELONGS_TO = {
    "tags": ("tag", "untag"),
    "snapshot": ("snapshot",),
    "storage": ("backup", "move_disks"),
    "from_storage": ("move_disks",),
}


@operation(
    toolset="guests",
    risk=Risk.CHANGE,
    exemptions=(MOVING,),
    search_words=(
        "everything several guest once mass shutdown stop start tag snapshot together lab move all disks off a storage"
    ),
    example="action=shutdown tag=lab",
    elsewhere={"delete": tools.guest_delete, "destroy": tools.guest_delete, "stop": tools.guest_stop},
)
async def guest_bulk(
    pve: Cluster,
    action: BulkAction,
    guests: Annotated[list[int | str], Meta(description="vmids or names; or choose by the filters")] | None = None,
    node: str | None = None,
    type: Literal["vm", "ct"] | None = None,
    status: Literal["running", "stopped"] | None = None,
    name: Annotated[str, Meta(description="Part of the name or web*")] | None = None,
    tag: Annotated[str, Meta(description="Guests with this tag")] | None = None,
    pool: str | None = None,
    tags: Annotated[list[str], Meta(description="To add or remove")] | None = None,
    snapshot: Annotated[str, Meta(description="Name of the new snapshots")] | None = None,
    storage: Annotated[str, Meta(description="For backups; move_disks: where to")] | None = None,
    from_storage: Annotated[str, Meta(description="move_disks: everything that is there")] | None = None,
    limit: Annotated[int, Meta(ge=1, le=MOST_GUESTS, description="Refuse if more guests match")] = 25,
) -> Plan:
    """Start, shut down, reboot, snapshot, tag, untag or back up many guests, or move their disks. Try dry_run first.

    move_disks leaves nothing on from_storage, or names it; VMs keep running, containers restart.
    """
    specific = {"tags": tags, "snapshot": snapshot, "storage": storage, "from_storage": from_storage}
    refuse_misplaced("action", action, specific, _BELONGS_TO)
    if action in _BELONGS_TO["tags"] and not tags:
        raise BadArgument(
            Sentence("{action} needs {tags}", action=action, tags=NAMED), next_step=Advice("Give {tags}", tags="[…]")
        )
    filters = Filter(node, type, status, name, tag, pool)
    if action == "move_disks" and not storage:
        raise BadArgument(
            Sentence("{action} needs {storage}", action=action, storage=NAMED),
            next_step=Advice("Choose one", tools.storage_list),
        )
    targets = await _targets(pve, guests, filters, limit, templates=action in ("tag", "untag", "move_disks"))
    summary = f"{action.capitalize()} {count_of(len(targets), 'guest')}"
    match action:
        case "tag" | "untag":
            lowered = sorted({tag.lower() for tag in check_tags(tags)})
            plan = await plan_each(summary, targets, partial(_tag_call, action, lowered))
        case "snapshot":
            name = snapshot or name_from_time(pve)
            plan = await plan_each(summary, targets, partial(_snapshot_call, name))
            plan = replace(plan, chosen_names=() if snapshot else (name,))
        case "backup":
            plan = await plan_each(summary, targets, partial(_backup_call, pve, storage))
        case "move_disks":
            plan = await plan_disk_moves(pve, targets, [ALL], str(storage), from_storage=from_storage)
            return replace(plan, facts={"targets": [str(guest) for guest in targets], **plan.facts})
        case _:
            plan = await plan_power(targets, action)
    return replace(plan, summary=summary, facts={"targets": [str(guest) for guest in targets]})


async def _targets(
    pve: Cluster, refs: list[int | str] | None, filters: Filter, limit: int, *, templates: bool
) -> list[Guest]:
    """The guests that are listed and match the filter, or all that match it; templates only where they make sense."""
    if refs is None and not any((filters.node, filters.type, filters.status, filters.name, filters.tag, filters.pool)):
        raise BadArgument(
            "No guests were chosen",
            next_step=either(
                Advice("Give {guests}", guests="[…]"),
                Advice(
                    "{node}, {type}, {status}, {name}, {tag} or {pool}",
                    **dict.fromkeys(("node", "type", "status", "name", "tag", "pool"), NAMED),
                ),
            ),
        )
    fitting = await filters.apply(pve, to_act=True)
    if refs is None:
        chosen = [row for row in fitting if templates or not row.template]
        targets = [Guest(pve, row) for row in sorted(chosen, key=lambda row: row.vmid)]
    else:
        fit = {row.vmid for row in fitting}
        targets = [guest for guest in await pve.guests(refs) if guest.vmid in fit]
    if not targets:
        raise NotFound(
            "No guest matches", next_step=Advice("Templates are left out; try the same filters", tools.guest_list)
        )
    if len(targets) > limit:
        raise BadArgument(
            Sentence(f"{len(targets)} guests match, more than {{limit}}", limit=limit),
            next_step=either("Narrow the choice", Advice(f"raise {{limit}} (at most {MOST_GUESTS})", limit=NAMED)),
        )
    return targets


# -- tags --------------------------------------------------------------------------------------------------------------


async def _tag_call(action: str, tags: list[str], guest: Guest) -> Call | str:
    config = await guest.get("config")
    refuse_locked(guest, config)
    before = {tag.lower() for tag in split_tags(str(config.get("tags") or ""))}
    after = before | set(tags) if action == "tag" else before - set(tags)
    if after == before:
        return f"{guest} {'has' if action == 'tag' else 'does not have'} {', '.join(tags)}"

    change: dict[str, Any] = {"tags": ";".join(sorted(after))} if after else {"delete": "tags"}
    summary = f"{'Tag' if action == 'tag' else 'Untag'} {guest}: {', '.join(tags)}"
    return guest_call(guest, "PUT", "config", summary, digest=config.get("digest"), **change)


# -- snapshots and backups ---------------------------------------------------------------------------------------------


async def _snapshot_call(name: str, guest: Guest) -> Call:
    check_name(guest.row.kind, name)
    call, _ = await creation(guest, name, None)
    return call


async def _backup_call(pve: Cluster, storage: str | None, guest: Guest) -> Call:
    """A run for each guest, although PVE takes several at once, so that each has its own outcome."""
    refuse_locked(guest, await guest.get("status/current"))
    await require(pve, f"back up {guest}", f"/vms/{guest.vmid}", "VM.Backup")
    chosen = (await pick_storage(pve, guest.row.node, "backup", requested=storage)).storage
    await require(pve, f"store backups on {chosen}", f"/storage/{chosen}", "Datastore.AllocateSpace")
    return vzdump_call(guest.row.node, [guest], chosen)
