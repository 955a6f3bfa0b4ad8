"""A connect scan, bounded in rate, concurrency and time, and what a scan finds."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from quorate.homelab.network.targets import Address
from quorate.pve.clock import Clock

AT_ONCE = 128
"""For all scans together: a server without free file handles cannot serve or write."""
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
    wanted: Iterable[tuple[Address, int]],
    pace: Pace,
    patience: float,
    note: Callable[[Address, int, PortState], Awaitable[None]],
) -> None:
    """Probe them in order, AT_ONCE at a time; `note` gets each result."""
    queue = iter(wanted)

    async def work() -> None:
        for address, port in queue:
            answer = await pace.probe(address, port, patience)
            if answer is not PortState.NOT_TRIED:
                await note(address, port, answer)

    async with asyncio.TaskGroup() as workers:
        for _ in range(AT_ONCE):
            workers.create_task(work())


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
