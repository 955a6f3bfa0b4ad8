"""Whom a network scan may ask, and who answers: a connect scan in bounded time, and the neighbor table."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import ipaddress
import re
import shutil
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from quorate.hints import NAMED, Advice
from quorate.homelab.homelab import PROBES_AT_ONCE
from quorate.problems import BadArgument, Refused
from quorate.pve.connection import Clock
from quorate.pve.tasks import for_each
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
    return list(dict.fromkeys(address for first, last in ranges for address in _between(first, last)))


def parse_ports(texts: Iterable[str | int]) -> list[int]:
    """Ports of 22, "22" and "8000-8010"."""
    ports: dict[int, None] = {}
    for text in texts:
        first, dash, last = str(text).strip().partition("-")
        if not (first.isascii() and first.isdecimal() and (not dash or (last.isascii() and last.isdecimal()))):
            raise BadArgument(f"{text!r} is not a port", next_step="Write 22 or 8000-8010")
        span = range(int(first), int(last or first) + 1)
        if not (span.start > 0 and span.stop <= 65536 and len(span)):
            raise BadArgument(f"{text!r} is not a port", next_step="Use 1 to 65535")
        if len(span) + len(ports) > MOST_PORTS:
            raise BadArgument("Too many ports for one scan", next_step=f"Give up to {MOST_PORTS}")
        ports |= dict.fromkeys(span)
    return list(ports)


def as_ranges(addresses: Iterable[Address]) -> list[str]:
    """The addresses as few ranges, for people and for the next call."""
    ordered = sorted(set(addresses), key=lambda address: (address.version, int(address)))
    runs = groupby(enumerate(ordered), lambda pair: (pair[1].version, int(pair[1]) - pair[0]))
    lines = [[address for _, address in run] for _, run in runs]
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


ARP_FILE = Path("/proc/net/arp")
SECONDS = 3.0
MOST_BYTES = 1024 * 1024
_MAC = re.compile(r"(?:[0-9a-f]{1,2}:){5}[0-9a-f]{1,2}", re.I)
_NOBODY = ("00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff")
_COMPLETE, _SET_BY_HAND = 0x2, 0x4
_DEAD = ("FAILED", "INCOMPLETE")
_NEVER_ASKED = ("PERMANENT", "NOARP")
_BEING_ASKED = ("DELAY", "PROBE")
_STEP = 0.5


async def neighbors() -> dict[str, str]:
    """Address -> MAC of neighbors that have answered; empty if this system does not report them."""
    known: dict[str, str] = {}
    with contextlib.suppress(OSError, UnicodeDecodeError):
        known |= parse_arp_file(ARP_FILE.read_text())  # noqa: ASYNC240 - the kernel answers at once
    if shutil.which("ip"):  # includes IPv6
        return known | parse_ip_neigh(await _output("ip", "neigh", "show"))
    return known or parse_arp_command(await _output("arp", "-an"))


async def heard_of(addresses: Collection[str], clock: Clock, patience: float) -> set[str]:
    """The addresses whose hardware address is known. Waits for entries that the kernel is verifying."""
    if not shutil.which("ip"):
        return set(addresses) & (await neighbors()).keys() - _set_by_hand()
    end = clock.monotonic() + patience
    while True:
        states = parse_states(await _output("ip", "neigh", "show"))
        if clock.monotonic() >= end or not any(states.get(address) in _BEING_ASKED for address in addresses):
            return {
                address for address in addresses if address in states and states[address] not in (*_DEAD, *_NEVER_ASKED)
            }
        await clock.sleep(_STEP)


def parse_states(text: str) -> dict[str, str]:
    """Address -> the kernel's state for it."""
    rows = [line.split() for line in text.splitlines()]
    return {row[0]: row[-1] for row in rows if len(row) > 2}


def _set_by_hand() -> set[str]:
    try:
        rows = [line.split() for line in ARP_FILE.read_text().splitlines()[1:]]
    except (OSError, UnicodeDecodeError):
        return set()
    return {row[0] for row in rows if len(row) >= 6 and _number(row[2]) & _SET_BY_HAND}


def parse_arp_file(text: str) -> dict[str, str]:
    """/proc/net/arp: address, type, flags, MAC, mask, device."""
    rows = [line.split() for line in text.splitlines()[1:]]
    return _valid_pairs((row[0], row[3]) for row in rows if len(row) >= 6 and _number(row[2]) & _COMPLETE)


