"""Backups: listing, inspecting, creating and pruning them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from msgspec import Meta

from quorate.hints import NAMED, Advice, see, tools
from quorate.operations.placement import pick_storage
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import GuestRef, GuestRefs, Risk, Table, operation, page
from quorate.pbs import BackupServers
from quorate.problems import BadArgument, Conflict, NotFound, Problem, ServerFailed, catch_problem
from quorate.pve import values
from quorate.pve.backups import excluded_paths, excluded_volumes
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.tasks import gather_bounded
from quorate.tools.storages import StoredVolume, age, find, read, require, storage_places, survey
from quorate.tools.volumes import OnNode, StorageNames, names, shorten_notes, totals, vmid_of
from quorate.units import moment, shortlist, size, yes

READS_AT_ONCE = 8
REFUSALS_ASKED = 20
STORAGES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class StorageVisibility:
    """Which backups on some storages these credentials cannot see."""

    hidden: tuple[str, ...] = ()
    """Storages that show no backups at all."""
    by_guest: bool = False
    """Some storage shows only backups of guests that these credentials may back up."""


async def storage_visibility(pve: Cluster, storages: Iterable[str]) -> StorageVisibility:
    hidden, by_guest = [], False
    for storage in sorted(set(storages)):
        path = f"/storage/{storage}"
        if await pve.may(path, "Datastore.Allocate"):
            continue
        if await pve.may(path, "Datastore.AllocateSpace"):
            by_guest = True
        else:
            hidden.append(storage)
    return StorageVisibility(tuple(hidden), by_guest)


async def hidden_guests(pve: Cluster, vmids: Iterable[int]) -> list[int]:
    """Guests whose backups are hidden. Each check costs a request: after some refusals the rest counts as hidden."""
    hidden: list[int] = []
    for vmid in vmids:
        if len(hidden) >= REFUSALS_ASKED or not await pve.may(f"/vms/{vmid}", "VM.Backup"):
            hidden.append(vmid)
    return hidden


def describe_hidden_backups(storages: Iterable[str] = (), guests: Iterable[int] = ()) -> list[str]:
    """Which backups are hidden, and the privileges that show them."""
    sentences = []
    if names := list(storages):
        paths = shortlist([f"/storage/{name}" for name in names], STORAGES_SHOWN)
        sentences.append(
            f"Backups on {shortlist(names, STORAGES_SHOWN)} are hidden: "
            f"that needs Datastore.AllocateSpace on {paths}, and VM.Backup on /vms"
        )
    if count := len(list(guests)):
        sentences.append(f"Backups of {count} guest{'s' * (count > 1)} are hidden: that needs VM.Backup on /vms")
    return sentences


BackupRef = Annotated[str, Meta(description="As in backup_list, or newest:GUEST")]
NEWEST = "newest"
COLUMNS = (
    "backup", "guest", "name", "type", "size", "age", "made", "protected", "verified", "verified_at", "encrypted",
    "notes",
)  # fmt: skip
NAMES_SHOWN = 5
GUESTS_AT_ONCE = 100
REMOVALS_SHOWN = 50
NOTES_TEMPLATE = "{{guestname}}"  # what PVE's own web page uses

Mode = Annotated[
    Literal["snapshot", "suspend", "stop"],
    Meta(description="stop: consistent, with downtime"),
]
Compress = Literal["zstd", "gzip", "lzo", "none"]
Notes = Annotated[str, Meta(description="May hold {{guestname}}, {{vmid}} …")]
Keep = Annotated[str, Meta(description="Retention: last=3,daily=7,weekly=4,monthly=6,yearly=1, or all")]

_KEEP_PARTS = ("last", "hourly", "daily", "weekly", "monthly", "yearly")


# -- reading -----------------------------------------------------------------------------------------------------------


@operation(
    toolset="backups",
    risk=Risk.READ,
    search_words="count keep yesterday last backed up existing age size copies",
)
async def backup_list(
    pve: Cluster,
    guest: GuestRef | None = None,
    storage: StorageNames | None = None,
    node: str | None = None,
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Backups on all storages, newest first."""
    vmid = None if guest is None else await vmid_of(pve, guest)
    backups, trouble = await survey(pve, storages=names(storage), node=node, content="backup", vmid=vmid)
    backups.sort(key=lambda backup: (-backup.ctime, backup.volid))
    known = {row.vmid: row.name for row in await pve.inventory.guests()}
    now = pve.clock.time()
    table = page(COLUMNS, (_row(backup, known, now) for backup in backups), limit=limit, offset=offset)
    seen = {backup.vmid for backup in backups}
    hidden = await _find_hidden_backups(
        pve,
        names(storage),
        node,
        [candidate for candidate in (known if vmid is None else [vmid]) if candidate not in seen],
    )
    table.facts = totals(backups, trouble) | ({"hidden": hidden} if hidden else {})
    if table.next_offset is not None:
        table.note = "narrow with guest, storage or node"
    return table


