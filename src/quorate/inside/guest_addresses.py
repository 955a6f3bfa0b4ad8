"""The addresses of a guest as Proxmox VE reports them: by the agent of a VM, or from the namespace of a container."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

from quorate.inside.facts.model import Interface
from quorate.problems import ServerFailed
from quorate.pve import values
from quorate.pve.cluster import Guest

# Networks inside the guest; their addresses are useless to others.
_OWN_NETWORKS = ("docker", "br-", "veth", "virbr", "lxcbr", "lxdbr", "cni", "flannel", "cali", "podman", "kube")


async def read_interfaces(guest: Guest) -> list[Interface]:
    """The interfaces that PVE reports without entering the guest. Raises a Problem if PVE does not know."""
    answer = await guest.get("agent/network-get-interfaces" if guest.is_vm else "interfaces")
    listed = answer.get("result") if isinstance(answer, dict) else answer
    if guest.is_vm and not isinstance(listed, list):  # the agent's own error takes the place of the list
        raise ServerFailed("The guest agent does not report the interfaces", why=str(answer)[:200])
    return [_interface(row) for row in listed or []]


def _interface(row: Mapping[str, Any]) -> Interface:
    """The agent and newer PVE list all addresses, older PVE the first of each family of a container."""
    listed = [f"{entry.get('ip-address', '')}/{entry.get('prefix', '')}" for entry in row.get("ip-addresses") or []]
    first = [str(row.get(key) or "") for key in ("inet", "inet6")]
    mac = str(row.get("hardware-address") or row.get("hwaddr") or "") or None
    addresses = tuple(address for address in listed or first if address.strip("/"))
    return Interface(str(row.get("name", "?")), mac, addresses=addresses)


def is_usable(address: str) -> bool:
    """Whether other machines can reach it: neither loopback nor link-local."""
    try:
        ip = ipaddress.ip_address(strip_prefix(address))
    except ValueError:
        return False
    return not (ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_unspecified)


def strip_prefix(address: str) -> str:
    return address.partition("/")[0].partition("%")[0]


def usable_addresses(
    interfaces: Iterable[Interface], config: Mapping[str, Any], *, prefer: str | None = None
) -> list[str]:
    """The addresses that other machines can use, best first.

    The preferred interface comes first, then the network cards of the configuration in their order, then the rest, with
    networks inside the guest last; IPv4 comes before IPv6.
    """
    cards = [_mac(str(config[key])) for key in sorted(config, key=_card_number) if values.bus_of(key) == "net"]

    def rank(interface: Interface, address: str) -> tuple[bool, int, bool, bool]:
        mac = (interface.mac or "").lower()
        card = cards.index(mac) if mac in cards else len(cards)
        own = card == len(cards) and interface.name.startswith(_OWN_NETWORKS)
        return interface.name != prefer, card, own, ":" in address

    ranked = [
        (rank(interface, address), strip_prefix(address))
        for interface in interfaces
        for address in interface.addresses
        if is_usable(address)
    ]
    return list(dict.fromkeys(address for _, address in sorted(ranked, key=lambda pair: pair[0])))


def _card_number(key: str) -> int:
    return int(key.removeprefix("net")) if key.removeprefix("net").isdecimal() else 0


def _mac(card: str) -> str:
    parts = values.parse(card)
    return str(parts.get("hwaddr") or values.parse_nic(card).get("macaddr", "")).lower()
