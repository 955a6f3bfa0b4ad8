"""Making virtual machines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.operations.disk_images import firmware_drive
from quorate.operations.placement import pick_storage
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.provision.guest_files import Library
from quorate.operations.provision.new_cloudinit import cloudinit_options
from quorate.operations.provision.new_disks import (
    DiskWish,
    Slots,
    chosen_storage,
    drive,
    extraction,
    parse_disk,
    place_disks,
)
from quorate.operations.provision.new_guests import (
    MEBIBYTE,
    Amount,
    Parts,
    as_list,
    check_name,
    check_pool,
    check_rights,
    extra_options,
    facts_after,
    first_fitting,
    free_vmid,
    mebibytes,
    namesake_warning,
    next_call,
    possible_nodes,
    start_call,
    tag_list,
)
from quorate.operations.provision.new_networks import Card, chosen_bridge, connect, parse_cards, vm_card
from quorate.operations.registry import Risk, operation
from quorate.operations.root_only import refuse_root_only
from quorate.operations.units import parse_size
from quorate.operations.units import size as readable
from quorate.pve import values
from quorate.pve.cluster import Cluster
from quorate.pve.errors import BadArgument
from quorate.pve.inventory import Resource

CPU = "x86-64-v2-AES"
DISK = "32G"
CD_ORDER = (2, 3, 1, 0)  # ide2 is where PVE's own pages look for the CD-ROM


@dataclass(frozen=True, slots=True)
class _System:
    """What the operating system wants of the hardware."""

    ostype: str
    bus: str
    model: str
    uefi: bool
    tpm: bool
    machine: str | None


@dataclass(slots=True)
class _Wish:
    """What the caller asks for, checked as far as it can be without a node."""

    settings: dict[str, Any]
    system: _System
    disks: list[DiskWish]
    isos: list[str]
    cards: list[Card]
    storage: str | None
    cloud_init: bool
    chosen: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Draft:
    """The VM on its node, with everything but its number."""

    node: str
    params: Mapping[str, Any]
    grows: Mapping[str, int]
    storages: tuple[str, ...]
    chosen: Mapping[str, Any]
    warnings: tuple[str, ...]


@operation(risk=Risk.CHANGE)
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
    networks: Annotated[Parts, Meta(description="vmbr0,tag=20 or {bridge,model,tag,firewall,mac,rate,mtu}")]
    | None = None,
    ostype: Annotated[str, Meta(description="l26, win11..")] | None = None,
    bios: Literal["seabios", "ovmf"] | None = None,
    tpm: bool | None = None,
    machine: str | None = None,
    agent: bool | None = None,
    cloud_init: Annotated[
        dict[str, Any], Meta(description="user,password,ssh_keys,ip,gateway,ip6,gateway6,dns,search_domain,upgrade")
    ]
    | None = None,
    tags: list[str] | None = None,
    pool: str | None = None,
    description: str | None = None,
    onboot: bool | None = None,
    options: Annotated[dict[str, Any], Meta(description="Other PVE options")] | None = None,
    start: bool = False,
) -> Plan:
    """Create a VM. What is left out is chosen from the cluster and shown: vmid, node, storage, bridge, a 32G disk."""
    check_name(name)
    await check_pool(pve, pool)
    isos = as_list(iso)
    system = _system(ostype, bios, tpm, machine, isos)
    settings = {
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
        **(cloudinit_options(cloud_init) if cloud_init is not None else {}),
    }
    settings = {key: value for key, value in settings.items() if value is not None}
    endpoint = (await pve.facts()).endpoint("POST", "/nodes/{node}/qemu")
    settings |= extra_options(endpoint, options, settings)
    refuse_root_only(
        pve,
        settings,
        is_vm=True,
        way_out="Leave it out; when the VM is there, `qm set VMID --{option} …` on its node does it",
    )
    wish = _Wish(
        settings,
        system,
        disks=[parse_disk(one, storage) for one in ([DISK] if disks is None else disks)],
        isos=isos,
        cards=parse_cards(networks),
        storage=storage,
        cloud_init=cloud_init is not None,
        warnings=await namesake_warning(pve, name),
    )
    if disks is None:
        wish.chosen["disk"] = DISK
    if ostype is None:
        wish.chosen["ostype"] = system.ostype
    if system.uefi and bios is None:
        wish.chosen["bios"] = "ovmf"
    library = Library(pve)
    nodes = await possible_nodes(pve, node, memory=settings["memory"] * MEBIBYTE)
    draft = await first_fitting(nodes, lambda place: _draft(pve, library, wish, place))
    return await _plan(pve, draft, vmid, start=start)


def _system(ostype: str | None, bios: str | None, tpm: bool | None, machine: str | None, isos: list[str]) -> _System:
    """Linux has virtio drivers; Windows has them only with their CD, and Windows 11 insists on UEFI and a TPM."""
    kind = ostype or _guessed(isos)
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


def _guessed(isos: list[str]) -> str:
    """The OS type that the name of an installation CD tells."""
    for iso in isos:
        if re.search(r"win(?:dows)?[-_ ]?11|server[-_ ]?(?:2022|2025)", iso, re.I):
            return "win11"
        if re.search(r"win(?:dows)?[-_ ]?10|server[-_ ]?(?:2016|2019)", iso, re.I):
            return "win10"
    return "l26"


def _balloon(given: Amount | None, memory: Amount) -> int | None:
    if given is None:
        return None
    least = mebibytes("balloon", given, least=0)
    if least > mebibytes("memory", memory):
        raise BadArgument("balloon is more than memory", why="It is the least that the VM keeps, of all it has")
    return least


async def _draft(pve: Cluster, library: Library, wish: _Wish, node: str) -> _Draft:
    """Everything that depends on the node: files, storages, bridges, drives."""
    files = [await library.find(node, "iso", iso, "ISO image") for iso in wish.isos]
    placed, warnings = await place_disks(pve, node, wish.disks, "images", library)
    connected = await connect(pve, node, wish.cards)
    home = placed[0].storage if placed else await _home(pve, node, wish)
    slots = Slots(wish.settings)
    cds = {slots.take("ide", CD_ORDER): f"{file.volid},media=cdrom" for file in files}
    disks = {slots.take(disk.wish.bus or wish.system.bus): disk for disk in placed}
    cards = {f"net{number}": vm_card(card, wish.system.model) for number, card in enumerate(connected)}
    if twice := [key for key in cards if key in wish.settings]:
        raise BadArgument(f"{twice[0]!r} is given twice", next_step="Leave it out of options, or set networks=[]")
    devices = {
        **cds,
        **{key: drive(disk, bus=str(values.bus_of(key))) for key, disk in disks.items()},
        **_special_drives(wish, home, slots),
        **cards,
    }
    working = {} if "import-working-storage" in wish.settings else await extraction(pve, node, placed)
    boot = {} if "boot" in wish.settings else _boot([*disks, *cds, *list(cards)[:1]])
    return _Draft(
        node,
        {**wish.settings, **devices, **working, **boot},
        {key: disk.grows_to for key, disk in disks.items() if disk.grows_to is not None},
        (*(disk.storage.storage for disk in placed), *((home.storage,) if home else ()), *working.values()),
        {**wish.chosen, **chosen_storage(placed), **chosen_bridge(wish.cards, connected)},
        (*wish.warnings, *warnings, *await _too_many_cores(pve, node, wish.settings)),
    )


async def _home(pve: Cluster, node: str, wish: _Wish) -> Resource | None:
    """A storage for the small drives of a VM without disks."""
    if not (wish.cloud_init or wish.system.uefi or wish.system.tpm):
        return None
    return await pick_storage(pve, node, "images", wanted=wish.storage)


def _special_drives(wish: _Wish, home: Resource | None, slots: Slots) -> dict[str, str]:
    """UEFI's variables, the TPM's state and the disk that cloud-init reads live beside the first disk."""
    if home is None:
        return {}
    return {
        **({slots.take("ide", CD_ORDER): f"{home.storage}:cloudinit"} if wish.cloud_init else {}),
        **{
            slot: values.build(firmware_drive(slot, home), "file")
            for slot, wanted in (("efidisk0", wish.system.uefi), ("tpmstate0", wish.system.tpm))
            if wanted and slot not in wish.settings
        },
    }


def _boot(devices: list[str]) -> dict[str, str]:
    """The disk first: as long as it is empty, the firmware goes on to the CD."""
    return {"boot": f"order={';'.join(devices)}"} if devices else {}


async def _too_many_cores(pve: Cluster, node: str, settings: Mapping[str, Any]) -> list[str]:
    wanted, there = settings["cores"] * settings.get("sockets", 1), (await pve.inventory.node(node)).maxcpu
    if not there or wanted <= there:
        return []
    return [f"{wanted} cores are more than the {there:g} of {node}; PVE will refuse to start the VM"]


async def _plan(pve: Cluster, draft: _Draft, wanted: int | None, *, start: bool) -> Plan:
    vmid, number_warnings = await free_vmid(pve, wanted)
    target = Target("vm", str(vmid), str(draft.params.get("name", "")), draft.node)
    says = f"Create {target} on {draft.node}"
    await check_rights(pve, says[:1].lower() + says[1:], vmid, draft.params.get("pool"), draft.storages)

    async def with_another_number() -> Plan:
        return await _plan(pve, draft, None, start=start)

    path = f"/nodes/{draft.node}/qemu"
    calls = [
        Call(says, "POST", path, {"vmid": vmid, **draft.params}, target),
        *(_grow(pve, target, key, whole) for key, whole in draft.grows.items()),
        *([start_call(pve, target)] if start else []),
    ]
    return Plan(
        says,
        tuple(calls),
        next_step=next_call(target, started=start),
        facts={"vmid": vmid, "node": draft.node, **({"chosen": draft.chosen} if draft.chosen else {})},
        warnings=(*number_warnings, *draft.warnings),
        after=facts_after(pve, target),
        otherwise=with_another_number,
    )


def _grow(pve: Cluster, target: Target, key: str, whole: int) -> Call:
    path = f"/nodes/{target.node}/qemu/{target.id}"

    async def grown() -> bool:
        stored = values.parse(str((await pve.get(f"{path}/config")).get(key, "")), "file")
        return parse_size(stored.get("size", "0"), unit="") >= whole

    says = f"Grow {key} of {target} to {readable(whole)}"
    return Call(says, "PUT", f"{path}/resize", {"disk": key, "size": f"{whole // MEBIBYTE}M"}, target, settled=grown)