async def _find_hidden_backups(
    pve: Cluster, storages: list[str] | None, node: str | None, unseen: list[int]
) -> list[str]:
    places = await storage_places(pve, storages=storages, node=node, content=["backup"])
    visibility = await storage_visibility(pve, (place.storage for place in places))
    return describe_hidden_backups(visibility.hidden, await hidden_guests(pve, unseen) if visibility.by_guest else ())


def _row(backup: StoredVolume, known: dict[int, str], now: float) -> list[Any]:
    return [
        backup.volid,
        backup.vmid,
        known.get(backup.vmid or 0, ""),
        "ct" if backup.is_container else "vm",
        size(backup.size),
        age(backup, now),
        moment(backup.ctime) if backup.ctime else "",
        yes(backup.protected),
        backup.verified,
        moment(backup.verified_at) if backup.verification and backup.verified_at else "",
        yes(bool(backup.key)),
        shorten_notes(backup.notes or ""),
    ]


@operation(
    toolset="backups",
    risk=Risk.READ,
    search_words="inside backup contents config hold time",
    example="backup=newest:docker01",
)
async def backup_show(pve: Cluster, backup: BackupRef, node: OnNode | None = None) -> dict[str, Any]:
    """What a backup holds: the guest's configuration, disks and networks at that time."""
    archive = await find_backup(pve, backup, node)
    config, guest_notes = await asyncio.gather(archived_config(pve, archive), archived_notes(pve, archive))
    options = visible_options(config)
    excluded = excluded_volumes(config, is_vm=not archive.is_container)
    disks = {key: options.pop(key) for key in sorted(options) if values.is_disk(key, options[key])}
    networks = {key: options.pop(key) for key in sorted(options) if values.bus_of(key) == "net"}
    known = await read_evidence(pve, archive)
    return {
        "backup": archive.volid,
        "guest": archive.vmid,
        "name": options.pop("name", None) or options.pop("hostname", ""),
        "type": "ct" if archive.is_container else "vm",
        "made": moment(archive.ctime),
        "age": age(archive, pve.clock.time()),
        "size": size(archive.size),
        "protected": bool(archive.protected),
        "verified": archive.verified or "unknown",
        "notes": archive.notes or "",
        **known,
        **({"guest_notes": guest_notes} if guest_notes else {}),
        **({"not_included": excluded} if excluded else {}),
        "disks": disks,
        "networks": networks,
        "options": options,
    }


def visible_options(config: Mapping[str, str]) -> dict[str, str]:
    """What may be seen of a configuration in a backup."""
    return {key: value for key, value in config.items() if key != "digest" and not values.holds_secrets(key)}


async def read_evidence(pve: Cluster, backup: StoredVolume) -> dict[str, Any]:
    """What a configured backup server knows about a backup on one of its datastores."""
    servers = pve.attachment(BackupServers)
    if not servers.servers or not backup.name.startswith("backup/"):
        return {}
    storages = {str(row["storage"]): row for row in await pve.get("/storage") or ()}
    storage = storages.get(backup.storage, {})
    server = servers.find(storage)
    if server is None:
        return {}
    store, namespace = str(storage.get("datastore", "")), str(storage.get("namespace") or "")
    try:
        stored = await server.find_named(store, namespace, backup.name.removeprefix("backup/"))
    except Problem as problem:
        return {"backup_server": {"server": server.name, "not_read": str(problem)}}
    when = stored.verified_at
    return {
        "backup_server": {
            "server": server.name,
            "datastore": store,
            **({"namespace": namespace} if namespace else {}),
            "verified": stored.verified or "never",
            **({"verified_at": moment(when)} if when else {}),
            **({"verified_by": stored.verified_by} if stored.verified_by else {}),
            "encryption": stored.crypt_mode,
            **({"key": stored.key} if stored.key else {}),
            "owner": stored.owner,
        }
    }


