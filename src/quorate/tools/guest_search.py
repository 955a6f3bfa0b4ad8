"""Finding guests by what only their configurations and agents know: MAC, address, bridge, VLAN, disk, start at boot."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from quorate.problems import BadArgument, Problem, catch_problem
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.lookup import Resource
from quorate.pve.tasks import gather_bounded
from quorate.tools.guest_addresses import AddressFinder, read_reported

READS_AT_ONCE = 16
CONFIGS_AT_MOST = 300

Option = Literal["onboot", "protection"]

_MAC = re.compile(r"[0-9a-f]{2}([:-][0-9a-f]{2}){5}", re.I)
_VLAN = re.compile(r"(?:vlan|tag)[ =:]?(?P<tag>\d{1,4})", re.I)
_PASSED_THROUGH = re.compile(r"(?:hostpci|usb|unused)\d+")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Configured:
    """A guest with its configuration, and where in it the searched text is."""

    row: Resource
    config: Mapping[str, Any]
    matches: tuple[str, ...] = ()

    def has(self, option: Option) -> bool:
        return values.is_on(self.config.get(option, 0))


async def search_configs(
    pve: Cluster, rows: Sequence[Resource], text: str | None, options: Mapping[Option, bool | None]
) -> tuple[list[Configured], list[str]]:
    """The guests with these options in whose devices or addresses the text is; and the guests that were not read."""
    if len(rows) > CONFIGS_AT_MOST:
        raise BadArgument(
            f"This would read the configurations of {len(rows)} guests", next_step="Narrow with node, tag or pool"
        )
    readable = [row for row in rows if not row.node_is_offline]
    reads = [partial(_read_config, Guest(pve, row)) for row in readable]
    configs = await gather_bounded(READS_AT_ONCE, reads)
    unread = [f"{row.vmid}: its node {row.node} is offline" for row in rows if row.node_is_offline]
    unread += [
        f"{row.vmid}: {config.what}"
        for row, config in zip(readable, configs, strict=True)
        if isinstance(config, Problem)
    ]
    configured = [
        Configured(row, config)
        for row, config in zip(readable, configs, strict=True)
        if not isinstance(config, Problem)
    ]
    chosen = [
        guest
        for guest in configured
        if all(value is None or guest.has(option) == value for option, value in options.items())
    ]
    if text is None:
        return chosen, unread
    return await _matching(pve, chosen, text.strip()), unread


async def _read_config(guest: Guest) -> Any:
    return await catch_problem(guest.get("config"))


async def _matching(pve: Cluster, guests: list[Configured], text: str) -> list[Configured]:
    network = _network_of(text)
    if network is None:
        searched = [Configured(guest.row, guest.config, _match_devices(guest.config, text)) for guest in guests]
    else:
        finder = AddressFinder(pve)
        reads = [partial(_match_addresses, pve, finder, guest, network) for guest in guests]
        searched = await gather_bounded(READS_AT_ONCE, reads)
    return [guest for guest in searched if guest.matches]


def _network_of(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text, strict=False) if not text.isdecimal() else None
    except ValueError:
        return None


async def _match_addresses(pve: Cluster, finder: AddressFinder, guest: Configured, network: Network) -> Configured:
    """Where the guest has an address in the network: as it reports them, else as the configuration sets them."""
    target = Guest(pve, guest.row)
    addresses = await finder.find(target, guest.config, await read_reported(target))
    by_interface = {**values.addresses_in_config(guest.config), **_split(addresses.by_interface)}
    matches = tuple(
        f"{interface}: {address}"
        for interface, own in by_interface.items()
        for address in own
        if (parsed := _network_of(address)) is not None
        and parsed.version == network.version
        and parsed.subnet_of(network)  # type: ignore[arg-type]
    )
    return Configured(guest.row, guest.config, matches)


def _split(by_interface: Mapping[str, str]) -> dict[str, list[str]]:
    return {interface: own.split(", ") for interface, own in by_interface.items()}


def _match_devices(config: Mapping[str, Any], text: str) -> tuple[str, ...]:
    """The disks, cards and passed-through devices with the text; a MAC, a VLAN and a bridge match as a whole."""
    vlan = _VLAN.fullmatch(text)
    devices = {key: str(value) for key, value in sorted(config.items()) if _is_device(key)}
    cards = {key: values.parse_nic(value) for key, value in devices.items() if values.bus_of(key) == "net"}
    if vlan:
        keys = [key for key, card in cards.items() if _carries(card, int(vlan["tag"]))]
    elif _MAC.fullmatch(text):
        mac = text.replace("-", ":").lower()
        keys = [key for key, card in cards.items() if mac in (card.get("macaddr", card.get("hwaddr", "")).lower(),)]
    else:
        keys = [key for key, card in cards.items() if card.get("bridge") == text]
        keys += [key for key, value in devices.items() if key not in cards and text.lower() in value.lower()]
    return tuple(f"{key}: {devices[key]}" for key in keys)


def _is_device(key: str) -> bool:
    return values.bus_of(key) not in (None, "ipconfig") or _PASSED_THROUGH.fullmatch(key) is not None


def _carries(card: Mapping[str, str], vlan: int) -> bool:
    """Whether the card has the VLAN as its tag or among its trunks, such as `trunks=10;20-30`."""
    spans = [span.partition("-") for span in card.get("trunks", "").split(";") if span]
    return card.get("tag") == str(vlan) or any(int(first) <= vlan <= int(last or first) for first, _, last in spans)
