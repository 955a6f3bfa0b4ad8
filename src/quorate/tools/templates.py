"""Container templates, and the files that guests are made from, found by name."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quorate.hints import Advice, see, tools
from quorate.operations.placement import pick_node, pick_storage
from quorate.operations.plan import Call, Target
from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import BadArgument, NotFound
from quorate.pve.cluster import Cluster
from quorate.pve.lookup import Resource
from quorate.suggestions import suggest
from quorate.tools.oci_images import FILE_ENDING, ImageReference, parse_image, parse_repository, read_tags, require_tag
from quorate.tools.storages import StoredVolume, survey
from quorate.tools.volumes import StorageNames, names
from quorate.units import shortlist, size

COLUMNS = ("template", "present_on", "size", "section", "about")
PLACES_SHOWN = 4
_IMAGE = "oci"


@operation(
    toolset="images",
    risk=Risk.READ,
    search_words="container templates appliances lxc available download docker oci image tags registry",
)
async def template_list(
    pve: Cluster,
    show: Literal["all", "present", "available"] = "all",
    search: Annotated[str, Meta(description="Part of name or description")] | None = None,
    node: str | None = None,
    storage: StorageNames | None = None,
    image: Annotated[str, Meta(description="Instead, the tags of ghcr.io/jellyfin/jellyfin …; PVE 9.1+")] | None = None,
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Container templates: present on storages, and available for image_download. VMs: guest_list template=true."""
    volumes, trouble = (
        await survey(pve, storages=names(storage), node=node, content="vztmpl") if show != "available" else ([], [])
    )
    if image is not None:
        rows = _rows_of_tags(volumes, await _read_tagged(pve, await pick_node(pve, node), parse_repository(image)))
        rows = [row for row in rows if row[1] or show != "present"]
    else:
        offers = await read_appliances(pve, await pick_node(pve, node)) if show != "present" else []
        rows = _rows(volumes, {str(row["template"]): row for row in offers})
    if search:
        rows = [row for row in rows if search.lower() in f"{row[0]} {row[4]}".lower()]
    table = page(COLUMNS, rows, limit=limit, offset=offset)
    table.facts = {"not_read": trouble} if trouble else {}
    if table.next_offset is not None:
        table.note = "narrow with search or show"
    return table


async def _read_tagged(pve: Cluster, node: str, image: ImageReference) -> list[ImageReference]:
    tags = await read_tags(pve, node, image.repository)
    return [replace(image, tag=tag) for tag in tags if image.tag in ("", tag)]


def _rows_of_tags(volumes: list[StoredVolume], images: list[ImageReference]) -> list[list[Any]]:
    """Tags that were pulled first."""
    held = _by_file(volumes)
    rows = [_row(str(image), held.get(image.file_name, []), {"section": _IMAGE}) for image in images]
    return sorted(rows, key=lambda row: not row[1])


async def read_appliances(pve: Cluster, node: str) -> list[dict[str, Any]]:
    return list(await pve.get(f"/nodes/{node}/aplinfo"))


def _rows(volumes: list[StoredVolume], offered: dict[str, dict[str, Any]]) -> list[list[Any]]:
    """Templates on the storages first, then those that can be downloaded."""
    held = _by_file(volumes)
    rows = [_row(name, held.get(name, []), offered.get(name, {})) for name in {**held, **offered}]
    return sorted(rows, key=lambda row: (not row[1], row[0]))


def _by_file(volumes: list[StoredVolume]) -> dict[str, list[StoredVolume]]:
    held: dict[str, list[StoredVolume]] = {}
    for volume in volumes:
        held.setdefault(volume.name.removeprefix("vztmpl/"), []).append(volume)
    return held


def _row(name: str, volumes: list[StoredVolume], offer: dict[str, Any]) -> list[Any]:
    where = [volume.storage if volume.shared else f"{volume.storage} on {volume.node}" for volume in volumes]
    more = f" +{len(where) - PLACES_SHOWN}" if len(where) > PLACES_SHOWN else ""
    return [
        name,
        ", ".join(where[:PLACES_SHOWN]) + more,
        size(volumes[0].size) if volumes else "",
        offer.get("section", _IMAGE if name.endswith(FILE_ENDING) else ""),
        offer.get("headline", ""),
    ]


