"""Whole VMs of other hypervisors, from an OVA archive or an OVF on a storage."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import Advice, see, tools
from quorate.operations.placement import oversize_warnings
from quorate.operations.plan import Plan
from quorate.operations.preconditions import start_objections
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, NotFound, PermissionMissing, Problem
from quorate.pve import values
from quorate.pve.cluster import Cluster
from quorate.tools.disk_checks import firmware_drive, named_disk
from quorate.tools.guest_readiness import WaitFor, parse_goal
from quorate.tools.new_guest_devices import (
    Card,
    DiskSpec,
    PlacedDisk,
    Slots,
    chosen_bridge,
    chosen_storage,
    connect,
    drive,
    extraction,
    parse_cards,
    place_disks,
    vm_card,
)
from quorate.tools.new_guests import (
    LEAST_MEMORY,
    MEBIBYTE,
    Amount,
    CreationRequest,
    NewGuest,
    Pool,
    check_name,
    check_pool,
    complete_tags,
    created_guest,
    creation_settings,
    mebibytes,
    namesake_warning,
    risk_of_creation,
    tag_list,
)
from quorate.tools.templates import File, Library, ambiguous_file, matching, missing_file
from quorate.tools.vms import CPU
from quorate.units import size

_ENDINGS = (".ova", ".ovf")
_EFI = "efidisk0"
_SAFE_SCSI = "pvscsi"
"""The SCSI controller for UEFI, which has no driver for PVE's default; guests of VMware know it."""
_CARD_PARTS = frozenset({"model", "macaddr"})

# What PVE's own dialog says about the warnings in the metadata; {key} and {value} come with them.
_WARNINGS: Mapping[str, str] = {
    "cdrom-image-ignored": "The CD-ROM image of {key} is not imported",
    "efi-state-lost": "The UEFI settings are not imported: the boot order of the firmware may have to be set again",
    "guest-is-running": "The VM seems to run where it comes from: the import may fail, or its data be inconsistent",
    "nvme-unsupported": "The NVMe disk {key} becomes a SCSI disk",
    "ova-needs-extracting": "While it is imported, the disks also need space where they are extracted",
    "ovmf-with-lsi-unsupported": "UEFI has no driver for LSI controllers; the SCSI controller becomes {value}",
    "serial-port-socket-only": "The serial port {key} becomes a socket",
}


