"""What the journal says about one change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quorate.command_secrets import without_secrets
from quorate.operations.plan import Action, Call, Plan
from quorate.operations.units import moment
from quorate.pipeline.caller import Caller
from quorate.pipeline.responses import call_line, redacted_params
from quorate.pipeline.step import Step
from quorate.problems import Problem, Refused
from quorate.pve.clock import Clock
from quorate.state.canonical import prune
from quorate.state.journal import Change
from quorate.state.outcomes import Outcome, StepState, overall


@dataclass(slots=True)
class Record:
    """Filled in as the change proceeds; it is written whatever happens."""

    tool: str
    risk: str
    arguments: Mapping[str, Any]
    caller: Caller
    cluster: str = ""
    endpoints: tuple[str, ...] = ()
    access: str = ""
    decision: str = "allowed"
    rule: str = ""
    """Which rule or limit refused it."""
    approval: str = "not asked for"
    dry_run: bool = False
    plan: Plan | None = None
    steps: list[Step] = field(default_factory=list)
    outcome: Outcome = Outcome.INTERRUPTED
    error: str = ""
    unrecorded: frozenset[str] = frozenset()
    """Arguments of which only the length is kept."""
    replaced: list[dict[str, Any]] = field(default_factory=list)
    """The options that it changed, each before and after."""
    skew: Mapping[str, float | None] = field(default_factory=dict)
    """By cluster: seconds that its clock was ahead of this machine's when the intent was written."""

    def set_plan(self, plan: Plan) -> None:
        self.plan = plan
        self.steps = [Step(call) for call in plan.calls]

    def settle(self) -> None:
        self.outcome = overall([step.state for step in self.steps])
        self.error = "; ".join(str(step.problem or step.fault) for step in self.steps if step.problem or step.fault)

    def fail(self, problem: Problem) -> None:
        if isinstance(problem, Refused):
            self.decision, self.outcome, self.rule = "refused", Outcome.REFUSED, str(problem.facts.get("rule", ""))
        elif self.outcome not in (Outcome.ASKED, Outcome.REFUSED, Outcome.UNKNOWN):
            self.outcome = Outcome.FAILED
        self.error = self.error or str(problem)

    def wait_for_approval(self, approval: str = "") -> None:
        """A person has been asked and has not answered yet."""
        self.decision, self.outcome = "asked", Outcome.ASKED
        self.approval = f"waiting {approval}".strip()

    def refuse_unapproved(self, approval: str) -> None:
        self.decision, self.outcome = "refused", Outcome.REFUSED
        self.approval = f"missing {approval}".strip()

    @property
    def is_final(self) -> bool:
        """Whether PVE and the hosts can add nothing later."""
        return not any(_may_change(step) for step in self.steps)

    # -- as lines of the journal -----------------------------------------------------------------------------------

    def entry(self, *, now: float, seconds: float) -> dict[str, Any]:
        """The entry of a call that changed nothing, in one record."""
        return {**self._request(now), **self._plan_fields(), **self._outcome_fields(seconds)}

    def intent(self, now: float) -> dict[str, Any]:
        """Written before the first request."""
        return {**self._request(now), **self._plan_fields(), **self._wire()}

    def other_plan(self, now: float) -> dict[str, Any]:
        return {"time": moment(now), **self._plan_fields(), **self._wire()}

    def closing(self, *, now: float, seconds: float) -> dict[str, Any]:
        steps = [
            {"step": number, "state": step.state.value, **({"task": step.task.text} if step.task else {})}
            for number, step in enumerate(self.steps, 1)
        ]
        refused = {"decision": self.decision, "rule": self.rule} if self.decision == "refused" else {}
        replaced = {"replaced": self.replaced} if self.replaced else {}
        return {"time": moment(now), **refused, "steps": steps, **self._outcome_fields(seconds), **replaced}

    def _request(self, now: float) -> dict[str, Any]:
        return {
            "time": moment(now),
            "caller": {
                "client": self.caller.client,
                "transport": self.caller.transport,
                **({"subject": self.caller.subject} if self.caller.subject else {}),
            },
            "cluster": self.cluster,
            "tool": self.tool,
            "risk": self.risk,
            "access": self.access,
            "arguments": self._recordable_arguments(),
            "decision": self.decision,
            **({"rule": self.rule} if self.rule else {}),
            "approval": self.approval,
            "dry_run": self.dry_run,
        }

    def _recordable_arguments(self) -> Any:
        return prune(
            {
                name: f"({len(str(value))} characters)" if name in self.unrecorded else value
                for name, value in self.arguments.items()
            }
        )

    def _plan_fields(self) -> dict[str, Any]:
        plan = self.plan or Plan("")
        return {"plan": plan.summary, "calls": [without_secrets(call_line(call)) for call in plan.calls]}

    def _wire(self) -> dict[str, Any]:
        """What is needed to establish the outcome later."""
        plan = self.plan or Plan("")
        others = [step.where for step in plan.calls if isinstance(step, Action) and step.where is not None]
        endpoints = {self.cluster: self.endpoints, **{one.name: one.endpoints for one in others}}
        return {
            "independent": plan.independent,
            **({"sequences": list(plan.sequences)} if plan.sequences else {}),
            "wire": [
                {**wire_form(step.call, self.cluster), **({"before": step.before.as_dict()} if step.before else {})}
                for step in self.steps
            ],
            "skew": {name: round(seconds, 1) for name, seconds in self.skew.items() if seconds is not None},
            "endpoints": {name: list(where) for name, where in endpoints.items() if where},
        }

    def _outcome_fields(self, seconds: float) -> dict[str, Any]:
        return {
            "tasks": [step.task.text for step in self.steps if step.task],
            "outcome": self.outcome.value,
            "error": self.error,
            "seconds": round(seconds, 3),
        }


