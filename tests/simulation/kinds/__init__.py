"""What an episode can be about: each module builds a world, asks for something, and knows what must be true then."""

from __future__ import annotations

import random

from quorate.runs.store import Run
from tests.simulation.evidence import Evidence, ToolCall


class Scenario:
    clusters: tuple[str, ...] = ("lab",)
    tasks: tuple[str, ...] = ("*",)
    """Types of tasks that may fail. A restore that fails this way would leave a lock behind that nobody removes."""

    lasts: float = 60.0
    """Seconds: a caller who pauses or aborts the run does so within this time."""

    def begin(self, evidence: Evidence, chance: random.Random) -> list[ToolCall]:
        """Add guests and all else, and say what callers will ask for."""
        raise NotImplementedError

    def follow_up(self, evidence: Evidence, call: ToolCall) -> ToolCall | None:
        """What the same caller asks for next."""
        return None

    def objections(self, evidence: Evidence, run: Run | None) -> list[str]:
        """What is wrong in the end; `run` is the run of the episode, if one was started."""
        raise NotImplementedError
