"""Disks, network cards and cloud-init of new guests: what is requested, where it goes, at which slot."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from quorate.hints import NAMED, Advice, Sentence, either, tools
from quorate.operations.placement import pick_bridge, pick_storage
from quorate.problems import BadArgument, Conflict, NotFound, PermissionMissing
from quorate.pve import values
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource
from quorate.tools.disk_checks import disk_format, image_size, working_storage
from quorate.tools.new_guests import as_list, part_text, plain_value, refuse_unknown
from quorate.tools.templates import File, Library, matching
from quorate.units import parse_size, size

GIBIBYTE = 1024**3
SLOTS = {"scsi": 31, "virtio": 16, "sata": 6, "ide": 4}

# Types that take all the space at once. The others take what is written, so more may be promised than is there.
_THICK_TYPES = frozenset({"lvm", "iscsi", "iscsidirect"})
_IMPORTABLE = ("import", "images")


@dataclass(frozen=True, slots=True)
class DiskSpec:
    """One disk as the caller describes it."""

    bytes: int | None = None
    storage: str | None = None
    bus: str | None = None
    format: str | None = None
    import_from: str | None = None
    more: Mapping[str, str] = field(default_factory=dict)
    """Other parts of PVE's property string."""

    @property
    def gibibytes(self) -> str:
        """The size in GiB as PVE takes it: digits without an exponent."""
        return f"{(self.bytes or 0) / GIBIBYTE:.10f}".rstrip("0").rstrip(".")


def parse_disk(requested: int | str | Mapping[str, Any], storage: str | None = None) -> DiskSpec:
    """A disk from "32G", "local-lvm:32G", "local-lvm:32G,ssd=1" or an object with the same parts."""
    if isinstance(requested, Mapping):
        parts = {str(key): part_text(str(key), value) for key, value in requested.items() if value is not None}
    else:
        parts = _parts_of(str(requested))
    bus, amount = parts.pop("bus", None), parts.pop("size", None)
    if bus is not None and bus not in SLOTS:
        raise BadArgument(f"There is no bus {bus!r}", next_step=f"Valid values: {', '.join(SLOTS)}")
    import_from = parts.pop("import_from", None) or parts.pop("import-from", None)
    if amount in (None, "0", "") and not import_from:
        raise BadArgument(
            f"The disk {json.dumps(requested, ensure_ascii=False)} has no size",
            next_step='Write "32G", "local-lvm:32G" or {"size": "32G"}',
        )
    if "discard" in parts:
        parts["discard"] = "on" if values.is_on(parts["discard"]) else "ignore"
    return DiskSpec(
        bytes=parse_size(amount, unit="G") if amount and amount != "0" else None,
        storage=parts.pop("storage", None) or storage,
        bus=bus,
        format=parts.pop("format", None),
        import_from=import_from,
        more=parts,
    )


def _parts_of(text: str) -> dict[str, str]:
    parts = values.parse(text, "volume")
    storage, colon, amount = parts.pop("volume", "").rpartition(":")
    return {**({"storage": storage} if colon and storage else {}), **({"size": amount} if amount else {}), **parts}


# -- where they go -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlacedDisk:
    spec: DiskSpec
    storage: Resource
    source: File | None = None

    @property
    def grows_to(self) -> int | None:
        """An imported disk comes in its own size; a larger one is a step of its own."""
        requested = self.spec.bytes or 0
        return requested if self.source is not None and requested > self.source.size else None


async def place_disks(
    pve: Cluster, node: str, specs: Sequence[DiskSpec], content: str, library: Library
) -> tuple[list[PlacedDisk], list[str]]:
    """Each disk with its storage (those that name none share one), and warnings."""
    sources = [await _source(pve, node, spec, library) for spec in specs]
    rooms = [max(spec.bytes or 0, source.size if source else 0) for spec, source in zip(specs, sources, strict=True)]
    unnamed = sum(room for spec, room in zip(specs, rooms, strict=True) if spec.storage is None)
    placed: list[PlacedDisk] = []
    for spec, source in zip(specs, sources, strict=True):
        room = unnamed if spec.storage is None else 0
        storage = await pick_storage(pve, node, content, room=room, requested=spec.storage)
        disk_format(storage, spec.format)
        placed.append(PlacedDisk(spec, storage, source))
    return placed, _check_room(node, placed, rooms)