async def find_backup(pve: Cluster, reference: str, node: str | None = None) -> StoredVolume:
    """A backup by its volume id, or the newest of a guest: newest:docker01."""
    newest, _, guest = reference.partition(":")
    if newest == NEWEST and not guest.startswith("backup/"):
        return await _find_newest(pve, guest, node)
    volume = await find(pve, reference, node)
    if volume.content != "backup":
        raise BadArgument(
            f"{volume} is not a backup but {volume.content}", next_step=see("List the backups", tools.backup_list)
        )
    return volume


async def _find_newest(pve: Cluster, reference: str, node: str | None) -> StoredVolume:
    """The guest may be gone, then only its vmid is known."""
    vmid = int(reference) if reference.isdecimal() else (await pve.guest(reference)).vmid
    backups, trouble = await survey(pve, node=node, content="backup", vmid=vmid)
    if trouble:
        raise Conflict(
            f"The newest backup of {reference} is not known: {trouble[0]}",
            next_step=see("Choose one of those that can be read", tools.backup_list(guest=vmid)),
        )
    if not backups:
        raise NotFound(f"Guest {reference} has no backup", next_step=see("See what there is", tools.backup_list))
    return max(backups, key=lambda volume: (volume.ctime, volume.volid))


async def archived_config(pve: Cluster, backup: StoredVolume) -> dict[str, str]:
    """The guest's configuration as stored in the backup, without its snapshots and comments."""
    return parse_config(await _read_archived(pve, backup))


async def archived_notes(pve: Cluster, backup: StoredVolume) -> str:
    """The guest's notes as stored in the backup. PVE writes them as comments, and vzdump adds some of its own."""
    lines = (line for line in await _read_archived(pve, backup) if line.startswith("#"))
    return "\n".join(unquote(line[1:]) for line in lines if not line.startswith(("#qmdump#", "#vzdump#"))).strip()


async def _read_archived(pve: Cluster, backup: StoredVolume) -> list[str]:
    try:
        text = await pve.get(f"/nodes/{backup.node}/vzdump/extractconfig", volume=backup.volid)
    except ServerFailed as problem:
        raise Conflict(f"{backup} cannot be inspected", why=problem.what) from None
    return head_of(str(text))


def head_of(text: str) -> list[str]:
    """The lines of a guest's configuration file above its snapshots."""
    return re.split(r"^\[", text, maxsplit=1, flags=re.M)[0].splitlines()


def parse_config(lines: Iterable[str]) -> dict[str, str]:
    """The options among these lines, without comments."""
    pairs = (line.partition(": ") for line in lines if not line.startswith("#"))
    return {key: value for key, colon, value in pairs if colon}


# -- making ------------------------------------------------------------------------------------------------------------


@operation(
    toolset="backups",
    risk=Risk.CHANGE,
    search_words="save copy pbs back up guest vm now before risky work make full",
    example="guest=docker01 storage=pbs",
)
async def backup_create(
    pve: Cluster,
    guest: GuestRefs,
    storage: Annotated[str, Meta(description="Default: the roomiest")] | None = None,
    mode: Mode = "snapshot",
    compress: Compress = "zstd",
    notes: Notes = NOTES_TEMPLATE,
    protected: Annotated[bool, Meta(description="Protect from deletion and pruning")] = False,
) -> Plan:
    """Back up guests now. Older backups are not pruned."""
    guests = await _guests(pve, guest)
    for target in guests:
        await require(pve, f"back up {target}", f"/vms/{target.vmid}", "VM.Backup")
    by_node: dict[str, list[Guest]] = {}
    for target in sorted(guests, key=lambda target: target.vmid):
        by_node.setdefault(target.row.node, []).append(target)
    storages = await _storages(pve, list(by_node), storage)
    for name in sorted(set(storages.values())):
        await require(pve, f"store backups on {name}", f"/storage/{name}", "Datastore.AllocateSpace")
    calls = [
        vzdump_call(node, on_node, storages[node], mode=mode, compress=compress, notes=notes, protected=protected)
        for node, on_node in by_node.items()
    ]
    return Plan(
        f"Back up {shortlist(guests, NAMES_SHOWN)}",
        tuple(calls),
        independent=True,
        warnings=_downtime(guests, mode),
        facts={"storage": ", ".join(sorted(set(storages.values()))), **await describe_exclusions(pve, guests)},
        after=partial(_find_new_backups, pve, guests, storages, pve.clock.time() + pve.client.clock_skew),
    )