NAMES_SHOWN = 6


class Ambiguous(BadArgument):
    """Only the caller can choose; that another node has fewer candidates proves nothing."""


class File(msgspec.Struct, frozen=True):
    """An entry of a storage's content."""

    volid: str
    content: str = ""
    format: str = ""
    size: int = 0

    @property
    def name(self) -> str:
        return self.volid.partition(":")[2].rpartition("/")[2]

    @property
    def storage(self) -> str:
        return self.volid.partition(":")[0]


class Library:
    """The files on the nodes' storages. Every storage is read once, a shared one for all nodes together."""

    def __init__(self, pve: Cluster) -> None:
        self._pve = pve
        self._read: dict[tuple[str, str, str], list[File]] = {}

    async def on(self, node: str, content: str) -> list[File]:
        """All files of this content that the node can use, by storage and name."""
        rows = await self._pve.inventory.of_type("storage")
        return await self._files([row for row in rows if row.node == node], node, content)

    async def closer_on(self, node: str, content: str) -> list[File]:
        """The same, on all storages that the node itself knows now."""
        return await self._files(await self._pve.inventory.fresh_storages(node), node, content)

    async def _files(self, rows: list[Resource], node: str, content: str) -> list[File]:
        places = [row for row in rows if row.status == "available" and row.holds(content)]
        shelves = await asyncio.gather(
            *(self._shelf(node, row.storage, content, shared=bool(row.shared)) for row in places)
        )
        return sorted((file for shelf in shelves for file in shelf), key=lambda file: (file.storage, file.name))

    async def _shelf(self, node: str, storage: str, content: str, *, shared: bool) -> list[File]:
        key = ("" if shared else node, storage, content)
        if key not in self._read:
            path = f"/nodes/{node}/storage/{storage}/content"
            self._read[key] = await self._pve.client.get_as(list[File], path, content=content)
        return self._read[key]

    async def find(self, node: str, content: str, query: str, word: str) -> File:
        """The one file that matches a volid, a file name or a part of it."""
        files = await self.on(node, content)
        hits = matching(files, query)
        if not hits:
            files = await self.closer_on(node, content)
            hits = matching(files, query)
        if not hits:
            raise missing_file(word, query, node, files)
        if len(hits) > 1:
            raise ambiguous_file(word, query, [file.name for file in hits])
        return hits[0]

    async def volume(self, node: str, volid: str) -> File | None:
        """A volume of whatever content, by its volid."""
        storage = volid.partition(":")[0]

        def require(rows: list[Resource]) -> None:
            if all(row.storage != storage for row in rows):
                raise NotFound(
                    f"Node {node} has no storage {storage!r}", next_step=see("See what there is", tools.storage_list)
                )

        await self._pve.inventory.choose_storage(node, require)
        files = await self._pve.client.get_as(list[File], f"/nodes/{node}/storage/{storage}/content")
        return next((file for file in files if file.volid == volid), None)


def matching(files: Iterable[File], query: str) -> list[File]:
    """Files with this volid, else with this name, else with this in their name; each name once."""
    everything = list(files)
    lowered = query.lower()
    for fits in (
        lambda file: file.volid == query,
        lambda file: file.name == query,
        lambda file: ":" not in query and lowered in file.name.lower(),
    ):
        if hits := [file for file in everything if fits(file)]:
            return list({file.name: file for file in reversed(hits)}.values())[::-1]
    return []


def missing_file(word: str, query: str, node: str, files: Iterable[File]) -> NotFound:
    names = sorted({file.name for file in files})
    otherwise = (
        Advice(f"Available: {list_names(names)}")
        if names
        else Advice("There is none; download or upload one", tools.image_download, tools.image_upload)
    )
    hint = suggest(query.rpartition("/")[2], names, otherwise, count=3, cutoff=0.5)
    return NotFound(f"The storages of {node} have no {word} {query!r}", next_step=hint)


