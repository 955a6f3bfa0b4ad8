"""Network cards of guests. What they can be plugged into: network_list."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import Advice, tools
from quorate.operations.exemptions import NETWORK_CARDS
from quorate.operations.placement import pick_bridge
from quorate.operations.plan import Plan
from quorate.operations.preconditions import only_for_vms
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.problems import BadArgument, NotFound
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.tools.guest_options import (
    Config,
    ConfigEdit,
    first_free,
    number_of,
    read_config,
    report_changes,
    write_config,
)

NICS = 32
# Words used instead of an address.
AUTOMATIC = ("dhcp", "auto", "manual")

Nic = Annotated[int | str, Meta(description="net0, net1 …")]


@operation(
    toolset="configure",
    risk=Risk.CHANGE,
    search_words=(
        "switch change network mac address guest vlan tag bridge vmbr network card connect vm container use "
        "another other second lan isolate rate limit"
    ),
    example="guest=docker01 bridge=vmbr0",
)
async def nic_set(
    pve: Cluster,
    guest: GuestRef,
    nic: Annotated[int | str, Meta(description="net0 …; omit for a new one")] | None = None,
    bridge: Annotated[str, Meta(description="Bridge or vnet")] | None = None,
    vlan: Annotated[int, Meta(ge=0, le=4094, description="0: none")] | None = None,
    firewall: bool | None = None,
    rate: Annotated[float, Meta(ge=0, description="MB/s; 0: no limit")] | None = None,
    mtu: Annotated[int, Meta(ge=0, description="0: default")] | None = None,
    mac: str | None = None,
    link_down: bool | None = None,
    model: Annotated[str, Meta(description="VM: virtio, e1000 …")] | None = None,
    name: Annotated[str, Meta(description="Container: interface name")] | None = None,
    ip: Annotated[str, Meta(description="Container: 10.0.0.5/24, dhcp, manual")] | None = None,
    gateway: str | None = None,
    ip6: Annotated[str, Meta(description="CIDR, auto, dhcp, manual")] | None = None,
    gateway6: str | None = None,
) -> Plan:
    """Add a network card or change single settings of one; everything else, including the MAC, is kept."""
    target = await pve.guest(guest)
    addresses = {"ip": ip, "gateway": gateway, "ip6": ip6, "gateway6": gateway6, "name": name}
    _refuse_foreign(target, addresses, model)
    config = await read_config(target)
    key = _slot(target, config, nic)
    new = key not in config
    if bridge is not None or new:
        bridge = await pick_bridge(pve, target.row.node, bridge)
    changes: dict[str, Any] = {
        "bridge": bridge,
        "tag": _setting_text(vlan),
        "firewall": firewall,
        "rate": _setting_text(rate),
        "mtu": _setting_text(mtu),
        "link_down": link_down,
        "macaddr" if target.is_vm else "hwaddr": mac,
    }
    changes = {key: value for key, value in changes.items() if value is not None}
    text = str(config.get(key, ""))
    stored = _vm_card(text, changes, model) if target.is_vm else _container_card(config, text, changes, addresses)
    summary = f"{'Add' if new else 'Change'} {key} of {target}"
    if not new and values.same(stored, text):
        return Plan(summary, unchanged=(f"{key} of {target} is already {text}",))
    call = write_config(
        target,
        config,
        f"{summary}: {stored}",
        ConfigEdit({key: stored}),
        slow=target.is_vm and await target.status() == "running",
    )
    return Plan(
        summary,
        (call,),
        facts={"nic": key, **({"bridge": bridge} if new else {})},
        warnings=_warnings(stored),
        after=partial(report_changes, target, [key]),
    )


@operation(
    toolset="configure",
    risk=Risk.CHANGE,
    exemptions=(NETWORK_CARDS,),
    search_words="delete remove network card interface guest",
    example="guest=docker01 nic=net0",
)
async def nic_remove(pve: Cluster, guest: GuestRef, nic: Nic) -> Plan:
    """Remove a network card."""
    target = await pve.guest(guest)
    config = await read_config(target)
    key = f"net{number_of(nic, 'net')}"
    cards = _cards(config)
    if key not in cards:
        raise NotFound(f"{target} has no {key}", next_step=f"It has {', '.join(cards) or 'no network card'}")
    warnings = [f"It is the last network card: {target} will be unreachable over the network"]
    running = target.is_vm and await target.status() == "running"
    call = write_config(target, config, f"Remove {key} of {target}", ConfigEdit(delete=[key]), slow=running)
    return Plan(
        f"Remove {key} of {target}",
        (call,),
        facts={"was": str(config[key])},
        warnings=tuple(warnings) if len(cards) == 1 else (),
        after=partial(report_changes, target, [key]),
    )


def _cards(config: Mapping[str, Any]) -> list[str]:
    return sorted((key for key in config if values.bus_of(key) == "net"), key=lambda key: int(key[3:]))


def _slot(guest: Guest, config: Config, nic: int | str | None) -> str:
    if nic is not None:
        return f"net{number_of(nic, 'net')}"
    free = first_free(config, "net", NICS)
    if free is None:
        raise BadArgument(f"{guest} has all {NICS} network cards that a guest can have")
    return free


def _refuse_foreign(guest: Guest, addresses: Mapping[str, Any], model: str | None) -> None:
    only_for_vms(guest, "model", model, "Leave it out; a container has no such hardware")
    named = [key for key, value in addresses.items() if value is not None]
    if guest.is_vm and named:
        raise BadArgument(
            f"{named[0]} does not apply to {guest}: it is set inside the VM",
            next_step=Advice("For a VM with cloud-init, set them there", tools.cloudinit_set),
        )
    if model is not None and model not in values.NIC_MODELS:
        raise BadArgument(
            f"There is no model {model!r}", next_step=f"Use one of {', '.join(sorted(values.NIC_MODELS))}"
        )


def _setting_text(number: float | None) -> str | None:
    """0 removes a setting, which `_apply` reads as an empty text."""
    return None if number is None else (f"{number:g}" if number else "")


def _vm_card(text: str, changes: Mapping[str, Any], model: str | None) -> str:
    parts = values.parse_nic(text)
    if model is not None or "model" not in parts:
        parts["model"] = model or "virtio"
    return values.build_nic(_apply(parts, changes))


def _container_card(config: Config, text: str, changes: Mapping[str, Any], addresses: Mapping[str, Any]) -> str:
    parts = values.parse(text)
    names = {values.parse(str(config[key])).get("name") for key in _cards(config)}
    if addresses["name"] is not None:
        parts["name"] = str(addresses["name"])
    elif "name" not in parts:
        parts["name"] = next(f"eth{number}" for number in range(NICS + 1) if f"eth{number}" not in names)
    settings = {key: value for key, value in addresses.items() if key != "name"}
    if not text and all(value is None for value in settings.values()):
        settings["ip"] = "dhcp"
    return values.build(_apply(parts, {**changes, **address_changes(parts, **settings)}))


def _apply(parts: Mapping[str, str], changes: Mapping[str, Any]) -> dict[str, str]:
    changed = dict(parts)
    for key, value in changes.items():
        if value == "":
            changed.pop(key, None)
        else:
            changed[key] = str(int(value)) if isinstance(value, bool) else str(value)
    return changed


def address_changes(
    parts: Mapping[str, str],
    *,
    ip: str | None = None,
    gateway: str | None = None,
    ip6: str | None = None,
    gateway6: str | None = None,
) -> dict[str, str]:
    """The changed parts of an address setting; an empty text removes one. What PVE would misread is refused."""
    changes: dict[str, str] = {}
    for key, address, gateway_key, router in (("ip", ip, "gw", gateway), ("ip6", ip6, "gw6", gateway6)):
        if address is not None:
            changes[key] = _checked_address(address)
            if address in ("", *AUTOMATIC) and gateway_key in parts and router is None:
                changes[gateway_key] = ""  # the gateway of the static address before
        if router is not None:
            changes[gateway_key] = "" if router == "none" else router
            _check_gateway(changes.get(key, parts.get(key, "")), changes[gateway_key])
    return changes


def _checked_address(text: str) -> str:
    if text in ("", "none"):
        return ""
    if text not in AUTOMATIC and "/" not in text:
        raise BadArgument(f"{text!r} has no prefix length", next_step=f"Write it as {text}/24, or dhcp")
    return text


def _check_gateway(address: str, gateway: str) -> None:
    if gateway and address in ("", *AUTOMATIC):
        raise BadArgument(
            f"A gateway needs a static address, not {address or 'none'}",
            next_step="Also give the address, such as 10.0.0.5/24",
        )
    try:
        inside = not gateway or ipaddress.ip_address(gateway) in ipaddress.ip_interface(address).network
    except ValueError as error:
        raise BadArgument(f"Address {address!r} or gateway {gateway!r} is not valid", why=str(error)) from None
    if not inside:
        raise BadArgument(
            f"The gateway {gateway} is not in the network of {address}", next_step="Check both, and the prefix length"
        )


def _warnings(stored: str) -> tuple[str, ...]:
    parts = values.parse_nic(stored)
    if "mtu" in parts and parts.get("model", "virtio") != "virtio" and "name" not in parts:
        return (f"PVE passes the mtu on to virtio cards only, and this is {parts['model']}",)
    return ()