@dataclass(frozen=True, slots=True)
class _Appliance:
    """What PVE reads from the file: how it would create the VM."""

    volid: str
    settings: Mapping[str, Any]
    disks: Mapping[str, tuple[str, int]]
    """Volume and size by slot."""
    uefi: bool
    networks: Sequence[Card]
    warnings: Sequence[str]

    @property
    def summary(self) -> dict[str, Any]:
        """What it contains, for the answer."""
        return {
            "file": self.volid,
            **{key: value for key, value in self.settings.items() if key != "boot"},
            "disks": {
                slot: f"{volid.rpartition('/')[2]}{f' ({size(length)})' if length else ''}"
                for slot, (volid, length) in self.disks.items()
            },
            "networks": [card.get("model", "") for card in self.networks],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request(CreationRequest):
    source: str
    overrides: Mapping[str, Any]
    options: Mapping[str, Any] | None
    storage: str | None
    bridge: str | None
    bus: str | None


@operation(
    toolset="provision",
    risk=Risk.CHANGE,
    risk_of=risk_of_creation,
    least=Risk.CHANGE,
    search_words="import ova ovf appliance vmware virtualbox esxi whole vm migrate into proxmox",
    example="source=shop.ova name=shop",
)
async def vm_import(
    pve: Cluster,
    source: Annotated[str, Meta(description="OVA or OVF of content import: file name or volid")],
    name: str | None = None,
    node: str | None = None,
    vmid: int | None = None,
    cores: int | None = None,
    memory: Annotated[Amount, Meta(description="4G, or MiB")] | None = None,
    storage: Annotated[str, Meta(description="For the disks")] | None = None,
    bridge: Annotated[str, Meta(description="For its network cards")] | None = None,
    bus: Annotated[
        Literal["scsi", "sata", "ide", "virtio"], Meta(description="For the disks, if its system lacks the driver")
    ]
    | None = None,
    tags: list[str] | None = None,
    pool: Pool | None = None,
    options: Annotated[dict[str, Any], Meta(description="Other PVE options")] | None = None,
    start: bool = False,
    wait_for: WaitFor | None = None,
) -> Plan:
    """Import a whole VM from an appliance: hardware, disks and networks as it describes them, the rest chosen."""
    check_name(name)
    await check_pool(pve, pool)
    tags, chosen_tags = complete_tags(pve, tags)
    overrides = {
        "name": name,
        "cores": cores,
        "memory": None if memory is None else mebibytes("memory", memory),
        "tags": tag_list(tags),
        "pool": pool,
    }
    request = _Request(
        settings={"memory": overrides["memory"] or LEAST_MEMORY},  # the file says how much, once a node has read it
        node=node,
        vmid=vmid,
        start=start,
        wait_for=parse_goal(wait_for, is_vm=True),
        chosen=chosen_tags,
        warnings=(),
        source=source,
        overrides={key: value for key, value in overrides.items() if value is not None},
        options=options,
        storage=storage,
        bridge=bridge,
        bus=bus,
    )
    library = Library(pve)
    return await request.plan(pve, partial(_new_guest, pve, library, request), partial(_has_file, library, source))


# -- what is in the file -----------------------------------------------------------------------------------------------


async def _has_file(library: Library, source: str, node: str) -> bool:
    return bool(matching(_appliances(await library.on(node, "import")), source))


def _appliances(files: Iterable[File]) -> list[File]:
    return [file for file in files if file.name.lower().endswith(_ENDINGS)]


async def _find(library: Library, node: str, source: str) -> File:
    """The file by its volid, its name or a part of it."""
    files = await library.closer_on(node, "import")
    hits = matching(_appliances(files), source)
    if len(hits) > 1:
        raise ambiguous_file("appliance", source, [file.name for file in hits])
    if hits:
        return hits[0]
    if image := next(iter(matching(files, source)), None):
        raise BadArgument(
            f"{image.volid} is a disk, not a whole VM",
            next_step=Advice("Make a VM with it", tools.vm_create(disks=[{"import_from": image.volid}])),
        )
    raise missing_file("appliance", source, node, _appliances(files))


async def _read(pve: Cluster, node: str, file: File) -> _Appliance:
    storage, _, volume = file.volid.partition(":")
    try:
        metadata = await pve.get(f"/nodes/{node}/storage/{storage}/import-metadata", volume=volume)
    except (PermissionMissing, NotFound):
        raise
    except Problem as problem:
        raise BadArgument(
            f"PVE cannot read the VM in {file.volid}",
            why=problem.what,
            next_step=see("See what else is stored", tools.volume_list(storage=storage, content="import")),
        ) from None
    disks = metadata.get("disks") or {}
    networks: Mapping[str, Any] = metadata.get("net") or {}
    return _Appliance(
        file.volid,
        dict(metadata.get("create-args") or {}),
        {slot: named_disk(disk) for slot, disk in sorted(disks.items()) if slot != _EFI},
        uefi=_EFI in disks or (metadata.get("create-args") or {}).get("bios") == "ovmf",
        networks=[
            {part: str(value) for part, value in networks[key].items() if part in _CARD_PARTS}
            for key in sorted(networks)
        ],
        warnings=[_describe(warning) for warning in metadata.get("warnings") or ()],
    )


def _describe(warning: Mapping[str, Any]) -> str:
    kind = str(warning.get("type", ""))
    text = _WARNINGS.get(kind, f"PVE warns of {kind}")
    return text.format(key=warning.get("key", "one drive"), value=warning.get("value", "another"))


# -- the VM that it becomes --------------------------------------------------------------------------------------------


async def _new_guest(pve: Cluster, library: Library, request: _Request, node: str) -> NewGuest:
    """The VM with everything that depends on the node: the file, storages, bridges."""
    appliance = await _read(pve, node, await _find(library, node, request.source))
    settings = await _settings(pve, request, appliance)
    specs = [DiskSpec(import_from=volid, storage=request.storage) for volid, _ in appliance.disks.values()]
    placed, warnings = await place_disks(pve, node, specs, "images", library)
    requested = [{**card, **({"bridge": request.bridge} if request.bridge else {})} for card in appliance.networks]
    connected = await connect(pve, node, parse_cards(requested))
    slots = _slots(list(appliance.disks), request.bus)
    controller = {}
    if appliance.uefi and "scsihw" not in settings and any(slot.startswith("scsi") for slot in slots.values()):
        controller = {"scsihw": _SAFE_SCSI}
    devices = {
        **_drives(slots, placed),
        **({_EFI: _uefi_drive(placed)} if appliance.uefi and placed and _EFI not in settings else {}),
        **{f"net{number}": vm_card(card, "e1000") for number, card in enumerate(connected)},
    }
    working = {} if "import-working-storage" in settings else await extraction(pve, node, placed)
    chosen = {
        **({"cpu": CPU} if "cpu" not in (request.options or {}) and "cpu" not in appliance.settings else {}),
        **controller,
        **request.chosen,
        **chosen_storage(placed),
        **(chosen_bridge(requested, connected) if connected else {}),
        **({"extracted_on": working["import-working-storage"]} if working else {}),
    }
    memory = int(settings["memory"]) * MEBIBYTE
    return created_guest(
        "vm",
        node,
        {**settings, **controller, **devices, **working, **_boot(request, settings, slots)},
        storages=(*(disk.storage.storage for disk in placed), *working.values()),
        facts={"appliance": appliance.summary, "chosen": chosen},
        warnings=(
            *appliance.warnings,
            *await namesake_warning(pve, str(settings.get("name", "")) or None),
            *warnings,
            *await oversize_warnings(pve, node, memory),
        ),
        objections=tuple(await start_objections(pve, node, settings)),
    )


async def _settings(pve: Cluster, request: _Request, appliance: _Appliance) -> dict[str, Any]:
    """The options of the appliance, with those of the caller in their place."""
    if not appliance.disks:
        raise BadArgument(f"{appliance.volid} has no disk that PVE can import")
    options = {**(request.options or {})}
    named = {"cpu": CPU, "memory": 2048, **appliance.settings, **request.overrides}
    named = {key: value for key, value in named.items() if key not in options}
    settings = await creation_settings(pve, named, options, is_vm=True)
    if settings.get("name"):
        check_name(str(settings["name"]))
    return settings


def _slots(described: list[str], bus: str | None) -> dict[str, str]:
    """The slot of each disk: as described, or the next one of the requested bus."""
    if bus is None:
        return {slot: slot for slot in described}
    free = Slots(())
    return {slot: free.take(bus) for slot in described}


def _drives(slots: Mapping[str, str], placed: Sequence[PlacedDisk]) -> dict[str, str]:
    """The drives in PVE's notation; other SCSI controllers than PVE's own have no threads per disk."""
    pairs = zip(slots.values(), placed, strict=True)
    return {slot: drive(disk, bus="virtio" if slot.startswith("virtio") else "") for slot, disk in pairs}


def _uefi_drive(placed: Sequence[PlacedDisk]) -> str:
    """Without Microsoft's keys: with them, only signed systems boot, and nothing says whether this one is."""
    return values.build({**firmware_drive(_EFI, placed[0].storage), "pre-enrolled-keys": "0"}, "file")


def _boot(request: _Request, settings: Mapping[str, Any], slots: Mapping[str, str]) -> dict[str, str]:
    """The boot order as described, with the slots that the disks have now."""
    if "boot" in (request.options or {}):
        return {}
    order = re.split(r"[;,\s]+", str(settings.get("boot", "")).removeprefix("order="))
    kept = [slots[slot] for slot in order if slot in slots] or list(slots.values())
    return {"boot": f"order={';'.join(kept)}"}