def ambiguous_file(word: str, query: str, names: Iterable[str]) -> Ambiguous:
    return Ambiguous(
        f"Several {word}s match {query!r}", why=f"They are {list_names(names)}", next_step="Give more of the name"
    )


def list_names(names: Iterable[str]) -> str:
    return shortlist(sorted(names), NAMES_SHOWN)


@dataclass(frozen=True, slots=True)
class Template:
    """A template of a node: on its storage, or to be put there first."""

    name: str
    volid: str
    missing: bool = False
    image: ImageReference | None = None
    """Where it comes from, if that is a registry."""

    @property
    def is_image(self) -> bool:
        return self.name.endswith(FILE_ENDING)

    def download(self, node: str) -> Call:
        """The step that fetches it from the appliance list or from its registry."""
        storage = self.volid.partition(":")[0]
        if self.image is not None:
            return self.image.pull(node, storage)
        summary = f"Download template {self.name} to {storage} on {node}"
        params = {"storage": storage, "template": self.name}
        target = Target("storage", storage, node=node)
        return Call(summary, "POST", f"/nodes/{node}/aplinfo", params, target, task_id=self.name)


async def find_template(pve: Cluster, library: Library, node: str, query: str) -> Template:
    """The template that matches a volid, a file name or a part of it; the newest if only versions differ.

    For a reference to an image, the file that it was pulled to before, or will be.
    """
    if (image := parse_image(query)) is not None:
        return await _find_image(pve, library, node, image)
    files = await library.on(node, "vztmpl")
    if not matching(files, query):
        files = await library.closer_on(node, "vztmpl")
    if hits := matching(files, query):
        newest = _newest(query, [file.name for file in hits])
        return Template(newest, next(file.volid for file in hits if file.name == newest))
    rows: list[dict[str, Any]] = await pve.get(f"/nodes/{node}/aplinfo") or []
    name = find_appliance(query, rows)
    if name is None:
        raise _nowhere(query, node, [*(file.name for file in files), *(str(row["template"]) for row in rows)])
    if existing := next((file for file in files if file.name == name), None):
        return Template(name, existing.volid)  # a download would replace it
    storage = await pick_storage(pve, node, "vztmpl", requested=query.partition(":")[0] if ":" in query else None)
    return Template(name, f"{storage.storage}:vztmpl/{name}", missing=True)


async def _find_image(pve: Cluster, library: Library, node: str, image: ImageReference) -> Template:
    files = await library.closer_on(node, "vztmpl")
    if image.tag and (pulled := next((file for file in files if file.name == image.file_name), None)):
        return Template(pulled.name, pulled.volid, image=image)
    await require_tag(pve, node, image)
    storage = await pick_storage(pve, node, "vztmpl")
    return Template(image.file_name, f"{storage.storage}:vztmpl/{image.file_name}", missing=True, image=image)


def find_appliance(query: str, rows: Iterable[dict[str, Any]]) -> str | None:
    """The appliance that matches a file name, a package or a part of it, in its newest version.

    A plain system comes before the many appliances built on it.
    """
    lowered = query.rpartition("/")[2].lower()
    offered = [row for row in rows if lowered in str(row["template"]).lower()]
    exact = [row for row in offered if lowered in (str(row["template"]).lower(), str(row.get("package")).lower())]
    systems = [row for row in offered if row.get("section") == "system"]
    names = [str(row["template"]) for row in exact or systems or offered]
    if exact:  # a package may be there for several systems
        return max(names, key=_numbers)
    return _newest(query, names) if names else None


def _newest(query: str, names: list[str]) -> str:
    if len({name.partition("_")[0] for name in names}) > 1:
        raise ambiguous_file("template", query, names)
    return max(names, key=lambda name: _numbers(name.partition("_")[2]))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _nowhere(query: str, node: str, names: list[str]) -> NotFound:
    listed_names = f"Available: {list_names(set(names))}" if names else None
    return NotFound(
        f"There is no container template {query!r}",
        why=f"Neither the storages of {node} nor its appliance list have it",
        next_step=suggest(query.rpartition("/")[2], names, listed_names, count=3, cutoff=0.5),
    )