async def _source(pve: Cluster, node: str, spec: DiskSpec, library: Library) -> File | None:
    """The image that a disk is imported from. PVE imports from contents `import` and `images` only."""
    image = spec.import_from
    if image is None:
        return None
    if image.startswith("/"):
        if pve.client.identity != "root@pam":
            raise PermissionMissing(
                "Only root@pam itself may import a disk from a path",
                next_step=Advice("Upload it as content import, then give its name", tools.image_upload),
            )
        return File(image)
    source = await _volume(node, image, library) or await _import_file(node, image, library)
    if source.content not in _IMPORTABLE:
        raise _wrong_content(source)
    return msgspec.structs.replace(source, size=await image_size(pve, node, source.volid, spec.bytes))


async def _volume(node: str, image: str, library: Library) -> File | None:
    """An image by its volid; a disk inside an appliance archive is below the archive that is listed."""
    if ":" not in image:
        return None
    archive, inside, _ = image.partition(".ova/")
    if not inside:
        return await library.volume(node, image)
    return File(image, "import") if await library.volume(node, f"{archive}.ova") else None


async def _import_file(node: str, image: str, library: Library) -> File:
    try:
        return await library.find(node, "import", image, "disk image")
    except NotFound:
        if elsewhere := matching(await library.on(node, "iso"), image):
            raise _wrong_content(elsewhere[0]) from None
        raise


def _wrong_content(file: File) -> BadArgument:
    return BadArgument(
        f"PVE does not import disks from {file.volid}",
        why=f"It is kept as {file.content}; disks come from content import (.qcow2, .raw, .vmdk, .ova) or images",
        next_step=Advice("Download or upload it again, as content import", tools.image_download, tools.image_upload),
    )


def _check_room(node: str, placed: Sequence[PlacedDisk], rooms: Sequence[int]) -> list[str]:
    warnings: list[str] = []
    needed: dict[str, int] = {}
    for disk, room in zip(placed, rooms, strict=True):
        needed[disk.storage.storage] = needed.get(disk.storage.storage, 0) + room
    for storage in {disk.storage.storage: disk.storage for disk in placed}.values():
        free = storage.maxdisk - storage.disk
        if not storage.maxdisk or free >= needed[storage.storage]:
            continue
        text = f"Storage {storage.storage} on {node} has {size(free)} free, not {size(needed[storage.storage])}"
        if storage.plugintype in _THICK_TYPES:
            raise Conflict(text, next_step=Advice("Choose another storage or a smaller size", tools.storage_list))
        warnings.append(f"{text}: full disks would not fit")
    return warnings


def chosen_storage(placed: Iterable[PlacedDisk]) -> dict[str, str]:
    """The storage of the disks that named none, for the answer."""
    return next(({"storage": disk.storage.storage} for disk in placed if disk.spec.storage is None), {})


# -- in PVE's notation -------------------------------------------------------------------------------------------------


class Slots:
    """The drives of a new VM that are in use."""

    def __init__(self, used: Iterable[str]) -> None:
        self._used = set(used)

    def take(self, bus: str, order: Iterable[int] | None = None) -> str:
        for number in order if order is not None else range(SLOTS[bus]):
            key = f"{bus}{number}"
            if key not in self._used:
                self._used.add(key)
                return key
        raise BadArgument(f"A VM has only {SLOTS[bus]} {bus} drives", next_step="Put disks on another bus")


def drive(disk: PlacedDisk, *, bus: str) -> str:
    """The property string that makes the disk."""
    spec = disk.spec
    size_part = "0" if disk.source else spec.gibibytes
    threaded = {"iothread": "1"} if bus in ("scsi", "virtio") else {}
    chosen = disk_format(disk.storage, spec.format)
    return values.build(
        {
            "file": f"{disk.storage.storage}:{size_part}",
            **({"import-from": disk.source.volid} if disk.source else {}),
            **({"format": chosen} if chosen else {}),
            **threaded,
            **spec.more,
        },
        "file",
    )


async def extraction(pve: Cluster, node: str, placed: Iterable[PlacedDisk]) -> dict[str, str]:
    """The parameters that importing from archives needs; one storage serves all of them."""
    for disk in placed:
        if disk.source and (storage := await working_storage(pve, node, disk.source.volid, disk.storage)):
            return {"import-working-storage": storage}
    return {}


