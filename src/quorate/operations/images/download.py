"""Letting a node download images: from a web address, or container templates from the appliance list."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from msgspec import Meta

from quorate.hints import IMAGE_UPLOAD, NAMED, TEMPLATE_LIST, Advice, ArgumentHint, either, see
from quorate.operations.argument_checks import refuse_combination
from quorate.operations.images.local_files import (
    ENDINGS,
    Checksum,
    ImageContent,
    conflict_with,
    content_for,
    find_existing,
    parse_checksum,
    pick_destination,
    stored_name,
)
from quorate.operations.images.templates import read_appliances
from quorate.operations.placement import pick_node
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.provision.container_templates import Template, find_appliance
from quorate.operations.registry import Risk, operation
from quorate.operations.units import size
from quorate.problems import BadArgument, NotFound, PermissionMissing, Problem
from quorate.pve.cluster import Cluster
from quorate.suggestions import suggest

_COMPRESSIONS = {".gz": "gz", ".lzo": "lzo", ".zst": "zst", ".bz2": "bz2"}


@operation(
    risk=Risk.CHANGE,
    search_words="add link download fetch grab iso cloud image container template url internet latest",
    example="template=debian-13-standard storage=local",
)
async def image_download(
    pve: Cluster,
    url: Annotated[str, Meta(description="ISO image, container template or disk image")] | None = None,
    template: Annotated[
        str, Meta(description="Instead of url, from the appliance list; debian-13-standard takes the newest")
    ]
    | None = None,
    storage: str | None = None,
    node: str | None = None,
    content: ImageContent | None = None,
    filename: Annotated[str, Meta(description="Default: the server's name for it")] | None = None,
    checksum: Annotated[str, Meta(description="Expected, such as sha256:…")] | None = None,
    verify_certificates: bool = True,
) -> Plan:
    """Let a node download an image from a URL, or a container template by name. Never overwrites."""
    if (url is None) == (template is None):
        raise BadArgument(
            "One of url and template is needed", next_step=see("See the templates by name", TEMPLATE_LIST)
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
    found = await _metadata(pve, await pick_node(pve, node), url, image.verify_certificates)
    given = stored_name(image.filename or found.get("filename") or unquote(urlsplit(url).path))
    name, compression = (given, None) if image.filename else _strip_compression(given, image.content)
    kind = content_for(name, image.content)
    length = int(found.get("size") or 0)
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

    summary = (
        f"Download {destination.storage}:{kind}/{name}{f' ({size(length)})' if length else ''} on {destination.node}"
    )
    path = f"/nodes/{destination.node}/storage/{destination.storage}/download-url"
    target = Target("storage", destination.storage)
    return Plan(
        summary,
        (Call(summary, "POST", path, params, target, task_id=name),),
        facts={"volume": f"{destination.storage}:{kind}/{name}", "type": found.get("mimetype", "")},
        warnings=_checksum_warnings(expected, existing is not None),
    )


def _checksum_warnings(expected: Checksum | None, exists: bool) -> tuple[str, ...]:
    if expected is None:
        return ("Without a checksum, a damaged or changed file goes unnoticed",)
    return ("The file already exists; PVE verifies its checksum and downloads nothing",) if exists else ()


async def _metadata(pve: Cluster, node: str, url: str, verify: bool) -> dict[str, Any]:
    """What the server says about the file, asked by the node that will fetch it."""
    options = {} if verify else {"verify-certificates": 0}
    try:
        answer = await pve.get(f"/nodes/{node}/query-url-metadata", url=url, **options)
    except PermissionMissing:
        raise
    except Problem as problem:
        raise BadArgument(
            f"Node {node} cannot fetch {url}",
            why=problem.what,
            next_step=Advice("Check the address. If the node cannot reach the internet, upload a file", IMAGE_UPLOAD),
        ) from None
    return dict(answer or {})


def _strip_compression(name: str, content: str | None) -> tuple[str, str | None]:
    """PVE unpacks compressed ISO images, and these only."""
    for ending, compression in _COMPRESSIONS.items():
        inner = name[: -len(ending)]
        if content in (None, "iso") and name.lower().endswith(ending) and inner.lower().endswith(ENDINGS["iso"]):
            return inner, compression
    return name, None


# -- from the appliance list -------------------------------------------------------------------------------------------


async def _from_appliances(pve: Cluster, template: str, storage: str | None, node: str | None) -> Plan:
    destination = await pick_destination(pve, "vztmpl", storage=storage, node=node, room=0)
    name = _find_appliance(template, await read_appliances(pve, destination.node))
    existing = await find_existing(pve, destination, "vztmpl", name)
    summary = f"Download {destination.storage}:vztmpl/{name} on {destination.node}"
    facts = {"volume": f"{destination.storage}:vztmpl/{name}"}
    if existing:
        return Plan(summary, unchanged=(f"{existing} already exists ({size(existing.size)})",), facts=facts)
    call = Template(name, facts["volume"], missing=True).download(destination.node)
    return Plan(summary, (call,), facts=facts)


def _find_appliance(wanted: str, offers: list[dict[str, Any]]) -> str:
    name = find_appliance(wanted, offers)
    if name is None:
        names = (str(row["template"]) for row in offers)
        hint = suggest(wanted.rpartition("/")[2], names, see("See what it has", TEMPLATE_LIST), count=3, cutoff=0.4)
        raise NotFound(f"The appliance list has no template {wanted!r}", next_step=hint)
    return name
