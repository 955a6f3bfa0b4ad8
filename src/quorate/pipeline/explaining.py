"""What would become of a call, and why: decided by the code that decides calls, up to where something would be done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.config.rules import Rule
from quorate.homelab.home import Homelab
from quorate.homelab.machines import machine
from quorate.operations.plan import Plan
from quorate.operations.registry import Operation, Risk
from quorate.pipeline.arguments import decode
from quorate.pipeline.caller import Caller
from quorate.pipeline.gate import Gate
from quorate.pipeline.policy import verdict
from quorate.pipeline.routing import Route, guests_in, route
from quorate.pipeline.run import Pipeline, release
from quorate.pipeline.sites import Site
from quorate.pipeline.telling import call_line
from quorate.pipeline.vetting import reach_of, vet
from quorate.pve.errors import (
    AuthenticationFailed,
    NodeOffline,
    Problem,
    Refused,
    ServerFailed,
    TimedOut,
    Unreachable,
    UntrustedCertificate,
)
from quorate.pve.subjects import Subject, of_row

ALLOWED, REFUSED, NOT_NOW, UNKNOWN = "allowed", "refused", "refused at this moment", "not known"
FAILS = "allowed, but it would fail"
"""Nothing of the operator's stands against it; the arguments or the state of things do."""
_NO_ANSWER = (Unreachable, UntrustedCertificate, AuthenticationFailed, TimedOut, ServerFailed, NodeOffline)


async def explain(pipeline: Pipeline, name: str, given: Mapping[str, Any], caller: Caller) -> dict[str, Any]:
    """The verdict on a call at the cluster it goes to, or at each of several."""
    operation = pipeline.operation(name)
    risk = pipeline.risk_of(operation, given)
    changes = risk in (Risk.CHANGE, Risk.DESTROY)
    head = {"tool": name, "risk": risk.value}
    if not list(pipeline.sites) and not operation.about_homelab:
        return {**head, **_by_tool(pipeline.gate, operation, risk, caller, None)}
    try:
        way = await route(pipeline.sites, operation, given, caller, changes=changes)
    except Problem as problem:
        return {**head, "verdict": UNKNOWN, "why": str(problem)}  # each cluster may have another one
    parts: dict[str, Any] = {site.name: await _at(pipeline, site, operation, risk, way, caller) for site in way.sites}
    told = parts if len(parts) > 1 else {"cluster": way.sites[0].name, **next(iter(parts.values()))}
    return dict(pipeline.leaving({**head, **told}))


async def _at(
    pipeline: Pipeline, site: Site, operation: Operation, risk: Risk, way: Route, caller: Caller
) -> dict[str, Any]:
    gate, changes = site.gate(pipeline.gate), risk in (Risk.CHANGE, Risk.DESTROY)
    told = _by_tool(gate, operation, risk, caller, None if changes else site.cluster.clock.time())
    if told["verdict"] != ALLOWED:
        return told
    try:
        if not changes:
            return {**told, **await _reading(pipeline, site, operation, risk, way, caller)}
        return {**told, **await _changing(pipeline, site, gate, operation, risk, way, caller)}
    except Refused as refusal:
        return {**told, **_refused(refusal)}
    except Problem as problem:
        return await _without_plan(pipeline, site, operation, risk, way, told, problem)


async def _without_plan(
    pipeline: Pipeline, site: Site, operation: Operation, risk: Risk, way: Route, told: dict[str, Any], problem: Problem
) -> dict[str, Any]:
    """No plan could be made; what the rules make of the guests that the call names can be told all the same."""
    if isinstance(problem, _NO_ANSWER):
        return _failing(told, problem)
    try:
        rows = [(await site.cluster.guest(ref)).row for ref in guests_in(way.arguments)]
    except Problem:
        return _failing(told, problem)
    named = [one for row in rows if (one := of_row(row))]
    gate = site.gate(pipeline.gate)
    rules = {"rules": [_judged(rule, named) for rule in gate.rules.rules]} if named else {}
    refusal = gate.rules.about_call(operation, risk, named, None) if named else None
    return {**told, **rules, **_refused(refusal)} if refusal else {**_failing(told, problem), **rules}


