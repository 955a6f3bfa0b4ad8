"""What the end of a step means for its run, and what the log says about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quorate.operations.registry import Table
from quorate.operations.runs.kind import StepResult
from quorate.pipeline.invocation import Result
from quorate.state.outcomes import Outcome
from quorate.state.runs import Pending, Run

TRIES, POSTPONED = "tries", "postponed"
"""Key in a run's memory: for each step, how often it could not be sent and why it waits."""
MOST_TRIES = 5
_NUMBERS = re.compile(r"\d+")


def as_step_result(answer: Result) -> StepResult | None:
    data = answer.data
    facts = {"rows": data.rows, "columns": data.columns} if isinstance(data, Table) else data
    outcome = answer.outcome or Outcome.DONE
    if outcome in (Outcome.RUNNING, Outcome.UNKNOWN, Outcome.INTERRUPTED):
        return None
    error = _why(facts) if answer.failed or outcome in (Outcome.FAILED, Outcome.PARTLY) else ""
    return StepResult(outcome, error, facts, answer.pictures)


def _why(facts: Mapping[str, Any]) -> str:
    steps = facts.get("steps") or ()
    found = [str(one["why"]) for one in steps if isinstance(one, Mapping) and one.get("why")]
    return "; ".join(found) or "it failed"


def limit_retries(run: Run, key: str, result: StepResult) -> StepResult:
    """Retry a step that could not be sent, but not forever."""
    tries = run.memory.setdefault(TRIES, {})
    if not result.is_trouble:
        tries.pop(key, None)
        return result
    tries[key] = int(tries.get(key, 0)) + 1
    return replace(result, outcome=Outcome.FAILED) if tries[key] >= MOST_TRIES else result


def is_repeated(run: Run, key: str, result: StepResult) -> bool:
    """Whether the log already says why this step has to wait: a limit may last for hours."""
    postponed = run.memory.setdefault(POSTPONED, {})
    if result.was_sent:
        postponed.pop(key, None)
        return False
    why = _NUMBERS.sub("", result.error)
    repeated: bool = postponed.get(key) == why
    postponed[key] = why
    return repeated


def line_of(pending: Pending, result: StepResult) -> str:
    if code := result.data.get("exit_code"):
        return f"{pending.says}: failed with exit code {code}"
    if result.data.get("signal"):
        return f"{pending.says}: {result.failure}"
    if result.is_done:
        return f"{pending.says}: {result.outcome.value}"
    return f"{pending.says}: {result.error or result.outcome.value}"