def mount(disk: PlacedDisk) -> str:
    """The property string of a container's root file system or mount point."""
    return values.build({"volume": f"{disk.storage.storage}:{disk.spec.gibibytes}", **disk.spec.more}, "volume")


_ALIASES = {"vlan": "tag", "gateway": "gw", "gateway6": "gw6", "mac": "macaddr", "ipv4": "ip", "ipv6": "ip6"}

Card = dict[str, str]


def parse_cards(requested: Sequence[str | Mapping[str, Any]] | None) -> list[Card]:
    """The requested cards: one on the default bridge by default, none for an empty list."""
    return [_parse_card(card) for card in ([""] if requested is None else requested)]


def _parse_card(requested: str | Mapping[str, Any]) -> Card:
    if isinstance(requested, Mapping):
        parts = {str(key): part_text(str(key), value) for key, value in requested.items() if value is not None}
    else:
        parts = values.parse_nic(requested)
        if "model" in parts and parts["model"] not in values.NIC_MODELS and "bridge" not in parts:
            parts["bridge"] = parts.pop("model")
    return {_ALIASES.get(key, key): value for key, value in parts.items()}


async def connect(pve: Cluster, node: str, cards: Sequence[Card]) -> list[Card]:
    """The cards with bridges that the node has."""
    bridges: dict[str | None, str] = {}
    for bridge in {card.get("bridge") for card in cards}:
        bridges[bridge] = await pick_bridge(
            pve,
            node,
            bridge,
            next_step=either(
                Advice("Name it in {networks}", networks=""), Advice("give {networks} for no network", networks=[])
            ),
        )
    return [{**card, "bridge": bridges[card.get("bridge")]} for card in cards]


def chosen_bridge(requested: Sequence[Card], connected: Sequence[Card]) -> dict[str, str]:
    """The bridge of the cards that named none, for the answer."""
    pairs = zip(requested, connected, strict=True)
    return next(({"bridge": connected_card["bridge"]} for card, connected_card in pairs if "bridge" not in card), {})


def vm_card(card: Card, model: str) -> str:
    """netN of a VM: `virtio=<mac>,bridge=vmbr0,tag=20`."""
    chosen = card.get("model", model)
    if chosen not in values.NIC_MODELS:
        raise BadArgument(
            f"There is no network card model {chosen!r}",
            next_step=f"Valid values: {', '.join(sorted(values.NIC_MODELS))}",
        )
    if misplaced := sorted({"ip", "ip6", "gw", "gw6"} & card.keys()):
        raise BadArgument(
            f"A VM's network card has no {misplaced[0]!r}",
            next_step=Advice("Addresses of a VM go into {cloud_init}", cloud_init=NAMED),
        )
    return values.build_nic({**card, "model": chosen})


def container_card(card: Card, number: int) -> str:
    """netN of a container: `name=eth0,bridge=vmbr0,ip=dhcp`."""
    left = dict(card)
    if mac := left.pop("macaddr", None):
        left["hwaddr"] = mac
    addresses = address_parts(left)
    for key in ("ip", "gw", "ip6", "gw6"):
        left.pop(key, None)
    head = {"name": left.pop("name", f"eth{number}"), "bridge": left.pop("bridge")}
    return values.build({**head, **addresses, **left}, "")


def address_parts(settings: Mapping[str, str]) -> dict[str, str]:
    """ip, gw, ip6 and gw6 as both kinds of guest take them; DHCP by default."""
    parts: dict[str, str] = {}
    if "ip6" not in settings or "ip" in settings:
        parts["ip"] = _address(settings.get("ip", "dhcp"), 4)
    if "ip6" in settings:
        parts["ip6"] = _address(settings["ip6"], 6)
    for key, address, version in (("gw", "ip", 4), ("gw6", "ip6", 6)):
        if gateway := settings.get(key):
            if "/" not in parts.get(address, ""):
                raise BadArgument(
                    f"The gateway {gateway} requires a static {address}",
                    next_step=f"Give {address} with its prefix",
                )
            parts[key] = _gateway(gateway, version)
    return parts


