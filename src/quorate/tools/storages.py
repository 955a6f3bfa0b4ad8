"""Storages and their content."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from quorate.hints import Advice, see, tools
from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import BadArgument, NotFound, Problem
from quorate.pve.cluster import Cluster
from quorate.pve.lookup import Resource, View
from quorate.pve.tasks import gather_bounded
from quorate.suggestions import suggest
from quorate.units import Quantity, duration, moment, percent, size, used_of, yes

COLUMNS = ("storage", "nodes", "type", "shared", "trouble", "used", "content")
NODES_SHOWN = 4


@operation(
    toolset="storage",
    risk=Risk.READ,
    search_words="big size large backup storage eats space free full almost used datastores nas share zfs nfs pbs",
)
async def storage_list(
    pve: Cluster,
    node: str | None = None,
    content: Annotated[
        str | None,
        Meta(description="images, rootdir, iso, vztmpl, backup, snippets or import"),
    ] = None,
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Storages with type, use and content types; a shared storage is one row."""
    if node is not None:
        await pve.inventory.node(node)
    rows = [
        row
        for row in await pve.inventory.of_type("storage")
        if (node is None or row.node == node) and (content is None or row.holds(content))
    ]
    groups: dict[tuple[str, str], list[Resource]] = {}
    for row in rows:
        groups.setdefault((row.storage, "" if row.shared else row.node), []).append(row)
    await _refresh_unreported_storages(pve, groups)
    return page(COLUMNS, (_row(groups[key]) for key in sorted(groups)), limit=limit, offset=offset)


async def _refresh_unreported_storages(pve: Cluster, groups: dict[tuple[str, str], list[Resource]]) -> None:
    """A storage that no node has reported as available may be new, so one of its nodes is asked."""
    online = (await pve.inventory.view()).online
    silent = {
        key: next((place.node for place in places if place.node in online), None)
        for key, places in groups.items()
        if all(place.status != "available" for place in places)
    }
    for node in sorted({node for node in silent.values() if node}):
        with suppress(Problem):  # its state stays unknown
            fresh = {row.storage: row for row in await pve.inventory.fresh_storages(node)}
            for key in (key for key, where in silent.items() if where == node and key[0] in fresh):
                groups[key] = [fresh[key[0]] if place.node == node else place for place in groups[key]]


def _usage(used: float, whole: float) -> str:
    if not whole:
        return ""
    return Quantity(f"{used_of(used, whole)} {percent(used / whole)}", {"used": int(used), "total": int(whole)})


def _row(places: list[Resource]) -> list[Any]:
    """One row: a local storage of one node, or a shared one of all its nodes."""
    best = next((place for place in places if place.status == "available"), places[0])
    names = sorted(place.node for place in places)
    more = f"+{len(names) - NODES_SHOWN}" if len(names) > NODES_SHOWN else ""
    return [
        best.storage,
        ",".join(names[:NODES_SHOWN]) + more,
        best.plugintype,
        yes(best.shared),
        "" if best.status == "available" else best.status,
        _usage(best.disk, best.maxdisk),
        ",".join(sorted(best.content.split(","))),
    ]


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
    """The volume that a linked clone builds on, as the storage writes it."""
    verification: dict[str, Any] | None = None
    encrypted: str | int | None = None
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
        """It is a backup of a container."""
        if self.subtype:
            return self.subtype == "lxc"
        return bool(re.search(r"vzdump-(lxc|openvz)-|^backup/ct/", self.name)) or self.format == "pbs-ct"

    @property
    def verified(self) -> str:
        """The result of the backup server's last verification, such as ok; empty if there was none."""
        return str((self.verification or {}).get("state", ""))

    @property
    def verified_at(self) -> int | None:
        """When the backup server last verified it."""
        from quorate.pbs.client import BackupTask  # which few clusters need

        task = (self.verification or {}).get("upid")
        return BackupTask.parse(str(task)).started if BackupTask.looks_like(task) else None

    @property
    def key(self) -> str:
        """The fingerprint of the key that encrypted a backup, "1" if it is not known; empty if none did."""
        return str(self.encrypted or "")

    def __str__(self) -> str:
        return self.volid if self.shared else f"{self.volid} on {self.node}"


def age(volume: StoredVolume, now: float) -> str:
    return duration(max(0.0, now - volume.ctime)) if volume.ctime else ""


def describe(volume: StoredVolume) -> str:
    return f"{size(volume.size)}, made {moment(volume.ctime)}" if volume.ctime else size(volume.size)


async def storage_places(
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
    where = await storage_places(pve, storages=storages, node=node, content=kinds)
    volumes, trouble = await read(pve, where, content=content, vmid=vmid)
    return volumes, trouble + await list_out_of_reach(pve, where, storages=storages, node=node, content=kinds)


async def list_out_of_reach(
    pve: Cluster,
    reached: list[Resource],
    *,
    storages: Collection[str] | None = None,
    node: str | None = None,
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
    answers = await read_places(pve, where, content=content, vmid=vmid)
    problems = [(place, answer) for place, answer in answers if isinstance(answer, Problem)]
    if problems and len(problems) == len(where):
        raise problems[0][1]
    volumes = [volume for _, answer in answers if not isinstance(answer, Problem) for volume in answer]
    return volumes, [f"{place.storage} on {place.node}: {problem.what}" for place, problem in problems]


async def read_places(
    pve: Cluster, where: list[Resource], *, content: str | None = None, vmid: int | None = None
) -> list[tuple[Resource, list[StoredVolume] | Problem]]:
    """Each place with its volumes, or with why it could not be read."""
    filters: dict[str, Any] = {"content": content, "vmid": vmid}
    answers = await gather_bounded(READS_AT_ONCE, [partial(_read_place, pve, place, filters) for place in where])
    return list(zip(where, answers, strict=True))


async def _read_place(pve: Cluster, storage: Resource, filters: dict[str, Any]) -> list[StoredVolume] | Problem:
    params = {key: value for key, value in filters.items() if value is not None}
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
            next_step=see("List the volumes or the backups", tools.volume_list, tools.backup_list),
        )
    where = await storage_places(pve, storages=[storage], node=node)
    if not where:
        raise NotFound(
            f"Storage {storage} is not available", next_step=see("See what is wrong with it", tools.storage_list)
        )
    # Listing disk images can be slow, as PVE looks into each; the names of other kinds show that they are not.
    folder = name.partition("/")[0]
    volumes, _ = await read(pve, where, content=folder if folder in FOLDERS else None)
    matching = [volume for volume in volumes if volume.volid == volid]
    if not matching:
        hint = suggest(
            volid, sorted({volume.volid for volume in volumes}), see("See what exists", tools.volume_list), count=2
        )
        raise NotFound(f"There is no volume {volid!r}", next_step=hint)
    if len(matching) > 1:
        nodes = ", ".join(volume.node for volume in matching[:NAMES_SHOWN])
        raise BadArgument(
            f"Several nodes have a volume {volid}",
            why=f"It is on {nodes}",
            next_step=Advice("Say which: {node}", node=""),
        )
    return matching[0]


async def require(pve: Cluster, what: str, path: str, *privileges: str) -> None:
    """Check a privilege that PVE checks only in its code: report what is missing before PVE does."""
    lacking = [privilege for privilege in privileges if not await pve.may(path, privilege)]
    if lacking:
        pve.forget_privileges()
        raise await pve.refusal(what, path, lacking)
