"""Disks, mount points and network cards."""

from __future__ import annotations

from typing import Any

from quorate.operations.registry import Risk
from quorate.pve.errors import Conflict, NotFound
from quorate.surfaces.compat.declaring import Parameter, Tool, may, need
from quorate.surfaces.compat.gates import ELEVATED
from quorate.surfaces.compat.gilby125.shapes import BOTH, LXC, NODE, VM, VMID, Kind, about_guest, told
from quorate.surfaces.compat.placed import changing_guest, number, placed
from quorate.surfaces.compat.recipes import Source, taken
from quorate.surfaces.compat.running import Done, Found, Run

MINUS = "\N{HEAVY MINUS SIGN}"

# -- disks -------------------------------------------------------------------------------------------------------------

SIZE = need("size", "string", "In GB, such as 10")
STORAGE = need("storage", "string", "Storage name")
DISK = {
    VM: need("disk", "string", "Such as scsi0, virtio1"),
    LXC: need("disk", "string", "rootfs, or a mount point such as mp0"),
}

ADD_DISK = Tool(
    "proxmox_add_disk_vm",
    "Give a VM another disk.",
    (NODE, VMID, need("disk", "string", "A free slot: scsi1, virtio1, sata1, ide1 …"), STORAGE, SIZE),
    Risk.CHANGE,
    "disk_add",
    changing_guest(
        "disk_add",
        {name: name for name in ("disk", "storage", "size")},
        type=VM.type,
        shape=told("💿", "Add disk to VM", about_guest(VM, Disk="disk", Storage="storage", Size="size")),
    ),
    ELEVATED,
)
ADD_MOUNTPOINT = Tool(
    "proxmox_add_mountpoint_lxc",
    "Give a container another volume, mounted at /mnt/ and the mount point's name.",
    (NODE, VMID, need("mp", "string", "A free mount point: mp0, mp1 …"), STORAGE, SIZE),
    Risk.CHANGE,
    "disk_add",
    changing_guest(
        "disk_add",
        {"disk": "mp", "storage": "storage", "size": "size", "path": lambda run: f"/mnt/{run['mp']}"},
        type=LXC.type,
        shape=told(
            "💿",
            "Add mount point to container",
            about_guest(LXC, Mount_Point="mp", Path=lambda run, _: f"/mnt/{run['mp']}", Storage="storage", Size="size"),
        ),
    ),
    ELEVATED,
)


def _resize(kind: Kind) -> Tool:
    return Tool(
        f"proxmox_resize_disk_{kind.suffix}",
        f"Grow a disk of a {kind.word}. It cannot be made smaller.",
        (NODE, VMID, DISK[kind], need("size", "string", "+10G for so much more, 50G for so much in all")),
        Risk.CHANGE,
        "disk_change action=resize",
        changing_guest(
            "disk_change",
            {"disk": "disk", "size": "size"},
            type=kind.type,
            action="resize",
            shape=told(
                "📏",
                f"Resize disk of {kind.word}",
                about_guest(kind, Disk="disk", New_Size="size"),
                "**Tip**: The file system inside may have to be grown as well." if kind is VM else "",
            ),
        ),
        ELEVATED,
    )


def _remove_disk(kind: Kind, name: str, slot: str, word: str) -> Tool:
    return Tool(
        f"proxmox_remove_{name}_{kind.suffix}",
        f"Take a {word} away from a {kind.word}. Its data stay, as an unused volume.",
        (NODE, VMID, need(slot, "string", f"The {word}")),
        Risk.CHANGE,
        "disk_change action=detach",
        changing_guest(
            "disk_change",
            {"disk": slot},
            type=kind.type,
            action="detach",
            shape=told(MINUS, f"Remove {word} of {kind.word}", about_guest(kind, **{word.title(): slot})),
        ),
        ELEVATED,
    )


def _move(kind: Kind) -> Tool:
    return Tool(
        f"proxmox_move_disk_{kind.suffix}",
        f"Move a disk of a {kind.word} to another storage.",
        (
            NODE,
            VMID,
            DISK[kind],
            need("storage", "string", "Where to"),
            may("delete", "boolean", True, "false: keep the old one as an unused volume"),
        ),
        Risk.CHANGE,
        "disk_change action=move",
        changing_guest(
            "disk_change",
            {name: name for name in ("disk", "storage", "delete")},
            type=kind.type,
            action="move",
            shape=told(
                "📦",
                f"Move disk of {kind.word}",
                about_guest(
                    kind, Disk="disk", Target_Storage="storage", Delete_Source=lambda run, _: _word(run["delete"])
                ),
            ),
        ),
        ELEVATED,
    )


def _word(yes: bool) -> str:
    return "true" if yes else "false"


# -- network cards -----------------------------------------------------------------------------------------------------


def _address(run: Run) -> str | None:
    """auto is a word of IPv6 alone; by IPv4 an address comes by itself with DHCP."""
    return "dhcp" if run["ip"] == "auto" else run["ip"]


OURS: dict[Kind, dict[str, Source]] = {
    VM: {"bridge": "bridge", "model": "model", "mac": "macaddr", "vlan": number("vlan"), "firewall": "firewall"},
    LXC: {"bridge": "bridge", "ip": _address, "gateway": "gw", "firewall": "firewall"},
}
"""Our settings of a card, and where they come from."""

