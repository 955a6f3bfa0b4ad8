"""One step of a plan while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from quorate.hints import Advice
from quorate.operations.plan import Action, Call
from quorate.operations.units import duration
from quorate.pipeline.effect import Before
from quorate.problems import Overtaken, Problem
from quorate.pve.tasks import Upid
from quorate.state.outcomes import StepState

_ENDED = (StepState.DONE, StepState.WARNINGS, StepState.FAILED)


@dataclass(slots=True)
class Step:
    """A call or action of the plan, and its result."""

    call: Call | Action
    before: Before | None = None
    """What PVE showed before it was sent, if anything shows its effect."""
    observe_late: bool = False
    """An earlier step changes what it is about, so that is read again when its turn comes."""
    state: StepState = StepState.NOT_TRIED
    task: Upid | None = None
    problem: Problem | None = None
    note: str | Advice | None = None
    seconds: float = 0.0
    log: list[str] = field(default_factory=list)
    answer: Any = None
    id_taken: bool = False
    """Its task found the id taken by another guest and did nothing."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    next_step: str | Advice | None = None
    fault: str = ""
    """Of a command that ran: how it failed."""

    @property
    def overtaken(self) -> bool:
        """PVE refused it before any work began, for a reason that another plan avoids: a taken id, a moved guest."""
        return isinstance(self.problem, Overtaken) or (self.task is not None and self.id_taken)

    def as_dict(self) -> dict[str, Any]:
        return {
            "step": self.call.summary,
            "state": self.fault or self.state,
            **({"task": self.task.text} if self.task else {}),
            **({"took": duration(self.seconds)} if self.task and self.state in _ENDED else {}),
            **({"why": self.problem.wording} if self.problem else {}),
            **({"log": self.log} if self.log else {}),
            **({"note": self.note} if self.note else {}),
            **self.facts,
        }


class StepLog(Protocol):
    """Records every step before it is sent and once it is answered: the journal."""

    origin: Mapping[str, Any]
    """Who calls, and with which approval."""

    async def permit(self) -> None:
        """Called before every step. Raises a Problem if the step must not be sent."""

    async def record_answer(self, step: Step) -> None: ...

    def within(self, step: Step) -> StepLog:
        """The log for the steps that make up this one."""
