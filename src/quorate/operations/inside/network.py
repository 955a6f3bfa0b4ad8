"""The network of a guest as it is inside: interfaces, addresses, gateways, name servers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from quorate.inside import posix_network, windows_facts
from quorate.inside.interfaces import Interface, from_pve, is_usable, usable
from quorate.inside.posix_network import Surroundings
from quorate.inside.reaching import way_into
from quorate.operations.inside.parameters import WayName
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.errors import Problem


@operation(risk=Risk.LOOK_INSIDE)
async def guest_network(pve: Cluster, guest: GuestRef, way: WayName | None = None) -> dict[str, Any]:
    """A guest's interfaces, the addresses others can use (best first), gateways and name servers."""
    found = await pve.guest(guest)
    config, told, (description, around) = await asyncio.gather(
        found.get("config"), _told_by_pve(found), _surroundings(pve, found, way)
    )
    interfaces = told if isinstance(told, list) else around.interfaces if isinstance(around, Surroundings) else []
    addresses = usable(interfaces, config)
    planned = [] if interfaces else [ip for own in values.addresses_in_config(config).values() for ip in own]
    inside = around if isinstance(around, Surroundings) else Surroundings()
    return {
        "guest": found.label,
        "way": description,
        "usable": addresses,
        "configured": planned,
        "interfaces": {one.name: _shown(one, config) for one in interfaces},
        "gateways": inside.gateways,
        "dns": inside.dns,
        "search": inside.search,
        "not_known": _missing(told, around),
    }


async def _told_by_pve(guest: Guest) -> list[Interface] | Problem:
    try:
        return await from_pve(guest)
    except Problem as problem:
        return problem


async def _surroundings(pve: Cluster, guest: Guest, way: WayName | None) -> tuple[str, Surroundings | Problem]:
    """What only a look from inside shows; a problem where there is no way in, unless the caller named one."""
    try:
        into = await way_into(pve, guest, prefer=way)
        return into.description, await (windows_facts if into.system == "windows" else posix_network).surroundings(into)
    except Problem as problem:
        if way is not None:
            raise
        return "", problem


def _shown(interface: Interface, config: Mapping[str, Any]) -> str:
    card = next((key for key, value in config.items() if _is_card(key, str(value), interface.mac)), "")
    addresses = ", ".join(one if is_usable(one) else f"{one} (local)" for one in interface.addresses) or "no address"
    return f"{addresses}; {interface.mac or 'no MAC told'}" + (f"; {card}" if card else "")


def _is_card(key: str, card: str, mac: str) -> bool:
    return values.bus_of(key) == "net" and bool(mac) and mac.lower() in card.lower()


def _missing(told: object, around: object) -> dict[str, str]:
    return {
        **({"interfaces": str(told)} if isinstance(told, Problem) else {}),
        **({"gateways, dns": str(around)} if isinstance(around, Problem) else {}),
    }
