"""The life of a call, written once: arguments, plan, check, gate, apply, follow, record."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quorate.operations.plan import Call, Plan
from quorate.operations.registry import Operation, Risk, Table, operations
from quorate.operations.units import moment
from quorate.pipeline.apply import Step, apply, confirm_identity
from quorate.pipeline.arguments import decode
from quorate.pipeline.check import check
from quorate.pipeline.gate import Gate
from quorate.pipeline.redact import HIDDEN, SECRET_KEYS, Redactor, secrets_in
from quorate.pipeline.sanitise import clean
from quorate.pve.cluster import Cluster
from quorate.pve.errors import BadArgument, Conflict, NotConfigured, Problem
from quorate.pve.tasks import Report
from quorate.state.audit import AuditTrail

OTHER_PLANS = 20  # how often an id may be snatched away before we give up


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the client program and the way it came in."""

    client: str = "unknown"
    transport: str = "stdio"


@dataclass(frozen=True, slots=True)
class Result:
    """What the caller gets: facts, clean and without secrets."""

    data: dict[str, Any] | Table
    failed: bool = False


@dataclass(slots=True)
class _Record:
    """What the audit trail will say about one change."""

    tool: str
    risk: str
    arguments: Mapping[str, Any]
    caller: Caller
    decision: str = "allowed"
    dry_run: bool = False
    plan: str = ""
    calls: list[str] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    outcome: str = "interrupted"
    error: str = ""


class Pipeline:
    def __init__(
        self,
        cluster: Cluster | None,
        gate: Gate,
        audit: AuditTrail,
        *,
        wait_seconds: float = 45.0,
        problem: str | None = None,
    ) -> None:
        self.gate = gate
        self._cluster = cluster
        self._audit = audit
        self._wait_seconds = wait_seconds
        self._problem = problem
        self._redactor = Redactor()

    def visible(self) -> list[Operation]:
        return [operation for operation in operations().values() if self.gate.objection(operation) is None]

    async def run(self, name: str, given: Mapping[str, Any], caller: Caller, report: Report | None = None) -> Result:
        """Run one operation. Raises Problem, already without secrets, when there is no answer to give."""
        try:
            operation = _find(name)
            if operation.changes:
                return await self._change(operation, given, caller, report)
            return await self._read(operation, given, report)
        except Problem as problem:
            raise self._presentable(problem) from None

    # -- reads -----------------------------------------------------------------------------------------------------

    async def _read(self, operation: Operation, given: Mapping[str, Any], report: Report | None) -> Result:
        self._pass_gate(operation)
        arguments = decode(operation, given)
        if operation.wants_report:
            arguments["report"] = report
        data = await operation.run(self._reachable(), **arguments)
        return Result(self._leaving(data))

    # -- changes ---------------------------------------------------------------------------------------------------

    async def _change(
        self, operation: Operation, given: Mapping[str, Any], caller: Caller, report: Report | None
    ) -> Result:
        record = _Record(operation.name, operation.risk.value, given, caller)
        clock = self._cluster.clock if self._cluster else None
        begun = clock.monotonic() if clock else 0.0
        try:
            return await self._decide(operation, given, record, report)
        except Problem as problem:
            if record.decision == "allowed":
                record.outcome = "failed"
            record.error = str(problem)
            raise
        finally:
            self._write(record, (clock.monotonic() - begun) if clock else 0.0, clock.time() if clock else None)

    async def _decide(
        self, operation: Operation, given: Mapping[str, Any], record: _Record, report: Report | None
    ) -> Result:
        try:
            self._pass_gate(operation)
        except Problem:
            record.decision, record.outcome = "refused", "refused"
            raise
        arguments = decode(operation, given)
        self._redactor.add(secrets_in(given))
        record.dry_run, wait = arguments.pop("dry_run"), arguments.pop("wait")
        self._audit.ensure_writable()
        cluster = self._reachable()
        plan: Plan = await operation.run(cluster, **arguments)
        record.plan, record.calls = plan.summary, [_line(call) for call in plan.calls]
        await check(cluster, plan)
        if record.dry_run:
            record.outcome = "dry run"
            return Result(self._leaving(_show(plan)))
        if not plan.calls:
            record.outcome = "nothing to do"
            return Result(self._leaving(_nothing(plan)))
        if operation.risk is Risk.DESTROY:
            await confirm_identity(cluster, plan)
        wait = self._wait_seconds if wait is None else wait
        steps = await apply(cluster, plan, wait=wait, report=report)
        for _ in range(OTHER_PLANS):
            if plan.otherwise is None or not _refused_at_once(steps):
                break
            plan = await plan.otherwise()
            record.plan, record.calls = plan.summary, [_line(call) for call in plan.calls]
            await check(cluster, plan)
            steps = await apply(cluster, plan, wait=wait, report=report)
        record.tasks = [step.task.text for step in steps if step.task]
        record.outcome = _overall(steps)
        record.error = "; ".join(str(step.problem) for step in steps if step.problem)
        return await self._outcome(plan, steps)

    async def _outcome(self, plan: Plan, steps: list[Step]) -> Result:
        """A single call that failed is told as the error it is; otherwise every step is listed with its state."""
        if len(steps) == 1 and steps[0].problem is not None:
            step = steps[0]
            problem = steps[0].problem
            problem.facts.update({"task": step.task.text} if step.task else {})
            if step.log:
                problem.facts["log"] = step.log
            problem.what = f"{step.call.says}: not done. {problem.what}"
            raise problem
        done = all(step.state in ("done", "warnings") for step in steps)
        after = await plan.after() if plan.after and done else {}
        told = {**_tell(plan, steps), **after}
        return Result(self._leaving(told), failed=any(step.state == "failed" for step in steps))

    def _write(self, record: _Record, seconds: float, now: float | None) -> None:
        entry = {
            "time": moment(now) if now is not None else "",
            "caller": {"client": record.caller.client, "transport": record.caller.transport},
            "cluster": self._cluster.name if self._cluster else "",
            "tool": record.tool,
            "risk": record.risk,
            "access": self.gate.access.value,
            "arguments": dict(record.arguments),
            "decision": record.decision,
            "dry_run": record.dry_run,
            "plan": record.plan,
            "calls": record.calls,
            "tasks": record.tasks,
            "outcome": record.outcome,
            "error": record.error,
            "seconds": round(seconds, 3),
        }
        self._audit.record(clean(self._without_secrets(entry)))

    # -- what all calls share --------------------------------------------------------------------------------------

    def _pass_gate(self, operation: Operation) -> None:
        if objection := self.gate.objection(operation):
            raise objection

    def _reachable(self) -> Cluster:
        if self._cluster is None:
            raise NotConfigured(self._problem or "No Proxmox VE cluster is configured")
        return self._cluster

    def _without_secrets(self, value: Any) -> Any:
        if self._cluster is not None and self._cluster.is_open:
            self._redactor.add(self._cluster.client.secrets())
        return self._redactor.value(value)

    def _leaving(self, data: Any) -> Any:
        if isinstance(data, Table):
            data.rows = clean(self._without_secrets(data.rows))
            return data
        return clean(self._without_secrets(data))

    def _presentable(self, problem: Problem) -> Problem:
        problem.what = self._leaving(problem.what)
        problem.why = self._leaving(problem.why)
        problem.next_step = self._leaving(problem.next_step)
        problem.facts = self._leaving(problem.facts)
        return problem


