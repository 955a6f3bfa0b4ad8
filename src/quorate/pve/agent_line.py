"""One question at a time to the agent of a VM.

QEMU lets whoever asks wait until the one before has an answer. PVE pings the agent before each question, and says after
three seconds of waiting that the agent is not running, although it only has others to answer.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from quorate.problems import Conflict


class AgentLine:
    def __init__(self) -> None:
        self._free = asyncio.Lock()
        self._silence: Conflict | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for one's turn. If the agent was silent meanwhile, those who waited are told so without asking again."""
        before = self._silence
        async with self._free:
            if self._silence is not None and self._silence is not before:
                raise copy.copy(self._silence)
            try:
                yield
            except Conflict as problem:
                if "agent is not running" in problem.what:
                    self._silence = problem
                raise
