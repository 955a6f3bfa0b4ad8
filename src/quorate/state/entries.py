"""The records of a change, folded into the entry that people read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from quorate.state.outcomes import Outcome

CHANGE = "change"
"""The id that all records of a change carry."""
PHASE = "phase"
INTENT, PLAN, STEP, OUTCOME = "intent", "plan", "step", "outcome"
_OF_THE_LINE = ("seq", "prev", "hash", PHASE, CHANGE)


def is_continuation(entry: Mapping[str, Any]) -> bool:
    """Whether the record continues a change that another one began."""
    return CHANGE in entry and entry.get(PHASE) != INTENT


def fold_change(intent: Mapping[str, Any], later: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One entry: the intent, every answer under `answers`, and the last outcome."""
    whole: dict[str, Any] = {name: value for name, value in intent.items() if name != PHASE}
    whole |= {"outcome": Outcome.UNFINISHED.value, "final": False}
    answers: list[dict[str, Any]] = []
    for line in later:
        said = {name: value for name, value in line.items() if name not in _OF_THE_LINE}
        match line.get(PHASE):
            case "step":
                answers.append(said)
            case "plan":
                whole |= said
                whole.setdefault("earlier_answers", []).extend(answers)
                answers = []
            case _:
                whole |= {("closed" if name == "time" else name): value for name, value in said.items()}
                whole["closed_by"] = line.get("seq")
    if answers:
        whole["answers"] = answers
        whole.setdefault("tasks", [one["task"] for one in answers if "task" in one])
    return whole


class Folding:
    """Folds records while a trail is read backward."""

    def __init__(self) -> None:
        self._later: dict[str, list[dict[str, Any]]] = {}

    def fold_back(self, entry: dict[str, Any] | None) -> dict[str, Any] | None:
        """The whole entry once its first record is reached, otherwise None."""
        if entry is None or CHANGE not in entry:
            return entry
        if is_continuation(entry):
            self._later.setdefault(str(entry[CHANGE]), []).append(entry)
            return None
        return fold_change(entry, reversed(self._later.pop(str(entry[CHANGE]), [])))


def fold(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """All entries, oldest first."""
    folding = Folding()
    found = [folding.fold_back(entry) for entry in reversed(list(entries))]
    return [entry for entry in reversed(found) if entry is not None]
