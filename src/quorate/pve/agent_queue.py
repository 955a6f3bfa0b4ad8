"""One request at a time to the agent of a VM.

QEMU makes a request wait until the one before it is answered. PVE pings the agent before each request, and after three
seconds of waiting it says that the agent is not running, although it is only busy with others.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from quorate.problems import AgentSilent


class AgentQueue:
    def __init__(self) -> None:
        self._free = asyncio.Lock()
        self._silence: AgentSilent | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait in line. If the agent turns out to be silent, everyone in line gets that error without asking again."""
        before = self._silence
        async with self._free:
            if self._silence is not None and self._silence is not before:
                raise copy.copy(self._silence)
            try:
                yield
            except AgentSilent as problem:
                self._silence = problem
                raise
