"""A change from its plan to its outcome: authorization, preflight, approval, execution, journal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

from quorate.config import Access
from quorate.hints import Wording
from quorate.operations.arguments import decode
from quorate.operations.backend import Backend
from quorate.operations.hotplug import predict_pending
from quorate.operations.plan import Action, Call, Plan, in_wire_form
from quorate.operations.registry import Risk
from quorate.operations.undo import can_be_undone, read_all_options, replaced_values
from quorate.pipeline.approval import ApprovalGrant, ApprovalPending
from quorate.pipeline.approval_request import (
    ApprovalRequest,
    Difference,
    briefing,
    differences,
    losses,
    refuse_given_secrets,
    refuse_unreadable,
    runs_code,
    step_line,
    target_keys,
    targets_of,
)
from quorate.pipeline.authorization import Verdict, authorize, effects_of, reach_of
from quorate.pipeline.caller import AnswerLater, Scope
from quorate.pipeline.execution import apply
from quorate.pipeline.pipeline import Invocation, Pipeline, Result, select_permitted
from quorate.pipeline.preflight import check_plan, check_references
from quorate.pipeline.proof import Observation, observe
from quorate.pipeline.record import (
    JournaledSteps,
    Record,
    Step,
    describe_dry_run,
    describe_nothing_to_do,
    describe_outcome,
)
from quorate.pipeline.redaction import clean, one_line
from quorate.pipeline.sites import Site, reservations, route
from quorate.problems import Problem, TaskFailed
from quorate.pve.cluster import Cluster
from quorate.pve.lookup import guests_in
from quorate.pve.targets import Subject
from quorate.pve.tasks import Report
from quorate.state.approvals import RemarkKind
from quorate.state.journal import Outcome, StepState
from quorate.state.trail import AuditUnwritable

APPROVAL_SECONDS = 45.0  # even a call that may wait longer for its task does not wait longer for an operator
OTHER_PLANS = 20  # how often an id may be snatched away before we give up


class ChangeRun:
    """One change in progress. Its record is written whatever happens."""

    def __init__(self, pipeline: Pipeline, invocation: Invocation) -> None:
        self._pipeline = pipeline
        self._call = invocation
        self._journal = pipeline.journal
        self._approver = invocation.approver
        self._clock = pipeline.clock
        self._sanitizer = invocation.sanitizer
        self._entry = pipeline.journal.change(invocation.exchange.change)
        operation = invocation.operation
        self._record = Record(
            operation.name,
            invocation.risk.value,
            invocation.raw_arguments,
            invocation.caller,
            approval=self._approver.default_note,
            unrecorded=operation.unrecorded,
        )
        self._granted = False
        """Whether an approval is used for it."""
        self._blank: Callable[[str], str] = str
        """The operator's trail has PVE's words as they are; the caller's result has none about hidden guests."""
        # Until the site is known, where there are several:
        self._locate(*pipeline.sites.for_operation(operation, invocation.caller))

    async def execute(self) -> Result:
        begun = self._clock.monotonic()
        unrecordable = False
        try:
            return await self._plan_and_run()
        except Problem as problem:
            self._record.fail(problem)
            unrecordable = isinstance(problem, AuditUnwritable)
            raise self._blank_problem(problem) from None
        except AnswerLater as later:
            self._record.wait_for_approval(later.question.id)
            raise
        finally:
            with suppress(AuditUnwritable) if unrecordable else nullcontext():  # the caller knows already
                await self._write(self._clock.monotonic() - begun)

    async def _plan_and_run(self) -> Result:
        call, operation = self._call, self._call.operation
        objections = self._pipeline.objections(call)
        chosen = await route(self._pipeline.sites, operation, call.arguments, call.caller, changes=True)
        site = chosen.sites[0]
        self._locate(site)
        select_permitted([site], objections)
        arguments = decode(operation, chosen.arguments)
        self._record.dry_run, wait = arguments.pop("dry_run"), arguments.pop("wait")
        safely = arguments.pop("safely", False)
        await self._journal.ensure_writable()
        names_a_guest = not all(str(ref).strip().isdigit() for ref in guests_in(chosen.arguments))
        if call.risk is Risk.DESTROY and names_a_guest and not operation.about_homelab:
            site.cluster.inventory.distrust_names()  # a name that a second guest got a moment ago destroys neither
        view = await self._pipeline.visible_view(site, call)
        self._blank = await view.blanker()  # the operation's own refusals pass through it, too
        arguments |= call.supplied_arguments(self._other_cluster)
        plan = self._blank_plan(await call.run(view, arguments))
        try:
            plan = await in_wire_form(site.backend, plan)
            if safely:
                from quorate.tools.safety_snapshots import after_snapshots  # rarely needed

                plan = await after_snapshots(view, plan)
            self._record.set_plan(plan)
            result = await self._run(site, plan, wait)
        finally:  # an id that was only planned is free again; PVE knows the ones that became guests
            release(site.backend, plan)
        return replace(result, data=self._pipeline.with_cluster(result.data, chosen))

    async def _other_cluster(self, name: str) -> Cluster:
        view = await self._pipeline.other_cluster(name, self._call)
        here, there = self._blank, await view.blanker()
        self._blank = lambda text: there(here(text))
        return view

    async def _run(self, site: Site, plan: Plan, wait: float | None) -> Result:
        backend, record = site.backend, self._record
        verdict = await self._authorize(site, plan)
        risk = verdict.risk
        record.risk = risk.value
        verdict.require(dry_run=record.dry_run)
        checked = await check_plan(backend, plan)
        plan = await self._check_references(site, plan)
        request = self._approval_request(plan, risk)
        if record.dry_run:
            record.outcome = Outcome.DRY_RUN
            lost = await losses(backend, plan) if risk is Risk.DESTROY else []
            if waiting := await predict_pending(backend, plan):
                plan = replace(plan, facts={**plan.facts, "pending_until_restart": waiting})
            facts = self._sanitizer.sanitize(describe_dry_run(plan, checked, verdict, lost))
            return Result(await self._announce(site, request) | facts, record.outcome)
        if not plan.calls:
            record.outcome = Outcome.NOTHING
            facts = self._sanitizer.sanitize(describe_nothing_to_do(plan))
            return Result(facts, record.outcome, failed=bool(plan.failures))
        await self._journal.freeze.require_none()  # before anybody is asked
        deadline = self._clock.monotonic() + self._wait_seconds(wait)
        grant: ApprovalGrant | None = None
        bound = risk is Risk.DESTROY or self._approver.needed(risk)
        if bound:
            request = replace(request, judged=await request.identity(backend))
        if self._approver.needed(risk):
            grant = await self._obtain_approval(site, request, deadline)
        if bound:  # the person took their time, and what is judged from here on is what was read
            (await self._authorize(site, plan)).require(at_most=risk)
            plan = await self._check_references(site, plan)
            await self._journal.freeze.require_none()
        parts = [
            (self._pipeline.sites.site_of(where) if where else site, len(part.calls)) for where, part in plan.parts()
        ]
        observed = await self._observe(site, plan)
        if bound:
            await request.confirm_identity(backend)
        intent = self._sanitizer.journal_line(record.intent(self._clock.time()))
        await self._entry.begin(intent, reservations(parts, self._call.operation, risk))
        plan = await self._carry_out(site, plan, max(0.0, deadline - self._clock.monotonic()))
        record.settle()
        if observed.options and record.outcome in (Outcome.DONE, Outcome.WARNINGS):
            record.replaced = replaced_values(observed.options, await read_all_options(site.cluster, plan.calls))
        return await self._result(plan, {**({"approval": str(grant)} if grant else {}), **self._undo_id(plan)})

    def _undo_id(self, plan: Plan) -> dict[str, str]:
        """The id for change_undo, if that could revert it."""
        if not self._record.replaced:
            return {}
        kept = self._sanitizer.journal_line({"replaced": self._record.replaced})["replaced"]
        return {"change": self._entry.id} if can_be_undone(plan.calls, kept) else {}

    async def _observe(self, site: Site, plan: Plan) -> Observation:
        """What the plan's objects are now, so that its effect can be proven and undone."""
        record = self._record
        observed = Observation() if self._call.operation.about_homelab else await observe(site.cluster, plan.calls)
        observed.attach_to(record.steps)
        others = [step.where for step in plan.calls if isinstance(step, Action) and step.where is not None]
        record.skew = {
            **{other.name: other.client.measured_skew for other in others},
            **({} if self._call.operation.about_homelab else {record.cluster: site.cluster.client.measured_skew}),
        }
        return observed

    def _wait_seconds(self, wait: float | None) -> float:
        if wait is not None:
            return wait
        own = self._call.exchange.wait_seconds
        return self._pipeline.wait_seconds if own is None else own

    async def _authorize(self, site: Site, plan: Plan) -> Verdict:
        gate = self._pipeline.gate(self._call.caller)
        return await authorize(self._pipeline.sites, site, gate, self._call, plan, self._journal.tally)

    async def _check_references(self, site: Site, plan: Plan) -> Plan:
        """Refuse what would delete a volume in use. What could not be read may name hidden guests."""
        plan = await check_references(self._pipeline.sites, site, self._call.caller, plan)
        if "checked" not in plan.facts:
            return plan
        return replace(plan, facts={**plan.facts, "checked": self._blank(str(plan.facts["checked"]))})

    # -- approval --------------------------------------------------------------------------------------------------

    def _approval_request(self, plan: Plan, risk: Risk) -> ApprovalRequest:
        """The request as a person will read it; text in a name or note cannot look like one of Quorate's own lines."""
        several = len(targets_of(plan)) > 1
        lines = tuple(
            one_line(f"{call.target}: {line}" if several and isinstance(call, Action) else line)
            for call, line in ((call, self._line(call, risk)) for call in plan.calls)
        )
        summary = one_line(self._sanitizer.sanitize(plan.summary))
        return ApprovalRequest(
            self._record.tool, risk, self._record.arguments, plan, lines, summary, change=self._entry.id
        )

    def _line(self, step: Call | Action, risk: Risk) -> str:
        text = step_line(step, risk)
        return self._sanitizer.command(text) if runs_code(step) else str(self._sanitizer.sanitize(text))

    async def _obtain_approval(self, site: Site, request: ApprovalRequest, deadline: float) -> ApprovalGrant:
        if self._approver.asks:
            request = await self._with_briefing(site, request)
        seconds = min(max(0.0, deadline - self._clock.monotonic()), APPROVAL_SECONDS)
        exchange = replace(self._call.exchange, report=self._call.report)
        try:
            grant = await self._approver.obtain(
                request, site.backend, exchange, token=self._call.plan_token, seconds=seconds
            )
        except ApprovalPending as problem:
            self._record.wait_for_approval(str(problem.facts.get("approval", "")))
            raise
        except Problem as problem:
            self._record.refuse_unapproved(str(problem.facts.get("approval", "")))
            raise
        self._record.approval, self._granted = str(grant), True
        return grant

    async def _announce(self, site: Site, request: ApprovalRequest) -> dict[str, Any]:
        """What a dry run says about approval."""
        if not self._approver.announces(request.risk, request.plan):
            return {}
        reach = await reach_of(self._pipeline.sites, site, request.plan)
        request = replace(request, targets=_target_keys(request.plan, reach))
        facts = await self._approver.announce(request, site.backend, self._call.caller)
        if before := facts.get("denied_before"):  # the operator's own words
            facts["denied_before"] = self._blank(self._sanitizer.sanitize(before))
        return facts

    async def _with_briefing(self, site: Site, request: ApprovalRequest) -> ApprovalRequest:
        """Add everything that the person has to know. Refuse if it is more than anyone would read."""
        reach = await reach_of(self._pipeline.sites, site, request.plan)
        effects = await effects_of(self._pipeline.sites, site, self._call.operation, request.plan)
        remarks = [
            replace(remark, text=self._blank(remark.text)) if remark.kind is RemarkKind.REACH else remark
            for remark in await briefing(site.backend, request.plan, reach, effects, request.risk)
        ]
        changed = await differences(site.backend, request.plan)
        texts = (
            request.plan.summary,
            *map(str, remarks),
            *(step_line(step, request.risk) for step in request.plan.calls),
            *(part for difference in changed for part in difference),
        )
        refuse_given_secrets(request.summary, texts, self._sanitizer.hides_given)
        request = replace(
            request,
            remarks=tuple(replace(remark, text=self._sanitizer.sanitize(remark.text)) for remark in remarks),
            differences=tuple(Difference(*map(self._sanitizer.sanitize, difference)) for difference in changed),
            targets=_target_keys(request.plan, reach),
        )
        refuse_unreadable(request.summary, (*map(str, request.remarks), *request.lines))
        return request

    # -- execution -------------------------------------------------------------------------------------------------

    async def _carry_out(self, site: Site, plan: Plan, wait: float) -> Plan:
        """Apply the plan, or the one that replaces it; the record knows the steps as they happen."""
        backend, record, report = site.backend, self._record, self._report()
        await apply(backend, plan, record.steps, self._steps_log(), wait=wait, report=report)
        for _ in range(OTHER_PLANS):
            if plan.otherwise is None or not record.steps[plan.contested].overtaken:
                break
            plan = await in_wire_form(backend, await plan.otherwise())
            record.set_plan(plan)
            (await self._authorize(site, plan)).require(at_most=Risk(record.risk))
            await check_plan(backend, plan)
            await self._observe(site, plan)
            await self._entry.replan(self._sanitizer.journal_line(record.other_plan(self._clock.time())))
            await apply(backend, plan, record.steps, self._steps_log(), wait=wait, report=report)
        return plan

    def _report(self) -> Report | None:
        report = self._call.report
        if report is None:
            return None

        async def tell(done: float, whole: float | None, line: str) -> None:
            await report(done, whole, self._blank(line))

        return tell

    def _blank_plan(self, plan: Plan) -> Plan:
        """Blank what PVE and hosts said during planning: it may name guests that the caller must not see."""
        return replace(
            plan,
            failures=tuple(replace(failure, why=self._blank(failure.why)) for failure in plan.failures),
            unchanged=tuple(map(self._blank, plan.unchanged)),
            warnings=tuple(
                warning.transform(self._blank_text) if isinstance(warning, Wording) else self._blank(warning)
                for warning in plan.warnings
            ),
        )

    def _blank_text(self, part: Any) -> Any:
        if isinstance(part, dict):  # values of hints
            return {name: self._blank_text(value) for name, value in part.items()}
        return self._blank(part) if isinstance(part, str) else part

    def _blank_problem(self, problem: Problem) -> Problem:
        problem.transform(self._blank_text)
        problem.facts = {
            name: [self._blank(str(line)) for line in value] if name == "log" else value
            for name, value in problem.facts.items()
        }
        return problem

    def _steps_log(self) -> JournaledSteps:
        record = self._record
        caller = self._call.caller
        narrowed = replace(caller, scope=caller.scope.within(Scope(Access(record.access))))
        origin = {**narrowed.as_origin(), "approval": record.approval, "risk": record.risk}
        write = self._sanitizer.journal_line
        return JournaledSteps(self._entry, record.steps, write, self._clock, record.cluster, origin=origin)

    async def _result(self, plan: Plan, more: Mapping[str, str]) -> Result:
        """A single call that failed is reported as the error it is; otherwise every step is listed with its state."""
        steps = self._record.steps
        if len(steps) == 1 and steps[0].problem is not None and not plan.failures and not plan.columns:
            failure = _single_failure(steps[0], steps[0].problem)
            failure.facts |= more
            raise failure
        for step in steps:
            step.log = [self._blank(line) for line in step.log]
            if step.problem is not None:
                step.problem = self._blank_problem(step.problem)
        answer = {**describe_outcome(plan, steps), **more}
        done = all(step.state.is_done for step in steps)
        if plan.after and done:
            answer |= await _read_back(plan.after)
        facts = self._sanitizer.sanitize(answer)
        if plan.from_answers and done:  # not redacted: a new secret is shown here, once, and nowhere else
            facts |= clean(plan.from_answers([step.answer for step in steps]))
        failed = bool(plan.failures) or any(step.problem for step in steps)
        return Result(facts, self._record.outcome, failed=failed)

    # -- the record ------------------------------------------------------------------------------------------------

    def _locate(self, *sites: Site) -> None:
        gate = self._pipeline.gate(self._call.caller, sites[0] if len(sites) == 1 else None)
        self._record.cluster, self._record.access = gate.cluster, gate.access.value
        self._record.endpoints = sites[0].backend.endpoints if len(sites) == 1 else ()

    async def _write(self, seconds: float) -> None:
        record, now = self._record, self._clock.time()
        if not self._entry.begun:
            entry = self._sanitizer.journal_line(record.entry(now=now, seconds=seconds))
            await self._journal.record(entry, change=self._entry.id if self._granted else "")
            return
        closing = self._sanitizer.journal_line(record.closing(now=now, seconds=seconds))
        try:
            await self._entry.close(closing, final=record.is_final)
        except AuditUnwritable as problem:
            raise _outcome_unwritable(record, problem) from None