def wire_form(step: Call | Action, cluster: str) -> dict[str, Any]:
    """A step as the journal keeps it: where, what, and how its task can be found."""
    target = {"target": str(step.target)} if step.target else {}
    if isinstance(step, Action):
        where = step.where.name if step.where else cluster
        calls = [] if step.later else [wire_form(one, where) for one in step.needs]
        return {"cluster": where, "action": without_secrets(step.line), **target, "calls": calls}
    return {
        "cluster": cluster,
        "method": step.method,
        "path": step.path,
        "params": redacted_params(step),
        **({"task_id": step.task_id} if step.task_id is not None else {}),
        **({"upload": True} if step.upload is not None else {}),
        **({"task_unnamed": True} if step.task_unnamed else {}),
        **target,
    }


def _may_change(step: Step) -> bool:
    if isinstance(step.call, Action) and step.state is StepState.RUNNING:
        return False  # it continues on its own, and the caller knows how to follow it
    return step.state.is_open


@dataclass(slots=True)
class JournaledSteps:
    """Writes every answer to the journal as it arrives. What the journal cannot record is not sent."""

    change: Change
    steps: list[Step]
    sanitize: Callable[[Mapping[str, Any]], dict[str, Any]]
    clock: Clock
    cluster: str = ""
    within_step: str = ""
    """The number of the step that contains these steps."""
    origin: Mapping[str, Any] = field(default_factory=dict)

    async def permit(self) -> None:
        await self.change.ensure_ours()
        await self.change.journal.freeze.require_none()

    async def record_answer(self, step: Step) -> None:
        own = wire_form(step.call, self.cluster) if self.within_step and isinstance(step.call, Call) else {}
        line = {
            "time": moment(self.clock.time()),
            "step": self._number(step),
            "state": step.state.value,
            **({"task": step.task.text} if step.task else {}),
            **({"error": str(step.problem or step.fault)} if step.problem or step.fault else {}),
            **({"next": str(step.next_step)} if step.next_step else {}),
            **({"wire": own} if own else {}),
        }
        await self.change.record_answer(self.sanitize(line))

    def within(self, step: Step) -> JournaledSteps:
        number = self._number(step)
        return JournaledSteps(self.change, [], self.sanitize, self.clock, self.cluster, number, self.origin)

    def _number(self, step: Step) -> str:
        """Counted from 1; a part of step 2 is 2.1, and so on."""
        place = next((number for number, one in enumerate(self.steps, 1) if one is step), 0)
        if not place:
            self.steps.append(step)
            place = len(self.steps)
        return f"{self.within_step}.{place}" if self.within_step else str(place)