def _address(text: str, version: int) -> str:
    if text in ("dhcp", "manual") or (version == 6 and text == "auto"):
        return text
    example = "192.168.1.5/24" if version == 4 else "2001:db8::5/64"
    try:
        address = ipaddress.ip_interface(text)
    except ValueError:
        raise BadArgument(f"{text!r} is not an IPv{version} address", next_step=f"Write {example} or dhcp") from None
    if address.version != version:
        raise BadArgument(f"{text!r} is not an IPv{version} address", next_step=f"Write {example} or dhcp")
    if "/" not in text:
        raise BadArgument(f"The address {text} lacks its prefix", next_step=f"Write it like {example}")
    return text


def name_servers(addresses: str | list[str]) -> str:
    """DNS servers as both kinds of guest take them: addresses, separated by blanks."""
    servers = (
        " ".join(map(str, [addresses] if isinstance(addresses, (str, int)) else addresses))
        .replace(",", " ")
        .replace(";", " ")
        .split()
    )
    for server in servers:
        try:
            ipaddress.ip_address(server)
        except ValueError:
            raise BadArgument(
                f"The DNS server {server!r} is not an address", next_step="Write it like 1.1.1.1"
            ) from None
    return " ".join(servers)


def _gateway(text: str, version: int) -> str:
    try:
        if ipaddress.ip_address(text).version == version:
            return text
    except ValueError:
        pass
    raise BadArgument(f"{text!r} is not an IPv{version} gateway", next_step="Write the bare address, without a prefix")


_PLAIN = {
    "user": "ciuser",
    "password": "cipassword",
    "type": "citype",
    "custom": "cicustom",
    "search_domain": "searchdomain",
}
CloudInit = Annotated[
    dict[str, Any], Meta(description="user,password,ssh_keys,ip,gateway,ip6,gateway6,dns,search_domain,upgrade")
]
CREDENTIALS = frozenset(["cipassword", "sshkeys", "cicustom"])
"""Options by which someone can log in; a custom file may set anything."""
_ADDRESS = {"ip": "ip", "gateway": "gw", "ip6": "ip6", "gateway6": "gw6"}
_NUMBERED = re.compile(r"ipconfig\d+")
_LISTS = ("ssh_keys", "dns")
KEYS = (*_PLAIN, "ssh_keys", *_ADDRESS, "dns", "upgrade", "ipconfig0")


def cloudinit_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """PVE's options. ip and gateway belong to the first card, ipconfigN to the others."""
    refuse_unknown("cloud_init", (key for key in settings if not _NUMBERED.fullmatch(key)), KEYS)
    for key, value in settings.items():
        for text in value if key in _LISTS and isinstance(value, list) else [value]:
            _refuse_wrong_type(f"cloud_init.{key}", text, flag=key == "upgrade")
    options: dict[str, Any] = {_PLAIN[key]: str(settings[key]) for key in _PLAIN if settings.get(key)}
    if settings.get("dns"):
        options["nameserver"] = name_servers(settings["dns"])
    options |= {key: str(value) for key, value in settings.items() if _NUMBERED.fullmatch(key)}
    if settings.get("ssh_keys"):
        options["sshkeys"] = values.encode_keys(public_keys(settings["ssh_keys"]))
    if settings.get("upgrade") is not None:
        options["ciupgrade"] = int(values.is_on(settings["upgrade"]))
    addresses = {_ADDRESS[key]: str(settings[key]) for key in _ADDRESS if settings.get(key)}
    if addresses and "ipconfig0" in options:
        raise BadArgument(
            Sentence("{cloud_init} contains both ipconfig0 and its parts", cloud_init=NAMED),
            next_step="Give ip and gateway, or ipconfig0",
        )
    options.setdefault("ipconfig0", values.build(address_parts(addresses)))
    return options


def _refuse_wrong_type(key: str, value: Any, *, flag: bool) -> None:
    if value is not None and (isinstance(plain_value(key, value), bool) and not flag):
        raise BadArgument(f"{key} takes a string, not {str(value).lower()}")


def public_keys(texts: str | list[str]) -> list[str]:
    """SSH keys, one per line; anything else is refused here with a better explanation than PVE's."""
    lines = [line.strip() for text in as_list(texts) for line in str(text).splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    for number, line in enumerate(keys, 1):
        if not values.is_ssh_key(line):
            raise BadArgument(
                f"SSH key {number} is not a public key",
                why="A public key reads like: ssh-ed25519 AAAA... comment",
                next_step="Give what the .pub file holds, never the private key",
            )
    return keys