def parse_ip_neigh(text: str) -> dict[str, str]:
    """192.168.1.1 dev eth0 lladdr 02:fc:00:00:00:05 router REACHABLE"""
    rows = [line.split() for line in text.splitlines()]
    entries = [(row, row.index("lladdr") + 1) for row in rows if "lladdr" in row and row[-1] not in _DEAD]
    return _valid_pairs((row[0], row[at]) for row, at in entries if at < len(row))


def parse_arp_command(text: str) -> dict[str, str]:
    """? (192.168.1.1) at 2:fc:0:0:0:5 on en0 ifscope [ethernet]"""
    pairs = re.findall(r"\(([^)\s]+)\) at (\S+)", text)
    return _valid_pairs(pairs)


def _valid_pairs(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    known: dict[str, str] = {}
    for address, mac in pairs:
        with contextlib.suppress(ValueError):
            if _MAC.fullmatch(mac) and (plain := _plain(mac)) not in _NOBODY:
                known[str(ipaddress.ip_address(address))] = plain
    return known


def _plain(mac: str) -> str:
    return ":".join(part.zfill(2) for part in mac.lower().split(":"))


def _number(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0


async def _output(*argv: str) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
    except OSError:
        return ""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(SECONDS):
            try:
                # A pipe delivers what has been written so far: only its end says that this was all.
                output = await process.stdout.readexactly(MOST_BYTES)
            except asyncio.IncompleteReadError as ended:
                output = ended.partial
                await process.wait()  # to kill what has just ended takes its exit code from asyncio, which complains
    except TimeoutError:
        return ""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output.decode("utf-8", "replace")


_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS})
_SAY_NO = frozenset({errno.ECONNREFUSED, errno.ECONNRESET})


class PortState(enum.Enum):
    OPEN = "open"
    CLOSED = "closed"
    """The address refuses the connection."""
    SILENT = "silent"
    NOT_TRIED = "not tried"
    """This machine had no resources for the connection."""


@dataclass
class Pace:
    """Limits how many connections start per second, and how many are open."""

    clock: Clock
    per_second: float
    places: asyncio.Semaphore
    """Shared by all scans."""
    _next: float = field(default=0.0, init=False)

    async def probe(self, address: Address, port: int, patience: float) -> PortState:
        """Waits for its turn, then probes."""
        await self._turn()
        async with self.places:
            return await probe(address, port, patience)

    async def _turn(self) -> None:
        now = self.clock.monotonic()
        begin = max(now, self._next)
        self._next = begin + 1 / self.per_second
        if begin > now:
            await self.clock.sleep(begin - now)


async def probe(address: Address, port: int, seconds: float) -> PortState:
    """Connect and disconnect at once; nothing is sent."""
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(str(address), port)
    except TimeoutError:
        return PortState.SILENT
    except OSError as error:
        if error.errno in _NO_ROOM:
            return PortState.NOT_TRIED
        return PortState.CLOSED if error.errno in _SAY_NO else PortState.SILENT
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return PortState.OPEN


async def probe_all(
    endpoints: Iterable[tuple[Address, int]],
    pace: Pace,
    patience: float,
    note: Callable[[Address, int, PortState], Awaitable[None]],
) -> None:
    """Probe them in order, PROBES_AT_ONCE at a time; `note` gets each result."""

    async def probe_one(endpoint: tuple[Address, int]) -> None:
        answer = await pace.probe(*endpoint, patience)
        if answer is not PortState.NOT_TRIED:
            await note(*endpoint, answer)

    await for_each(PROBES_AT_ONCE, endpoints, probe_one)


@dataclass
class ScannedDevice:
    address: Address
    open: set[int] = field(default_factory=set)
    closed: set[int] = field(default_factory=set)
    """Refused, or silent on a device that answers on other ports."""
    mac: str = ""
    name: str = ""
    quiet: bool = False
    """Only the neighbor table lists it, which remembers departed devices for a while."""


@dataclass
class Scan:
    devices: dict[Address, ScannedDevice]
    """Addresses that answered."""
    unfinished: list[Address]
    """Not scanned in time."""
    ports: tuple[int, ...]
    engine: str
