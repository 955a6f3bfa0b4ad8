"""What the storages hold: reading it from all of them at once, and finding one volume by its id."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import partial
from typing import Any

import msgspec

from quorate.hints import BACKUP_LIST, STORAGE_LIST, VOLUME_LIST, Advice, see
from quorate.operations.units import duration, moment, size
from quorate.problems import BadArgument, NotFound, Problem
from quorate.pve.cluster import Cluster
from quorate.pve.lookup import Resource, View
from quorate.pve.tasks import gather_bounded
from quorate.suggestions import suggest

READS_AT_ONCE = 16
NAMES_SHOWN = 6
FOLDERS = frozenset({"iso", "vztmpl", "backup", "snippets", "import"})


class StoredVolume(msgspec.Struct, frozen=True):
    """A row of a storage's content list, and where it was found."""

    volid: str
    content: str = ""
    format: str = ""
    size: int = 0
    ctime: int = 0
    vmid: int | None = None
    notes: str | None = None
    protected: int = 0
    subtype: str | None = None
    parent: str | None = None
    """Of a linked clone: the volume it builds on, as the storage writes it."""
    verification: dict[str, Any] | None = None
    node: str = ""
    """A node from which it can be reached."""
    shared: bool = False

    @property
    def storage(self) -> str:
        return self.volid.partition(":")[0]

    @property
    def name(self) -> str:
        """The part after the storage's name."""
        return self.volid.partition(":")[2]

    @property
    def path(self) -> str:
        return f"/nodes/{self.node}/storage/{self.storage}/content/{self.volid}"

    @property
    def is_container(self) -> bool:
        """Of a backup: whether it is one of a container."""
        if self.subtype:
            return self.subtype == "lxc"
        return bool(re.search(r"vzdump-(lxc|openvz)-|^backup/ct/", self.name)) or self.format == "pbs-ct"

    @property
    def verified(self) -> str:
        """What a backup server found when it last checked the backup."""
        return str((self.verification or {}).get("state", ""))

    def __str__(self) -> str:
        return self.volid if self.shared else f"{self.volid} on {self.node}"


def age(volume: StoredVolume, now: float) -> str:
    return duration(max(0.0, now - volume.ctime)) if volume.ctime else ""


def describe(volume: StoredVolume) -> str:
    return f"{size(volume.size)}, made {moment(volume.ctime)}" if volume.ctime else size(volume.size)


async def places(
    pve: Cluster,
    *,
    storages: Collection[str] | None = None,
    node: str | None = None,
    content: Collection[str] = (),
) -> list[Resource]:
    """Storages as seen from one node each: a shared one once, a local one for every node that has it.

    An unknown storage or node is an error, a storage on a node that cannot be asked is left out. One that its node has
    not reported as available is included: it may be new, and if not, reading it shows what is wrong.
    """
    if node is not None:
        await pve.inventory.node(node)
    view = await pve.inventory.decide_on_fresh_view(lambda view: _require_storages(view, storages, node))
    chosen: dict[tuple[str, str], Resource] = {}
    for row in sorted(view.of_type("storage"), key=lambda row: (row.storage, row.status != "available", row.node)):
        if row.node in view.online and _fits(row, storages, node, content):
            chosen.setdefault((row.storage, "" if row.shared else row.node), row)
    return list(chosen.values())


def _fits(row: Resource, storages: Collection[str] | None, node: str | None, content: Collection[str]) -> bool:
    return (
        (node is None or row.node == node)
        and (storages is None or row.storage in storages)
        and (not content or not set(content).isdisjoint(row.content.split(",")))
    )


def _require_storages(view: View, storages: Collection[str] | None, node: str | None) -> View:
    """Raise if the view lacks one of these storages; returns the view."""
    known = sorted({row.storage for row in view.of_type("storage") if node is None or row.node == node})
    for name in storages or ():
        if name not in known:
            where = f"Node {node} has" if node else "There is"
            hint = suggest(name, known, f"Storages: {', '.join(known)}")
            raise NotFound(f"{where} no storage {name!r}", next_step=hint)
    return view


