"""Whether a firewall rule matches a packet, as Proxmox VE decides it: ports, macros, addresses, aliases, IP sets."""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pve_schema.firewall_formats import MACRO_SETTINGS

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Rule = Mapping[str, Any]

_MACROS: Final = {name.lower(): settings for name, settings in MACRO_SETTINGS.items()}
_PROTOCOLS: Final = {"tcp": ("tcp", "6"), "udp": ("udp", "17")}
_PORT_NAMES: Final = {
    "ssh": 22, "domain": 53, "http": 80, "www": 80, "https": 443, "smtp": 25, "imap2": 143, "imaps": 993, "ldap": 389,
    "mysql": 3306, "postgresql": 5432, "ntp": 123, "rsync": 873, "nfs": 2049, "telnet": 23, "ftp": 21,
    "microsoft-ds": 445,
}  # fmt: skip


class Match(enum.Enum):
    YES = "yes"
    PART = "part"
    """Some of the packets in question, or whether it does is not known."""
    NO = "no"


@dataclass(frozen=True, slots=True)
class Names:
    """What a rule's names stand for. The guest's own come before the cluster's."""

    aliases: Mapping[str, str] = field(default_factory=dict)
    """By `guest/name` and `dc/name`, in lower case."""
    ipsets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Members by `guest/name` and `dc/name`; a leading `!` excludes."""

    def alias(self, name: str) -> str | None:
        return next((self.aliases[key] for key in _keys_of(name.lower()) if key in self.aliases), None)

    def ipset(self, name: str) -> tuple[str, ...] | None:
        return next((self.ipsets[key] for key in _keys_of(name) if key in self.ipsets), None)


def _keys_of(name: str) -> tuple[str, ...]:
    return (name,) if name.startswith(("guest/", "dc/")) else (f"guest/{name}", f"dc/{name}")


@dataclass(frozen=True, slots=True)
class Packet:
    """Packets of one protocol to one port. An end without networks can be anywhere."""

    port: int
    proto: str = "tcp"
    source: tuple[Network, ...] = ()
    dest: tuple[Network, ...] = ()


def match_rule(rule: Rule, packet: Packet, names: Names) -> Match:
    """Whether the rule matches; its type, interface and whether it is enabled are the caller's concern."""
    ends = [(rule.get("source"), packet.source), (rule.get("dest"), packet.dest)]
    return _all_of(
        [
            match_port(rule, packet.port, packet.proto),
            Match.PART if rule.get("sport") else Match.YES,
            *(match_addresses(str(text), networks, names) for text, networks in ends if text),
        ]
    )


def _all_of(matches: Iterable[Match]) -> Match:
    results = set(matches)
    return next((match for match in (Match.NO, Match.PART) if match in results), Match.YES)


def match_port(rule: Rule, port: int, proto: str = "tcp") -> Match:
    """Whether the rule is about this protocol and port of the receiver."""
    if macro := rule.get("macro"):
        settings = _MACROS.get(str(macro).lower())
        if settings is None:
            return Match.PART
        return _any_of(
            _match_port(setting.get("proto", ""), setting.get("dport", ""), port, proto) for setting in settings
        )
    return _match_port(str(rule.get("proto") or ""), str(rule.get("dport") or ""), port, proto)


def _any_of(matches: Iterable[Match]) -> Match:
    results = set(matches)
    return next((match for match in (Match.YES, Match.PART) if match in results), Match.NO)


def _match_port(rule_proto: str, dport: str, port: int, proto: str) -> Match:
    if rule_proto.lower() not in ("", *_PROTOCOLS[proto]):
        return Match.NO
    return _any_of(_match_range(part.strip(), port) for part in dport.split(",")) if dport else Match.YES


def _match_range(part: str, port: int) -> Match:
    first, colon, last = part.partition(":")
    ends = [int(end) if end.isdecimal() else _PORT_NAMES.get(end.lower()) for end in (first, last if colon else first)]
    if ends[0] is None or ends[1] is None:
        return Match.PART
    return Match.YES if ends[0] <= port <= ends[1] else Match.NO


def match_addresses(text: str, networks: tuple[Network, ...], names: Names) -> Match:
    """Whether packets of all these networks match what a rule has as source or destination."""
    listed = _members(text, names)
    if listed is None or not networks:
        return Match.PART
    results = {_match_network(network, listed) for network in networks}
    return results.pop() if len(results) == 1 else Match.PART


def _members(text: str, names: Names) -> list[tuple[Network, bool]] | None:
    """The networks that a rule names, each with whether it is excluded; None where a name is not known."""
    if text.startswith("+"):
        members = names.ipset(text.removeprefix("+"))
    else:
        members = tuple(part.strip() for part in text.split(","))
    if members is None:
        return None
    listed: list[tuple[Network, bool]] = []
    for member in members:
        networks = read_networks(names.alias(member.removeprefix("!")) or member.removeprefix("!"))
        if networks is None:
            return None
        listed += [(network, member.startswith("!")) for network in networks]
    return listed


def read_networks(text: str) -> tuple[Network, ...] | None:
    """The networks of an address, a network or a range `first-last`; None for anything else."""
    first, dash, last = text.partition("-")
    try:
        if not dash:
            return (ipaddress.ip_network(text, strict=False),)
        ends = ipaddress.ip_address(first.strip()), ipaddress.ip_address(last.strip())
        return tuple(ipaddress.summarize_address_range(*ends))
    except (ValueError, TypeError):
        return None


def _match_network(network: Network, listed: list[tuple[Network, bool]]) -> Match:
    """In a set, as the kernel reads it, the smallest network that contains an address decides."""
    same_family = [entry for entry in listed if entry[0].version == network.version]
    if any(entry.subnet_of(network) and entry != network for entry, _ in same_family):  # type: ignore[arg-type]
        return Match.PART
    around = [(entry.prefixlen, not excluded) for entry, excluded in same_family if network.subnet_of(entry)]  # type: ignore[arg-type]
    return Match.YES if around and max(around, key=lambda pair: pair[0])[1] else Match.NO
