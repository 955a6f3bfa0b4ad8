"""The network of a guest as it is inside: interfaces, addresses, gateways, name servers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from quorate.inside.facts.model import Interface
from quorate.inside.guest_facts import NetworkFacts, network_facts
from quorate.inside.interfaces import is_usable, read_interfaces, usable_addresses
from quorate.operations.inside.parameters import WayName, look_inside
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.problems import Problem
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words="ip interfaces mac inside guest routes dns network sees",
    example="guest=pihole",
)
async def guest_network(pve: Cluster, guest: GuestRef, way: WayName | None = None) -> dict[str, Any]:
    """A guest's interfaces, the addresses others can use (best first), gateways and name servers."""
    found = await pve.guest(guest)
    config, reported, (description, around) = await asyncio.gather(
        found.get("config"), _interfaces_from_pve(found), look_inside(pve, found, way, network_facts)
    )
    interfaces = (
        reported if isinstance(reported, list) else around.interfaces if isinstance(around, NetworkFacts) else []
    )
    addresses = usable_addresses(interfaces, config)
    planned = [] if interfaces else [ip for own in values.addresses_in_config(config).values() for ip in own]
    inside = around if isinstance(around, NetworkFacts) else NetworkFacts()
    return {
        "guest": found.label,
        "way": description,
        "usable": addresses,
        "configured": planned,
        "interfaces": {one.name: _as_dict(one, config) for one in interfaces},
        "gateways": inside.gateways,
        "dns": inside.dns,
        "search": inside.search,
        "not_known": _missing(reported, around),
    }


async def _interfaces_from_pve(guest: Guest) -> list[Interface] | Problem:
    try:
        return await read_interfaces(guest)
    except Problem as problem:
        return problem


def _as_dict(interface: Interface, config: Mapping[str, Any]) -> str:
    card = next((key for key, value in config.items() if _is_card(key, str(value), interface.mac)), "")
    addresses = ", ".join(one if is_usable(one) else f"{one} (local)" for one in interface.addresses) or "no address"
    return f"{addresses}; {interface.mac or 'no MAC reported'}" + (f"; {card}" if card else "")


def _is_card(key: str, card: str, mac: str | None) -> bool:
    return values.bus_of(key) == "net" and mac is not None and mac.lower() in card.lower()


def _missing(reported: object, around: object) -> dict[str, str]:
    return {
        **({"interfaces": str(reported)} if isinstance(reported, Problem) else {}),
        **({"gateways, dns": str(around)} if isinstance(around, Problem) else {}),
    }