def _find(name: str) -> Operation:
    found = operations().get(name)
    if found is None:
        near = difflib.get_close_matches(name, operations(), 1)
        raise BadArgument(
            f"There is no tool {name!r}",
            next_step=f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(operations())}",
        )
    return found


def _refused_at_once(steps: list[Step]) -> bool:
    """PVE said no to the first call before any work began, so nothing has happened yet."""
    first = steps[0]
    return first.task is None and isinstance(first.problem, Conflict)


def _line(call: Call) -> str:
    shown = " ".join(f"{name}={HIDDEN if name in SECRET_KEYS else value}" for name, value in call.params.items())
    return f"{call.method} {call.path} {shown}".strip()


def _show(plan: Plan) -> dict[str, Any]:
    return {
        "result": "dry run, nothing was changed",
        "plan": plan.summary,
        "steps": [{"step": call.says, "call": _line(call)} for call in plan.calls],
        **plan.facts,
        **({"warnings": list(plan.warnings)} if plan.warnings else {}),
        **({"unchanged": list(plan.unchanged)} if plan.unchanged else {}),
        "next": "The parameters and privileges are checked; call again without dry_run to do it"
        if plan.calls
        else "There is nothing to do",
    }


def _nothing(plan: Plan) -> dict[str, Any]:
    return {"result": "nothing to do", "plan": plan.summary, "unchanged": list(plan.unchanged)}


def _tell(plan: Plan, steps: list[Step]) -> dict[str, Any]:
    running = [step.task.text for step in steps if step.state == "running" and step.task]
    described = [step.describe() for step in steps]
    if len(described) == 1:
        described[0].pop("step")
        described[0].pop("state")
        body: dict[str, Any] = described[0]
    else:
        body = {"steps": described}
    next_step = f"Follow it with task_wait task={running[0]}" if running else plan.next_step
    return {
        "result": _overall(steps),
        "plan": plan.summary,
        **body,
        **plan.facts,
        **({"warnings": list(plan.warnings)} if plan.warnings else {}),
        **({"unchanged": list(plan.unchanged)} if plan.unchanged else {}),
        **({"next": next_step} if next_step else {}),
    }


def _overall(steps: list[Step]) -> str:
    states = [step.state for step in steps]
    if len(set(states)) == 1:
        return "done with warnings" if states[0] == "warnings" else states[0]
    if any(state in ("failed", "not tried") for state in states):
        return f"{sum(state in ('done', 'warnings') for state in states)} of {len(states)} done"
    return "running" if "running" in states else "done with warnings"