def _failing(told: dict[str, Any], problem: Problem) -> dict[str, Any]:
    if isinstance(problem, _NO_ANSWER):
        about = "Access level, toolsets and rules about the tool allow it; what it would act on is not known"
        return {**told, "verdict": UNKNOWN, "why": f"{about}: {problem}"}
    return {**told, "verdict": FAILS, "why": str(problem)}


def _by_tool(gate: Gate, operation: Operation, risk: Risk, caller: Caller, now: float | None) -> dict[str, Any]:
    told = {"verdict": ALLOWED, "access": f"{gate.access.value}; {operation.name} needs {gate.needed(risk).value} here"}
    refusal = gate.objection(operation, caller, risk, now)
    return {**told, **(_refused(refusal) if refusal else {})}


async def _reading(
    pipeline: Pipeline, site: Site, operation: Operation, risk: Risk, way: Route, caller: Caller
) -> dict[str, Any]:
    seen = await pipeline.seen(site, operation, risk, caller)
    if isinstance(seen, Homelab):
        return await _reading_hosts(seen, way)
    for ref in guests_in(way.arguments):
        await seen.guest(ref)
    if seen is site.cluster:
        return {"sees": "everything"}
    hidden = len(await site.cluster.inventory.guests()) - len(await seen.inventory.guests())
    return {"sees": f"all but {hidden} guests that the rules hide from it"}


async def _reading_hosts(home: Homelab, way: Route) -> dict[str, Any]:
    for ref in (way.arguments.get("host"), *(way.arguments.get("hosts") or ())):
        if isinstance(ref, str):
            await machine(home, ref)  # nothing is sent there; raises if rules keep the call from it
    hidden = len(await home.hosts.everyone()) - len(await home.hosts.all())
    return {"sees": f"all but {hidden} hosts that the rules hide from it" if hidden else "everything"}


async def _changing(
    pipeline: Pipeline, site: Site, gate: Gate, operation: Operation, risk: Risk, way: Route, caller: Caller
) -> dict[str, Any]:
    arguments = decode(operation, way.arguments)
    for name in ("dry_run", "wait"):
        arguments.pop(name)
    plan: Plan = await operation.run(await pipeline.seen(site, operation, risk, caller), **arguments)
    release(site.cluster, plan)
    vetted = await vet(pipeline.sites, site, pipeline.gate, operation, risk, plan, caller)
    reached = list(dict.fromkeys(one for call in await reach_of(pipeline.sites, site, plan) for one in call))
    told: dict[str, Any] = {
        "plan": plan.summary,
        "calls": [call_line(call) for call in plan.calls],
        "reaches": [_described(one) for one in reached],
        "rules": [_judged(rule, reached) for rule in gate.rules.rules],
        "approval": _approval(pipeline, vetted.risk),
    }
    if vetted.risk is not risk:
        told["risk"] = f"{vetted.risk.value}, by what the plan does"
    if vetted.objection:
        return told | _refused(vetted.objection)
    return told | (_refused(vetted.passing, NOT_NOW) if vetted.passing else {})


def _refused(refusal: Refused, verdict: str = REFUSED) -> dict[str, Any]:
    rule = {"rule": refusal.facts["rule"]} if "rule" in refusal.facts else {}
    return {"verdict": verdict, **rule, "why": str(refusal)}


def _approval(pipeline: Pipeline, risk: Risk) -> str:
    approver = pipeline.approver
    return (
        f"needed ({approver.mode.value})" if approver.needed(risk) and approver.mode.value != "none" else "not needed"
    )


def _described(subject: Subject) -> str:
    parts = [f"node {subject.node}" if subject.node and subject.kind != "node" else ""]
    parts += [f"pool {subject.pool}" if subject.pool and subject.kind != "pool" else ""]
    parts += [f"tags {', '.join(subject.tags)}" if subject.tags else ""]
    facts = "; ".join(part for part in parts if part)
    return f"{subject} ({facts})" if facts else str(subject)


def _judged(rule: Rule, subjects: list[Subject]) -> str:
    met = [str(one) for one in subjects if verdict(rule, one)] if rule.about_targets else ["every call"]
    return f"{rule.name}: {rule} (speaks of {', '.join(met[:5]) or 'nothing here'})"
