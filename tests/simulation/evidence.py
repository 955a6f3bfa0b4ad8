"""What an episode leaves for the checker."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pve_simulator.guests.guest import Guest
from quorate.runs.store import Run
from quorate.state.trail import fold
from tests.simulation.lab import Lab
from tests.simulation.replica import Disk


@dataclass(slots=True)
class ToolCall:
    """A tool that a caller called, and the answer; None if the server died first."""

    tool: str
    arguments: dict[str, Any]
    answer: dict[str, Any] | None = None
    problem: str = ""

    @property
    def is_done(self) -> bool:
        return self.answer is not None and self.answer.get("result") == "done"


@dataclass(slots=True)
class Evidence:
    """Everything that the checker compares."""

    labs: Mapping[str, Lab]
    """The first one is where runs start."""
    disk: Disk
    before: dict[int, tuple[str, bool]] = field(default_factory=dict)
    """The guests of the first cluster: where they were, and whether they were running."""
    calls: list[ToolCall] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    """What was wrong at the moment when the cluster received a request."""
    quiet: bool = False
    """Nothing failed on purpose, and no server died."""

    @property
    def lab(self) -> Lab:
        return next(iter(self.labs.values()))

    @property
    def guests(self) -> dict[int, Guest]:
        return self.lab.world.guests

    def entries(self) -> list[dict[str, Any]]:
        return fold([json.loads(line) for line in self.disk.lines])

    def received(self, matches: Callable[[str, str], bool]) -> list[str]:
        return [path for method, path in self.lab.requests if matches(method, path)]

    def tasks(self, *kinds: str) -> list[Any]:
        world = self.lab.world
        return [task for node in world.nodes for task in world.tasks.newest_first(node) if task.upid.type in kinds]
