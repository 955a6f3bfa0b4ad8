"""The outcomes of a change and the states of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum


class Outcome(StrEnum):
    """How a change ended."""

    DONE = "done"
    WARNINGS = "done with warnings"
    STARTED = "started"
    """A run was started, which does the work later."""
    PARTLY = "partly done"
    NOT_DONE = "not done"
    """Nothing was sent, or PVE shows no trace of it."""
    FAILED = "failed"
    COMMAND_FAILED = "command failed"
    """The command ran and ended with an error, or was stopped at its time limit."""
    RUNNING = "running"
    UNKNOWN = "unknown"
    """It was sent, or may have been, and its result cannot be established."""
    INTERRUPTED = "interrupted"
    """The caller went away. The steps name what was sent by then; it is looked up later."""
    UNFINISHED = "unfinished"
    """Started, and no outcome is written: the process is still running it, or it died."""
    REFUSED = "refused"
    ASKED = "asked"
    DRY_RUN = "dry run"
    NOTHING = "nothing to do"
    TERMINAL_OPENED = "terminal opened"
    TERMINAL_CLOSED = "terminal closed"


class StepState(StrEnum):
    """The state of one call or action."""

    NOT_TRIED = "not tried"
    SENT = "sent"
    """Sent, or answered with a task that was not followed to its end."""
    RUNNING = "running"
    DONE = "done"
    WARNINGS = "warnings"
    STARTED = "started"
    """A run was started."""
    FAILED = "failed"
    COMMAND_FAILED = "command failed"
    UNKNOWN = "unknown"

    @property
    def is_done(self) -> bool:
        return self in (StepState.DONE, StepState.WARNINGS, StepState.STARTED)

    @property
    def is_open(self) -> bool:
        """Whether PVE may know more about it later."""
        return self in (StepState.SENT, StepState.RUNNING, StepState.UNKNOWN)


def overall(states: Sequence[StepState]) -> Outcome:
    """The outcome of a change whose steps ended in these states."""
    found = set(states)
    if found <= {StepState.DONE}:
        return Outcome.DONE
    if found <= {StepState.DONE, StepState.WARNINGS}:
        return Outcome.WARNINGS
    if found <= {StepState.DONE, StepState.WARNINGS, StepState.STARTED}:
        return Outcome.STARTED
    if found == {StepState.NOT_TRIED}:
        return Outcome.NOT_DONE
    if found <= {StepState.COMMAND_FAILED, StepState.NOT_TRIED}:
        return Outcome.COMMAND_FAILED
    if found & {StepState.UNKNOWN, StepState.SENT}:
        return Outcome.UNKNOWN
    if StepState.RUNNING in found and StepState.FAILED not in found:
        return Outcome.RUNNING
    if any(state.is_done for state in found) or StepState.RUNNING in found:
        return Outcome.PARTLY
    return Outcome.FAILED
