"""Files that PVE takes as images: their names, their kinds, their checksums, and where they go."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from quorate.hints import Advice
from quorate.operations import stored_volumes
from quorate.operations.placement import pick_node, pick_storage
from quorate.operations.stored_volumes import StoredVolume
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource
from quorate.server_files import ServerFile

ImageContent = Annotated[Literal["iso", "vztmpl", "import"], Meta(description="Default: by the file's extension")]

ENDINGS = {
    "iso": (".iso", ".img"),
    "vztmpl": (".tar.gz", ".tar.xz", ".tar.zst", ".tar.bz2", ".tar"),
    "import": (".qcow2", ".raw", ".vmdk", ".ova"),
}
LONGEST_NAME = 255
PIECE = 1024 * 1024

_HEAD = 32
# Where the formats of disk images have their signature, and what it is.
_SIGNATURES = {
    ".qcow2": (0, (b"QFI\xfb",)),
    ".vmdk": (0, (b"KDMV", b"COWD", b"# Disk DescriptorFile")),
    ".ova": (257, (b"ustar",)),
}
_ALGORITHMS = {32: "md5", 40: "sha1", 56: "sha224", 64: "sha256", 96: "sha384", 128: "sha512"}
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_.\-]")


@dataclass(frozen=True, slots=True)
class Checksum:
    algorithm: str
    digest: str

    @property
    def params(self) -> dict[str, str]:
        return {"checksum-algorithm": self.algorithm, "checksum": self.digest}


def parse_checksum(text: str) -> Checksum:
    """`sha256:ab12…`, or the digits alone: their number determines the algorithm."""
    named, colon, digits = text.strip().lower().rpartition(":")
    algorithm = _ALGORITHMS.get(len(digits))
    if algorithm is None or not re.fullmatch(r"[0-9a-f]+", digits) or (colon and named != algorithm):
        raise BadArgument(
            f"{text!r} is not a checksum",
            next_step="Give the hex digits of md5, sha1, sha224, sha256, sha384 or sha512, such as sha256:9f86d0…",
        )
    return Checksum(algorithm, digits)


def checksum_of(source: ServerFile | bytes, algorithm: str = "sha256") -> Checksum:
    """The checksum of a whole file, read in chunks."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    if isinstance(source, bytes):
        digest.update(source)
    else:
        with source.open("rb") as file:
            while piece := file.read(PIECE):
                digest.update(piece)
    return Checksum(algorithm, digest.hexdigest())


def refuse_false_image(name: str, source: ServerFile | bytes) -> None:
    """PVE opens a disk image after the upload; refuse one whose format contradicts its extension."""
    ending = f".{name.lower().rpartition('.')[2]}"
    if ending not in _SIGNATURES:
        return
    offset, signatures = _SIGNATURES[ending]
    if isinstance(source, bytes):
        head = source[: offset + _HEAD]
    else:
        with source.open("rb") as file:
            head = file.read(offset + _HEAD)
    if not head[offset:].startswith(signatures):
        raise BadArgument(
            f"{name} is not a {ending[1:]} image",
            why=f"Its content does not start like one, and PVE would refuse it: Image is not in {ending[1:]} format",
            next_step="Give the image itself, unpacked, or name it after its real format, such as .raw",
        )


def stored_name(name: str) -> str:
    """The name that PVE gives a file: no folder, and nothing but letters, digits, _ . and -."""
    return _ILLEGAL.sub("_", name.replace("\\", "/").rpartition("/")[2])


def content_for(name: str, wanted: str | None) -> str:
    """The content type of the file, by its extension; one that contradicts its extension is refused."""
    fitting = [content for content, endings in ENDINGS.items() if name.lower().endswith(endings)]
    if len(name) > LONGEST_NAME:
        raise BadArgument(f"A file name of {len(name)} characters is too long", next_step=f"At most {LONGEST_NAME}")
    if wanted is None:
        if fitting:
            return fitting[0]
        every = " ".join(ending for endings in ENDINGS.values() for ending in endings)
        raise BadArgument(
            f"{name!r} does not have the extension of an image",
            next_step=Advice(f"PVE takes {every}").then(Advice("{filename} renames it", filename=""), "; "),
        )
    if wanted not in fitting:
        raise BadArgument(
            f"{name!r} cannot be stored as {wanted}",
            why=f"PVE requires the extension {' or '.join(ENDINGS[wanted])}",
            next_step=Advice("Give {filename} with the right extension, if the file has that format", filename=""),
        )
    return wanted


async def pick_destination(pve: Cluster, content: str, *, storage: str | None, node: str | None, room: int) -> Resource:
    """Where an image goes: as requested, else the default node's or the roomiest storage for it."""
    if node is not None:
        return await pick_storage(pve, await pick_node(pve, node), content, room=room, wanted=storage)
    online = {row.node for row in await pve.inventory.of_type("node") if row.status == "online"}
    places = [
        place
        for place in await stored_volumes.places(pve, storages=[storage] if storage else None, content=[content])
        if place.node in online
    ]
    preferred = [place for place in places if place.node == pve.defaults.node]
    preferred = [place for place in preferred if place.storage == pve.defaults.storage] or preferred
    best = max(
        preferred or places,
        key=lambda row: (row.maxdisk - row.disk, row.storage),
        default=None,
    )
    where = best.node if best else await pick_node(pve)
    return await pick_storage(pve, where, content, room=room, wanted=best.storage if best else storage)


async def locate_existing(pve: Cluster, destination: Resource, content: str, name: str) -> Resource:
    """The same storage on a node that has a file of that name; `destination` itself if it has one, or if none has."""
    if destination.shared:
        return destination
    everywhere = await stored_volumes.places(pve, storages=[destination.storage], content=[content])
    volumes, _ = await stored_volumes.read(pve, everywhere, content=content)
    holders = {volume.node for volume in volumes if volume.name == f"{content}/{name}"}
    if destination.node in holders:
        return destination
    return next((one for one in everywhere if one.node in holders), destination)


async def other_nodes(pve: Cluster, destination: Resource) -> list[str]:
    """Other nodes with a local storage of this name, which does not have the content of this one."""
    rows = await pve.inventory.of_type("storage")
    return sorted(
        row.node
        for row in rows
        if not destination.shared and row.storage == destination.storage and row.node != destination.node
    )


async def find_existing(pve: Cluster, destination: Resource, content: str, name: str) -> StoredVolume | None:
    """The file of that name that is already on the storage."""
    volumes, _ = await stored_volumes.read(pve, [destination], content=content)
    return next((volume for volume in volumes if volume.name == f"{content}/{name}"), None)


def conflict_with(volume: StoredVolume, way_out: Advice) -> Conflict:
    return Conflict(f"{volume} already exists", why=f"It has {stored_volumes.describe(volume)}", next_step=way_out)
