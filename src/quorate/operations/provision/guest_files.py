"""The files that guests are made from: ISO images, container templates, disk images; found by name or volid."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from quorate.hints import IMAGE_DOWNLOAD, IMAGE_UPLOAD, STORAGE_LIST, Advice, see
from quorate.operations.units import shortlist
from quorate.problems import BadArgument, NotFound
from quorate.pve.cluster import Cluster
from quorate.pve.lookup import Resource
from quorate.suggestions import suggest

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
    """What the nodes' storages hold. Every storage is read once, a shared one for all nodes together."""

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

    async def find(self, node: str, content: str, wanted: str, word: str) -> File:
        """The one file that matches a volid, a file name or a part of it."""
        files = await self.on(node, content)
        found = matching(files, wanted)
        if not found:
            files = await self.closer_on(node, content)
            found = matching(files, wanted)
        if not found:
            raise missing_file(word, wanted, node, files)
        if len(found) > 1:
            raise ambiguous_file(word, wanted, [file.name for file in found])
        return found[0]

    async def volume(self, node: str, volid: str) -> File | None:
        """A volume of whatever content, by its volid."""
        storage = volid.partition(":")[0]

        def require(rows: list[Resource]) -> None:
            if all(row.storage != storage for row in rows):
                raise NotFound(
                    f"Node {node} has no storage {storage!r}", next_step=see("See what there is", STORAGE_LIST)
                )

        await self._pve.inventory.choose_storage(node, require)
        files = await self._pve.client.get_as(list[File], f"/nodes/{node}/storage/{storage}/content")
        return next((file for file in files if file.volid == volid), None)


def matching(files: Iterable[File], wanted: str) -> list[File]:
    """Files with this volid, else with this name, else with this in their name; each name once."""
    everything = list(files)
    lowered = wanted.lower()
    for fits in (
        lambda file: file.volid == wanted,
        lambda file: file.name == wanted,
        lambda file: ":" not in wanted and lowered in file.name.lower(),
    ):
        if found := [file for file in everything if fits(file)]:
            return list({file.name: file for file in reversed(found)}.values())[::-1]
    return []


def missing_file(word: str, wanted: str, node: str, files: Iterable[File]) -> NotFound:
    names = sorted({file.name for file in files})
    otherwise = (
        Advice(f"Available: {list_names(names)}")
        if names
        else Advice("There is none; download or upload one", IMAGE_DOWNLOAD, IMAGE_UPLOAD)
    )
    hint = suggest(wanted.rpartition("/")[2], names, otherwise, count=3, cutoff=0.5)
    return NotFound(f"The storages of {node} have no {word} {wanted!r}", next_step=hint)


def ambiguous_file(word: str, wanted: str, names: Iterable[str]) -> Ambiguous:
    return Ambiguous(
        f"Several {word}s match {wanted!r}", why=f"They are {list_names(names)}", next_step="Give more of the name"
    )


def list_names(names: Iterable[str]) -> str:
    return shortlist(sorted(names), NAMES_SHOWN)
