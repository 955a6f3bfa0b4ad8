"""Why a stopped guest cannot start, each cause with its smallest repair."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from quorate.hints import Advice, ToolHint, tools
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.preconditions import AttachedVolume, start_objections, storages_on, volumes
from quorate.problems import BadArgument, Conflict, NotFound, ParameterRejected, Problem, ServerFailed
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.targets import owner
from quorate.pve.tasks import gather_bounded
from quorate.tools.disk_checks import existing_disk, format_of, size_of, storage_of, with_room
from quorate.units import parse_size, size

READS_AT_ONCE = 16
GUESTS_COMPARED = 40
"""Guests of the same node whose network cards are read to find the usual bridge."""
NOTE_SHOWN = 200
_CORES = re.compile(r"it would have \d+ CPUs, and \S+ has (\d+)")


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One cause, and what a person or a model can do about it."""

    cause: str
    repairs: tuple[ToolHint, ...] = ()
    """Each a plan of its own; the first is the smallest."""
    because: str = ""
    """Why this repair, where it is a choice."""
    notes: tuple[str, ...] = ()
    """What the guest's notes say about it."""

    def as_dict(self) -> dict[str, Any]:
        why = Advice(self.because, *self.repairs) if self.because else Advice("Smallest first", *self.repairs)
        repair = why if self.repairs else None
        return {
            "cause": self.cause,
            **({"repair": repair} if repair else {}),
            **({"notes_say": list(self.notes)} if self.notes else {}),
        }


async def find_obstacles(pve: Cluster, guest: Guest, config: Mapping[str, Any]) -> list[Obstacle]:
    """Every reason: storages, volumes, ISO images and bridges that are missing, and more than the node has."""
    node, attached = guest.row.node, [volume for volume in volumes(config) if volume.on_storage]
    known = await storages_on(pve, node, {volume.storage for volume in attached})
    parts = await asyncio.gather(
        _objections(pve, guest, config),
        _missing_bridges(pve, guest, config),
        *(
            _missing_volume(pve, guest, config, volume)
            if volume.storage in known
            else _missing_storage(pve, guest, config, volume)
            for volume in attached
            if volume.storage not in known or not volume.is_cloudinit  # PVE makes a missing one again at the start
        ),
    )
    return [obstacle for part in parts for obstacle in part]


async def _objections(pve: Cluster, guest: Guest, config: Mapping[str, Any]) -> list[Obstacle]:
    reasons = await start_objections(pve, guest.row.node, config) if guest.is_vm else []
    obstacles = []
    for reason in (text.partition(": ")[2] for text in reasons):
        repairs: tuple[ToolHint, ...] = ()
        if match := _CORES.match(reason):
            cores = max(1, int(match[1]) // int(config.get("sockets", 1)))
            repairs = (tools.guest_configure(guest=guest.vmid, cores=cores),)
        elif reason.startswith("vcpus="):
            repairs = (tools.guest_configure(guest=guest.vmid, unset=["vcpus"]),)
        elif "machine type" in reason:
            repairs = (tools.guest_configure(guest=guest.vmid, unset=["machine"]),)
        obstacles.append(Obstacle(reason, repairs))
    return obstacles


# -- networks ----------------------------------------------------------------------------------------------------------


async def _missing_bridges(pve: Cluster, guest: Guest, config: Mapping[str, Any]) -> list[Obstacle]:
    node, bridges = guest.row.node, _bridges(config)
    if not bridges:
        return []
    try:
        rows = await pve.get(f"/nodes/{node}/network", type="any_bridge")
    except Problem:
        return []
    known = {str(row["iface"]) for row in rows or ()}
    lacking = {key: bridge for key, bridge in sorted(bridges.items()) if bridge not in known}
    if not known or not lacking:
        return []
    usual, because = await _usual_bridge(pve, guest, known)
    return [
        Obstacle(
            f"{key} is on the bridge {bridge}, which {node} does not have",
            (tools.nic_set(guest=guest.vmid, nic=key, bridge=usual),),
            because,
            _notes_about(config, key, bridge),
        )
        for key, bridge in lacking.items()
    ]


def _bridges(config: Mapping[str, Any]) -> dict[str, str]:
    cards = {key: values.parse(str(value)) for key, value in config.items() if values.bus_of(key) == "net"}
    return {key: parts["bridge"] for key, parts in cards.items() if parts.get("bridge")}


async def _usual_bridge(pve: Cluster, guest: Guest, known: set[str]) -> tuple[str, str]:
    """The bridge that most other guests of the node use, and why it was chosen."""
    rows = [row for row in await pve.inventory.guests() if row.node == guest.row.node and row.vmid != guest.vmid]
    read = [partial(_read_bridges, Guest(pve, row)) for row in rows[:GUESTS_COMPARED]]
    used = Counter(
        bridge for bridges in await gather_bounded(READS_AT_ONCE, read) for bridge in bridges if bridge in known
    )
    if not used:
        first = min(known)
        return first, f"{first} is a bridge of {guest.row.node}"
    bridge, count = min(used.items(), key=lambda item: (-item[1], item[0]))
    return bridge, f"{count} of {len(read)} other guests on {guest.row.node} use {bridge}"


async def _read_bridges(guest: Guest) -> set[str]:
    try:
        return set(_bridges(await guest.get("config")).values())
    except Problem:
        return set()


# -- volumes -----------------------------------------------------------------------------------------------------------


async def _missing_volume(
    pve: Cluster, guest: Guest, config: Mapping[str, Any], volume: AttachedVolume
) -> list[Obstacle]:
    """Nothing if it is there, or if these credentials cannot see it."""
    error = await _read_error(pve, guest.row.node, volume.volid)
    if not error:
        return []
    cause = f"{volume} is missing on {guest.row.node}, or cannot be read ({error})"
    repairs: tuple[ToolHint, ...] = (_detach(guest, config, volume),)
    if not volume.cdrom and may_be_recreated(guest, volume.key, volume.volid):
        about = {} if volume.size else {"size": "8G"}
        repairs = (tools.disk_change(guest=guest.vmid, action="recreate", disk=volume.key, **about), *repairs)
    because = "recreate makes an empty one under its name" if len(repairs) > 1 else ""
    return [Obstacle(cause, repairs, because, _notes_about(config, volume.key, volume.volid))]


async def _read_error(pve: Cluster, node: str, volid: str) -> str:
    """How PVE says that a volume is not there; empty if it is, or if it may not be seen."""
    try:
        await pve.get(f"/nodes/{node}/storage/{volid.partition(':')[0]}/content/{volid}")
    except (ServerFailed, NotFound, ParameterRejected) as problem:
        return problem.what.rpartition(": ")[2].rstrip(".") or "no reason given"
    except Problem:
        return ""
    return ""


def _detach(guest: Guest, config: Mapping[str, Any], volume: AttachedVolume) -> ToolHint:
    drives = [other for other in volumes(config) if other.cdrom and not other.is_cloudinit]
    if drives == [volume]:
        return tools.guest_configure(guest=guest.vmid, cdrom="none")
    boots = volume.key in (values.boot_disk(config, is_vm=guest.is_vm), "efidisk0", "tpmstate0")
    return tools.disk_change(
        guest=guest.vmid, action="detach", disk=volume.key, **({"force": True} if boots and guest.is_vm else {})
    )


async def _missing_storage(
    pve: Cluster, guest: Guest, config: Mapping[str, Any], volume: AttachedVolume
) -> list[Obstacle]:
    node, storage = guest.row.node, volume.storage
    cause = f"{volume} is on {storage}, which {node} cannot reach"
    try:
        definition = await pve.get(f"/storage/{storage}")
    except Problem:
        definition = None
    having = [
        row.node
        for row in await pve.inventory.of_type("storage")
        if row.storage == storage and row.status == "available" and row.node != node
    ]
    repairs: tuple[ToolHint, ...] = (_detach(guest, config, volume),)
    if definition is None:
        cause += ": there is no such storage, or it is not visible"
    elif values.is_on(definition.get("disable", 0)):
        cause += ": it is disabled"
    elif definition.get("nodes"):
        cause += f": it is for {definition['nodes']} only"
        if having:
            repairs = (tools.guest_migrate(guest=guest.vmid, node=having[0]), *repairs)
    return [Obstacle(cause, repairs, notes=_notes_about(config, volume.key, volume.volid))]


def _notes_about(config: Mapping[str, Any], *words: str) -> tuple[str, ...]:
    """The lines of the notes that mention one of these: a slot, a volume or its name, a bridge."""
    names = {word.lower() for word in words} | {word.rpartition("/")[2].rpartition(":")[2].lower() for word in words}
    pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, sorted(names)))})(?![\w-])", re.I)
    lines = str(config.get("description") or "").splitlines()
    return tuple(line.strip()[:NOTE_SHOWN] for line in lines if pattern.search(line))


