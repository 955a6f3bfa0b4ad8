"""A plan and what became of it, in the words of the answer."""

from __future__ import annotations

import shlex
from typing import Any

from quorate.command_secrets import shown_line
from quorate.operations.plan import Action, Call, Plan
from quorate.pipeline.apply import Step
from quorate.pipeline.redact import HIDDEN, secret_parameters


def call_line(call: Call | Action) -> str:
    """A step on one line, without secrets: `POST /nodes/pve1/qemu vmid=100 cores=2`."""
    if isinstance(call, Action):
        return call.line
    hidden = secret_parameters(call.path)
    shown = " ".join(
        f"{name}={HIDDEN if name in hidden else _told(name, value)}" for name, value in call.params.items()
    )
    return f"{call.method} {call.path} {shown}".strip()


def _told(name: str, value: Any) -> Any:
    """A command for a guest is told without the secrets that people write into commands."""
    if name != "command":
        return value
    return shown_line(shlex.join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))


def dry_run(plan: Plan, not_now: str = "") -> dict[str, Any]:
    """`not_now` is what would stand against it at this moment, such as quiet hours."""
    checked = "The parameters and privileges are checked; call again without dry_run to do it"
    return {
        "result": "dry run, nothing was changed",
        "plan": plan.summary,
        "steps": [{"step": call.says, "call": call_line(call)} for call in plan.calls],
        **_remarks(plan),
        **({"not_now": not_now} if not_now else {}),
        "next": checked if plan.calls else "There is nothing to do",
    }


def nothing_to_do(plan: Plan) -> dict[str, Any]:
    return {"result": "failed" if plan.failures else "nothing to do", "plan": plan.summary, **_remarks(plan)}


def outcome(plan: Plan, steps: list[Step]) -> dict[str, Any]:
    described = [step.describe() for step in steps]
    if len(described) == 1:
        body = {key: value for key, value in described[0].items() if key not in ("step", "state")}
    else:
        body = {"steps": described}
    next_step = _next_step(plan, steps)
    return {
        "result": overall(steps) if not plan.failures else _part(steps, len(plan.failures)),
        "plan": plan.summary,
        **body,
        **_remarks(plan),
        **({"next": next_step} if next_step else {}),
    }


def overall(steps: list[Step]) -> str:
    """One word for all steps, or how many of them are done."""
    states = [step.state for step in steps]
    if len(set(states)) == 1:
        return "done with warnings" if states[0] == "warnings" else states[0]
    if "failed" in states or "unknown" in states:
        return _part(steps)
    return "running" if "running" in states else "done with warnings"


def _part(steps: list[Step], more: int = 0) -> str:
    return f"{sum(step.state in ('done', 'warnings') for step in steps)} of {len(steps) + more} done"


def _remarks(plan: Plan) -> dict[str, Any]:
    return {
        **plan.facts,
        **({"warnings": list(plan.warnings)} if plan.warnings else {}),
        **({"unchanged": list(plan.unchanged)} if plan.unchanged else {}),
        **({"failures": list(plan.failures)} if plan.failures else {}),
    }


def _next_step(plan: Plan, steps: list[Step]) -> str | None:
    if advice := next((step.next_step for step in steps if step.next_step), None):
        return advice
    running = next((step.task.text for step in steps if step.state == "running" and step.task), None)
    if running is None:
        return plan.next_step
    rest = [step.call.says for step in steps if step.state == "not tried"]
    after = f"; still to be done after it: {'; '.join(rest)}" if rest else ""
    return f"Follow it with task_wait task={running}{after}"
