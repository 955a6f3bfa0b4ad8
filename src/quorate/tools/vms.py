"""Creating virtual machines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NAMED, Advice, either
from quorate.operations.placement import oversize_warnings, pick_storage
from quorate.operations.plan import Plan
from quorate.operations.preconditions import start_objections
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument
from quorate.pve import values
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource
from quorate.tools.disk_checks import firmware_drive
from quorate.tools.guest_readiness import WaitFor, parse_goal
from quorate.tools.new_guest_devices import (
    CREDENTIALS,
    Card,
    CloudInit,
    DiskSpec,
    Slots,
    chosen_bridge,
    chosen_storage,
    cloudinit_options,
    connect,
    drive,
    extraction,
    parse_cards,
    parse_disk,
    place_disks,
    vm_card,
)
from quorate.tools.new_guests import (
    NOBODY_CAN_LOG_IN,
    Amount,
    CreationRequest,
    NewGuest,
    Parts,
    Pool,
    as_list,
    check_name,
    check_pool,
    complete_login,
    complete_tags,
    created_guest,
    creation_settings,
    grow_call,
    mebibytes,
    namesake_warning,
    risk_of_creation,
    tag_list,
)
from quorate.tools.templates import Library

CPU = "x86-64-v2-AES"
DISK = "32G"
NOTHING_TO_BOOT = Advice(
    "It has nothing to boot: its disks are empty and no ISO is inserted, so it can only boot from the network"
).then(either(Advice("Give {iso}", iso=NAMED), Advice("{import_from} for a disk", import_from=NAMED)))
CD_ORDER = (2, 3, 1, 0)  # ide2 is where PVE's own pages look for the CD-ROM


@dataclass(frozen=True, slots=True)
class _System:
    """The hardware that an operating system needs."""

    ostype: str
    bus: str
    model: str
    uefi: bool
    tpm: bool
    machine: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request(CreationRequest):
    system: _System
    disks: list[DiskSpec]
    isos: list[str]
    cards: list[Card]
    storage: str | None
    cloud_init: bool
    boot: list[str] | None


@operation(
    toolset="provision",
    risk=Risk.CHANGE,
    risk_of=risk_of_creation,
    least=Risk.CHANGE,
    search_words="new vm virtual machine make install set up windows linux iso",
    example="name=web01 memory=2G cores=2 disks=20G iso=debian-13.1.0-amd64-netinst.iso",
)
async def vm_create(
    pve: Cluster,
    name: str | None = None,
    node: str | None = None,
    vmid: int | None = None,
    cores: int = 2,
    sockets: int | None = None,
    cpu: str | None = None,
    memory: Annotated[Amount, Meta(description="4G, or MiB")] = 2048,
    balloon: Amount | None = None,
    disks: Annotated[
        Parts,
        Meta(description="32G, local-lvm:32G or {size,storage,bus,format,import_from}"),
    ]
    | None = None,
    storage: Annotated[str, Meta(description="Default for disks")] | None = None,
    iso: Annotated[str | list[str], Meta(description="File name or volid")] | None = None,
    boot: Annotated[list[str], Meta(description="scsi0, ide2, net0 …")] | None = None,
    networks: Annotated[Parts, Meta(description="vmbr0,tag=20 or {bridge,model,tag,firewall,mac,rate,mtu}")]
    | None = None,
    ostype: Annotated[str, Meta(description="l26, win11..")] | None = None,
    bios: Literal["seabios", "ovmf"] | None = None,
    tpm: bool | None = None,
    machine: str | None = None,
    agent: bool | None = None,
    cloud_init: CloudInit | None = None,
    tags: list[str] | None = None,
    pool: Pool | None = None,
    description: str | None = None,
    onboot: bool | None = None,
    options: Annotated[dict[str, Any], Meta(description="Other PVE options")] | None = None,
    start: bool = False,
    wait_for: WaitFor | None = None,
) -> Plan:
    """Create a VM. Omitted settings are chosen and shown: vmid, node, storage, bridge, a 32G disk, boot order."""
    check_name(name)
    await check_pool(pve, pool)
    isos = as_list(iso)
    goal = parse_goal(wait_for, is_vm=True)
    if goal is not None and goal.is_agent and agent is None:
        agent = True
    login = None if cloud_init is None else complete_login(pve, cloud_init)
    tags, chosen_tags = complete_tags(pve, tags)
    first_boot = cloudinit_options(login.settings) if login else {}
    system = _system(ostype, bios, tpm, machine, isos)
    arguments = {
        "name": name,
        "cores": cores,
        "sockets": sockets,
        "cpu": cpu or (None if "arch" in (options or {}) else CPU),
        "memory": mebibytes("memory", memory),
        "balloon": _balloon(balloon, memory),
        "ostype": system.ostype,
        "scsihw": None if "scsihw" in (options or {}) else "virtio-scsi-single",
        "bios": "ovmf" if system.uefi else bios,
        "machine": system.machine,
        "agent": None if agent is None else int(agent),
        "tags": tag_list(tags),
        "description": description,
        "onboot": None if onboot is None else int(onboot),
        "pool": pool,
        **first_boot,
    }
    settings = await creation_settings(pve, arguments, options, is_vm=True)
    chosen = {
        "disk": DISK if disks is None else None,
        "ostype": system.ostype if ostype is None else None,
        "cpu": settings.get("cpu") if cpu is None else None,
        "machine": system.machine if machine is None else None,
        "tpm": True if tpm is None and system.tpm else None,
        "bios": "ovmf" if bios is None and system.uefi else None,
        **(login.chosen if login else {}),
        **chosen_tags,
    }
    locked_out = cloud_init is not None and not CREDENTIALS & settings.keys()
    request = _Request(
        settings=settings,
        node=node,
        vmid=vmid,
        start=start,
        wait_for=goal,
        system=system,
        disks=[parse_disk(disk, storage) for disk in ([DISK] if disks is None else disks)],
        isos=isos,
        cards=parse_cards(networks),
        storage=storage,
        cloud_init=cloud_init is not None,
        boot=boot,
        chosen={name: value for name, value in chosen.items() if value},
        warnings=(*await namesake_warning(pve, name), *([NOBODY_CAN_LOG_IN] if locked_out else [])),
    )
    return await request.plan(pve, partial(_new_guest, pve, Library(pve), request))


def _system(ostype: str | None, bios: str | None, tpm: bool | None, machine: str | None, isos: list[str]) -> _System:
    """Linux has virtio drivers; Windows has them only with their CD, and Windows 11 insists on UEFI and a TPM."""
    kind = ostype or _guess_ostype(isos)
    drivers = kind == "l26" or any("virtio-win" in iso.lower() for iso in isos)
    modern = kind == "win11"
    uefi = bios == "ovmf" or (bios is None and modern)
    with_tpm = modern if tpm is None else tpm
    windows = kind.startswith(("win", "w2k8", "wvista"))
    return _System(
        ostype=kind,
        bus="scsi" if drivers else "sata" if windows else "ide",
        model="virtio" if drivers else "e1000",
        uefi=uefi,
        tpm=with_tpm,
        machine=machine or ("q35" if uefi or with_tpm else None),
    )


def _guess_ostype(isos: list[str]) -> str:
    """The OS type that the name of an installation CD suggests."""
    for iso in isos:
        if re.search(r"win(?:dows)?[-_ ]?11|server[-_ ]?(?:2022|2025)", iso, re.I):
            return "win11"
        if re.search(r"win(?:dows)?[-_ ]?10|server[-_ ]?(?:2016|2019)", iso, re.I):
            return "win10"
    return "l26"


def _balloon(amount: Amount | None, memory: Amount) -> int | None:
    if amount is None:
        return None
    least = mebibytes("balloon", amount, least=0)
    if least > mebibytes("memory", memory):
        raise BadArgument("balloon is more than memory", why="It is the minimum memory that the VM keeps")
    return least


async def _new_guest(pve: Cluster, library: Library, request: _Request, node: str) -> NewGuest:
    """Everything that depends on the node: files, storages, bridges, drives."""
    files = [await library.find(node, "iso", iso, "ISO image") for iso in request.isos]
    placed, warnings = await place_disks(pve, node, request.disks, "images", library)
    connected = await connect(pve, node, request.cards)
    main_storage = placed[0].storage if placed else await _main_storage(pve, node, request)
    slots = Slots(request.settings)
    cds = {slots.take("ide", CD_ORDER): f"{file.volid},media=cdrom" for file in files}
    disks = {slots.take(disk.spec.bus or request.system.bus): disk for disk in placed}
    cards = {f"net{number}": vm_card(card, request.system.model) for number, card in enumerate(connected)}
    if twice := [key for key in cards if key in request.settings]:
        raise BadArgument(
            f"{twice[0]!r} is specified twice",
            next_step=either(Advice("Leave it out of {options}", options=NAMED), Advice("set {networks}", networks=[])),
        )
    devices = {
        **cds,
        **{key: drive(disk, bus=str(values.bus_of(key))) for key, disk in disks.items()},
        **_special_drives(request, main_storage, slots),
        **cards,
    }
    working = {} if "import-working-storage" in request.settings else await extraction(pve, node, placed)
    full = [key for key, disk in disks.items() if disk.source is not None]
    empty = [key for key in disks if key not in full]
    order = _boot_order(request.boot, [*full, *cds, *empty, *cards], usual=[*full, *cds, *empty, *list(cards)[:1]])
    boot = {} if "boot" in request.settings or not order else {"boot": f"order={';'.join(order)}"}
    nothing = [] if "boot" in request.settings or {*full, *cds} & {*order} else [NOTHING_TO_BOOT]
    names = {**{key: file.volid for key, file in zip(cds, files, strict=True)}, **dict.fromkeys(empty, "empty")}
    boots_from = ", then ".join(f"{key} ({names[key]})" if key in names else key for key in order)
    chosen = {
        **request.chosen,
        **chosen_storage(placed),
        **chosen_bridge(request.cards, connected),
        **({"network_model": request.system.model} if cards else {}),
    }
    return created_guest(
        "vm",
        node,
        {**request.settings, **devices, **working, **boot},
        finish=lambda target: [
            grow_call(target, key, disk.grows_to) for key, disk in disks.items() if disk.grows_to is not None
        ],
        storages=(
            *(disk.storage.storage for disk in placed),
            *((main_storage.storage,) if main_storage else ()),
            *working.values(),
        ),
        facts={
            **({"boots_from": boots_from} if boot and boots_from else {}),
            **({"chosen": chosen} if chosen else {}),
        },
        warnings=(*request.warnings, *warnings, *nothing, *await oversize_warnings(pve, node, request.memory)),
        objections=tuple(await start_objections(pve, node, request.settings)),
    )


async def _main_storage(pve: Cluster, node: str, request: _Request) -> Resource | None:
    """A storage for the small drives of a VM without disks."""
    if not (request.cloud_init or request.system.uefi or request.system.tpm):
        return None
    return await pick_storage(pve, node, "images", requested=request.storage)


def _special_drives(request: _Request, main_storage: Resource | None, slots: Slots) -> dict[str, str]:
    """UEFI's variables, the TPM's state and the disk that cloud-init reads are on the storage of the first disk."""
    if main_storage is None:
        return {}
    return {
        **({slots.take("ide", CD_ORDER): f"{main_storage.storage}:cloudinit"} if request.cloud_init else {}),
        **{
            slot: values.build(firmware_drive(slot, main_storage), "file")
            for slot, enabled in (("efidisk0", request.system.uefi), ("tpmstate0", request.system.tpm))
            if enabled and slot not in request.settings
        },
    }


def _boot_order(requested: list[str] | None, devices: list[str], *, usual: list[str]) -> list[str]:
    """The requested order, or the usual one, which ends with empty disks: some firmware does not go past them."""
    if requested is None:
        return usual
    names = [device for device in re.split(r"[,;\s]+", ";".join(requested).removeprefix("order=")) if device]
    if unknown := next((device for device in names if device not in devices), None):
        raise BadArgument(
            f"The new VM has no device {unknown!r} to boot from", next_step=f"It would have {', '.join(devices)}"
        )
    return names
