"""Volumes: disk images, ISO images, templates, backups, snippets; finding, annotating and deleting them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NAMED, Advice, tools
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import GuestRef, Risk, Table, operation, page
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster
from quorate.tools.storages import StoredVolume, age, describe, find, require, survey
from quorate.tools.volume_usage import Only, Usage, read_usage
from quorate.units import size, yes

COLUMNS = (
    *("volume", "node", "content", "format", "size", "age", "guest", "owner", "parent", "used_by"),
    *("protected", "verified", "notes"),
)
NOTES_SHOWN = 80
VOLUMES_AT_ONCE = 50

Content = Literal["images", "rootdir", "iso", "vztmpl", "backup", "snippets", "import"]
StorageNames = Annotated[str | list[str], Meta(description="One or several")]
VolumeId = Annotated[str, Meta(description="storage:name")]
OnNode = Annotated[str, Meta(description="Only if several nodes have it")]

_SORTS = {
    "name": lambda volume: (volume.volid, volume.node),
    "size": lambda volume: (-volume.size, volume.volid),
    "newest": lambda volume: (-volume.ctime, volume.volid),
}


@operation(
    toolset="storage",
    risk=Risk.READ,
    search_words=(
        "where are isos eats full files images storage share contents orphaned leftover unused disks nobody uses"
    ),
)
async def volume_list(
    pve: Cluster,
    storage: StorageNames | None = None,
    node: str | None = None,
    content: Content | None = None,
    guest: GuestRef | None = None,
    name: Annotated[str, Meta(description="Part of the volume's name")] | None = None,
    only: Only | None = None,
    sort: Literal["name", "size", "newest"] = "name",
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """What storages hold: disks, ISO images, templates, backups, with owner, what uses each, size, age, notes."""
    vmid = None if guest is None else await vmid_of(pve, guest)
    listed, trouble = await survey(pve, storages=names(storage), node=node, content=content, vmid=vmid)
    volumes = [volume for volume in listed if name is None or name.lower() in volume.name.lower()]
    usage = await read_usage(pve, volumes, only)
    volumes = [volume for volume in volumes if usage.fits(volume, only)]
    volumes.sort(key=_SORTS[sort])
    now = pve.clock.time()
    table = page(COLUMNS, (_row(volume, usage, now) for volume in volumes), limit=limit, offset=offset)
    table.facts = {**totals(volumes, trouble), **usage.notes}
    if table.next_offset is not None:
        table.note = "narrow with storage, node, content, guest, name or only"
    return table


def totals(volumes: Iterable[StoredVolume], trouble: list[str]) -> dict[str, Any]:
    total = sum(volume.size for volume in volumes)
    return {"total_size": size(total), **({"not_read": trouble} if trouble else {})}


def names(value: str | list[str] | None) -> list[str] | None:
    return [value] if isinstance(value, str) else value


async def vmid_of(pve: Cluster, guest: int | str) -> int:
    """The vmid of a guest; any number is accepted, because volumes and backups may outlive their guest."""
    text = str(guest).strip()
    return int(text) if text.isascii() and text.isdigit() else (await pve.guest(guest)).vmid


def _row(volume: StoredVolume, usage: Usage, now: float) -> list[Any]:
    return [
        volume.volid,
        "" if volume.shared else volume.node,
        volume.content,
        volume.format,
        size(volume.size),
        age(volume, now),
        volume.vmid,
        usage.owner_of(volume),
        (volume.parent or "").partition("@")[0],
        usage.used_by(volume),
        yes(volume.protected),
        volume.verified,
        shorten_notes(volume.notes or ""),
    ]


def shorten_notes(notes: str) -> str:
    line = " ".join(notes.split())
    return line if len(line) <= NOTES_SHOWN else line[:NOTES_SHOWN] + "…"


# -- changes -----------------------------------------------------------------------------------------------------------


def _update_risk(arguments: Mapping[str, Any]) -> Risk:
    """A backup that is no longer protected goes with the next pruning."""
    return Risk.DESTROY if arguments["protected"] is False else Risk.CHANGE


@operation(
    toolset="storage",
    risk=Risk.DESTROY,
    risk_of=_update_risk,
    least=Risk.CHANGE,
    idempotent=True,
    search_words="protect mark backup deletion prune keep forever note comment unprotect nobody deletes",
    example="volume=nas:backup/vzdump-qemu-109-2025_12_31-02_00_01.vma.zst notes='keep this one'",
)
async def volume_update(
    pve: Cluster,
    volume: VolumeId,
    notes: Annotated[str, Meta(description="Replaces the old notes; empty removes them")] | None = None,
    protected: Annotated[bool, Meta(description="Against deletion and pruning; false needs access admin")]
    | None = None,
    node: OnNode | None = None,
) -> Plan:
    """Change the notes or the protection of a backup; other volumes have neither."""
    backup = await find(pve, volume, node)
    if backup.content != "backup":
        raise BadArgument(
            f"{backup} is not a backup but {backup.content}", why="Only backups have notes and protection in PVE"
        )
    if notes is None and protected is None:
        raise BadArgument(
            "No changes were specified",
            next_step=Advice("Give {notes}, {protected} or both", notes=NAMED, protected=NAMED),
        )
    now = await pve.get(backup.path)
    requested = {"notes": notes, "protected": None if protected is None else int(protected)}
    params = {key: value for key, value in requested.items() if value is not None and not _is_set(now, key, value)}
    if not params:
        return Plan(f"Change {backup}", unchanged=(f"{backup} already has these settings",))

    changes = [f"notes of {len(notes or '')} characters"] if "notes" in params else []
    changes += ["protect it" if protected else "lift its protection"] if "protected" in params else []
    summary = f"Change {backup}: {', '.join(changes)}"
    return Plan(summary, (Call(summary, "PUT", backup.path, params, _target(backup)),))


def _is_set(attributes: dict[str, Any], key: str, value: Any) -> bool:
    if key == "notes":  # PVE may add a line feed at the end
        return str(attributes.get("notes") or "").rstrip("\n") == str(value).rstrip("\n")
    return int(attributes.get(key) or 0) == int(value)


@operation(
    toolset="storage",
    risk=Risk.DESTROY,
    search_words=(
        "backups guests gone exist delete remove iso image template file leftover orphaned unused disk cleanup space"
    ),
    example="volume=nas:iso/virtio-win-0.1.271.iso",
)
async def volume_delete(
    pve: Cluster,
    volume: Annotated[str | list[str], Meta(description="storage:name, or a list of them")],
    node: OnNode | None = None,
) -> Plan:
    """Delete volumes permanently: ISO images, templates, backups, leftover disks. Volumes in use are refused."""
    volids = list(dict.fromkeys([volume] if isinstance(volume, str) else volume))
    if not volids or len(volids) > VOLUMES_AT_ONCE:
        raise BadArgument(f"{len(volids)} volumes were specified", next_step=f"Give between 1 and {VOLUMES_AT_ONCE}")
    volumes = [await find(pve, volid, node) for volid in volids]
    for entry in volumes:
        await refuse_needed(pve, entry)
    summary = (
        "Delete "
        + ", ".join(str(entry) for entry in volumes[:5])
        + (f" and {len(volumes) - 5} more" if volumes[5:] else "")
    )
    facts = {"frees": size(sum(entry.size for entry in volumes))}
    return Plan(summary, tuple(plan_deletion(entry) for entry in volumes), facts=facts, independent=True)


async def refuse_needed(pve: Cluster, volume: StoredVolume) -> None:
    if volume.protected:
        raise Conflict(
            f"{volume} is protected",
            next_step=Advice(
                "If it is no longer needed, remove the protection first", tools.volume_update(protected=False)
            ),
        )
    if volume.content == "backup" and volume.vmid is not None:
        await require(pve, f"delete {volume}", f"/vms/{volume.vmid}", "VM.Backup")
        await require(pve, f"delete {volume}", f"/storage/{volume.storage}", "Datastore.AllocateSpace")
    else:
        await require(pve, f"delete {volume}", f"/storage/{volume.storage}", "Datastore.Allocate")


def plan_deletion(volume: StoredVolume, reason: str = "") -> Call:
    task_id = volume.storage if volume.vmid is None else f"{volume.vmid}@{volume.storage}"
    summary = f"Delete {volume} ({describe(volume)})" + (f": {reason}" if reason else "")
    return Call(summary, "DELETE", volume.path, {}, _target(volume), task_id=task_id)


def _target(volume: StoredVolume) -> Target:
    return Target("volume", volume.volid, node=volume.node)
