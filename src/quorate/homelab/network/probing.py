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
"""Of all scans together: a server that has no file handles left can neither be reached nor keep its records."""
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS})
_SAY_NO = frozenset({errno.ECONNREFUSED, errno.ECONNRESET})


class Answer(enum.Enum):
    OPEN = "open"
    CLOSED = "closed"
    """Somebody is there and says no."""
    SILENT = "silent"
    NOT_TRIED = "not tried"
    """This machine had no room for the connection: nothing was learned."""


@dataclass
class Pace:
    """At most so many connections begin in a second, as long as there are places for them."""

    clock: Clock
    per_second: float
    places: asyncio.Semaphore
    """Shared by all who scan."""
    _next: float = field(default=0.0, init=False)

    async def probe(self, address: Address, port: int, patience: float) -> Answer:
        """Callers are let through one after the other."""
        await self._turn()
        async with self.places:
            return await probe(address, port, patience)

    async def _turn(self) -> None:
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
        if error.errno in _NO_ROOM:
            return Answer.NOT_TRIED
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
    """Try them in order, AT_ONCE at a time; what each has told is noted when it comes."""
    queue = iter(wanted)

    async def work() -> None:
        for address, port in queue:
            answer = await pace.probe(address, port, patience)
            if answer is not Answer.NOT_TRIED:
                await note(address, port, answer)

    async with asyncio.TaskGroup() as workers:
        for _ in range(AT_ONCE):
            workers.create_task(work())
