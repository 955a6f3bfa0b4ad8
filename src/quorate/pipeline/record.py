"""What the audit trail says about one change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quorate.operations.plan import Plan
from quorate.operations.units import moment
from quorate.pipeline.apply import Step
from quorate.pipeline.caller import Caller
from quorate.pipeline.telling import call_line, overall
from quorate.pve.errors import Problem, Refused

LONGEST_TEXT = 4096
KEPT_TEXT = 64


@dataclass(slots=True)
class Record:
    """Filled in as the change goes on; whatever happens, it is written."""

    tool: str
    risk: str
    arguments: Mapping[str, Any]
    caller: Caller
    cluster: str = ""
    access: str = ""
    decision: str = "allowed"
    rule: str = ""
    """Which rule or limit refused it."""
    approval: str = "not asked for"
    dry_run: bool = False
    plan: str = ""
    calls: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    outcome: str = "interrupted"
    error: str = ""
    unrecorded: frozenset[str] = frozenset()
    """Arguments of which only the length is kept."""

    def planned(self, plan: Plan) -> None:
        self.plan, self.calls = plan.summary, [call_line(call) for call in plan.calls]
        self.steps = [Step(call) for call in plan.calls]

    def applied(self) -> None:
        self.outcome = overall(self.steps)
        self.error = "; ".join(str(step.problem) for step in self.steps if step.problem)

    def failed(self, problem: Problem) -> None:
        if isinstance(problem, Refused):
            self.decision, self.outcome, self.rule = "refused", "refused", str(problem.facts.get("rule", ""))
        elif self.outcome not in ("refused", "unknown"):
            self.outcome = "failed"
        self.error = self.error or str(problem)

    def _recorded(self) -> dict[str, Any]:
        return {
            name: f"({len(str(value))} characters)" if name in self.unrecorded else value
            for name, value in self.arguments.items()
        }

    def entry(self, *, now: float, seconds: float) -> dict[str, Any]:
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
            "arguments": _shortened(self._recorded()),
            "decision": self.decision,
            **({"rule": self.rule} if self.rule else {}),
            "approval": self.approval,
            "dry_run": self.dry_run,
            "plan": self.plan,
            "calls": self.calls,
            "tasks": [step.task.text for step in self.steps if step.task],
            "outcome": self.outcome,
            "error": self.error,
            "seconds": round(seconds, 3),
        }


def _shortened(value: Any) -> Any:
    """The same structure without the bulk of long texts, such as a file that was sent along."""
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        return f"{value[:KEPT_TEXT]}… ({len(value)} characters)"
    if isinstance(value, dict):
        return {name: _shortened(one) for name, one in value.items()}
    return [_shortened(one) for one in value] if isinstance(value, list) else value
