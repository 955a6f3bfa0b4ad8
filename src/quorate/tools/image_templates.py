"""From a cloud image to a template that VMs can be cloned from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Meta

from quorate.config.images import CloudImage, ImageCatalog
from quorate.hints import Advice, Wording, tools
from quorate.operations.exemptions import NEW_GUEST
from quorate.operations.placement import pick_node, pick_storage
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, Conflict, Problem
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.inventory import Resource
from quorate.suggestions import suggest
from quorate.tools.images import Checksum, find_existing, parse_checksum, stored_name
from quorate.tools.new_guest_devices import connect, parse_cards, vm_card
from quorate.tools.new_guests import Amount, check_name, created_guest, guest_path, mebibytes, namesake_warning
from quorate.tools.templates import Library
from quorate.tools.vms import CPU

TAG = "cloud-image"
"""Marks templates made here, so that only their descriptions are read to find one again."""
_MOST_CHECKSUMS = 4 * 1024 * 1024
_BSD_LINE = re.compile(r"\w+ ?\((?P<name>[^)]+)\) ?= ?(?P<digest>[0-9a-fA-F]+)")
_GNU_LINE = re.compile(r"(?P<digest>[0-9a-fA-F]{32,128})(?: [ *]?(?P<name>\S+))?")
_MARK = "Image: "


@dataclass(frozen=True, slots=True)
class _Source:
    """An image to import."""

    name: str
    """What the template is called by default."""
    url: str = ""
    """Where a node downloads it from; empty if it is on a storage."""
    volid: str = ""
    checksum: Checksum | None = None
    user: str = ""

    @property
    def file_name(self) -> str:
        """With a part of the checksum: a newer image does not count as the stored one."""
        part = f"-{self.checksum.digest[:12]}" if self.checksum else ""
        return f"{stored_name(self.name)}{part}.qcow2"

    @property
    def mark(self) -> str:
        """The line in a template's description by which it is found again."""
        return f"{_MARK}{self.checksum.algorithm}:{self.checksum.digest}" if self.checksum else ""


@operation(
    toolset="images",
    risk=Risk.CHANGE,
    exemptions=(NEW_GUEST,),
    search_words="cloud image template make golden debian ubuntu fedora rocky alma alpine arch cloud-init qcow2 import",
    example="image=debian-13",
)
async def image_to_template(
    pve: Cluster,
    image: Annotated[str, Meta(description="debian-13, ubuntu-24.04 …, a URL, or a file of content import")],
    name: Annotated[str, Meta(description="Of the template; default: of the image")] | None = None,
    node: str | None = None,
    vmid: int | None = None,
    storage: Annotated[str, Meta(description="For the disk")] | None = None,
    image_storage: Annotated[str, Meta(description="For the downloaded file")] | None = None,
    checksum: Annotated[str, Meta(description="Expected, for a URL: sha256:…")] | None = None,
    cores: int = 2,
    memory: Annotated[Amount, Meta(description="4G, or MiB")] = 2048,
    bridge: str | None = None,
) -> Plan:
    """Make a VM template from a cloud image: download, import, agent, console, cloud-init. Reuses an equal one."""
    check_name(name)
    here = await pick_node(pve, node, memory=mebibytes("memory", memory) * 1024**2)
    source = await _resolve(pve, here, image, checksum)
    title = name or _template_name(source.name)
    if (existing := await _find_template(pve, source)) is not None:
        return Plan(
            f"Make the template {title}",
            unchanged=(f"{existing} was made from this image (the same checksum)",),
            facts={"vmid": existing.vmid, "image": source.url or source.volid},
            next_step=Advice("Clone guests from it", tools.guest_clone(guest=existing.vmid)),
        )
    target = await pick_storage(pve, here, "images", requested=storage)
    download, volid = await _download(pve, here, source, image_storage)
    cards = await connect(pve, here, parse_cards([{"bridge": bridge}] if bridge else None))
    settings: dict[str, Any] = {
        "name": title,
        "ostype": "l26",
        "cpu": CPU,
        "cores": cores,
        "memory": mebibytes("memory", memory),
        "agent": 1,
        "scsihw": "virtio-scsi-single",
        "scsi0": f"{target.storage}:0,import-from={volid},discard=on,iothread=1",
        "ide2": f"{target.storage}:cloudinit",
        "serial0": "socket",
        "vga": "serial0",
        "boot": "order=scsi0",
        "ipconfig0": "ip=dhcp",
        "tags": TAG,
        "description": "\n".join(line for line in (f"From {source.url or source.volid}", source.mark) if line),
        **({"ciuser": source.user} if source.user else {}),
        **{f"net{number}": vm_card(card, "virtio") for number, card in enumerate(cards)},
    }
    warnings: list[str | Wording] = [*await namesake_warning(pve, title)]
    if source.url and source.checksum is None:
        warnings.append("Without a checksum, a damaged or changed image goes unnoticed, and no template is reused")
    new = created_guest(
        "vm",
        here,
        settings,
        prepare=() if download is None else (download,),
        finish=lambda made: [_conversion(made)],
        next_step=lambda made: Advice("Clone guests from it", tools.guest_clone(guest=made.id)),
        storages=(target.storage,),
        facts=_facts(source, volid),
        warnings=tuple(warnings),
    )
    return await new.plan(pve, vmid)


