"""A plan and its outcome, as the caller sees them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quorate.command_secrets import HIDDEN, shown_line
from quorate.hints import NAMED, TASK_WAIT, Advice
from quorate.operations.plan import Action, Call, Plan
from quorate.pipeline.authorization import Verdict
from quorate.pipeline.redaction import secret_parameters
from quorate.pipeline.step import Step
from quorate.pve import values
from quorate.state import outcomes
from quorate.state.outcomes import StepState

_ENDPOINT = "target-endpoint"
"""The parameter that names the cluster a guest moves to; it contains its token."""
_ADDRESS = ("host", "port", "fingerprint")


def call_line(call: Call | Action) -> str:
    """A step on one line, without secrets: `POST /nodes/pve1/qemu vmid=100 cores=2`."""
    if isinstance(call, Action):
        return call.line
    params = (
        f"{name}={one}"
        for name, value in redacted_params(call).items()
        for one in (value if isinstance(value, (list, tuple)) else (value,))  # a repeated key is shown each time
    )
    return " ".join([call.method, call.path, *params])


def redacted_params(call: Call) -> dict[str, Any]:
    """The parameters of a call as they are sent, without secrets."""
    hidden = secret_parameters(call.path) - {_ENDPOINT}
    return {name: HIDDEN if name in hidden else _redact(name, value) for name, value in call.params.items()}


def _redact(name: str, value: Any) -> Any:
    """A command for a guest is shown without the secrets that people write into commands, an address without its."""
    if name == _ENDPOINT:
        parts = values.parse(str(value))
        return values.build({name: one if name in _ADDRESS else HIDDEN for name, one in parts.items()})
    if name != "command":
        return value
    return shown_line(shlex.join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))


def dry_run(plan: Plan, checked: str, verdict: Verdict, lost: Sequence[str] = ()) -> dict[str, Any]:
    """`checked` says what was checked, `lost` lists what would be destroyed. What forbids it for the moment, such as
    quiet hours, is said, and why it is riskier than its tool."""
    again = Advice(f"{checked}; call again without {{dry_run}} to do it", dry_run=NAMED)
    return {
        "result": "dry run, nothing was changed",
        "plan": plan.summary,
        "steps": [{"step": call.summary, "call": call_line(call)} for call in plan.calls],
        **({"lost": list(lost)} if lost else {}),
        **_remarks(plan),
        **({"risk": f"{verdict.risk.value}: {verdict.why}"} if verdict.why else {}),
        **({"not_now": str(verdict.passing)} if verdict.passing else {}),
        "next": again if plan.calls else "There is nothing to do",
    }


def nothing_to_do(plan: Plan) -> dict[str, Any]:
    return {"result": "failed" if plan.failures else "nothing to do", "plan": plan.summary, **_remarks(plan)}


def outcome(plan: Plan, steps: list[Step]) -> dict[str, Any]:
    if all(step.state.is_done for step in steps[: plan.first]):  # the plan's facts name the snapshots
        steps, plan = steps[plan.first :], replace(plan, first=0)
    lanes = [*([step] for step in steps[: plan.first]), *plan.lanes(steps)] if plan.columns else []
    counted = [_decisive(lane) for lane in lanes] or steps
    result = overall(counted) if not plan.failures else _part(counted, len(plan.failures))
    described = [step.as_dict() for step in steps]
    body: dict[str, Any]
    if plan.columns:
        body = {"hosts": _table(plan, lanes)}
        plan = replace(plan, failures=())
    elif len(described) == 1:
        body = {key: value for key, value in described[0].items() if key not in ("step", "state")}
    else:
        body = {"steps": described}
    next_step = _next_step(plan, steps)
    return {
        "result": result,
        "plan": plan.summary,
        **body,
        **_remarks(plan),
        **({"next": next_step} if next_step else {}),
    }


def _decisive(lane: Sequence[Step]) -> Step:
    """The step that decides how a target fared: the first that is not done, else the last."""
    return next((step for step in lane if not step.state.is_done), lane[-1])


def _table(plan: Plan, lanes: list[Sequence[Step]]) -> dict[str, Any]:
    """One row for each target: those that could not be acted on, those that failed, then the rest."""
    columns = ["host", "state", *plan.columns, "why"]
    rows = [[one.target, "not tried", *("" for _ in plan.columns), one.why] for one in plan.failures]
    described = [
        (_decisive(lane), {name: value for step in lane for name, value in step.as_dict().items()}) for lane in lanes
    ]
    described.sort(key=lambda one: (one[0].problem is None, not one[0].fault))
    for step, facts in described:
        cells = [facts.get(name, "") for name in plan.columns]
        rows.append(
            [str(step.call.target), step.fault or str(step.state), *cells, facts.get("why", facts.get("note", ""))]
        )
    filled = [index for index in range(len(columns)) if any(row[index] not in ("", None) for row in rows)]
    return {"columns": [columns[index] for index in filled], "rows": [[row[index] for index in filled] for row in rows]}


def overall(steps: list[Step]) -> str:
    """One state for all steps, or how many of them are done."""
    states = {step.state for step in steps}
    faults = {step.fault for step in steps if step.fault}
    if len(faults) == 1 and states <= {StepState.COMMAND_FAILED, StepState.NOT_TRIED}:
        return faults.pop()
    if any(step.problem or step.fault for step in steps) and len(states) > 1:
        return _part(steps)
    if states == {StepState.NOT_TRIED}:
        return StepState.NOT_TRIED
    return outcomes.overall([step.state for step in steps if step.state is not StepState.NOT_TRIED])


def _part(steps: list[Step], more: int = 0) -> str:
    return f"{sum(step.state.is_done for step in steps)} of {len(steps) + more} done"


def _remarks(plan: Plan) -> dict[str, Any]:
    return {
        **plan.facts,
        **({"warnings": list(plan.warnings)} if plan.warnings else {}),
        **({"unchanged": list(plan.unchanged)} if plan.unchanged else {}),
        **({"failures": [str(one) for one in plan.failures]} if plan.failures else {}),
    }


def _merge_advice(advice: Sequence[str | Advice]) -> str | Advice:
    """One advice where those of several hosts differ only in the host; else the first."""
    first = advice[0]
    hosts = [one.tools[0].arguments.get("host") for one in advice if isinstance(one, Advice) and len(one.tools) == 1]
    if not isinstance(first, Advice) or len(hosts) != len(advice) or None in hosts or len(hosts) == 1:
        return first
    merged = [one.with_arguments(host=hosts) for one in advice if isinstance(one, Advice)]
    return merged[0] if all(one == merged[0] for one in merged) else first


def _next_step(plan: Plan, steps: list[Step]) -> str | Advice | None:
    advice = [step.next_step for step in steps if step.next_step]
    if advice:
        return _merge_advice(advice) if plan.columns else advice[0]
    running = next((step.task.text for step in steps if step.state is StepState.RUNNING and step.task), None)
    if running is None:
        return plan.next_step
    rest = [step.call.summary for step in steps if step.state is StepState.NOT_TRIED]
    after = f"; still to be done after it: {'; '.join(rest)}" if rest else ""
    return Advice(f"Follow it{after}", TASK_WAIT(task=running))