async def describe_exclusions(pve: Cluster, guests: Sequence[Guest]) -> dict[str, Any]:
    """What the backups of these guests will not hold: their volumes, and paths that a node's defaults exclude."""
    nodes = sorted({guest.row.node for guest in guests if not guest.is_vm})
    configs = await gather_bounded(READS_AT_ONCE, [partial(catch_problem, guest.get("config")) for guest in guests])
    defaults = [await catch_problem(pve.get(f"/nodes/{node}/vzdump/defaults")) for node in nodes]
    paths = {
        node: [] if isinstance(default, Problem) else excluded_paths(default, f"the defaults of {node}")
        for node, default in zip(nodes, defaults, strict=True)
    }
    excluded = {
        guest.label: excluded_volumes({} if isinstance(config, Problem) else config, is_vm=guest.is_vm)
        + ([] if guest.is_vm else paths[guest.row.node])
        for guest, config in zip(guests, configs, strict=True)
    }
    listed = {label: parts for label, parts in excluded.items() if parts}
    return {"not_included": listed} if listed else {}


def _downtime(guests: Sequence[Guest], mode: str) -> tuple[str, ...]:
    """Warnings for the people who use the guests."""
    running = shortlist([guest for guest in guests if guest.row.status == "running"], NAMES_SHOWN)
    if not running or mode == "snapshot":
        return ()
    if mode == "suspend":
        return (f"Running guests are suspended for part of their backup: {running}",)
    return (f"Running guests are shut down for their backup, and started again afterwards: {running}",)


async def _guests(pve: Cluster, refs: int | str | list[int | str]) -> list[Guest]:
    chosen = refs if isinstance(refs, list) else [refs]
    if not chosen or len(chosen) > GUESTS_AT_ONCE:
        raise BadArgument(f"{len(chosen)} guests were specified", next_step=f"Give between 1 and {GUESTS_AT_ONCE}")
    return await pve.guests(chosen)


async def _storages(pve: Cluster, nodes: list[str], name: str | None) -> dict[str, str]:
    """Node -> storage for its backups: the named one, else a shared one for all nodes, else the best of each."""
    if name is None:
        rows = [
            row
            for row in await pve.inventory.of_type("storage")
            if row.status == "available" and "backup" in row.content.split(",")
        ]
        common = [row for row in rows if row.shared and all(_has(rows, node, row.storage) for node in nodes)]
        best = max(common, key=lambda row: (row.maxdisk - row.disk, row.storage), default=None)
        defaults = pve.defaults.storage
        name = best.storage if best and not all(_has(rows, node, defaults or "") for node in nodes) else defaults
    return {node: (await pick_storage(pve, node, "backup", requested=name)).storage for node in nodes}


def _has(rows: list[Any], node: str, storage: str) -> bool:
    return any(row.node == node and row.storage == storage for row in rows)


def vzdump_call(
    node: str,
    guests: list[Guest],
    storage: str,
    *,
    mode: Mode = "snapshot",
    compress: Compress = "zstd",
    notes: str = NOTES_TEMPLATE,
    protected: bool = False,
) -> Call:
    """A run of PVE's backup program, which only sees the guests of its own node. It adds backups and deletes none."""
    only = guests[0] if len(guests) == 1 else None
    params = {
        "vmid": ",".join(str(guest.vmid) for guest in guests),
        "mode": mode,
        "compress": "0" if compress == "none" else compress,
        "notes-template": escape_notes(notes),
        **({"protected": 1} if protected else {}),
        "remove": 0,
        "storage": storage,
    }
    return Call(
        f"Back up {shortlist(guests, NAMES_SHOWN)} on {node} to {storage}",
        "POST",
        f"/nodes/{node}/vzdump",
        params,
        Target(only.row.kind, str(only.vmid), only.row.name, node) if only else Target("node", node, node=node),
        task_id=str(only.vmid) if only else "",
    )


def escape_notes(template: str) -> str:
    """The notes on one line, as PVE takes them."""
    return template.replace("\\", "\\\\").replace("\n", "\\n")


async def _find_new_backups(
    pve: Cluster, guests: list[Guest], storages: dict[str, str], since: float
) -> dict[str, Any]:
    """The new backups, by guest."""
    backups: dict[str, str] = {}
    for node, storage in storages.items():
        places = await storage_places(pve, storages=[storage], node=node)
        volumes, _ = await read(pve, places, content="backup")
        for volume in sorted(volumes, key=lambda volume: volume.ctime):
            if volume.ctime >= since - 1 and volume.vmid in {guest.vmid for guest in guests if guest.row.node == node}:
                backups[str(volume.vmid)] = f"{volume.volid} ({size(volume.size)})"
    return {"backups": backups}


# -- pruning -----------------------------------------------------------------------------------------------------------


