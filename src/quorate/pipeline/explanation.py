"""Explain what would happen to a call, and why, with the code that runs calls, up to the point of changing anything."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from quorate.config import Approval as Mode
from quorate.config.policy import Rule
from quorate.operations.arguments import decode, with_known_names
from quorate.operations.plan import Plan, in_wire_form
from quorate.operations.registry import PIPELINE_ARGUMENTS, Risk
from quorate.pipeline.approval import Approver
from quorate.pipeline.authorization import authorize, reach_of
from quorate.pipeline.caller import Caller, Exchange, Gate
from quorate.pipeline.change import release
from quorate.pipeline.pipeline import Invocation, Pipeline
from quorate.pipeline.policy import verdict
from quorate.pipeline.record import call_line
from quorate.pipeline.sites import Route, Site, route
from quorate.problems import (
    AuthenticationFailed,
    NodeOffline,
    Problem,
    Refused,
    ServerFailed,
    TimedOut,
    Unreachable,
    UntrustedCertificate,
)
from quorate.pve.lookup import guests_in
from quorate.pve.targets import Subject, subject_of
from quorate.state.limits import ChangesFrozen

ALLOWED, REFUSED, NOT_NOW, UNKNOWN = "allowed", "refused", "refused at this moment", "not known"
FAILS = "allowed, but it would fail"
"""The policy allows it; the arguments or the current state do not."""
_NO_ANSWER = (Unreachable, UntrustedCertificate, AuthenticationFailed, TimedOut, ServerFailed, NodeOffline)


async def explain(pipeline: Pipeline, name: str, arguments: Mapping[str, Any], caller: Caller) -> dict[str, Any]:
    """The verdict on a call at the cluster it goes to, or at each of several."""
    operation = pipeline.operation(name)
    arguments = with_known_names(operation, arguments)
    call = pipeline.invocation(operation, pipeline.risk_of(operation, arguments), arguments, Exchange(caller))
    head = {"tool": name, "risk": call.risk.value}
    if not list(pipeline.sites) and not operation.about_homelab:
        return {**head, **_explain_tool(pipeline.gate(caller), call, None)}
    try:
        chosen = await route(pipeline.sites, operation, arguments, caller, changes=call.changes)
    except Problem as problem:
        return {**head, "verdict": UNKNOWN, "why": str(problem)}  # each cluster may have its own
    parts: dict[str, Any] = {site.name: await _explain_at(pipeline, site, call, chosen) for site in chosen.sites}
    answer = parts if len(parts) > 1 else {"cluster": chosen.sites[0].name, **next(iter(parts.values()))}
    return dict(pipeline.sanitize({**head, **answer}))


async def _explain_at(pipeline: Pipeline, site: Site, call: Invocation, chosen: Route) -> dict[str, Any]:
    answer = _explain_tool(pipeline.gate(call.caller, site), call, None if call.changes else site.backend.clock.time())
    if answer["verdict"] != ALLOWED:
        return answer
    try:
        if call.changes:
            return {**answer, **await _explain_change(pipeline, site, call, chosen)}
        view = await pipeline.visible_view(site, call)
        await view.lookup(chosen.arguments)
        return {**answer, "sees": await view.visibility()}
    except Refused as refusal:
        return {**answer, **_refusal(refusal)}
    except Problem as problem:
        return await _without_plan(pipeline, site, call, chosen, answer, problem)


async def _without_plan(
    pipeline: Pipeline, site: Site, call: Invocation, chosen: Route, answer: dict[str, Any], problem: Problem
) -> dict[str, Any]:
    """There is no plan, but the rules can still be applied to the guests that the call names."""
    if isinstance(problem, _NO_ANSWER) or call.operation.about_homelab:
        return _describe_failure(answer, problem)
    try:
        rows = [(await site.cluster.guest(ref)).row for ref in guests_in(chosen.arguments)]
    except Problem:
        return _describe_failure(answer, problem)
    named = [subject for row in rows if (subject := subject_of(row))]
    gate = pipeline.gate(call.caller, site)
    rules = {"rules": [_describe_rule(rule, named) for rule in gate.rules.rules]} if named else {}
    refusal = gate.rules.call_objection(call.operation, call.risk, named, None) if named else None
    return {**answer, **rules, **_refusal(refusal)} if refusal else {**_describe_failure(answer, problem), **rules}


def _describe_failure(answer: dict[str, Any], problem: Problem) -> dict[str, Any]:
    if isinstance(problem, _NO_ANSWER):
        about = "Access level, toolsets and rules about the tool allow it; what it would act on is not known"
        return {**answer, "verdict": UNKNOWN, "why": f"{about}: {problem}"}
    return {**answer, "verdict": FAILS, "why": str(problem)}


def _explain_tool(gate: Gate, call: Invocation, now: float | None) -> dict[str, Any]:
    operation, risk = call.operation, call.risk
    access = f"{gate.access.value}; {operation.name} needs {gate.access_for(risk).value} here"
    refusal = gate.objection(operation, call.caller, risk, now)
    return {"verdict": ALLOWED, "access": access, **(_refusal(refusal) if refusal else {})}


async def _explain_change(pipeline: Pipeline, site: Site, call: Invocation, chosen: Route) -> dict[str, Any]:
    arguments = decode(call.operation, chosen.arguments)
    for name in PIPELINE_ARGUMENTS:
        arguments.pop(name, None)
    arguments |= call.supplied_arguments(partial(pipeline.other_cluster, invocation=call))
    plan: Plan = await call.run(await pipeline.visible_view(site, call), arguments)
    release(site.backend, plan)
    plan = await in_wire_form(site.backend, plan)
    gate, tally = pipeline.gate(call.caller), pipeline.journal.tally
    judged = await authorize(pipeline.sites, site, gate, call, plan, tally)
    reached = [subject for _, subjects in await reach_of(pipeline.sites, site, plan) for subject in subjects]
    answer: dict[str, Any] = {
        "plan": plan.summary,
        "calls": [call_line(step) for step in plan.calls],
        "reaches": [_describe(subject) for subject in reached],
        "rules": [_describe_rule(rule, reached) for rule in site.rules.rules],
        "approval": _approval(call.approver, judged.risk),
    }
    if judged.risk is not call.risk:
        answer["risk"] = f"{judged.risk.value}, by what the plan does"
    if judged.objection:
        return answer | _refusal(judged.objection)
    try:
        await pipeline.journal.freeze.require_none()
    except ChangesFrozen as frozen:
        return answer | _refusal(frozen, NOT_NOW)
    return answer | (_refusal(judged.passing, NOT_NOW) if judged.passing else {})


def _refusal(refusal: Problem, verdict: str = REFUSED) -> dict[str, Any]:
    rule = {"rule": refusal.facts["rule"]} if "rule" in refusal.facts else {}
    return {"verdict": verdict, **rule, "why": str(refusal)}


def _approval(approver: Approver, risk: Risk) -> str:
    asks = approver.needed(risk) and approver.mode is not Mode.NONE
    return f"needed ({approver.mode.value})" if asks else "not needed"


def _describe(subject: Subject) -> str:
    parts = [f"node {subject.node}" if subject.node and subject.kind != "node" else ""]
    parts += [f"pool {subject.pool}" if subject.pool and subject.kind != "pool" else ""]
    parts += [f"tags {', '.join(subject.tags)}" if subject.tags else ""]
    facts = "; ".join(part for part in parts if part)
    return f"{subject} ({facts})" if facts else str(subject)


def _describe_rule(rule: Rule, subjects: list[Subject]) -> str:
    met = [str(subject) for subject in subjects if verdict(rule, subject)] if rule.about_targets else ["every call"]
    return f"{rule.name}: {rule} (matches {', '.join(met[:5]) or 'nothing here'})"