def _facts(source: _Source, volid: str) -> dict[str, Any]:
    return {
        "image": source.url or source.volid,
        "volume": volid,
        **({"checksum": f"{source.checksum.algorithm}:{source.checksum.digest}"} if source.checksum else {}),
        **({"user": source.user} if source.user else {}),
    }


def _conversion(made: Target) -> Call:
    return Call(f"Convert {made} to a template", "POST", f"{guest_path(made)}/template", {}, made, task_unnamed=True)


# -- which image -------------------------------------------------------------------------------------------------------


@cache
def _builtin() -> Mapping[str, CloudImage]:
    text = files("quorate.tools").joinpath("cloud_images.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, CloudImage])


async def _resolve(pve: Cluster, node: str, image: str, checksum: str | None) -> _Source:
    """By its name in the catalog, by its URL, or as a file of a storage."""
    catalog = {**_builtin(), **pve.attachment(ImageCatalog).own}
    expected = parse_checksum(checksum) if checksum else None
    if entry := catalog.get(image.strip().lower()):
        known = expected or await _checksum_of(entry)
        return _Source(image.strip().lower(), entry.url, checksum=known, user=entry.user or "")
    if re.match(r"https?://[^/\s]", image):
        return _Source(_stem(unquote(urlsplit(image).path)), image, checksum=expected)
    if "/" not in image and ":" not in image and not image.lower().endswith((".qcow2", ".raw", ".vmdk")):
        hint = suggest(image, catalog, f"The images are {', '.join(sorted(catalog))}")
        raise BadArgument(f"There is no image {image!r}", next_step=hint)
    file = await Library(pve).find(node, "import", image, "disk image")
    return _Source(_stem(file.volid), volid=file.volid, checksum=expected)


async def _checksum_of(image: CloudImage) -> Checksum:
    """The checksum that the operator or the publisher states."""
    if image.checksum:
        return parse_checksum(image.checksum)
    from quorate.homelab.scripts import fetch  # a large import that only this needs

    address = str(image.checksum_url)
    try:
        text = (await fetch(address, _MOST_CHECKSUMS, redirects=True)).decode(errors="replace")
    except Problem as problem:
        raise Conflict(
            f"The checksum of {image.url} cannot be read",
            why=problem.what,
            next_step=Advice("Check the connection of this server, or give {checksum}", checksum=""),
        ) from None
    return parse_checksum(_pick_digest(text, image.url.rpartition("/")[2], address))


def _pick_digest(text: str, file: str, address: str) -> str:
    """The digest of a file in the output of `sha256sum`, in BSD's format, or alone."""
    alone = []
    for line in map(str.strip, text.splitlines()):
        match = _BSD_LINE.fullmatch(line) or _GNU_LINE.fullmatch(line)
        if match and match["name"] and match["name"].rpartition("/")[2] == file:
            return match["digest"]
        if match and not match["name"]:
            alone.append(match["digest"])
    if len(alone) == 1:
        return str(alone[0])
    raise Conflict(f"{address} has no checksum of {file}", next_step=Advice("Give {checksum}", checksum=""))


def _stem(path: str) -> str:
    return re.sub(r"\.(?:qcow2|img|raw|vmdk)$", "", path.rpartition("/")[2], flags=re.I) or "image"


def _template_name(stem: str) -> str:
    """A DNS name, as PVE requires."""
    return re.sub(r"[^a-zA-Z0-9-]+", "-", stem).strip("-")[:63].rstrip("-") or "image"


# -- templates and files that exist ------------------------------------------------------------------------------------


async def _find_template(pve: Cluster, source: _Source) -> Guest | None:
    """A template that was made from an image with the same checksum."""
    if not source.mark:
        return None
    for row in await pve.inventory.fresh_guests(None):  # one that was made seconds ago counts, too
        if row.template and TAG in row.tag_list:
            guest = Guest(pve, row)
            if source.mark in str((await guest.get("config")).get("description", "")).splitlines():
                return guest
    return None


async def _download(pve: Cluster, node: str, source: _Source, storage: str | None) -> tuple[Call | None, str]:
    """The call that downloads the image, unless the node has it; and the volume."""
    if source.volid:
        return None, source.volid
    place: Resource = await pick_storage(pve, node, "import", requested=storage)
    volid = f"{place.storage}:import/{source.file_name}"
    if await find_existing(pve, place, "import", source.file_name):
        if source.checksum is None:
            raise Conflict(
                f"{volid} already exists, and without a checksum nothing shows whether it is this image",
                next_step=Advice(f"Give {{checksum}}, or {{image}} as {volid} to use it", checksum="", image=volid),
            )
        return None, volid
    params = {
        "url": source.url,
        "content": "import",
        "filename": source.file_name,
        **(source.checksum.params if source.checksum else {}),
    }
    summary = f"Download {volid} on {node}"
    path = f"/nodes/{node}/storage/{place.storage}/download-url"
    return Call(summary, "POST", path, params, Target("storage", place.storage), task_id=source.file_name), volid
