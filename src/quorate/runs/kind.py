"""What a kind of run has to say: its next steps, and what the result of a step means.

A kind keeps no program counter. It is asked again after every step, and after a crash, and decides from fresh facts and
`run.memory`, so a run continues from what is true.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from quorate.operations.registry import operations
from quorate.pve.cluster import Cluster
from quorate.runs.store import Pending, Run, RunState, decode_run, encode_run
from quorate.state.journal import Outcome

FAILURES = "failures"
"""In a run's memory: what went wrong, by the key of the step."""
POLL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Step:
    """A call of an operation. Of two with the same key, only one is in progress at a time."""

    key: str
    tool: str
    arguments: Mapping[str, Any]
    summary: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """How a step ended. After a crash, only the outcome is known."""

    outcome: Outcome
    error: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    pictures: tuple[bytes, ...] = ()
    is_trouble: bool = False
    """Nothing was done because something did not answer."""

    @property
    def is_done(self) -> bool:
        return self.outcome in (Outcome.DONE, Outcome.WARNINGS, Outcome.NOTHING) and not self.error

    @property
    def lost_output(self) -> bool:
        """True for a command that may have run to its end while its result was lost with a server."""
        return self.outcome is Outcome.UNKNOWN or (self.is_done and not {"exit_code", "signal"} & self.data.keys())

    @property
    def failure(self) -> str:
        """Why a command did not succeed; empty if it did."""
        if self.error or not (self.is_done or self.outcome is Outcome.COMMAND_FAILED):
            return self.error or self.outcome.value
        if late := self.data.get("timed_out"):
            return str(late)
        if signal := self.data.get("signal"):
            return f"it was terminated by signal {signal}"
        code = self.data.get("exit_code")
        if code is None and self.outcome is Outcome.COMMAND_FAILED:
            return self.outcome.value
        return f"exit code {code}" if code != 0 else ""

    @property
    def was_sent(self) -> bool:
        return self.outcome is not Outcome.NOT_DONE


@dataclass(frozen=True, slots=True)
class Next:
    """What to do now: steps to start, or something to wait for, or the end."""

    steps: tuple[Step, ...] = ()
    waits_for: str = ""
    seconds: float = POLL_SECONDS
    ends: RunState | None = None
    summary: str = ""
    pause: str = ""
    """A problem that a person has to look at; the run can be resumed afterwards."""


def finish(summary: str) -> Next:
    return Next(ends=RunState.DONE, summary=summary)


def fail(summary: str) -> Next:
    return Next(ends=RunState.FAILED, summary=summary)


@dataclass(slots=True)
class Work:
    """What a kind decides from. It may change `run.memory` and `run.report`; the worker saves both."""

    pve: Cluster
    """The run's cluster as its caller sees it."""
    run: Run
    clusters: Mapping[str, Cluster] = field(default_factory=dict)
    """All clusters that the caller reaches."""
    busy: Collection[str] = ()
    """Keys of steps in progress."""
    lines: list[str] = field(default_factory=list)
    """New lines for the log."""
    closing: bool = False
    """Its window has closed."""

    @property
    def aborting(self) -> bool:
        return self.run.state is RunState.ABORTING

    @property
    def scope(self) -> dict[str, Any]:
        return self.run.scope

    @property
    def memory(self) -> dict[str, Any]:
        return self.run.memory

    def say(self, text: str) -> None:
        self.lines.append(text)


class Kind(Protocol):
    @property
    def name(self) -> str: ...

    async def next(self, work: Work) -> Next:
        """While `work.aborting`, only what has to be cleaned up; while `work.closing`, what must not wait for days."""

    def settle(self, run: Run, key: str, step: Pending, result: StepResult) -> None:
        """Remember what the end of a step means. It may run again, on a newer version of the run."""

    async def list_unfinished(self, work: Work) -> list[str]:
        """What an aborted run leaves undone."""


_kinds: dict[str, Kind] = {}


def declare(*kinds: Kind) -> None:
    for kind in kinds:
        _kinds[kind.name] = kind


def find_kind(name: str) -> Kind | None:
    operations(["runs"])  # the modules of the toolset declare their kinds
    return _kinds.get(name)


def remember_failure(run: Run, key: str, result: StepResult) -> None:
    """A step that was never sent is derived again; any other failure is remembered."""
    if not result.is_done and result.was_sent:
        run.memory.setdefault(FAILURES, {})[key] = result.error or result.outcome.value


def editable(run: Run) -> Run:
    """A copy through the stored form, which takes a fifth of the time of a deep copy."""
    return decode_run(encode_run(run))
