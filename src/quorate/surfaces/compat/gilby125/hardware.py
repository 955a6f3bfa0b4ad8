"""Disks, mount points and network interfaces."""

from __future__ import annotations

from typing import Any

from quorate.problems import Conflict, NotFound
from quorate.surfaces.compat.declaration import Recipe
from quorate.surfaces.compat.execution import ChangeResult, LocatedGuest, ToolCall
from quorate.surfaces.compat.gilby125.markdown import LXC, VM, Fact, Kind, about_guest, change_card
from quorate.surfaces.compat.recipes import Source, change_guest, guest_on_node, map_arguments, number

MINUS = "\N{HEAVY MINUS SIGN}"

# -- disks -------------------------------------------------------------------------------------------------------------

add_disk = change_guest(
    "disk_add",
    {name: name for name in ("disk", "storage", "size")},
    type=VM.type,
    shape=change_card("💿", "Add disk to VM", about_guest(VM, Disk="disk", Storage="storage", Size="size")),
)
add_mountpoint = change_guest(
    "disk_add",
    {"disk": "mp", "storage": "storage", "size": "size", "path": lambda call: f"/mnt/{call['mp']}"},
    type=LXC.type,
    shape=change_card(
        "💿",
        "Add mount point to container",
        about_guest(LXC, Mount_Point="mp", Path=lambda call, _: f"/mnt/{call['mp']}", Storage="storage", Size="size"),
    ),
)


def resize_disk(kind: Kind) -> Recipe:
    tip = "**Tip**: The file system inside may have to be grown as well." if kind is VM else ""
    facts = about_guest(kind, Disk="disk", New_Size="size")
    shape = change_card("📏", f"Resize disk of {kind.word}", facts, tip)
    return change_guest("disk_change", {"disk": "disk", "size": "size"}, type=kind.type, action="resize", shape=shape)


def remove_disk(kind: Kind, slot: str, word: str) -> Recipe:
    shape = change_card(MINUS, f"Remove {word} of {kind.word}", about_guest(kind, **{word.title(): slot}))
    return change_guest("disk_change", {"disk": slot}, type=kind.type, action="detach", shape=shape)


def move_disk(kind: Kind) -> Recipe:
    facts = about_guest(
        kind, Disk="disk", Target_Storage="storage", Delete_Source=lambda call, _: str(call["delete"]).lower()
    )
    arguments = {name: name for name in ("disk", "storage", "delete")}
    shape = change_card("📦", f"Move disk of {kind.word}", facts)
    return change_guest("disk_change", arguments, type=kind.type, action="move", shape=shape)


# -- network interfaces ------------------------------------------------------------------------------------------------


def _address(call: ToolCall) -> str | None:
    """`auto` exists for IPv6 only; for IPv4 it means DHCP."""
    return "dhcp" if call["ip"] == "auto" else call["ip"]


NIC_ARGUMENTS: dict[Kind, dict[str, Source]] = {
    VM: {"bridge": "bridge", "model": "model", "mac": "macaddr", "vlan": number("vlan"), "firewall": "firewall"},
    LXC: {"bridge": "bridge", "ip": _address, "gateway": "gw", "firewall": "firewall"},
}
"""Arguments of nic_set, and where they come from."""
GIVEN = ("bridge", "model", "macaddr", "vlan", "ip", "gw", "firewall")


def add_network(kind: Kind) -> Recipe:
    more: dict[str, Fact] = (
        {"Model": "model", "VLAN": "vlan"} if kind is VM else {"IP": lambda call, _: _address(call) or "dhcp"}
    )
    facts = about_guest(kind, **{"Interface": "net", "Bridge": "bridge", **more})
    shape = change_card("🌐", f"Add network interface to {kind.word}", facts)

    async def recipe(call: ToolCall) -> Any:
        guest, interfaces = await _interfaces(call, kind)
        if call["net"] in interfaces:
            raise Conflict(
                f"{guest.vmid} {guest.name} already has {call['net']}",
                next_step=f"Choose a free one, or change it with proxmox_update_network_{kind.suffix}",
            )
        return await shape(call, await _set(call, guest, kind))

    return recipe


def update_network(kind: Kind) -> Recipe:
    facts = about_guest(kind, Interface="net", Updated=_list_updates)
    shape = change_card("🔧", f"Update network interface of {kind.word}", facts)

    async def recipe(call: ToolCall) -> Any:
        guest, interfaces = await _interfaces(call, kind)
        _refuse_missing(call, guest, interfaces)
        return await shape(call, await _set(call, guest, kind))

    return recipe


def remove_network(kind: Kind) -> Recipe:
    shape = change_card(MINUS, f"Remove network interface of {kind.word}", about_guest(kind, Interface="net"))

    async def recipe(call: ToolCall) -> Any:
        guest, interfaces = await _interfaces(call, kind)
        _refuse_missing(call, guest, interfaces)
        if len(interfaces) == 1:
            raise Conflict(
                f"{call['net']} is the only network interface of {guest.vmid} {guest.name}",
                why="Without it, the guest would be unreachable",
                next_step=f"Add another one first with proxmox_add_network_{kind.suffix}",
            )
        return await shape(call, await call.change("nic_remove", guest=guest.vmid, nic=call["net"]))

    return recipe


async def _interfaces(call: ToolCall, kind: Kind) -> tuple[LocatedGuest, list[str]]:
    """The guest and the names of its network interfaces."""
    guest = await guest_on_node(call, kind.type)
    config = await call.get(f"{guest.path}/config")
    return guest, sorted(key for key in config if key.startswith("net") and key[3:].isdigit())


def _refuse_missing(call: ToolCall, guest: LocatedGuest, interfaces: list[str]) -> None:
    if call["net"] not in interfaces:
        existing = ", ".join(interfaces) or "none"
        raise NotFound(f"{guest.vmid} {guest.name} has no {call['net']}", next_step=f"It has {existing}")


async def _set(call: ToolCall, guest: LocatedGuest, kind: Kind) -> Any:
    return await call.change("nic_set", guest=guest.vmid, nic=call["net"], **map_arguments(call, NIC_ARGUMENTS[kind]))


def _list_updates(call: ToolCall, done: ChangeResult) -> str:
    """The specified settings, unless the interface already had them."""
    settings = [name for name, value in call.arguments.items() if value is not None and name in GIVEN]
    return ", ".join(settings) if "unchanged" not in done.facts else ""


def _hardware_recipes(kind: Kind) -> dict[str, Recipe]:
    return {
        f"proxmox_resize_disk_{kind.suffix}": resize_disk(kind),
        f"proxmox_move_disk_{kind.suffix}": move_disk(kind),
        f"proxmox_add_network_{kind.suffix}": add_network(kind),
        f"proxmox_update_network_{kind.suffix}": update_network(kind),
        f"proxmox_remove_network_{kind.suffix}": remove_network(kind),
    }


RECIPES: dict[str, Recipe] = {
    **_hardware_recipes(LXC),
    **_hardware_recipes(VM),
    "proxmox_add_disk_vm": add_disk,
    "proxmox_add_mountpoint_lxc": add_mountpoint,
    "proxmox_remove_disk_vm": remove_disk(VM, "disk", "disk"),
    "proxmox_remove_mountpoint_lxc": remove_disk(LXC, "mp", "mount point"),
}