@operation(
    toolset="backups",
    risk=Risk.DESTROY,
    search_words="backups cleanup space keep only last newest retention thin",
    example="storage=pbs keep=last=2",
)
async def backup_prune(
    pve: Cluster,
    storage: str,
    keep: Annotated[Keep, Meta(description="last=3,daily=7,weekly=4 …; default: the storage's own")] | None = None,
    guest: GuestRef | None = None,
    type: Literal["vm", "ct"] | None = None,
    node: Annotated[str, Meta(description="Of a local storage: only this node's")] | None = None,
) -> Plan:
    """Delete old backups by a retention rule. A dry run lists what would be deleted; protected ones stay."""
    places = await storage_places(pve, storages=[storage], node=node, content=["backup"])
    if not places:
        raise NotFound(
            f"Storage {storage} holds no backups",
            next_step=see("See those that do", tools.storage_list(content="backup")),
        )
    vmid = None if guest is None else await vmid_of(pve, guest)
    await _may_prune(pve, storage, vmid)
    params = {
        "prune-backups": retention(keep, or_all=False),
        "vmid": vmid,
        "type": None if type is None else {"vm": "qemu", "ct": "lxc"}[type],
    }
    settings = {key: value for key, value in params.items() if value is not None}
    calls: list[Call] = []
    marks: dict[str, str] = {}
    for storage_row in places:
        path = f"/nodes/{storage_row.node}/storage/{storage}/prunebackups"
        preview = await _preview(pve, storage, path, settings)
        marks |= {
            f"{row['volid']}" + ("" if storage_row.shared else f" on {storage_row.node}"): row["mark"]
            for row in preview
        }
        removals = [row for row in preview if row["mark"] == "remove"]
        if removals:
            task_id = storage if vmid is None else f"{vmid}@{storage}"
            summary = f"Delete {len(removals)} of {len(preview)} backups on {storage}, seen from {storage_row.node}"
            calls.append(
                Call(
                    summary,
                    "DELETE",
                    path,
                    settings,
                    Target("storage", storage, node=storage_row.node),
                    task_id=task_id,
                )
            )
    going_names = sorted(name for name, mark in marks.items() if mark == "remove")
    return Plan(
        f"Prune backups on {storage}",
        tuple(calls),
        unchanged=() if calls else (f"No backup on {storage} is beyond the retention",),
        independent=True,
        facts={
            "keeps": sum(mark != "remove" for mark in marks.values()),
            "removes": going_names[:REMOVALS_SHOWN],
            **({"more": len(going_names) - REMOVALS_SHOWN} if len(going_names) > REMOVALS_SHOWN else {}),
        },
    )


async def _may_prune(pve: Cluster, storage: str, vmid: int | None) -> None:
    if vmid is None:
        await require(pve, f"prune {storage}", f"/storage/{storage}", "Datastore.Allocate")
    else:
        await require(pve, f"prune {storage}", f"/storage/{storage}", "Datastore.AllocateSpace")
        await require(pve, f"prune backups of {vmid}", f"/vms/{vmid}", "VM.Backup")


async def _preview(pve: Cluster, storage: str, path: str, settings: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        return list(await pve.get(path, **settings))
    except ServerFailed as problem:
        if "no prune-backups options" not in problem.what:
            raise
        raise BadArgument(
            f"Storage {storage} has no retention of its own",
            next_step=Advice("Say what to keep, such as {keep}", keep="last=3,daily=7"),
        ) from None


def retention(keep: str | None, *, or_all: bool = True) -> str | None:
    """PVE's prune-backups setting from `last=3,daily=7`; the full names (keep-last) work, too. `or_all`: also "all"."""
    if keep is None:
        return None
    if keep.strip().lower() in ("all", "keep-all=1", "all=1"):
        if or_all:
            return "keep-all=1"
        raise BadArgument("Keeping all removes nothing", next_step=Advice("Give {keep}, such as last=3", keep=NAMED))
    kept: list[str] = []
    for part in filter(None, re.split(r"[,\s]+", keep.strip())):
        name, _, count = part.partition("=")
        word = name.removeprefix("keep-")
        if word not in _KEEP_PARTS or not count.isdigit():
            raise BadArgument(
                f"{part!r} is not a retention",
                next_step=f"Use {', '.join(_KEEP_PARTS)}, as in last=3,daily=7" + ("; or all" if or_all else ""),
            )
        kept.append(f"keep-{word}={int(count)}")
    if not any(not part.endswith("=0") for part in kept):
        raise BadArgument("A retention that keeps nothing is not allowed", next_step="Keep at least one: last=1")
    return ",".join(kept)
