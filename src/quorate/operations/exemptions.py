"""Exemptions: when a call of a tool does not count although the table of risks calls it DESTROY.

Each is a condition on the call in wire form and on what PVE has stored at that moment. The judge checks it whenever it
judges the call; what cannot be read or understood is not exempt. No reason is ever excused as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from quorate.operations.risk import Effect, Reason
from quorate.problems import NotFound, Problem
from quorate.pve import values
from quorate.pve.cluster import Cluster
from quorate.pve.targets import owner
from quorate.pve.tasks import Upid
from quorate.pve.wire import Request

Condition = Callable[[Cluster, Request, str], Awaitable[bool]]
"""Decides for one request; the text is the parameter that causes the effect."""


@dataclass(frozen=True, slots=True)
class Exemption:
    reason: Reason
    only_if: str
    """The condition in words, for the table of risks."""
    holds: Condition


async def is_exempt(exemptions: Iterable[Exemption], cluster: Cluster, request: Request, effect: Effect) -> bool:
    for exemption in exemptions:
        if exemption.reason is effect.reason:
            try:
                if await exemption.holds(cluster, request, effect.about):
                    return True
            except Problem:  # what PVE has stored is unknown
                continue
    return False


# -- drives ------------------------------------------------------------------------------------------------------------

_GUEST_CONFIG: Final = re.compile(r"/nodes/{node}/(?P<type>qemu|lxc)/{vmid}/config")
_MOVE: Final = re.compile(r"/nodes/{node}/(?P<type>qemu|lxc)/{vmid}/(?:move_disk|move_volume)")
_NEW_VOLUME: Final = re.compile(r"[^/:\s]+:\d+(?:\.\d+)?")
_NEW_CLOUDINIT_DRIVE: Final = re.compile(r"[^/:\s]+:cloudinit")
_DISC: Final = re.compile(r"none|[^/:\s]+:iso/[^/\s]+")

_VOLUME_KEYS: Final = frozenset(["file", "volume"])
_LOSES_NOTHING: Final = re.compile(
    r"size|aio|detect_zeroes|discard|iothread|queues|ssd|serial|wwn|model|product|vendor|(?:bps|iops|mbps)\w*"
    r"|mp|acl|mountoptions|quota"
)
"""Options of a drive or mount point that neither drop data nor end its protection."""
_SAFE_VALUES: Final[Mapping[str, Callable[[str], bool]]] = {
    "media": lambda value: value == "disk",
    "cache": lambda value: value in ("none", "directsync", "writethrough", "writeback"),
    "snapshot": lambda value: _is_off(value),  # if on, PVE throws away everything that is written
    "backup": lambda value: values.is_on(value),
    "replicate": lambda value: values.is_on(value),
    "ro": lambda value: _is_off(value),
    "shared": lambda value: _is_off(value),
}
_OF_NEW_VOLUMES: Final = frozenset(
    ["backup", "replicate", "ro", "format", "import-from", "efitype", "pre-enrolled-keys", "ms-cert", "version"]
)
"""Options that take nothing from a volume that does not exist yet."""


def _is_off(text: str) -> bool:
    return text.lower() in ("0", "off", "no", "false")


def _volume(parts: Mapping[str, str]) -> str:
    return parts.get("file") or parts.get("volume", "")


def _only_harmless(parts: Mapping[str, str], *, new: bool) -> bool:
    for key, value in parts.items():
        fine = key in _VOLUME_KEYS or _LOSES_NOTHING.fullmatch(key) or (new and key in _OF_NEW_VOLUMES)
        if not fine and not (key in _SAFE_VALUES and _SAFE_VALUES[key](value)):
            return False
    return True


async def _stored_options(cluster: Cluster, request: Request, where: re.Pattern[str]) -> dict[str, dict[str, Any]]:
    """The options of the guest with their current and pending values; empty if it is another call."""
    match = where.fullmatch(request.template)
    if match is None:
        return {}
    path = f"/nodes/{request.text('node')}/{match['type']}/{request.text('vmid')}/pending"
    return {str(entry["key"]): entry for entry in await cluster.get(path)}


def _is_settled(entry: Mapping[str, Any]) -> bool:
    return not {"pending", "delete"} & entry.keys()


def _is_own(volume: str, request: Request) -> bool:
    return ":" in volume and not volume.startswith("/") and str(owner(volume)) == request.text("vmid")


async def _is_new_in_free_slot(cluster: Cluster, request: Request, slot: str) -> bool:
    parts = request.parts(slot) or {}
    if not _NEW_VOLUME.fullmatch(_volume(parts)) or not _only_harmless(parts, new=True):
        return False
    stored = await _stored_options(cluster, request, _GUEST_CONFIG)
    return bool(stored) and slot not in stored


async def _is_detached_disk_in_free_slot(cluster: Cluster, request: Request, slot: str) -> bool:
    parts = request.parts(slot) or {}
    if not _is_own(_volume(parts), request) or not _only_harmless(parts, new=False):
        return False
    stored = await _stored_options(cluster, request, _GUEST_CONFIG)
    detached = [str(entry.get("value")) for key, entry in stored.items() if values.bus_of(key) == "unused"]
    return slot not in stored and _volume(parts) in detached


async def _is_cloudinit_in_free_slot(cluster: Cluster, request: Request, slot: str) -> bool:
    parts = request.parts(slot) or {}
    if not _NEW_CLOUDINIT_DRIVE.fullmatch(_volume(parts)) or parts.keys() - _VOLUME_KEYS - {"format"}:
        return False
    stored = await _stored_options(cluster, request, _GUEST_CONFIG)
    return bool(stored) and slot not in stored


async def _is_new_guest(cluster: Cluster, request: Request, _: str) -> bool:
    vmid = request.text("vmid")
    listed = await cluster.get("/cluster/resources", type="vm")
    if any(str(row.get("vmid")) == vmid for row in listed):
        return False
    try:
        await cluster.get(f"/nodes/{request.text('node')}/qemu/{vmid}/config")
    except NotFound:
        return True
    return False


async def _is_disc(cluster: Cluster, request: Request, slot: str) -> bool:
    parts = request.parts(slot) or {}
    if not _DISC.fullmatch(_volume(parts)) or parts.get("media") != "cdrom":
        return False
    if parts.keys() - _VOLUME_KEYS - {"media", "size"}:
        return False
    stored = await _stored_options(cluster, request, _GUEST_CONFIG)
    held = [str(stored[slot][key]) for key in ("value", "pending") if slot in stored and key in stored[slot]]
    return bool(stored) and all(_is_disc_drive(value) for value in held)


def _is_disc_drive(value: str) -> bool:
    return values.parse(value, "volume").get("media") == "cdrom" and not values.is_cloudinit(value)


async def _keeps_volumes(cluster: Cluster, request: Request, _: str) -> bool:
    if request.is_on("force"):
        return False
    stored = await _stored_options(cluster, request, _GUEST_CONFIG)
    drives = [name for name in request.elements("delete") if values.bus_of(name) in values.DISKS]
    return bool(drives) and all(name in stored and _stays_as_unused(stored[name], request) for name in drives)


def _stays_as_unused(entry: Mapping[str, Any], request: Request) -> bool:
    value = str(entry.get("value", ""))
    holds_data = values.is_disk(str(entry["key"]), value)
    return _is_settled(entry) and (not holds_data or _is_own(values.volume_of(value), request))


async def _moves_own_disk(cluster: Cluster, request: Request, _: str) -> bool:
    if any(request.has(name) for name in ("target-vmid", "target-disk", "target-volume")):
        return False
    entry = (await _stored_options(cluster, request, _MOVE)).get(request.text("disk") or request.text("volume"))
    return entry is not None and _is_settled(entry) and _is_own(values.volume_of(str(entry.get("value", ""))), request)


async def _removes_only_cards(_: Cluster, request: Request, __: str) -> bool:
    devices = [values.bus_of(name) for name in request.elements("delete")]
    return _GUEST_CONFIG.fullmatch(request.template) is not None and {*devices} == {"net"}


NEW_DISK: Final = Exemption(
    Reason.DISK_PLACE,
    "the slot is free, the volume is new, and no option discards what is written to it",
    _is_new_in_free_slot,
)
DETACHED_DISK: Final = Exemption(
    Reason.DISK_PLACE,
    "the slot is free, the volume is one of the guest's own unused disks, and no option discards data, hides it from "
    "backup or replication, or makes it read-only",
    _is_detached_disk_in_free_slot,
)
CLOUDINIT_DRIVE: Final = Exemption(
    Reason.DISK_PLACE, "the slot is free, and the drive is a new one for cloud-init", _is_cloudinit_in_free_slot
)
NEW_GUEST: Final = Exemption(
    Reason.MAKES_TEMPLATE, "the guest does not exist yet, because an earlier call of the plan creates it", _is_new_guest
)
DISC: Final = Exemption(
    Reason.DISK_PLACE, "the slot is free or a CD-ROM drive, and gets an ISO image or is emptied", _is_disc
)
DETACHING: Final = Exemption(
    Reason.TAKES_DISK,
    "without force, and each volume belongs to the guest, which keeps it as an unused disk, or the drive holds no data",
    _keeps_volumes,
)
MOVING: Final = Exemption(
    Reason.DELETES_SOURCE,
    "the guest's own disk is copied for the same guest, and the source goes when the copy is complete",
    _moves_own_disk,
)
NETWORK_CARDS: Final = Exemption(
    Reason.TAKES_DEVICE, "only network cards are removed, which hold no data", _removes_only_cards
)


# -- networks, tasks ---------------------------------------------------------------------------------------------------

_LOCAL_IPAM: Final = ("", "pve")
_REPEATABLE_TASKS: Final = frozenset(
    [
        "aptupdate", "download", "ociregistrypull", "imgcopy", "vzdump",
        "qmclone", "vzclone", "qmigrate", "vzmigrate", "hamigrate",
        "qmmove", "move_volume", "qmstart", "vzstart", "qmshutdown", "vzshutdown", "qmreboot", "vzreboot",
        "startall", "stopall", "suspendall", "migrateall", "bulk-start", "bulk-shutdown", "bulk-suspend",
        "bulk-migrate", "vncproxy", "vncshell", "termproxy", "spiceproxy", "spiceshell",
    ]
)  # fmt: skip
"""Types of tasks that leave everything as it was, or can be started again to finish their work."""


async def _is_pending_sdn_deletion(cluster: Cluster, request: Request, _: str) -> bool:
    if request.template in ("/cluster/sdn/zones/{zone}", "/cluster/sdn/vnets/{vnet}"):
        return True
    if request.template != "/cluster/sdn/vnets/{vnet}/subnets/{subnet}":
        return False
    vnet = await cluster.get(f"/cluster/sdn/vnets/{request.text('vnet')}")
    zone = await cluster.get(f"/cluster/sdn/zones/{vnet['zone']}")
    return str(zone.get("ipam", "")) in _LOCAL_IPAM


async def _is_pending_interface_deletion(_: Cluster, request: Request, __: str) -> bool:
    return request.template == "/nodes/{node}/network/{iface}"


async def _is_repeatable_task(_: Cluster, request: Request, __: str) -> bool:
    upid = request.text("upid")
    return Upid.looks_like(upid) and Upid.parse(upid).type in _REPEATABLE_TASKS


SDN_EDIT: Final = Exemption(
    Reason.DELETES,
    "the zone, vnet or subnet stays in effect until the changes are applied, and no outside IPAM is notified",
    _is_pending_sdn_deletion,
)
INTERFACE_EDIT: Final = Exemption(
    Reason.DELETES, "the interface stays in effect until the changes are applied", _is_pending_interface_deletion
)
REPEATABLE_TASK: Final = Exemption(
    Reason.ENDS_TASK,
    "the task leaves everything as it was or can be started again: backups, downloads, clones, moves, power actions, "
    "consoles",
    _is_repeatable_task,
)
