"""The life of a call, written once: arguments, plan, check, gate, apply, follow, record."""

from __future__ import annotations

import difflib
import re
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from quorate.operations.plan import Plan
from quorate.operations.registry import Illustrated, Operation, Risk, Table, operations
from quorate.pipeline import telling
from quorate.pipeline.apply import Step, apply, confirm_identity
from quorate.pipeline.arguments import decode
from quorate.pipeline.caller import Caller, Exchange
from quorate.pipeline.check import check
from quorate.pipeline.gate import Gate
from quorate.pipeline.record import Record
from quorate.pipeline.redact import Redactor, secrets_in
from quorate.pipeline.sanitise import clean
from quorate.pve.clock import Clock, SystemClock
from quorate.pve.cluster import Cluster
from quorate.pve.errors import BadArgument, Conflict, NotConfigured, Problem, TaskFailed
from quorate.pve.tasks import Report
from quorate.state.audit import AuditTrail

OTHER_PLANS = 20  # how often an id may be snatched away before we give up
# A lock or a running guest would meet the next plan as well; an id that was taken or a guest that moved would not.
_OVERTAKEN = re.compile(r"already exists|backed up nothing")
_ID_TAKEN = re.compile(r"\.conf' failed: File exists|(?:VM|CT) \d+ already exists on node")


@dataclass(frozen=True, slots=True)
class Result:
    """What the caller gets: facts, clean and without secrets, and PNG pictures where asked for."""

    data: dict[str, Any] | Table
    failed: bool = False
    pictures: tuple[bytes, ...] = ()


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
        self._clock: Clock = cluster.clock if cluster else SystemClock()
        self._audit = audit
        self._wait_seconds = wait_seconds
        self._problem = problem
        self._redactor = Redactor()

    def visible(self, caller: Caller | None = None) -> list[Operation]:
        caller = caller or Caller()
        offered = operations(self.gate.toolsets).values()
        return [operation for operation in offered if self.gate.objection(operation, caller) is None]

    async def run(self, name: str, given: Mapping[str, Any], exchange: Exchange) -> Result:
        """Run one operation. Raises Problem, already without secrets, when there is no answer to give."""
        self._redactor.add(secrets_in(given))
        exchange = replace(exchange, report=self._presentable_report(exchange.report))
        try:
            operation = operations(self.gate.toolsets).get(name) or _find(name)
            risk = _risk(operation, given)
            if risk in (Risk.CHANGE, Risk.DESTROY):
                return await self._change(operation, risk, given, exchange)
            return await self._read(operation, risk, given, exchange)
        except Problem as problem:
            raise self._presentable(problem) from None

    def trace_of(self, error: Exception) -> str:
        """Where a defect of ours came from, without secrets, for the log."""
        return str(self._without_secrets("".join(traceback.format_exception(error))))

    # -- reads -----------------------------------------------------------------------------------------------------

    async def _read(self, operation: Operation, risk: Risk, given: Mapping[str, Any], exchange: Exchange) -> Result:
        self._pass_gate(operation, exchange.caller, risk)
        arguments = decode(operation, given)
        for name in ("dry_run", "wait") if operation.changes else ():
            arguments.pop(name)
        if operation.wants_report:
            arguments["report"] = exchange.report
        data = await operation.run(self._reachable(), **arguments)
        if isinstance(data, Illustrated):
            return Result(self._leaving(data.facts), pictures=data.pictures)
        return Result(self._leaving(data))

    # -- changes ---------------------------------------------------------------------------------------------------

    async def _change(self, operation: Operation, risk: Risk, given: Mapping[str, Any], exchange: Exchange) -> Result:
        record = Record(operation.name, risk.value, given, exchange.caller)
        begun = self._clock.monotonic()
        try:
            return await self._decide(operation, risk, given, record, exchange)
        except Problem as problem:
            if record.outcome not in ("refused", "unknown"):
                record.outcome = "failed"
            record.error = record.error or str(problem)
            raise
        finally:
            self._write(record, self._clock.monotonic() - begun)

    async def _decide(
        self, operation: Operation, risk: Risk, given: Mapping[str, Any], record: Record, exchange: Exchange
    ) -> Result:
        try:
            self._pass_gate(operation, exchange.caller, risk)
        except Problem:
            record.decision, record.outcome = "refused", "refused"
            raise
        arguments = decode(operation, given)
        record.dry_run, wait = arguments.pop("dry_run"), arguments.pop("wait")
        self._audit.ensure_writable()
        cluster = self._reachable()
        plan: Plan = await operation.run(cluster, **arguments)
        record.planned(plan)
        try:
            return await self._act_on(cluster, plan, risk, wait, record, exchange)
        finally:  # an id that was only planned is free again; one that has become a guest PVE itself knows
            cluster.reserved_vmids -= {call.params.get(key) for call in plan.api_calls for key in ("vmid", "newid")}

    async def _act_on(
        self, cluster: Cluster, plan: Plan, risk: Risk, wait: float | None, record: Record, exchange: Exchange
    ) -> Result:
        await check(cluster, plan)
        if record.dry_run:
            record.outcome = "dry run"
            return Result(self._leaving(telling.dry_run(plan)))
        if not plan.calls:
            record.outcome = "nothing to do"
            return Result(self._leaving(telling.nothing_to_do(plan)), failed=bool(plan.failures))
        if risk is Risk.DESTROY:
            await confirm_identity(cluster, plan)
        wait = self._wait_seconds if wait is None else wait
        plan = await self._carry_out(cluster, plan, record, wait, exchange.report)
        record.applied()
        return await self._outcome(plan, record.steps)

    async def _carry_out(
        self, cluster: Cluster, plan: Plan, record: Record, wait: float, report: Report | None
    ) -> Plan:
        """Apply the plan, or the one that takes its place; the record knows the steps as they happen."""
        await apply(cluster, plan, record.steps, wait=wait, report=report)
        for _ in range(OTHER_PLANS):
            if plan.otherwise is None or not _refused_at_once(record.steps[plan.contested]):
                break
            plan = await plan.otherwise()
            record.planned(plan)
            await check(cluster, plan)
            await apply(cluster, plan, record.steps, wait=wait, report=report)
        return plan

    async def _outcome(self, plan: Plan, steps: list[Step]) -> Result:
        """A single call that failed is told as the error it is; otherwise every step is listed with its state."""
        if len(steps) == 1 and steps[0].problem is not None and not plan.failures:
            raise _single_failure(steps[0], steps[0].problem)
        told = telling.outcome(plan, steps)
        done = all(step.state in ("done", "warnings") for step in steps)
        if plan.after and done:
            told |= await _read_back(plan.after)
        facts = self._leaving(told)
        if plan.from_answers and done:  # not redacted: a new secret is shown here, once, and nowhere else
            facts |= clean(plan.from_answers([step.answer for step in steps]))
        return Result(facts, failed=bool(plan.failures) or any(step.state in ("failed", "unknown") for step in steps))

    def _write(self, record: Record, seconds: float) -> None:
        cluster = self._cluster.name if self._cluster else ""
        entry = record.entry(now=self._clock.time(), seconds=seconds, cluster=cluster, access=self.gate.access.value)
        self._audit.record(clean(self._without_secrets(entry)))

    # -- what all calls share --------------------------------------------------------------------------------------

    def _pass_gate(self, operation: Operation, caller: Caller, risk: Risk) -> None:
        if objection := self.gate.objection(operation, caller, risk):
            raise objection

    def _reachable(self) -> Cluster:
        if self._cluster is None:
            raise NotConfigured(self._problem or "No Proxmox VE cluster is configured")
        return self._cluster

    def _without_secrets(self, value: Any) -> Any:
        if self._cluster is not None and self._cluster.is_open:
            self._redactor.add(self._cluster.client.secrets())
        return self._redactor.value(value)

    def _presentable_report(self, report: Report | None) -> Report | None:
        """Progress, too, leaves only clean and without secrets: its lines come from logs."""
        if report is None:
            return None

        async def tell(done: float, whole: float | None, line: str) -> None:
            await report(done, whole, self._leaving(line))

        return tell

    def _leaving(self, data: Any) -> Any:
        if isinstance(data, Table):
            data.rows = clean(self._without_secrets(data.rows))
            data.facts = clean(self._without_secrets(data.facts))
            return data
        return clean(self._without_secrets(data))

    def _presentable(self, problem: Problem) -> Problem:
        problem.what = self._leaving(problem.what)
        problem.why = self._leaving(problem.why)
        problem.next_step = self._leaving(problem.next_step)
        problem.facts = self._leaving(problem.facts)
        return problem


