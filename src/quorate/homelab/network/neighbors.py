"""The hardware addresses in this machine's neighbor table."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from quorate.pve.clock import Clock

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


async def heard_of(wanted: Collection[str], clock: Clock, patience: float) -> set[str]:
    """Those that answered with their hardware address. Waits for entries that the kernel is verifying."""
    if not shutil.which("ip"):
        return set(wanted) & (await neighbors()).keys() - _set_by_hand()
    end = clock.monotonic() + patience
    while True:
        states = parse_states(await _output("ip", "neigh", "show"))
        if clock.monotonic() >= end or not any(states.get(one) in _BEING_ASKED for one in wanted):
            return {one for one in wanted if one in states and states[one] not in (*_DEAD, *_NEVER_ASKED)}
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
    found = [(row, row.index("lladdr") + 1) for row in rows if "lladdr" in row and row[-1] not in _DEAD]
    return _valid_pairs((row[0], row[at]) for row, at in found if at < len(row))


def parse_arp_command(text: str) -> dict[str, str]:
    """? (192.168.1.1) at 2:fc:0:0:0:5 on en0 ifscope [ethernet]"""
    found = re.findall(r"\(([^)\s]+)\) at (\S+)", text)
    return _valid_pairs(found)


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
            text = (await process.stdout.read(MOST_BYTES)).decode("utf-8", "replace")
            await process.wait()
    except TimeoutError:
        return ""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return text