GIVEN = ("bridge", "model", "macaddr", "vlan", "ip", "gw", "firewall")
MODEL = "virtio, e1000, rtl8139 or vmxnet3"
SETTINGS: dict[Kind, tuple[Parameter, ...]] = {
    VM: (
        may("macaddr", "string", about="Left out: made or kept"),
        may("vlan", "number", about="VLAN tag, 1 to 4094"),
        may("firewall", "boolean"),
    ),
    LXC: (
        may("ip", "string", about="10.0.0.5/24, dhcp or manual"),
        may("gw", "string", about="Gateway of a fixed address"),
        may("firewall", "boolean"),
    ),
}


def _add_network(kind: Kind) -> Tool:
    shape = told("🌐", f"Add network interface to {kind.word}", about_guest(kind, **_shown(kind)))

    async def recipe(run: Run) -> Any:
        guest, cards = await _cards(run, kind)
        if run["net"] in cards:
            raise Conflict(
                f"{guest.vmid} {guest.name} has {run['net']} already",
                next_step=f"Choose a free one, or change it with proxmox_update_network_{kind.suffix}",
            )
        return await shape(run, await _set(run, guest, kind))

    model = (may("model", "string", "virtio", MODEL),) if kind is VM else ()
    return Tool(
        f"proxmox_add_network_{kind.suffix}",
        f"Give a {kind.word} another network interface.",
        (
            NODE,
            VMID,
            need("net", "string", "A free one: net0, net1 …"),
            need("bridge", "string", "Such as vmbr0"),
            *model,
            *SETTINGS[kind],
        ),
        Risk.CHANGE,
        "nic_set",
        recipe,
        ELEVATED,
    )


def _update_network(kind: Kind) -> Tool:
    updated = about_guest(kind, Interface="net", Updated=_updated)
    shape = told("🔧", f"Update network interface of {kind.word}", updated)

    async def recipe(run: Run) -> Any:
        guest, cards = await _cards(run, kind)
        _refuse_missing(run, guest, cards)
        return await shape(run, await _set(run, guest, kind))

    model = (may("model", "string", about=MODEL),) if kind is VM else ()
    return Tool(
        f"proxmox_update_network_{kind.suffix}",
        f"Change a network interface of a {kind.word}. What is not given stays as it is.",
        (
            NODE,
            VMID,
            need("net", "string", "Such as net0"),
            may("bridge", "string", about="Such as vmbr0"),
            *model,
            *SETTINGS[kind],
        ),
        Risk.CHANGE,
        "nic_set",
        recipe,
        ELEVATED,
    )


def _remove_network(kind: Kind) -> Tool:
    shape = told(MINUS, f"Remove network interface of {kind.word}", about_guest(kind, Interface="net"))

    async def recipe(run: Run) -> Any:
        guest, cards = await _cards(run, kind)
        _refuse_missing(run, guest, cards)
        if len(cards) == 1:
            raise Conflict(
                f"{run['net']} is the only network interface of {guest.vmid} {guest.name}",
                why="Without it the guest could not be reached any more",
                next_step=f"Add another one first with proxmox_add_network_{kind.suffix}",
            )
        return await shape(run, await run.change("nic_remove", guest=guest.vmid, nic=run["net"]))

    return Tool(
        f"proxmox_remove_network_{kind.suffix}",
        f"Remove a network interface of a {kind.word}, unless it is the only one.",
        (NODE, VMID, need("net", "string", "Such as net1")),
        Risk.CHANGE,
        "nic_remove",
        recipe,
        ELEVATED,
    )


async def _cards(run: Run, kind: Kind) -> tuple[Found, list[str]]:
    """The guest and the names of its network cards."""
    guest = await placed(run, kind.type)
    config = await run.get(f"{guest.path}/config")
    return guest, sorted(key for key in config if key.startswith("net") and key[3:].isdigit())


def _refuse_missing(run: Run, guest: Found, cards: list[str]) -> None:
    if run["net"] not in cards:
        raise NotFound(
            f"{guest.vmid} {guest.name} has no {run['net']}", next_step=f"It has {', '.join(cards) or 'none'}"
        )


async def _set(run: Run, guest: Found, kind: Kind) -> Any:
    return await run.change("nic_set", guest=guest.vmid, nic=run["net"], **taken(run, OURS[kind]))


def _updated(run: Run, done: Done) -> str:
    """The settings that were given, unless the card had them already."""
    settings = [name for name, value in run.arguments.items() if value is not None and name in GIVEN]
    return ", ".join(settings) if "unchanged" not in done.facts else ""


def _shown(kind: Kind) -> dict[str, Any]:
    more = {"Model": "model", "VLAN": "vlan"} if kind is VM else {"IP": lambda run, _: _address(run) or "dhcp"}
    return {"Interface": "net", "Bridge": "bridge", **more}


TOOLS = (
    ADD_DISK,
    ADD_MOUNTPOINT,
    *map(_resize, BOTH),
    _remove_disk(VM, "disk", "disk", "disk"),
    _remove_disk(LXC, "mountpoint", "mp", "mount point"),
    *map(_move, BOTH),
    *map(_add_network, BOTH),
    *map(_update_network, BOTH),
    *map(_remove_network, BOTH),
)