def _find(name: str) -> Operation:
    """An operation of any toolset, so that one that is switched off is refused with the reason."""
    found = operations().get(name)
    if found is None:
        near = difflib.get_close_matches(name, operations(), 1)
        raise BadArgument(
            f"There is no tool {name!r}",
            next_step=f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(operations())}",
        )
    return found


def _risk(operation: Operation, given: Mapping[str, Any]) -> Risk:
    """What this very call can do: fixed for most operations, by method and path for a call of the raw API."""
    return operation.risk if operation.risk_of is None else operation.risk_of(decode(operation, given))


def _refused_at_once(contested: Step) -> bool:
    """PVE said no to the call before any work began, so nothing has happened yet.

    An id that a guest of another node or type has taken is found out only by the task, which then has done nothing.
    """
    if contested.task is None:
        return isinstance(contested.problem, Conflict) and _OVERTAKEN.search(str(contested.problem)) is not None
    return contested.problem is not None and _ID_TAKEN.search(str(contested.problem)) is not None


async def _read_back(after: Callable[[], Awaitable[Mapping[str, Any]]]) -> Mapping[str, Any]:
    """Facts for the answer. The calls are done: if these cannot be read, that is a remark and no failure.

    A TaskFailed is the finding itself: what the calls set in motion went wrong.
    """
    try:
        return await after()
    except TaskFailed:
        raise
    except Problem as problem:
        return {"note": f"It is done, but reading the result failed: {problem}"}


def _single_failure(step: Step, problem: Problem) -> Problem:
    fate = "" if step.state == "unknown" else "not done. "
    problem.what = f"{step.call.says}: {fate}{problem.what}"
    problem.facts |= {"task": step.task.text} if step.task else {}
    problem.facts |= {"log": step.log} if step.log else {}
    return problem
