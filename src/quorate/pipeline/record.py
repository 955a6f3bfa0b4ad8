"""A change while it runs: its steps, and what the journal and the caller see of them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from quorate.hints import NAMED, Advice, tools
from quorate.operations.plan import Action, Call, Plan
from quorate.pipeline.authorization import Verdict
from quorate.pipeline.caller import Caller
from quorate.problems import Overtaken, Problem, Refused
from quorate.pve import values
from quorate.pve.connection import Clock
from quorate.pve.effect import Before
from quorate.pve.tasks import Upid
from quorate.secret import HIDDEN, secret_parameters, shown_line, without_secrets
from quorate.state.chain import prune
from quorate.state.journal import Change, Outcome, StepState, overall
from quorate.units import duration, moment

_ENDED = (StepState.DONE, StepState.WARNINGS, StepState.FAILED)
_ENDPOINT = "target-endpoint"
"""The parameter that names the cluster a guest moves to; it contains its token."""
_ADDRESS = ("host", "port", "fingerprint")


@dataclass(slots=True)
class Step:
    """A call or action of the plan, and its result."""

    call: Call | Action
    before: Before | None = None
    """What PVE showed before it was sent, if anything shows its effect."""
    observe_late: bool = False
    """An earlier step changes its object, which is therefore read again when its turn comes."""
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
    """How a command that ran has failed."""

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


# -- calls as people read them -----------------------------------------------------------------------------------------


def call_line(call: Call | Action) -> str:
    """A step on one line, without secrets: `POST /nodes/pve1/qemu vmid=100 cores=2`."""
    if isinstance(call, Action):
        return call.line
    params = (
        f"{name}={item}"
        for name, value in redacted_params(call).items()
        for item in (value if isinstance(value, (list, tuple)) else (value,))  # a repeated key is shown each time
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
        return values.build({name: text if name in _ADDRESS else HIDDEN for name, text in parts.items()})
    if name != "command":
        return value
    return shown_line(shlex.join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))


# -- the journal -------------------------------------------------------------------------------------------------------


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
        endpoints = {self.cluster: self.endpoints, **{cluster.name: cluster.endpoints for cluster in others}}
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
        calls = [] if step.later else [wire_form(call, where) for call in step.needs]
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
        place = next((number for number, listed in enumerate(self.steps, 1) if listed is step), 0)
        if not place:
            self.steps.append(step)
            place = len(self.steps)
        return f"{self.within_step}.{place}" if self.within_step else str(place)


# -- what the caller sees ----------------------------------------------------------------------------------------------


def describe_dry_run(plan: Plan, checked: str, verdict: Verdict, lost: Sequence[str] = ()) -> dict[str, Any]:
    """The plan, with what was checked and what would be lost.

    It also says what forbids it at this moment, such as quiet hours, and why its risk is higher than the tool's.
    """
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


def describe_nothing_to_do(plan: Plan) -> dict[str, Any]:
    if plan.failures:
        return {"result": "failed", "plan": plan.summary, **_remarks(plan)}
    next_step = {"next": plan.next_step} if plan.next_step else {}
    return {"result": "nothing to do", "plan": plan.summary, **_remarks(plan), **next_step}


def describe_outcome(plan: Plan, steps: list[Step]) -> dict[str, Any]:
    if all(step.state.is_done for step in steps[: plan.first]):  # the plan's facts name the snapshots
        steps, plan = steps[plan.first :], replace(plan, first=0)
    lanes = [*([step] for step in steps[: plan.first]), *plan.lanes(steps)] if plan.columns else []
    counted = [_decisive(lane) for lane in lanes] or steps
    result = _overall(counted) if not plan.failures else _part(counted, len(plan.failures))
    described = [step.as_dict() for step in steps]
    body: dict[str, Any]
    if plan.columns:
        body = {"hosts": _table(plan, lanes)}
        plan = replace(plan, failures=())
    elif len(described) == 1:
        (step,) = steps
        says_more = isinstance(step.call, Call) and not step.call.summary.startswith(plan.summary)
        repeated = ("state",) if says_more else ("step", "state")
        body = {key: value for key, value in described[0].items() if key not in repeated}
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
    rows = [[failure.target, "not tried", *("" for _ in plan.columns), failure.why] for failure in plan.failures]
    described = [
        (_decisive(lane), {name: value for step in lane for name, value in step.as_dict().items()}) for lane in lanes
    ]
    described.sort(key=lambda pair: (pair[0].problem is None, not pair[0].fault))
    for step, facts in described:
        cells = [facts.get(name, "") for name in plan.columns]
        rows.append(
            [str(step.call.target), step.fault or str(step.state), *cells, facts.get("why", facts.get("note", ""))]
        )
    filled = [index for index in range(len(columns)) if any(row[index] not in ("", None) for row in rows)]
    return {"columns": [columns[index] for index in filled], "rows": [[row[index] for index in filled] for row in rows]}


def _overall(steps: list[Step]) -> str:
    """One state for all steps, or how many of them are done."""
    states = {step.state for step in steps}
    faults = {step.fault for step in steps if step.fault}
    if len(faults) == 1 and states <= {StepState.COMMAND_FAILED, StepState.NOT_TRIED}:
        return faults.pop()
    if any(step.problem or step.fault for step in steps) and len(states) > 1:
        return _part(steps)
    if states == {StepState.NOT_TRIED}:
        return StepState.NOT_TRIED
    return overall([step.state for step in steps if step.state is not StepState.NOT_TRIED])


def _part(steps: list[Step], more: int = 0) -> str:
    return f"{sum(step.state.is_done for step in steps)} of {len(steps) + more} done"


def _remarks(plan: Plan) -> dict[str, Any]:
    return {
        **plan.facts,
        **({"warnings": list(plan.warnings)} if plan.warnings else {}),
        **({"unchanged": list(plan.unchanged)} if plan.unchanged else {}),
        **({"failures": [str(failure) for failure in plan.failures]} if plan.failures else {}),
    }


def _merge_advice(advice: Sequence[str | Advice]) -> str | Advice:
    """One advice where those of several hosts differ only in the host; else the first."""
    first = advice[0]
    hosts = [
        hint.tools[0].arguments.get("host") for hint in advice if isinstance(hint, Advice) and len(hint.tools) == 1
    ]
    if not isinstance(first, Advice) or len(hosts) != len(advice) or None in hosts or len(hosts) == 1:
        return first
    merged = [hint.with_arguments(host=hosts) for hint in advice if isinstance(hint, Advice)]
    return merged[0] if all(hint == merged[0] for hint in merged) else first


def _next_step(plan: Plan, steps: list[Step]) -> str | Advice | None:
    if plan.if_it_fails and any(step.problem for step in steps) and any(step.state.is_done for step in steps):
        return plan.if_it_fails
    advice = [step.next_step for step in steps if step.next_step]
    if advice:
        return _merge_advice(advice) if plan.columns else advice[0]
    running = next((step.task.text for step in steps if step.state is StepState.RUNNING and step.task), None)
    if running is None:
        return plan.next_step
    rest = [step.call.summary for step in steps if step.state is StepState.NOT_TRIED]
    after = f"; still to be done after it: {'; '.join(rest)}" if rest else ""
    return Advice(f"Follow it{after}", tools.task_wait(task=running))