async def survey(
    pve: Cluster,
    *,
    storages: Collection[str] | None = None,
    node: str | None = None,
    content: str | None = None,
    vmid: int | None = None,
) -> tuple[list[StoredVolume], list[str]]:
    """The volumes in all places that can be reached, and those that cannot, such as all of a node that is offline."""
    kinds = (content,) if content else ()
    where = await places(pve, storages=storages, node=node, content=kinds)
    found, trouble = await read(pve, where, content=content, vmid=vmid)
    return found, trouble + await _out_of_reach(pve, where, storages=storages, node=node, content=kinds)


async def _out_of_reach(
    pve: Cluster,
    reached: list[Resource],
    *,
    storages: Collection[str] | None,
    node: str | None,
    content: Collection[str],
) -> list[str]:
    """The storages that no node that is online has, node by node."""
    seen = {(row.storage, "" if row.shared else row.node) for row in reached}
    missed: dict[str, list[str]] = {}
    for row in sorted(await pve.inventory.of_type("storage"), key=lambda row: (row.node, row.storage)):
        if _fits(row, storages, node, content) and (row.storage, "" if row.shared else row.node) not in seen:
            missed.setdefault(row.node, []).append(row.storage)
    return [f"{', '.join(names)} on {where}: {where} is offline" for where, names in missed.items()]


async def read(
    pve: Cluster, where: list[Resource], *, content: str | None = None, vmid: int | None = None
) -> tuple[list[StoredVolume], list[str]]:
    """The volumes in all of these places, and which places could not be read, with the reason."""
    given: dict[str, Any] = {"content": content, "vmid": vmid}
    answers = await gather_bounded(READS_AT_ONCE, [partial(_read_place, pve, place, given) for place in where])
    trouble = [
        f"{place.storage} on {place.node}: {answer.what}"
        for place, answer in zip(where, answers, strict=True)
        if isinstance(answer, Problem)
    ]
    if trouble and len(trouble) == len(where):
        raise next(answer for answer in answers if isinstance(answer, Problem))
    return [volume for answer in answers if not isinstance(answer, Problem) for volume in answer], trouble


async def _read_place(pve: Cluster, storage: Resource, given: dict[str, Any]) -> list[StoredVolume] | Problem:
    params = {key: value for key, value in given.items() if value is not None}
    try:
        rows = await pve.client.get_as(
            list[StoredVolume], f"/nodes/{storage.node}/storage/{storage.storage}/content", **params
        )
    except Problem as problem:
        return problem
    return [msgspec.structs.replace(row, node=storage.node, shared=bool(storage.shared)) for row in rows]


async def find(pve: Cluster, volid: str, node: str | None = None) -> StoredVolume:
    """One volume by its id; a file that several nodes have under the same id needs the node as well."""
    storage, colon, name = volid.partition(":")
    if not colon or not storage or not name:
        raise BadArgument(
            f"{volid!r} is not a volume",
            why="A volume is written storage:name, such as local:iso/debian.iso",
            next_step=see("List the volumes or the backups", VOLUME_LIST, BACKUP_LIST),
        )
    where = await places(pve, storages=[storage], node=node)
    if not where:
        raise NotFound(f"Storage {storage} is not available", next_step=see("See what is wrong with it", STORAGE_LIST))
    # Listing disk images can be slow, as PVE looks into each; the names of other kinds show that they are not.
    folder = name.partition("/")[0]
    volumes, _ = await read(pve, where, content=folder if folder in FOLDERS else None)
    found = [volume for volume in volumes if volume.volid == volid]
    if not found:
        hint = suggest(
            volid, sorted({volume.volid for volume in volumes}), see("See what exists", VOLUME_LIST), count=2
        )
        raise NotFound(f"There is no volume {volid!r}", next_step=hint)
    if len(found) > 1:
        nodes = ", ".join(volume.node for volume in found[:NAMES_SHOWN])
        raise BadArgument(
            f"Several nodes have a volume {volid}",
            why=f"It is on {nodes}",
            next_step=Advice("Say which: {node}", node=""),
        )
    return found[0]


async def require(pve: Cluster, what: str, path: str, *privileges: str) -> None:
    """Check a privilege that PVE checks only in its code: report what is missing before PVE does."""
    lacking = [privilege for privilege in privileges if not await pve.may(path, privilege)]
    if lacking:
        pve.forget_privileges()
        raise await pve.refusal(what, path, lacking)
