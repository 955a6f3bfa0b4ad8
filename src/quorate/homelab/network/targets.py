"""Scan targets: addresses, ranges and subnets, within the operator's networks and the limits of a call."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from quorate.hints import NAMED, Advice
from quorate.problems import BadArgument, Refused
from quorate.ssh.settings import Network

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

MOST_ADDRESSES = 4096
MOST_PORTS = 256
USUAL_PORTS = (
    22, 80, 443, 21, 23, 25, 53, 111, 139, 161, 389, 445, 515, 548, 554, 631, 873, 1883, 2049, 2375, 3000, 3260, 3306,
    3389, 5000, 5001, 5432, 5900, 5985, 6379, 6443, 8000, 8006, 8007, 8080, 8096, 8123, 8443, 9000, 9090, 9100, 9443,
    32400,
)  # fmt: skip
"""The most telling ports of a homelab device."""


def addresses(targets: Sequence[str], allowed: Sequence[Network]) -> list[Address]:
    """Every address of the targets, once and in order. Raises Refused if one may not be scanned."""
    ranges = [_range(text) for text in targets]
    if not ranges:
        raise BadArgument(
            "There is nothing to scan", next_step=Advice("Give {targets} such as 192.168.1.0/24", targets=NAMED)
        )
    whole = sum(int(last) - int(first) + 1 for first, last in ranges)
    if whole > MOST_ADDRESSES:
        raise BadArgument(
            f"{whole} addresses are too many for one scan",
            next_step=f"Narrow it to {MOST_ADDRESSES} addresses (a /20), and scan the rest after that",
        )
    for text, (first, last) in zip(targets, ranges, strict=True):
        _require_allowed(text, first, last, allowed)
    return list(dict.fromkeys(one for first, last in ranges for one in _between(first, last)))


def ports(texts: Iterable[str | int]) -> list[int]:
    """Ports of 22, "22" and "8000-8010"."""
    found: dict[int, None] = {}
    for text in texts:
        first, dash, last = str(text).strip().partition("-")
        if not (first.isascii() and first.isdecimal() and (not dash or (last.isascii() and last.isdecimal()))):
            raise BadArgument(f"{text!r} is not a port", next_step="Write 22 or 8000-8010")
        span = range(int(first), int(last or first) + 1)
        if not (span.start > 0 and span.stop <= 65536 and len(span)):
            raise BadArgument(f"{text!r} is not a port", next_step="Use 1 to 65535")
        if len(span) + len(found) > MOST_PORTS:
            raise BadArgument("Too many ports for one scan", next_step=f"Give up to {MOST_PORTS}")
        found |= dict.fromkeys(span)
    return list(found)


def as_ranges(found: Iterable[Address]) -> list[str]:
    """The addresses as few ranges, for people and for the next call."""
    ordered = sorted(set(found), key=lambda one: (one.version, int(one)))
    runs = groupby(enumerate(ordered), lambda pair: (pair[1].version, int(pair[1]) - pair[0]))
    lines = [[one for _, one in run] for _, run in runs]
    return [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in lines]


def _range(text: str) -> tuple[Address, Address]:
    """First and last of 10.0.0.0/24, 10.0.0.5-10.0.0.20, 10.0.0.5-20 or a single address."""
    text = text.strip()
    try:
        if "/" in text:
            network = ipaddress.ip_network(text, strict=False)
            inner = network.num_addresses > 2 and network.version == 4
            return network[1 if inner else 0], network[-2 if inner else -1]
        first, _, last = (part.strip() for part in text.partition("-"))
        begin = ipaddress.ip_address(first)
        if last.isdecimal() and begin.version == 4:
            last = f"{first.rpartition('.')[0]}.{last}"
        end = ipaddress.ip_address(last or first)
    except ValueError:
        raise BadArgument(
            f"{text!r} is not a scan target",
            next_step="Write a subnet (192.168.1.0/24), a range (192.168.1.10-50) or an address",
        ) from None
    if begin.version != end.version or begin > end:  # type: ignore[operator]
        raise BadArgument(f"The range {text!r} ends before it begins")
    return begin, end


def _between(first: Address, last: Address) -> Iterator[Address]:
    return (type(first)(number) for number in range(int(first), int(last) + 1))


def _require_allowed(text: str, first: Address, last: Address, allowed: Sequence[Network]) -> None:
    if any(first in network and last in network for network in allowed):
        return
    raise Refused(
        f"{text} may not be scanned",
        why=f"Scans are allowed in {', '.join(map(str, allowed)) or 'no network'}",
        next_step=f'The operator can allow it in the configuration: [homelab] networks = ["{text}"], '
        "together with the networks that should stay allowed",
    )
