"""The network cards of new guests, from "vmbr0,tag=20" or an object with the same parts."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from quorate.hints import NAMED, Advice, either
from quorate.operations.placement import pick_bridge
from quorate.operations.provision.new_guests import part_text
from quorate.problems import BadArgument
from quorate.pve import values
from quorate.pve.cluster import Cluster

_ALIASES = {"vlan": "tag", "gateway": "gw", "gateway6": "gw6", "mac": "macaddr", "ipv4": "ip", "ipv6": "ip6"}

Card = dict[str, str]


def parse_cards(given: Sequence[str | Mapping[str, Any]] | None) -> list[Card]:
    """The requested cards; one on the default bridge if none is given, none for an empty list."""
    return [_parse(one) for one in ([""] if given is None else given)]


def _parse(given: str | Mapping[str, Any]) -> Card:
    if isinstance(given, Mapping):
        parts = {str(key): part_text(str(key), value) for key, value in given.items() if value is not None}
    else:
        parts = values.parse_nic(given)
        if "model" in parts and parts["model"] not in values.NIC_MODELS and "bridge" not in parts:
            parts["bridge"] = parts.pop("model")
    return {_ALIASES.get(key, key): value for key, value in parts.items()}


async def connect(pve: Cluster, node: str, cards: Sequence[Card]) -> list[Card]:
    """The cards with bridges that the node has."""
    found: dict[str | None, str] = {}
    for wanted in {card.get("bridge") for card in cards}:
        found[wanted] = await pick_bridge(
            pve,
            node,
            wanted,
            next_step=either(
                Advice("Name it in {networks}", networks=""), Advice("give {networks} for no network", networks=[])
            ),
        )
    return [{**card, "bridge": found[card.get("bridge")]} for card in cards]


def chosen_bridge(asked: Sequence[Card], connected: Sequence[Card]) -> dict[str, str]:
    """The bridge of the cards that named none, for the answer."""
    pairs = zip(asked, connected, strict=True)
    return next(({"bridge": card["bridge"]} for given, card in pairs if "bridge" not in given), {})


def vm_card(card: Card, model: str) -> str:
    """netN of a VM: `virtio=<mac>,bridge=vmbr0,tag=20`."""
    chosen = card.get("model", model)
    if chosen not in values.NIC_MODELS:
        raise BadArgument(
            f"There is no network card model {chosen!r}",
            next_step=f"Valid values: {', '.join(sorted(values.NIC_MODELS))}",
        )
    if misplaced := sorted({"ip", "ip6", "gw", "gw6"} & card.keys()):
        raise BadArgument(
            f"A VM's network card has no {misplaced[0]!r}",
            next_step=Advice("Addresses of a VM go into {cloud_init}", cloud_init=NAMED),
        )
    return values.build_nic({**card, "model": chosen})


def container_card(card: Card, number: int) -> str:
    """netN of a container: `name=eth0,bridge=vmbr0,ip=dhcp`."""
    left = dict(card)
    if mac := left.pop("macaddr", None):
        left["hwaddr"] = mac
    addresses = address_parts(left)
    for key in ("ip", "gw", "ip6", "gw6"):
        left.pop(key, None)
    head = {"name": left.pop("name", f"eth{number}"), "bridge": left.pop("bridge")}
    return values.build({**head, **addresses, **left}, "")


def address_parts(given: Mapping[str, str]) -> dict[str, str]:
    """ip, gw, ip6 and gw6 as both kinds of guest take them; DHCP if nothing is said."""
    parts: dict[str, str] = {}
    if "ip6" not in given or "ip" in given:
        parts["ip"] = _address(given.get("ip", "dhcp"), 4)
    if "ip6" in given:
        parts["ip6"] = _address(given["ip6"], 6)
    for key, address, version in (("gw", "ip", 4), ("gw6", "ip6", 6)):
        if gateway := given.get(key):
            if "/" not in parts.get(address, ""):
                raise BadArgument(
                    f"The gateway {gateway} requires a static {address}",
                    next_step=f"Give {address} with its prefix",
                )
            parts[key] = _gateway(gateway, version)
    return parts


def _address(text: str, version: int) -> str:
    if text in ("dhcp", "manual") or (version == 6 and text == "auto"):
        return text
    example = "192.168.1.5/24" if version == 4 else "2001:db8::5/64"
    try:
        address = ipaddress.ip_interface(text)
    except ValueError:
        raise BadArgument(f"{text!r} is not an IPv{version} address", next_step=f"Write {example} or dhcp") from None
    if address.version != version:
        raise BadArgument(f"{text!r} is not an IPv{version} address", next_step=f"Write {example} or dhcp")
    if "/" not in text:
        raise BadArgument(f"The address {text} lacks its prefix", next_step=f"Write it like {example}")
    return text


def name_servers(given: str | list[str]) -> str:
    """DNS servers as both kinds of guest take them: addresses, separated by blanks."""
    servers = (
        " ".join(map(str, [given] if isinstance(given, (str, int)) else given))
        .replace(",", " ")
        .replace(";", " ")
        .split()
    )
    for server in servers:
        try:
            ipaddress.ip_address(server)
        except ValueError:
            raise BadArgument(
                f"The DNS server {server!r} is not an address", next_step="Write it like 1.1.1.1"
            ) from None
    return " ".join(servers)


def _gateway(text: str, version: int) -> str:
    try:
        if ipaddress.ip_address(text).version == version:
            return text
    except ValueError:
        pass
    raise BadArgument(f"{text!r} is not an IPv{version} gateway", next_step="Write the bare address, without a prefix")
