"""Findings of `quorate doctor`: what is fine, and what is wrong and how to fix it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

HERE = "this machine"


class State(enum.StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Finding:
    """The fields are keys of `quorate doctor --json`."""

    place: str
    """A cluster, or this machine."""
    check: str
    state: State
    says: str
    do: str = ""
    """How to fix it."""
    commands: tuple[str, ...] = ()
    """To run on a node."""


class Findings(list[Finding]):
    """Findings of one place, in order."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place

    def ok(self, check: str, says: str) -> None:
        self.append(Finding(self.place, check, State.OK, says))

    def warn(self, check: str, says: str, do: str) -> None:
        self.append(Finding(self.place, check, State.WARN, says, do))

    def fail(self, check: str, says: str, do: str) -> None:
        self.append(Finding(self.place, check, State.FAIL, says, do))

    def skip(self, checks: str, because: str) -> None:
        self.append(Finding(self.place, checks, State.SKIP, because))
