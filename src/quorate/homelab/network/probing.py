"""A connect scan: bounded in rate, in connections at a time and in seconds."""

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
_SAY_NO = frozenset({errno.ECONNREFUSED, errno.ECONNRESET})


class Answer(enum.Enum):
    OPEN = "open"
    CLOSED = "closed"
    """Somebody is there and says no."""
    SILENT = "silent"


@dataclass
class Pace:
    """At most so many connections begin in a second. Callers are let through one after the other."""

    clock: Clock
    per_second: float
    _next: float = field(default=0.0, init=False)

    async def turn(self) -> None:
        now = self.clock.monotonic()
        begin = max(now, self._next)
        self._next = begin + 1 / self.per_second
        if begin > now:
            await self.clock.sleep(begin - now)


async def probe(address: Address, port: int, seconds: float) -> Answer:
    """Connect and hang up at once; nothing is sent."""
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(str(address), port)
    except TimeoutError:
        return Answer.SILENT
    except OSError as error:
        return Answer.CLOSED if error.errno in _SAY_NO else Answer.SILENT
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return Answer.OPEN


async def probe_all(
    wanted: Iterable[tuple[Address, int]],
    pace: Pace,
    patience: float,
    note: Callable[[Address, int, Answer], Awaitable[None]],
) -> None:
    """Try them in order, AT_ONCE at a time; each answer is noted when it comes."""
    queue = iter(wanted)

    async def work() -> None:
        for address, port in queue:
            await pace.turn()
            await note(address, port, await probe(address, port, patience))

    async with asyncio.TaskGroup() as workers:
        for _ in range(AT_ONCE):
            workers.create_task(work())
