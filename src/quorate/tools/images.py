"""Images on the storages: downloaded by a node, or uploaded from here."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import unquote, urlsplit

from msgspec import Meta

from quorate.hints import NAMED, Advice, ArgumentHint, Sentence, either, see, tools
from quorate.operations.arguments import refuse_combination
from quorate.operations.placement import pick_node, pick_storage
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, Conflict, NotFound, PermissionMissing, Problem
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource
from quorate.server_files import ServerFile, ServerFiles
from quorate.suggestions import suggest
from quorate.tools.oci_images import parse_image, require_tag
from quorate.tools.storages import StoredVolume, describe, read, storage_places
from quorate.tools.templates import Template, find_appliance, read_appliances
from quorate.units import size

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


def content_for(name: str, content: str | None) -> str:
    """The content type of the file, by its extension; one that contradicts its extension is refused."""
    kinds = [kind for kind, endings in ENDINGS.items() if name.lower().endswith(endings)]
    if len(name) > LONGEST_NAME:
        raise BadArgument(f"A file name of {len(name)} characters is too long", next_step=f"At most {LONGEST_NAME}")
    if content is None:
        if kinds:
            return kinds[0]
        every = " ".join(ending for endings in ENDINGS.values() for ending in endings)
        raise BadArgument(
            f"{name!r} does not have the extension of an image",
            next_step=Advice(f"PVE takes {every}").then(Advice("{filename} renames it", filename=""), "; "),
        )
    if content not in kinds:
        raise BadArgument(
            f"{name!r} cannot be stored as {content}",
            why=f"PVE requires the extension {' or '.join(ENDINGS[content])}",
            next_step=Advice("Give {filename} with the right extension, if the file has that format", filename=""),
        )
    return content


async def pick_destination(pve: Cluster, content: str, *, storage: str | None, node: str | None, room: int) -> Resource:
    """Pick the storage for an image: as requested, else the default node's or the one with the most free space."""
    if node is not None:
        return await pick_storage(pve, await pick_node(pve, node), content, room=room, requested=storage)
    online = {row.node for row in await pve.inventory.of_type("node") if row.status == "online"}
    places = [
        place
        for place in await storage_places(pve, storages=[storage] if storage else None, content=[content])
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
    return await pick_storage(pve, where, content, room=room, requested=best.storage if best else storage)


async def locate_existing(pve: Cluster, destination: Resource, content: str, name: str) -> Resource:
    """The same storage on a node that has a file of that name; `destination` itself if it has one, or if none has."""
    if destination.shared:
        return destination
    everywhere = await storage_places(pve, storages=[destination.storage], content=[content])
    volumes, _ = await read(pve, everywhere, content=content)
    holders = {volume.node for volume in volumes if volume.name == f"{content}/{name}"}
    if destination.node in holders:
        return destination
    return next((place for place in everywhere if place.node in holders), destination)


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
    volumes, _ = await read(pve, [destination], content=content)
    return next((volume for volume in volumes if volume.name == f"{content}/{name}"), None)


def conflict_with(volume: StoredVolume, way_out: Advice) -> Conflict:
    return Conflict(f"{volume} already exists", why=f"It has {describe(volume)}", next_step=way_out)


_DECOMPRESSED_BY_PVE = {".gz": "gz", ".lzo": "lzo", ".zst": "zst", ".bz2": "bz2"}


@operation(
    toolset="images",
    risk=Risk.CHANGE,
    search_words="add link download fetch grab pull iso cloud image container template url internet latest docker oci",
    example="template=debian-13-standard storage=local",
)
async def image_download(
    pve: Cluster,
    url: Annotated[str, Meta(description="ISO image, container template or disk image")] | None = None,
    template: Annotated[
        str,
        Meta(
            description="Instead of url, from the appliance list (debian-13-standard takes the newest) or a registry: "
            "docker.io/library/nginx:1.29"
        ),
    ]
    | None = None,
    storage: str | None = None,
    node: str | None = None,
    content: ImageContent | None = None,
    filename: Annotated[str, Meta(description="Default: the server's name for it")] | None = None,
    checksum: Annotated[str, Meta(description="Expected, such as sha256:…")] | None = None,
    verify_certificates: bool = True,
) -> Plan:
    """Let a node download an image from a URL, or a container template or OCI image by name. Never overwrites."""
    if (url is None) == (template is None):
        raise BadArgument(
            "One of url and template is needed", next_step=see("See the templates by name", tools.template_list)
        )
    if url is not None:
        image = _WebImage(url, content, filename, checksum, verify_certificates)
        return await _from_url(pve, image, storage, node)
    others: dict[str, object] = {"content": content, "filename": filename, "checksum": checksum}
    others["verify_certificates"] = None if verify_certificates else False
    refuse_combination(
        ArgumentHint("template"),
        others,
        either("The appliance list provides it; leave it out", Advice("give {url}", url=NAMED)),
    )
    return await _from_appliances(pve, str(template), storage, node)


@dataclass(frozen=True, slots=True)
class _WebImage:
    """An image on the internet, as the caller describes it."""

    url: str
    content: ImageContent | None
    filename: str | None
    checksum: str | None
    verify_certificates: bool


async def _from_url(pve: Cluster, image: _WebImage, storage: str | None, node: str | None) -> Plan:
    url = image.url
    if not re.match(r"https?://[^/\s]", url):
        raise BadArgument(f"{url!r} is not a web address", next_step="It begins with https:// or http://")
    expected = parse_checksum(image.checksum) if image.checksum else None
    metadata = await _metadata(pve, await pick_node(pve, node), url, image.verify_certificates)
    offered = stored_name(image.filename or metadata.get("filename") or unquote(urlsplit(url).path))
    name, compression = (offered, None) if image.filename else _strip_compression(offered, image.content)
    kind = content_for(name, image.content)
    length = int(metadata.get("size") or 0)
    destination = await pick_destination(pve, kind, storage=storage, node=node, room=length)
    existing = await find_existing(pve, destination, kind, name)
    if existing and expected is None:
        raise conflict_with(
            existing,
            either("Use it", "choose another filename", Advice("give {checksum} to have it compared", checksum="")),
        )
    params = {
        "url": url,
        "content": kind,
        "filename": name,
        **(expected.params if expected else {}),
        **({"compression": compression} if compression else {}),
        **({} if image.verify_certificates else {"verify-certificates": 0}),
    }
    warning = "The file already exists; PVE verifies its checksum and downloads nothing" if existing else ""
    if expected is None:
        warning = "Without a checksum, a damaged or changed file goes unnoticed"
    summary = (
        f"Download {destination.storage}:{kind}/{name}{f' ({size(length)})' if length else ''} on {destination.node}"
    )
    path = f"/nodes/{destination.node}/storage/{destination.storage}/download-url"
    target = Target("storage", destination.storage)
    return Plan(
        summary,
        (Call(summary, "POST", path, params, target, task_id=name),),
        facts={"volume": f"{destination.storage}:{kind}/{name}", "type": metadata.get("mimetype", "")},
        warnings=(warning,) if warning else (),
    )


async def _metadata(pve: Cluster, node: str, url: str, verify: bool) -> dict[str, Any]:
    """The size, type and name that the server reports to the node that will fetch the file."""
    options = {} if verify else {"verify-certificates": 0}
    try:
        answer = await pve.get(f"/nodes/{node}/query-url-metadata", url=url, **options)
    except PermissionMissing:
        raise
    except Problem as problem:
        raise BadArgument(
            f"Node {node} cannot fetch {url}",
            why=problem.what,
            next_step=Advice(
                "Check the address. If the node cannot reach the internet, upload a file", tools.image_upload
            ),
        ) from None
    return dict(answer or {})


def _strip_compression(name: str, content: str | None) -> tuple[str, str | None]:
    """PVE unpacks compressed ISO images, and these only."""
    for ending, compression in _DECOMPRESSED_BY_PVE.items():
        inner = name[: -len(ending)]
        if content in (None, "iso") and name.lower().endswith(ending) and inner.lower().endswith(ENDINGS["iso"]):
            return inner, compression
    return name, None


# -- from the appliance list -------------------------------------------------------------------------------------------


async def _from_appliances(pve: Cluster, template: str, storage: str | None, node: str | None) -> Plan:
    destination = await pick_destination(pve, "vztmpl", storage=storage, node=node, room=0)
    image = parse_image(template)
    if image is None:
        name = _require_appliance(template, await read_appliances(pve, destination.node))
    else:
        await require_tag(pve, destination.node, image)
        name = image.file_name
    existing = await find_existing(pve, destination, "vztmpl", name)
    summary = f"Download {destination.storage}:vztmpl/{name} on {destination.node}"
    facts = {"volume": f"{destination.storage}:vztmpl/{name}"}
    if existing:
        return Plan(summary, unchanged=(f"{existing} already exists ({size(existing.size)})",), facts=facts)
    call = Template(name, facts["volume"], missing=True, image=image).download(destination.node)
    return Plan(summary, (call,), facts=facts)


def _require_appliance(template: str, offers: list[dict[str, Any]]) -> str:
    name = find_appliance(template, offers)
    if name is None:
        names = (str(row["template"]) for row in offers)
        hint = suggest(
            template.rpartition("/")[2], names, see("See what it has", tools.template_list), count=3, cutoff=0.4
        )
        raise NotFound(f"The appliance list has no template {template!r}", next_step=hint)
    return name


MOST_DATA = 8 * 1024**2
NODES_NAMED = 6


def _upload_risk(arguments: Mapping[str, Any]) -> Risk:
    return Risk.DESTROY if arguments["overwrite"] else Risk.CHANGE


@operation(
    toolset="images",
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
    verb = "Replace" if existing else "Upload"
    call = Call(
        f"{verb} {destination.storage}:{kind}/{name} ({size(length)}) on {destination.node}",
        "POST",
        f"/nodes/{destination.node}/storage/{destination.storage}/upload",
        {"content": kind, **digest.params, "filename": name},
        Target("storage", destination.storage, node=destination.node),
        upload=source,
        task_id="",
    )
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
    required = parse_checksum(expected) if expected else None
    try:
        actual = checksum_of(source, required.algorithm if required else "sha256")
    except OSError as error:
        raise BadArgument("The file cannot be read", why=error.strerror or str(error)) from None
    if required is not None and actual != required:
        raise BadArgument(
            f"The file's {actual.algorithm} is not the expected one",
            why=f"It is {actual.digest}",
            next_step="Nothing was sent; the file is damaged or another one",
        )
    return actual
