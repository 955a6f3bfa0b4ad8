"""The life of a call, written once: arguments, plan, check, gate, apply, follow, record."""

from __future__ import annotations

import copy
import re
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from quorate.homelab.home import Homelab
from quorate.operations.meant import meant
from quorate.operations.plan import Plan
from quorate.operations.registry import Illustrated, Operation, Risk, Table, operation_named, operations
from quorate.pipeline import telling
from quorate.pipeline.apply import Step, apply, confirm_identity
from quorate.pipeline.approval import Approver, Wanted
from quorate.pipeline.arguments import decode
from quorate.pipeline.caller import AnswerLater, Caller, Exchange
from quorate.pipeline.check import check
from quorate.pipeline.gate import Gate
from quorate.pipeline.record import Record
from quorate.pipeline.redact import VERBATIM, Redactor, secrets_in
from quorate.pipeline.remarks import remarks
from quorate.pipeline.routing import CLUSTER, Route, route
from quorate.pipeline.sanitise import LONGEST, clean, one_line
from quorate.pipeline.sites import Site, Sites, counting
from quorate.pipeline.spanning import NO_ANSWER, Data, span
from quorate.pipeline.telling import call_line
from quorate.pipeline.vetting import Vetted, vet
from quorate.pve.clock import Clock, SystemClock
from quorate.pve.cluster import Cluster
from quorate.pve.errors import BadArgument, Conflict, Problem, Refused, TaskFailed
from quorate.pve.tasks import Report
from quorate.pve.veil import veiled
from quorate.state.trail import AuditTrail, AuditUnwritable

