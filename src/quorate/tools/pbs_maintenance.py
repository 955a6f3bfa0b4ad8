"""What keeps the datastores of Proxmox Backup Servers in order: verification, prune, garbage collection, namespaces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import Advice, either, see, tools
from quorate.homelab.homelab import Homelab
from quorate.operations.plan import Action, Plan, Target
from quorate.operations.registry import Risk, operation
from quorate.pbs.server import READS_AT_ONCE, Backup, BackupNamespace, BackupServer, Group, iso
from quorate.problems import BadArgument, Conflict, NotFound
from quorate.pve.targets import DATASTORE
from quorate.pve.tasks import gather_bounded
from quorate.tools.backup_servers import (
    BackupOrGroup,
    Datastore,
    Namespace,
    Server,
    backup_target,
    choose_namespace,
    require_visible,
    server_action,
)
from quorate.tools.backups import retention
from quorate.tools.pbs import dedup_factor
from quorate.units import count_of, size

SHOWN = 50
PRUNES = "it deletes backups; garbage collection then frees their data for good"
CHANGED = "The backups have changed since this was planned"


# -- verification and garbage collection -------------------------------------------------------------------------------


@operation(
    toolset="pbs",
    risk=Risk.CHANGE,
    idempotent=True,
    shown_by=("pbs_status", "datastore", "server"),
    search_words="proxmox backup server verify check integrity backups chunks corrupt intact now",
    example="backup=vm/102",
)
async def pbs_verify(
    homelab: Homelab,
    datastore: Datastore | None = None,
    namespace: Namespace = "",
    backup: BackupOrGroup | None = None,
    again_after: Annotated[int, Meta(ge=0, description="Days after which to verify again; 0: all")] | None = None,
    server: Server | None = None,
) -> Plan:
    """Verify the backups of a namespace, of a guest, or one; by default those never verified."""
    chosen, place = await choose_namespace(homelab, server, datastore, namespace)
    group = None if backup is None else Group.parse(backup)
    if group is not None:
        await require_visible(homelab, place, group)
        await chosen.find_backup(place.store, place.namespace, group)  # a missing one would end well
    params = {**place.params, **(group.params if group else {}), "ignore-verified": again_after != 0}
    if again_after:
        params["outdated-after"] = again_after
    what = f"{group} in {place}" if group else f"the backups in {place}"
    summary = f"Verify {what}"
    request = ("POST", f"{place.path}/verify", params)
    concerns = (
        [] if group else await targets_below(chosen, place, await chosen.namespaces(place.store, place.namespace))
    )
    return Plan(
        summary, (await server_action(homelab, chosen, place, summary, request, group=group, concerns=concerns),)
    )


@operation(
    toolset="pbs",
    risk=Risk.CHANGE,
    idempotent=True,
    shown_by=("pbs_status", "datastore", "server"),
    search_words="proxmox backup server garbage collection free space after prune chunks unused reclaim",
)
async def pbs_gc(homelab: Homelab, datastore: Datastore | None = None, server: Server | None = None) -> Plan:
    """Collect garbage: data that no backup has used for a day."""
    chosen, place = await choose_namespace(homelab, server, datastore, "")
    before = await chosen.get(f"{place.path}/gc")
    summary = f"Collect garbage in {place}"

    async def after() -> dict[str, Any]:
        now = await chosen.get(f"{place.path}/gc")
        sizes = {"removed-bytes": "removed", "pending-bytes": "pending", "disk-bytes": "on_disk"}
        return {
            **{shown: size(now[name]) for name, shown in sizes.items() if now.get(name) is not None},
            **({"dedup": factor} if (factor := dedup_factor(now)) else {}),
            **({"bad_chunks": now["still-bad"]} if now.get("still-bad") else {}),
        }

    pending = before.get("pending-bytes")
    action = await server_action(homelab, chosen, place, summary, ("POST", f"{place.path}/gc", {}))
    return Plan(summary, (action,), facts={"pending_before": size(pending)} if pending else {}, after=after)


# -- prune -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupPrune:
    """What a prune would do to one group."""

    namespace: BackupNamespace
    group: Group
    removed: tuple[int, ...]
    kept: tuple[int, ...]
    protected: tuple[int, ...]


async def preview_prune(
    server: BackupServer, namespace: BackupNamespace, group: Group, keeps: Mapping[str, int]
) -> GroupPrune:
    """Ask PBS what it would remove. This changes nothing."""
    params = {**namespace.params, **group.params, **keeps, "dry-run": True}
    rows: Sequence[Mapping[str, Any]] = await server.write("POST", f"{namespace.path}/prune", params) or ()
    times: dict[str, list[int]] = {"removed": [], "kept": [], "protected": []}
    for row in rows:
        fate = "protected" if row.get("protected") else "kept" if row.get("keep") else "removed"
        times[fate].append(int(row["backup-time"]))
    return GroupPrune(namespace, group, **{fate: tuple(sorted(those)) for fate, those in times.items()})


async def preview_prunes(
    server: BackupServer, namespaces: Sequence[BackupNamespace], keeps: Mapping[str, int]
) -> list[GroupPrune]:
    """What a prune of whole namespaces would do, by group."""
    groups: list[Callable[[], Awaitable[GroupPrune]]] = []
    for namespace in namespaces:
        names = {backup.group.name for backup in await server.backups_in(namespace)}
        groups += [partial(preview_prune, server, namespace, Group.parse(name), keeps) for name in sorted(names)]
    return await gather_bounded(READS_AT_ONCE, groups)


def names_of_prunes(prunes: Sequence[GroupPrune]) -> frozenset[str]:
    """Every backup that would be removed, with its namespace."""
    return frozenset(f"{prune.group}/{iso(time)} in {prune.namespace}" for prune in prunes for time in prune.removed)


def describe_prunes(prunes: Sequence[GroupPrune]) -> dict[str, Any]:
    """Every backup that would be removed, up to a limit, and how many stay."""
    removed = [f"{prune.group}/{iso(time)}" for prune in prunes for time in prune.removed]
    protected = sum(len(prune.protected) for prune in prunes)
    return {
        "removes": removed[:SHOWN],
        **({"removes_in_all": len(removed)} if len(removed) > SHOWN else {}),
        "keeps": sum(len(prune.kept) for prune in prunes),
        **({"protected": protected} if protected else {}),
    }


def parse_keep(keep: str) -> dict[str, int]:
    """`last=3,daily=7` as the options of PBS. Without any, PBS would keep everything."""
    text = retention(keep, or_all=False) or ""
    pairs = (part.partition("=") for part in text.split(","))
    return {name: int(count) for name, _, count in pairs if int(count)}


@operation(
    toolset="pbs",
    risk=Risk.DESTROY,
    shown_by=("pbs_status", "datastore", "server"),
    search_words="proxmox backup server prune old backups retention keep last daily weekly delete thin out",
    example="keep=last=3,daily=7 backup=vm/102",
)
async def pbs_prune(
    homelab: Homelab,
    keep: Annotated[str, Meta(description="last=3,daily=7")],
    datastore: Datastore | None = None,
    namespace: Namespace = "",
    backup: Annotated[str, Meta(description="Only vm/100 or host/nas")] | None = None,
    server: Server | None = None,
) -> Plan:
    """Delete old backups by a retention. A dry run names each; protected ones stay."""
    keeps = parse_keep(keep)
    chosen, place = await choose_namespace(homelab, server, datastore, namespace)
    if backup is not None:
        group = Group.parse(backup)
        if group.time is not None:
            raise BadArgument(
                f"{group} is one backup, and a retention applies to all of {group.name}",
                next_step=either(
                    Advice(f"Give {{backup}} as {group.name}", backup=group.name),
                    see("delete only this one", tools.pbs_backup_delete(backup=str(group))),
                ),
            )
        await require_visible(homelab, place, group)
        await chosen.find_backup(place.store, place.namespace, group)
        prunes = [await preview_prune(chosen, place, group, keeps)]
    else:
        prunes = await preview_prunes(chosen, [place], keeps)
    summary = f"Prune {prunes[0].group if backup else 'the backups'} in {place}, keeping {keep}"
    unchanged = tuple(f"{prune.group}: nothing to remove" for prune in prunes if not prune.removed)
    actions = [await _prune_action(homelab, chosen, prune, keeps) for prune in prunes if prune.removed]
    return Plan(
        summary,
        tuple(actions),
        unchanged=unchanged if not actions else (),
        independent=True,
        facts=describe_prunes(prunes),
        warnings=tuple(await _warnings(chosen, prunes)),
        next_step=see("Garbage collection frees their space a day later", tools.pbs_gc) if actions else None,
    )


async def _prune_action(homelab: Homelab, server: BackupServer, prune: GroupPrune, keeps: Mapping[str, int]) -> Action:
    place, group = prune.namespace, prune.group

    async def check() -> None:
        if (await preview_prune(server, place, group, keeps)).removed != prune.removed:
            raise Conflict(CHANGED, next_step="Nothing was removed; call again to see what would be")

    def result(rows: Any) -> dict[str, Any]:
        removed = [row for row in rows or () if not row.get("keep") and not row.get("protected")]
        return {"removed": len(removed)}

    count = count_of(len(prune.removed), "backup")
    request = ("POST", f"{place.path}/prune", {**place.params, **group.params, **keeps})
    return await server_action(
        homelab,
        server,
        place,
        f"Remove {count} of {group} in {place}",
        request,
        group=group,
        risk=Risk.DESTROY,
        because=PRUNES,
        removes=[f"{group}/{iso(time)}" for time in prune.removed],
        check=check,
        result=result,
    )


async def _warnings(server: BackupServer, prunes: Sequence[GroupPrune]) -> list[str]:
    """Groups that would lose their last verified backup."""
    warnings = []
    for prune in prunes:
        if prune.removed:
            backups = await server.backups_in(prune.namespace, prune.group)
            gone = [backup for backup in backups if backup.time in prune.removed]
            warnings += describe_loss(gone, [backup for backup in backups if backup.time not in prune.removed])
    return warnings


def describe_loss(gone: Sequence[Backup], left: Sequence[Backup]) -> list[str]:
    """What a guest or host loses for good with these backups."""
    if not gone:
        return []
    name = gone[0].group.name
    if not left:
        return [f"{name} has no other backup in {gone[0].place}"]
    if any(backup.verified == "ok" for backup in gone) and not any(backup.verified == "ok" for backup in left):
        return [f"{name} keeps no backup in {gone[0].place} that was verified"]
    return []


# -- namespaces --------------------------------------------------------------------------------------------------------


@operation(
    toolset="pbs",
    risk=Risk.CHANGE,
    idempotent=True,
    shown_by=("pbs_status", "datastore", "server"),
    search_words="proxmox backup server create namespace separate clusters tenants",
    example="namespace=prod/web",
)
async def pbs_namespace_create(
    homelab: Homelab, namespace: Namespace, datastore: Datastore | None = None, server: Server | None = None
) -> Plan:
    """Create a namespace, with missing parents."""
    chosen, place = await choose_namespace(homelab, server, datastore, namespace)
    known = await chosen.namespaces(place.store)
    summary = f"Create the namespace {place.namespace} in {chosen.name}/{place.store}"
    parts = place.namespace.split("/")
    if not all(parts):
        raise BadArgument("The namespace is empty", next_step="Name it, such as prod or prod/web")
    levels = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    missing = [level for level in levels if level not in known]
    actions = []
    for level in missing:
        parent, _, name = level.rpartition("/")
        params = {"name": name, **({"parent": parent} if parent else {})}
        request = ("POST", f"{place.path}/namespace", params)
        actions.append(await server_action(homelab, chosen, place, f"Create the namespace {level}", request))
    return Plan(summary, tuple(actions), unchanged=() if actions else (f"{place} already exists",))


@operation(
    toolset="pbs",
    risk=Risk.DESTROY,
    shown_by=("pbs_status", "datastore", "server"),
    search_words="proxmox backup server delete remove namespace with its backups",
    example="namespace=old",
)
async def pbs_namespace_delete(
    homelab: Homelab,
    namespace: Namespace,
    datastore: Datastore | None = None,
    with_backups: bool = False,
    server: Server | None = None,
) -> Plan:
    """Delete a namespace and those below it."""
    chosen, place = await choose_namespace(homelab, server, datastore, namespace)
    if not place.namespace:
        raise BadArgument("The root of a datastore cannot be deleted", next_step="Name a namespace, such as prod")
    if place.namespace not in await chosen.namespaces(place.store):
        raise NotFound(f"There is no namespace {place.namespace!r} in {chosen.name}/{place.store}")
    below = await chosen.namespaces(place.store, place.namespace)
    backups = await backups_below(chosen, place, below)
    for inner in below:
        await require_visible(homelab, replace(place, namespace=inner))
    for name in {backup.group.name for backup in backups}:
        await require_visible(homelab, place, Group.parse(name))
    if backups and not with_backups:
        raise Conflict(
            f"{place} has {count_of(len(backups), 'backup')}",
            next_step=Advice("Give {with_backups} to delete them as well", with_backups=True),
        )
    if protected := [str(backup) for backup in backups if backup.protected]:
        raise Conflict(
            f"{count_of(len(protected), 'backup')} in it are protected: {', '.join(protected[:SHOWN])}",
            why="PBS would delete the others and then refuse",
            next_step=Advice("Remove their protection first", tools.pbs_backup_update(protected=False)),
        )
    planned = {str(backup) for backup in backups}

    async def check() -> None:
        namespaces = await chosen.namespaces(place.store, place.namespace)
        now = await backups_below(chosen, place, namespaces)
        if {str(backup) for backup in now} != planned or namespaces != below:
            raise Conflict(CHANGED, next_step="Nothing was deleted; call again to see what would be")

    summary = f"Delete the namespace {place}" + (f" with {count_of(len(backups), 'backup')}" if backups else "")
    params = {**place.params, "delete-groups": bool(backups)}
    action = await server_action(
        homelab,
        chosen,
        place,
        summary,
        ("DELETE", f"{place.path}/namespace", params),
        concerns=[*(Target(DATASTORE, str(replace(place, namespace=inner))) for inner in below), *backups],
        removes=planned,
        based_on=below,
        risk=Risk.DESTROY,
        because=PRUNES if backups else "a namespace that jobs and storages may name is deleted",
        check=check,
        result=lambda removed: {"removed_backups": (removed or {}).get("removed-snapshots", 0)},
    )
    return Plan(summary, (action,), facts={"removes": sorted(planned)[:SHOWN]} if planned else {})


async def backups_below(server: BackupServer, place: BackupNamespace, names: Sequence[str]) -> list[Backup]:
    """The backups in these namespaces of a datastore."""
    spaces = [replace(place, namespace=name) for name in names]
    parts = await gather_bounded(READS_AT_ONCE, [partial(server.backups_in, space) for space in spaces])
    return [backup for part in parts for backup in part]


async def targets_below(server: BackupServer, place: BackupNamespace, names: Sequence[str]) -> list[Target]:
    """These namespaces of a datastore and the backups in them: rules about any of them apply."""
    spaces = [Target(DATASTORE, str(replace(place, namespace=name))) for name in names]
    return [*spaces, *(backup_target(each.place, each.group) for each in await backups_below(server, place, names))]
