"""The checks of `quorate doctor`. Each yields a finding and, if something is wrong, how to fix it."""

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
    target: str
    """A cluster, or this machine."""
    check: str
    state: State
    message: str
    do: str = ""
    """How to fix it."""
    commands: tuple[str, ...] = ()
    """To run on a node."""


class Findings(list[Finding]):
    """Findings of one place, in order."""

    def __init__(self, target: str) -> None:
        super().__init__()
        self.target = target

    def ok(self, check: str, message: str) -> None:
        self.append(Finding(self.target, check, State.OK, message))

    def warn(self, check: str, message: str, do: str) -> None:
        self.append(Finding(self.target, check, State.WARN, message, do))

    def fail(self, check: str, message: str, do: str) -> None:
        self.append(Finding(self.target, check, State.FAIL, message, do))

    def skip(self, checks: str, because: str) -> None:
        self.append(Finding(self.target, checks, State.SKIP, because))