# -- the repair that no other action does ------------------------------------------------------------------------------


def may_be_recreated(guest: Guest, key: str, volid: str) -> bool:
    """An empty volume helps a VM only, and a linked clone would need its base."""
    name = volid.partition(":")[2]
    folder, _, file = name.rpartition("/")
    return (
        guest.is_vm
        and values.bus_of(key) in values.BOOTABLE
        and owner(volid) == guest.vmid
        and folder in ("", str(guest.vmid))
        and file.startswith("vm-")
    )


async def plan_recreation(pve: Cluster, guest: Guest, disk: str | None, requested: str | None) -> Plan:
    """Make an empty volume under the name that the configuration has."""
    config = await guest.get("config")
    key = existing_disk(guest, config, disk)
    value = str(config[key])
    volid = values.volume_of(value)
    if not values.is_disk(key, value) or not may_be_recreated(guest, key, volid):
        raise BadArgument(
            f"{key} of {guest} ({volid}) cannot be recreated",
            why="Only a VM's own disk can be replaced by an empty one: no disc, no linked clone, no container",
            next_step=Advice("Take it out, or restore a backup", tools.disk_change(action="detach", disk=key)),
        )
    if not await _read_error(pve, guest.row.node, volid):
        raise Conflict(f"{volid} is there", why="Only a missing volume is made again")
    capacity = parse_size(requested, unit="G") if requested else size_of(value)
    if not capacity:
        raise BadArgument(f"The size of {volid} is not known", next_step=Advice("Give {size}, such as 8G", size="8G"))
    row = await with_room(pve, await storage_of(pve, guest, volid), capacity)
    filename = volid.partition(":")[2].rpartition("/")[2]
    params = {
        "filename": filename,
        "vmid": guest.vmid,
        "size": f"{-(-capacity // 1024)}",
        "format": format_of(filename),
    }
    summary = f"Make {volid} for {key} of {guest} again, empty ({size(capacity)})"
    path = f"/nodes/{guest.row.node}/storage/{row.storage}/content"
    call = Call(summary, "POST", path, params, Target.of_guest(guest))
    backups = Advice("What was on it comes back only from a backup", tools.backup_list(guest=guest.vmid))
    warnings: tuple[str, ...] = ("It will be empty; nothing of its old content comes back",)
    boots = key == values.boot_disk(config, is_vm=True)
    if boots:
        warnings = (f"{guest} boots from {key}, and an empty disk does not boot", *warnings)
    return Plan(summary, (call,), facts={"volume": volid}, warnings=warnings, next_step=backups)
