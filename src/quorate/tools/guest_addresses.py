"""Where a guest can be reached: its addresses, and which source reported them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from quorate.inside.facts.model import Interface
from quorate.inside.guest_addresses import is_usable, read_interfaces, strip_prefix, usable_addresses
from quorate.problems import Problem, catch_problem
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.lookup import Resource
from quorate.pve.tasks import gather_bounded

Source = Literal["agent", "container", "lease", "configuration", "neighbors", ""]
"""The guest agent of a VM, PVE's look into a container, the DHCP leases of PVE's SDN, the guest's configuration, or the
neighbor table of the machine where Quorate runs."""

GUESTS_AT_ONCE = 16
_LEASES = "/cluster/sdn/ipams/pve/status"


@dataclass(frozen=True, slots=True)
class GuestAddresses:
    """The usable addresses of a guest by interface or option, all from one source."""

    interfaces: tuple[Interface, ...] = ()
    source: Source = ""
    why_none: str = ""

    @property
    def by_interface(self) -> dict[str, str]:
        return {interface.name: ", ".join(map(strip_prefix, interface.addresses)) for interface in self.interfaces}

    def best_first(self, config: Mapping[str, Any], *, prefer: str | None = None) -> list[str]:
        return usable_addresses(self.interfaces, config, prefer=prefer)


class AddressFinder:
    """Finds the addresses of guests. What serves all of them is read once, when the first guest needs it."""

    def __init__(self, pve: Cluster) -> None:
        self._pve = pve
        self._leases: asyncio.Future[dict[str, list[str]]] | None = None
        self._neighbors: asyncio.Future[dict[str, list[str]]] | None = None

    async def find(
        self, guest: Guest, config: Mapping[str, Any], reported: Sequence[Interface] | Problem | None
    ) -> GuestAddresses:
        """The addresses from the best source that has any; `reported` is what the guest shows, None if it is off."""
        if isinstance(reported, Sequence) and (interfaces := _usable(reported)):
            return GuestAddresses(interfaces, "agent" if guest.is_vm else "container")
        running = reported is not None
        if running and (interfaces := await self._from_leases(config)):
            return GuestAddresses(interfaces, "lease")
        configured = values.addresses_in_config(config)
        if interfaces := _usable(Interface(name, None, addresses=tuple(own)) for name, own in configured.items()):
            return GuestAddresses(interfaces, "configuration")
        if running and (interfaces := await self._from_neighbors(config)):
            return GuestAddresses(interfaces, "neighbors")
        return GuestAddresses(why_none=_explain(guest, reported))

    async def list_all(self, rows: Sequence[Resource]) -> list[tuple[str, str]]:
        """For each guest its addresses, best first, and their source."""
        return await gather_bounded(GUESTS_AT_ONCE, [partial(self._describe, Guest(self._pve, row)) for row in rows])

    async def _describe(self, guest: Guest) -> tuple[str, str]:
        if guest.row.template or guest.row.node_is_offline:
            return "", ""
        config, reported = await asyncio.gather(catch_problem(guest.get("config")), read_reported(guest))
        if isinstance(config, Problem):
            return "", ""
        addresses = await self.find(guest, config, reported)
        return ", ".join(addresses.best_first(config)), addresses.source

    async def _from_leases(self, config: Mapping[str, Any]) -> tuple[Interface, ...]:
        cards = _cards(config)
        # Leases exist for vnets only. PVE calls its plain bridges vmbrN, and with these nothing is asked.
        if all(card.get("bridge", "").startswith("vmbr") for card in cards.values()):
            return ()
        if self._leases is None:
            self._leases = asyncio.ensure_future(self._read_leases())
        return _of_cards(cards, await self._leases)

    async def _read_leases(self) -> dict[str, list[str]]:
        rows = await catch_problem(self._pve.get(_LEASES))
        by_mac: dict[str, list[str]] = {}
        for row in rows if isinstance(rows, list) else ():
            by_mac.setdefault(str(row.get("mac", "")).lower(), []).append(str(row.get("ip", "")))
        return by_mac

    async def _from_neighbors(self, config: Mapping[str, Any]) -> tuple[Interface, ...]:
        if self._neighbors is None:
            self._neighbors = asyncio.ensure_future(_read_neighbors())
        return _of_cards(_cards(config), await self._neighbors)


async def read_reported(guest: Guest) -> list[Interface] | Problem | None:
    """The interfaces that the guest shows, or why it does not; None if it is not running."""
    return await catch_problem(read_interfaces(guest)) if guest.row.status == "running" else None


async def _read_neighbors() -> dict[str, list[str]]:
    from quorate.homelab.network_probe import neighbors  # only guests that nothing else knows need it

    by_mac: dict[str, list[str]] = {}
    for address, mac in (await neighbors()).items():
        by_mac.setdefault(mac.lower(), []).append(address)
    return by_mac


def _usable(interfaces: Any) -> tuple[Interface, ...]:
    narrowed = (
        Interface(interface.name, interface.mac, addresses=tuple(filter(is_usable, interface.addresses)))
        for interface in interfaces
    )
    return tuple(interface for interface in narrowed if interface.addresses)


def _cards(config: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    return {key: values.parse_nic(str(config[key])) for key in sorted(config) if values.bus_of(key) == "net"}


def _of_cards(cards: Mapping[str, Mapping[str, str]], by_mac: Mapping[str, list[str]]) -> tuple[Interface, ...]:
    macs = {key: str(card.get("macaddr") or card.get("hwaddr") or "").lower() for key, card in cards.items()}
    return _usable(Interface(key, mac, addresses=tuple(by_mac.get(mac, ()))) for key, mac in macs.items() if mac)


def _explain(guest: Guest, reported: Sequence[Interface] | Problem | None) -> str:
    if reported is None:
        return ""
    if isinstance(reported, Problem):
        hint = " (install qemu-guest-agent inside)" if guest.is_vm else ""
        return f"{reported.what}{hint}; no lease, setting or neighbor shows an address either"
    return "It has no address that is reachable from outside"
