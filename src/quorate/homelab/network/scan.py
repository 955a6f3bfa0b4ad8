"""Finds devices: a connect scan with the neighbor table, or nmap, and names if they resolve quickly."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from quorate.homelab.network import nmap
from quorate.homelab.network.neighbors import heard_of, neighbors
from quorate.homelab.network.probe import Pace, PortState, Scan, ScannedDevice, probe_all
from quorate.homelab.network.targets import Address
from quorate.pve.tasks import Report

Engine = Literal["builtin", "nmap", "auto"]

PATIENCE_SECONDS = 1.0
FIRST_LOOK = 3
"""The number of ports that are tried at every address; the others only where something answers."""
NEIGHBOR_SECONDS = 10.0
"""The kernel verifies a stale neighbor after five seconds, with up to three requests."""
NAME_SECONDS = 1.0
NAMES_SECONDS = 3.0
REPORT_EVERY = 256


async def scan(
    wanted: Sequence[Address],
    ports: Sequence[int],
    pace: Pace,
    *,
    seconds: float,
    engine: Engine = "builtin",
    report: Report | None = None,
) -> Scan:
    """Scan all of them. Addresses that were not finished within `seconds` are listed as such."""
    if engine == "nmap" or (engine == "auto" and nmap.is_installed()):
        done = await nmap.scan(wanted, ports, rate=pace.per_second, seconds=seconds)
    else:
        done = await _connect_scan(wanted, ports, pace, seconds, report)
    known = await neighbors()
    for one in done.devices.values():
        one.mac = one.mac or known.get(str(one.address), "")
    await _name(list(done.devices.values()))
    return done


async def _connect_scan(
    wanted: Sequence[Address], ports: Sequence[int], pace: Pace, seconds: float, report: Report | None
) -> Scan:
    """First a few ports of every address, then the others of those that answer."""
    seen: dict[Address, ScannedDevice] = {}
    looked_at: dict[Address, int] = {}
    first, rest = ports[:FIRST_LOOK], ports[FIRST_LOOK:]
    tried = 0

    async def note(address: Address, port: int, answer: PortState) -> None:
        nonlocal tried
        tried += 1
        looked_at[address] = looked_at.get(address, 0) + 1
        if answer is not PortState.SILENT:
            seen.setdefault(address, ScannedDevice(address)).quiet = False
        if answer is PortState.OPEN:
            seen[address].open.add(port)
        if report is not None and tried % REPORT_EVERY == 0:
            line = f"{len(seen)} of {len(looked_at)} addresses have answered"
            await report(float(len(looked_at)), float(len(wanted)), line)

    async def add_quiet(patience: float) -> None:
        silent = {str(one): one for one in wanted if one not in seen}
        heard = await heard_of(silent.keys(), pace.clock, patience)
        seen.update({silent[one]: ScannedDevice(silent[one], quiet=True) for one in heard})

    try:
        async with asyncio.timeout(seconds):
            # Address by address, so that finished addresses are complete when the time is up.
            await probe_all(
                ((one, port) for one in wanted for port in first), pace, patience=PATIENCE_SECONDS, note=note
            )
            await add_quiet(NEIGHBOR_SECONDS)
            present = list(seen)
            await probe_all(
                ((one, port) for one in present for port in rest), pace, patience=PATIENCE_SECONDS, note=note
            )
    except TimeoutError:
        await add_quiet(0)
    unfinished = [one for one in wanted if looked_at.get(one, 0) < (len(ports) if one in seen else len(first))]
    for address in unfinished:
        seen.pop(address, None)
    for one in seen.values():
        one.closed = set(ports) - one.open
    return Scan(seen, unfinished, tuple(ports), "builtin")


async def _name(found: list[ScannedDevice]) -> None:
    """Resolve names, unless the first lookup is slow: a hanging resolver is asked only once."""
    if not found:
        return
    loop = asyncio.get_running_loop()
    helpers = ThreadPoolExecutor(4, thread_name_prefix="quorate-names")

    async def ask(one: ScannedDevice) -> None:
        one.name = await loop.run_in_executor(helpers, _reverse, str(one.address))

    try:
        async with asyncio.timeout(NAME_SECONDS):
            await ask(found[0])
        async with asyncio.timeout(NAMES_SECONDS):
            await asyncio.gather(*(ask(one) for one in found[1:]))
    except TimeoutError:
        pass
    finally:
        helpers.shutdown(wait=False, cancel_futures=True)


def _reverse(address: str) -> str:
    try:
        return socket.getnameinfo((address, 0), socket.NI_NAMEREQD)[0]
    except OSError:
        return ""