def _target_keys(plan: Plan, reach: Sequence[tuple[Backend, Sequence[Subject]]]) -> tuple[str, ...]:
    keys = (
        key
        for (place, subjects), (_, part) in zip(reach, plan.parts(), strict=True)
        for key in target_keys(place.name, part, subjects)
    )
    return tuple(dict.fromkeys(keys))


def release(backend: Backend, plan: Plan) -> None:
    """Make ids that were only planned available again."""
    for where, part in plan.parts():
        if claimed := part.claimed_vmids:
            (where or backend).api.reserved_vmids -= claimed


async def _read_back(after: Callable[[], Awaitable[Mapping[str, Any]]]) -> Mapping[str, Any]:
    """Facts for the result. The calls are done: if these cannot be read, that is a remark, not a failure.

    A TaskFailed is raised, because it means that what the calls started went wrong.
    """
    try:
        return await after()
    except TaskFailed:
        raise
    except Problem as problem:
        return {"note": f"It is done, but reading the result failed: {problem}"}


def _outcome_unwritable(record: Record, problem: AuditUnwritable) -> AuditUnwritable:
    """The intent is written and the outcome is not: nobody must repeat the change because of that."""
    plan = record.plan.summary if record.plan else record.tool
    return AuditUnwritable(
        f"{plan}: {record.outcome}, but the outcome cannot be written to the audit trail",
        why=problem.why,
        next_step="Do not repeat it. Make room: the next change, the next start or `quorate audit --resolve` completes "
        "the entry",
        facts={"outcome": record.outcome.value, "steps": [step.as_dict() for step in record.steps]},
    )


def _single_failure(step: Step, problem: Problem) -> Problem:
    fate = "" if step.state is StepState.UNKNOWN else "not done. "
    problem.what = f"{step.call.summary}: {fate}{problem.what}"
    problem.facts |= {"task": step.task.text} if step.task else {}
    problem.facts |= {"log": step.log} if step.log else {}
    return problem