CONSENT_SECONDS = 45.0  # a call that may wait longer for its task does not wait longer for an operator
OUR_OWN_WORDS = ("time", "cluster", "tool", "risk", "access", "decision", "outcome")
"""Of an audit entry: what no secret can stand in, and no secret may blank out."""
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
        sites: Sites,
        audit: AuditTrail,
        approver: Approver,
        *,
        wait_seconds: float = 45.0,
    ) -> None:
        self.sites = sites
        self.adapt: Callable[[Gate], Gate] = lambda gate: gate
        self._clock: Clock = next((site.cluster.clock for site in sites), SystemClock())
        self._audit = audit
        self.approver = approver
        self.wait_seconds = wait_seconds
        self.redactor = Redactor()

    def visible(self, caller: Caller | None = None) -> list[Operation]:
        """What at least one cluster lets the caller do."""
        self.sites.refresh()
        caller = caller or Caller()
        offered = operations(self.gate.toolsets).values()
        return [one for one in offered if any(gate.objection(one, caller) is None for gate in self.gates(caller, one))]

    @property
    def gate(self) -> Gate:
        """What holds for all clusters that have nothing of their own."""
        return self.adapt(self.sites.general)

    def gates(self, caller: Caller | None = None, operation: Operation | None = None) -> list[Gate]:
        """One for each cluster that the caller reaches; of an operation about the homelab, the one there."""
        caller = caller or Caller()
        if operation is not None and operation.about_homelab:
            return [site.gate(self.gate) for site in self.sites.for_operation(operation, caller)]
        if not list(self.sites):
            return [self.gate]
        return [site.gate(self.gate) for site in self.sites.open_to(caller)]

    def variant(
        self,
        *,
        adapt: Callable[[Gate], Gate] | None = None,
        approver: Approver | None = None,
        wait_seconds: float | None = None,
    ) -> Pipeline:
        """The same pipeline with another gate or another patience, for a surface or a call that has its own."""
        other = copy.copy(self)
        other.adapt = adapt or self.adapt
        other.approver = approver or self.approver
        other.wait_seconds = self.wait_seconds if wait_seconds is None else wait_seconds
        return other

    async def run(self, name: str, given: Mapping[str, Any], exchange: Exchange) -> Result:
        """Run one operation. Raises Problem, already without secrets, when there is no answer to give."""
        self.sites.refresh()
        return await self._for_one_call(given).alone(name, given, exchange)

    def _for_one_call(self, given: Mapping[str, Any]) -> Pipeline:
        """What one caller calls a secret is hidden in that call alone: nobody can blank out what others are told."""
        call = copy.copy(self)
        call.redactor = Redactor(secrets_in(given))
        return call

    async def alone(self, name: str, given: Mapping[str, Any], exchange: Exchange) -> Result:
        """One call, on a pipeline of its own."""
        exchange = replace(exchange, report=self._presentable_report(exchange.report))
        try:
            operation = self.operation(name)
            risk = self.risk_of(operation, given)
            if risk in (Risk.CHANGE, Risk.DESTROY):
                return await self._change(operation, risk, given, exchange)
            return await self._read(operation, risk, given, exchange)
        except Problem as problem:
            raise self._presentable(problem) from None

    def operation(self, name: str) -> Operation:
        """Of any toolset, so that one that is switched off is refused with the reason."""
        if found := operation_named(name):
            return found
        near = meant(name, operations())
        hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"There are {', '.join(operations())}"
        raise BadArgument(f"There is no tool {name!r}", next_step=hint)

    def risk_of(self, operation: Operation, given: Mapping[str, Any]) -> Risk:
        """What this very call can do: fixed for most operations, by method and path for a call of the raw API."""
        return (
            operation.risk
            if operation.risk_of is None
            else operation.risk_of(decode(operation, self._without_own(given)))
        )

    def trace_of(self, error: Exception, given: Mapping[str, Any]) -> str:
        """Where a defect of ours came from, without secrets, for the log."""
        redactor = Redactor(
            [*secrets_in(given), *(secret for site in self.sites.everywhere for secret in site.cluster.secrets())]
        )
        return redactor.text("".join(traceback.format_exception(error)))

    # -- reads -----------------------------------------------------------------------------------------------------

    async def _read(self, operation: Operation, risk: Risk, given: Mapping[str, Any], exchange: Exchange) -> Result:
        self._pass_gates(operation, exchange.caller, risk)
        way = await route(self.sites, operation, given, exchange.caller, changes=False)
        arguments = decode(operation, way.arguments)
        for name in ("dry_run", "wait") if operation.changes else ():
            arguments.pop(name)
        if operation.wants_report:
            arguments["report"] = exchange.report
        sites = self._willing(way.sites, operation, exchange.caller, risk)

        async def ask(site: Site, wanted: Mapping[str, Any]) -> Data:
            answer: Data = await operation.run(await self.seen(site, operation, risk, exchange.caller), **wanted)
            return answer

        data = await (ask(sites[0], arguments) if len(way.sites) == 1 else span(sites, arguments, ask))
        pictures = data.pictures if isinstance(data, Illustrated) else ()
        facts = data.facts if isinstance(data, Illustrated) else data
        return Result(self.leaving(self._placed(facts, way)), pictures=pictures)

    def _willing(self, sites: Sequence[Site], operation: Operation, caller: Caller, risk: Risk) -> Sequence[Site]:
        """Those of the clusters that let the caller do it; if none does, the reason is raised."""
        found = [(site, self._objection(site, operation, caller, risk)) for site in sites]
        willing = [site for site, objection in found if objection is None]
        if not willing:
            raise next(objection for _, objection in found if objection is not None)
        return willing

    async def seen(self, site: Site, operation: Operation, risk: Risk, caller: Caller) -> Cluster:
        """The cluster without what the rules hide from this call."""
        if isinstance(site.cluster, Homelab):
            willing = [one for one in self.sites.open_to(caller) if not self._objection(one, operation, caller, risk)]
            seen = [await self.seen(one, operation, risk, caller) for one in willing]
            guarded = [one.cluster for one in self.sites if one.guards or one not in willing]
            return site.cluster.among(seen, site.rules.blindfold(operation, risk, self._clock.time()), guarded)
        hides = site.rules.blindfold(operation, risk, self._clock.time())
        return site.cluster if hides is None else await veiled(site.cluster, hides)

    def _placed(self, facts: dict[str, Any] | Table, way: Route) -> dict[str, Any] | Table:
        """With the cluster that answered, where there are several and the call named none."""
        if not self.sites.several or len(way.sites) > 1 or way.sites[0] is self.sites.home:
            return facts
        silent = {NO_ANSWER: {name: str(problem) for name, problem in way.silent.items()}} if way.silent else {}
        where = {"cluster": way.sites[0].name}
        if isinstance(facts, Table):
            facts.facts = {**facts.facts, **where, **silent}
            return facts
        return {**where, **facts, **silent}

    # -- changes ---------------------------------------------------------------------------------------------------

    async def _change(self, operation: Operation, risk: Risk, given: Mapping[str, Any], exchange: Exchange) -> Result:
        record = Record(operation.name, risk.value, given, exchange.caller, approval=self.approver.standing)
        record.unrecorded = operation.unrecorded
        self._place(
            record, *self.sites.for_operation(operation, exchange.caller)
        )  # until it is known which one, where there are several
        begun = self._clock.monotonic()
        unrecordable = False
        try:
            return await self._decide(operation, risk, given, record, exchange)
        except Problem as problem:
            record.failed(problem)
            unrecordable = isinstance(problem, AuditUnwritable)
            raise
        except AnswerLater:
            record.outcome = "asked"
            raise
        finally:
            with suppress(AuditUnwritable) if unrecordable else nullcontext():  # nothing was done, and that is told
                await self._write(record, self._clock.monotonic() - begun)

    async def _decide(
        self, operation: Operation, risk: Risk, given: Mapping[str, Any], record: Record, exchange: Exchange
    ) -> Result:
        self._pass_gates(operation, exchange.caller, risk)
        given, token = self._without_token(given)
        way = await route(self.sites, operation, given, exchange.caller, changes=True)
        site = way.sites[0]
        self._place(record, site)
        self._willing([site], operation, exchange.caller, risk)
        arguments = decode(operation, way.arguments)
        record.dry_run, wait = arguments.pop("dry_run"), arguments.pop("wait")
        await self._audit.ensure_writable()
        plan: Plan = await operation.run(await self.seen(site, operation, risk, exchange.caller), **arguments)
        record.planned(plan)
        try:
            result = await self._act_on(site, operation, plan, risk, wait, record, exchange, token)
        finally:  # an id that was only planned is free again; one that has become a guest PVE itself knows
            release(site.cluster, plan)
        return replace(result, data=self._placed(result.data, way))

    async def _act_on(
        self,
        site: Site,
        operation: Operation,
        plan: Plan,
        risk: Risk,
        wait: float | None,
        record: Record,
        exchange: Exchange,
        token: str | None,
    ) -> Result:
        cluster = site.cluster
        judge = partial(vet, self.sites, site, self.gate, operation, risk, caller=exchange.caller)
        vetted = await judge(plan)
        risk, record.risk = vetted.risk, vetted.risk.value
        vetted.require(dry_run=record.dry_run)
        await check(cluster, plan)
        wanted = self._wanted(plan, risk, record)
        if record.dry_run:
            record.outcome = "dry run"
            facts = self.leaving(telling.dry_run(plan, str(vetted.passing or "")))
            return Result(facts | await self.approver.announced(wanted, cluster, exchange.caller))
        if not plan.calls:
            record.outcome = "nothing to do"
            return Result(self.leaving(telling.nothing_to_do(plan)), failed=bool(plan.failures))
        deadline = self._clock.monotonic() + (self.wait_seconds if wait is None else wait)
        if self.approver.needed(risk):
            await self._obtain_consent(wanted, cluster, record, exchange, token, deadline)
            (await judge(plan)).require()  # the person took their time
        if risk is Risk.DESTROY:
            await confirm_identity(cluster, plan)
        left = max(0.0, deadline - self._clock.monotonic())
        parts = [(self.sites.having(where) if where else site, len(part.calls)) for where, part in plan.parts()]
        with counting(parts, operation, risk):
            plan = await self._carry_out(cluster, plan, record, left, exchange.report, judge)
        record.applied()
        return await self._outcome(plan, record.steps)

    async def _obtain_consent(
        self,
        wanted: Wanted,
        cluster: Cluster,
        record: Record,
        exchange: Exchange,
        token: str | None,
        deadline: float,
    ) -> None:
        seconds = min(max(0.0, deadline - self._clock.monotonic()), CONSENT_SECONDS)
        if self.approver.asks:
            known = tuple(one_line(self.leaving(line)) for line in await remarks(cluster, wanted.plan))
            wanted = replace(wanted, remarks=known)
        try:
            consent = await self.approver.consent(wanted, cluster, exchange, token=token, seconds=seconds)
        except Problem as problem:
            record.decision, record.outcome = "refused", "refused"
            record.approval = f"missing {problem.facts.get('approval', '')}".strip()
            raise
        record.approval = str(consent)

    def _wanted(self, plan: Plan, risk: Risk, record: Record) -> Wanted:
        """As a person will read it: what a stranger wrote into a name or a note cannot look like a line of ours."""
        lines = tuple(one_line(self.leaving(call_line(call))) for call in plan.calls)
        return Wanted(record.tool, risk, record.arguments, plan, lines, one_line(self.leaving(plan.summary)))

    def _without_token(self, given: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
        """The plan token is the pipeline's own argument, where the operator chose plan tokens."""
        if not self.approver.takes_tokens:
            return given, None
        token = given.get("plan_token")
        return {name: value for name, value in given.items() if name != "plan_token"}, token and str(token)

    async def _carry_out(
        self,
        cluster: Cluster,
        plan: Plan,
        record: Record,
        wait: float,
        report: Report | None,
        judge: Callable[[Plan], Awaitable[Vetted]],
    ) -> Plan:
        """Apply the plan, or the one that takes its place; the record knows the steps as they happen."""
        await apply(cluster, plan, record.steps, wait=wait, report=report)
        for _ in range(OTHER_PLANS):
            if plan.otherwise is None or not _refused_at_once(record.steps[plan.contested]):
                break
            plan = await plan.otherwise()
            record.planned(plan)
            (await judge(plan)).require(at_most=Risk(record.risk))
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
        facts = self.leaving(told)
        if plan.from_answers and done:  # not redacted: a new secret is shown here, once, and nowhere else
            facts |= clean(plan.from_answers([step.answer for step in steps]))
        return Result(facts, failed=bool(plan.failures) or any(step.state in ("failed", "unknown") for step in steps))

    async def _write(self, record: Record, seconds: float) -> None:
        entry = record.entry(now=self._clock.time(), seconds=seconds)
        told = {name: value if name in OUR_OWN_WORDS else self._without_secrets(value) for name, value in entry.items()}
        await self._audit.record(clean(told))

    # -- what all calls share --------------------------------------------------------------------------------------

    def _pass_gates(self, operation: Operation, caller: Caller, risk: Risk) -> None:
        """Refuse what no cluster allows before any of them is asked."""
        sites = self.sites.for_operation(operation, caller)
        if sites:
            self._willing(sites, operation, caller, risk)
        elif objection := self.gate.objection(operation, caller, risk):
            raise objection

    def _place(self, record: Record, *sites: Site) -> None:
        gate = sites[0].gate(self.gate) if len(sites) == 1 else self.gate
        record.cluster, record.access = gate.cluster, gate.access.value

    def _objection(self, site: Site, operation: Operation, caller: Caller, risk: Risk) -> Refused | None:
        """Of a change, the hours are judged with its plan: a dry run is fine at any time."""
        now = self._clock.time() if risk in (Risk.READ, Risk.LOOK_INSIDE) else None
        return site.gate(self.gate).objection(operation, caller, risk, now)

    def _without_own(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments that are the operation's, not the pipeline's."""
        given, _ = self._without_token(given)
        return {name: value for name, value in given.items() if name != CLUSTER or not self.sites.several}

    def _without_secrets(self, value: Any, verbatim: frozenset[str] = frozenset()) -> Any:
        for site in self.sites.everywhere:
            self.redactor.add(site.cluster.secrets())
        return self.redactor.value(value, verbatim=verbatim)

    def _presentable_report(self, report: Report | None) -> Report | None:
        """Progress, too, leaves only clean and without secrets: its lines come from logs."""
        if report is None:
            return None

        async def tell(done: float, whole: float | None, line: str) -> None:
            await report(done, whole, self.leaving(line))

        return tell

    def leaving(self, data: Any) -> Any:
        """What may leave: clean, and without secrets."""
        if isinstance(data, Table):
            data.rows = clean(self._without_secrets(data.rows), LONGEST)
            data.facts = clean(self._without_secrets(data.facts, VERBATIM))
            return data
        return clean(self._without_secrets(data, VERBATIM))

    def _presentable(self, problem: Problem) -> Problem:
        problem.what = clean(self.leaving(problem.what), LONGEST)
        problem.why = clean(self.leaving(problem.why), LONGEST)
        problem.next_step = clean(self.leaving(problem.next_step), LONGEST)
        problem.facts = self.leaving(problem.facts)
        return problem


def _refused_at_once(contested: Step) -> bool:
    """PVE said no to the call before any work began, so nothing has happened yet.

    An id that a guest of another node or type has taken is found out only by the task, which then has done nothing.
    """
    if contested.task is None:
        return isinstance(contested.problem, Conflict) and _OVERTAKEN.search(str(contested.problem)) is not None
    return contested.problem is not None and _ID_TAKEN.search(str(contested.problem)) is not None


def release(cluster: Cluster, plan: Plan) -> None:
    """Ids that were only planned are free again."""
    for where, part in plan.parts():
        (where or cluster).reserved_vmids -= part.claimed_vmids


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
