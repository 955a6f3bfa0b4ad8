"""Uploading images from here to a storage."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import NAMED, Advice, Sentence, either
from quorate.operations.images.local_files import (
    ENDINGS,
    Checksum,
    ImageContent,
    checksum_of,
    conflict_with,
    content_for,
    find_existing,
    locate_existing,
    other_nodes,
    parse_checksum,
    pick_destination,
    refuse_false_image,
    stored_name,
)
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import Risk, operation
from quorate.operations.units import size
from quorate.problems import BadArgument
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource
from quorate.server_files import ServerFile, ServerFiles

MOST_DATA = 8 * 1024**2
NODES_NAMED = 6
_COMPRESSIONS = {".gz": "gz", ".lzo": "lzo", ".zst": "zst", ".bz2": "bz2"}


def _upload_risk(arguments: Mapping[str, Any]) -> Risk:
    return Risk.DESTROY if arguments["overwrite"] else Risk.CHANGE


@operation(
    risk=Risk.DESTROY,
    risk_of=_upload_risk,
    least=Risk.CHANGE,
    search_words="upload iso local file image computer laptop",
    example="file=./debian.iso storage=local",
)
async def image_upload(
    pve: Cluster,
    file: Annotated[str, Meta(description="Path on the machine that runs Quorate")] | None = None,
    data: Annotated[str, Meta(description="Instead of file: the content in base64, at most 8 MiB")] | None = None,
    filename: Annotated[str, Meta(description="Name on the storage; needed with data")] | None = None,
    content: ImageContent | None = None,
    storage: str | None = None,
    node: str | None = None,
    checksum: Annotated[str, Meta(description="Expected, such as sha256:…")] | None = None,
    overwrite: Annotated[bool, Meta(description="Replace a file of that name; needs access admin")] = False,
    *,
    files: ServerFiles,
) -> Plan:
    """Upload an ISO image, container template or disk image to a storage; PVE checks its checksum.

    For files on the internet, prefer image_download.
    """
    source = _source(file, data, filename, files)
    name = stored_name(filename or str(file))
    kind = content_for(name, content)
    if kind == "import":
        refuse_false_image(name, source)
    length = len(source) if isinstance(source, bytes) else source.size
    destination = await pick_destination(pve, kind, storage=storage, node=node, room=length)
    if node is None:
        destination = await locate_existing(pve, destination, kind, name)
    existing = await find_existing(pve, destination, kind, name)
    if existing and not overwrite:
        elsewhere = () if existing.shared else (Advice("{node} for a copy on another node", node=""),)
        replacing = Advice("{overwrite} to replace it (which needs access admin)", overwrite=True)
        raise conflict_with(existing, either("Choose another filename", *elsewhere, replacing))
    digest = await asyncio.to_thread(_verify_checksum, source, checksum)
    image = _Image(source, name, kind, length, digest)
    call = _upload_call(destination, image, replaces=existing is not None)
    return Plan(
        call.summary,
        (call,),
        facts={
            "volume": f"{destination.storage}:{kind}/{name}",
            **({} if destination.shared else {"node": destination.node}),
            "size": size(length),
            digest.algorithm: digest.digest,
        },
        warnings=(
            *(("The file that has this name now is lost",) if existing else ()),
            *(_local_storage_warnings(destination, await other_nodes(pve, destination)) if node is None else ()),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Image:
    source: ServerFile | bytes
    name: str
    """Its name on the storage."""
    content: str
    length: int
    digest: Checksum


def _local_storage_warnings(destination: Resource, others: list[str]) -> tuple[str, ...]:
    if not others:
        return ()
    without = ", ".join(others[:NODES_NAMED]) + (" …" if others[NODES_NAMED:] else "")
    node, storage = destination.node, destination.storage
    return (f"{node} was chosen; every node has its own {storage}, so {without} will not have the file",)


def _source(file: str | None, data: str | None, filename: str | None, files: ServerFiles) -> ServerFile | bytes:
    if (file is None) == (data is None):
        raise BadArgument(
            Sentence("One of {file} and {data} is needed", file=NAMED, data=NAMED),
            next_step=either(
                Advice("Give {file}", file="PATH"), Advice("{data} with {filename}", data="", filename="")
            ),
        )
    if data is not None:
        return _decode_data(data, filename)
    _require_image(str(file))
    try:
        image = files.find(str(file), Advice("Send the content as {data}", data=""))
    except OSError as error:
        raise BadArgument(
            f"{file} cannot be read",
            why=error.strerror or str(error),
            next_step="The path is one on the machine that runs Quorate",
        ) from None
    _require_image(image.path.name)
    if not image.path.is_file():
        raise BadArgument(f"{image.path} is not a file", next_step="Give the path of an image")
    if not image.size:
        raise BadArgument(f"{image.path} is empty", next_step="Give the path of an image")
    return image


def _require_image(path: str) -> None:
    """A caller must not be able to take any file of this machine by giving it another name."""
    endings = [ending for endings in ENDINGS.values() for ending in endings]
    name = path.rpartition("/")[2]
    if not name.lower().endswith(tuple(endings)):
        raise BadArgument(
            f"{name} does not have the extension of an image",
            next_step=f"Only these are uploaded: {' '.join(endings)}",
        )


def _decode_data(data: str, filename: str | None) -> bytes:
    if filename is None:
        raise BadArgument("data needs a filename", next_step="Give it a name, such as tools.iso")
    if len(data) > MOST_DATA * 4 // 3 + 4:
        raise BadArgument(
            f"data may hold {size(MOST_DATA)} at most", next_step=Advice("Give larger files by path: {file}", file="")
        )
    try:
        content = base64.b64decode(re.sub(r"\s", "", data), validate=True)
    except binascii.Error:
        raise BadArgument("data is not base64", next_step="Encode the file's bytes in base64") from None
    if not content:
        raise BadArgument("data is empty")
    return content


def _verify_checksum(source: ServerFile | bytes, expected: str | None) -> Checksum:
    wanted = parse_checksum(expected) if expected else None
    try:
        found = checksum_of(source, wanted.algorithm if wanted else "sha256")
    except OSError as error:
        raise BadArgument("The file cannot be read", why=error.strerror or str(error)) from None
    if wanted is not None and found != wanted:
        raise BadArgument(
            f"The file's {found.algorithm} is not the expected one",
            why=f"It is {found.digest}",
            next_step="Nothing was sent; the file is damaged or another one",
        )
    return found


def _upload_call(destination: Resource, image: _Image, *, replaces: bool) -> Call:
    verb = "Replace" if replaces else "Upload"
    return Call(
        f"{verb} {destination.storage}:{image.content}/{image.name} ({size(image.length)}) on {destination.node}",
        "POST",
        f"/nodes/{destination.node}/storage/{destination.storage}/upload",
        {"content": image.content, **image.digest.params, "filename": image.name},
        Target("storage", destination.storage, node=destination.node),
        upload=image.source,
        task_id="",
    )
