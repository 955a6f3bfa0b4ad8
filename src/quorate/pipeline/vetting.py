"""Whether a plan may be carried out: its risk by effect, then the rules and limits, on what its calls reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quorate.homelab.home import Homelab
from quorate.operations.api.risk import ORDER
from quorate.operations.plan import Action, Call, Plan
from quorate.operations.registry import Operation, Risk
from quorate.pipeline.caller import Caller
from quorate.pipeline.effect import effect
from quorate.pipeline.gate import Gate
from quorate.pipeline.host_subjects import hosts_reached
from quorate.pipeline.sites import Site, Sites
from quorate.pve.errors import Refused
from quorate.pve.reach import GUEST, NODE, Reached, reached
from quorate.pve.schema import Facts
from quorate.pve.subjects import Census, Subject


@dataclass(frozen=True, slots=True)
class Vetted:
    risk: Risk
    """What the plan does, which may be graver than what the tool usually does."""
    objection: Refused | None = None
    passing: Refused | None = None
    """What stands against it at this moment only: hours and limits. A dry run passes all the same."""

    def require(self, *, dry_run: bool = False, at_most: Risk = Risk.DESTROY) -> None:
        refusal = self.objection or (None if dry_run else self.passing)
        if refusal is not None:
            raise refusal
        if ORDER.index(self.risk) > ORDER.index(at_most):
            raise Refused(
                "The plan has become graver than what was agreed to", next_step="Nothing was done; call again"
            )


async def vet(
    sites: Sites, site: Site, general: Gate, operation: Operation, risk: Risk, plan: Plan, caller: Caller
) -> Vetted:
    """Judge each part of the plan where it acts; the gravest risk and the first objection count."""
    found = []
    for where, part in plan.parts():
        there = sites.having(where) if where else site
        gate = there.gate(general)
        objection = gate.objection(operation, caller, risk) if where else None
        found.append(Vetted(risk, objection) if objection else await _vet(there, gate, operation, risk, part, caller))
    return Vetted(
        max((one.risk for one in found), key=ORDER.index),
        next((one.objection for one in found if one.objection), None),
        next((one.passing for one in found if one.passing), None),
    )


async def _vet(site: Site, gate: Gate, operation: Operation, risk: Risk, plan: Plan, caller: Caller) -> Vetted:
    """Without rules and limits this asks nothing of the cluster that the check of the plan does not ask anyway."""
    facts = await site.cluster.facts() if plan.api_calls else None
    grave, why = effect(operation, risk, plan, facts)
    if grave is not risk and (refusal := gate.objection(operation, caller, grave)):
        refusal.why = f"{refusal.why or ''} {why}.".strip()
        return Vetted(grave, refusal)
    if refused := _raw_command(site, plan):
        return Vetted(grave, refused)
    calls = await _subjects(site, gate, plan)
    lasting = _objection(gate, operation, grave, calls, None)
    if lasting is not None:
        return Vetted(grave, lasting)
    now = site.cluster.clock.time()
    passing = (
        gate.rules.about_tool(operation, grave, now)
        or _objection(gate, operation, grave, calls, now)
        or _limit(site, operation, grave, plan, calls)
    )
    return Vetted(grave, passing=passing)


def _raw_command(site: Site, plan: Plan) -> Refused | None:
    """The operator's patterns for commands count for the raw API as well; files would be a way around them."""
    rules = site.cluster.command_rules
    raw = [step for step in plan.calls if isinstance(step, Call)] if rules.allow or rules.deny else []
    for call in raw:
        if call.path.endswith("/agent/exec"):
            command = call.params.get("command", ())
            if refused := rules.objection((command,) if isinstance(command, str) else tuple(command)):
                return refused
        elif call.path.endswith("/agent/file-write"):
            return Refused(
                "Files are not written through the raw API where commands are limited by patterns",
                next_step="Use guest_file_write",
            )
    return None


def _objection(
    gate: Gate, operation: Operation, risk: Risk, calls: Sequence[Sequence[Subject]], now: float | None
) -> Refused | None:
    return next((one for call in calls if (one := gate.rules.about_call(operation, risk, call, now))), None)


def _limit(
    site: Site, operation: Operation, risk: Risk, plan: Plan, calls: Sequence[Sequence[Subject]]
) -> Refused | None:
    guests = len({one.id for call in calls for one in call if one.kind == GUEST})
    now = site.cluster.clock.monotonic()
    found = (meter.objection(operation, risk, len(plan.calls), guests, now) for meter in site.meters)
    return next((one for one in found if one is not None), None)


async def _subjects(site: Site, gate: Gate, plan: Plan) -> list[list[Subject]]:
    """What each call of the plan reaches; nothing is read where nobody asks."""
    counted = any(meter.limits.guests_per_call is not None for meter in site.meters)
    if not (gate.rules.about_targets or counted):
        return []
    if gate.rules.rests_on_facts:
        site.cluster.inventory.forget()  # a tag that was set a second ago counts
    return await _reach_of(site, plan)


async def reach_of(sites: Sites, site: Site, plan: Plan) -> list[list[Subject]]:
    """What each call of the plan acts on, with the facts that rules are about."""
    parts = [await _reach_of(sites.having(where) if where else site, part) for where, part in plan.parts()]
    return [subjects for part in parts for subjects in part]


async def _reach_of(site: Site, plan: Plan) -> list[list[Subject]]:
    if not plan.calls:
        return []
    if isinstance(site.cluster, Homelab):
        return [await hosts_reached(site.cluster, step) for step in plan.calls if isinstance(step, Action)]
    facts = await site.cluster.facts() if plan.api_calls else None
    census = Census(await site.cluster.inventory.named_guests())
    return [census.subjects(things) for step in plan.calls for things in _things(step, facts)]


def _things(step: Call | Action, facts: Facts | None) -> list[list[Reached]]:
    if isinstance(step, Call):
        return [_of_call(step, facts)]
    return [_of_target(step), *(_of_call(call, facts) for call in step.needs)]


def _of_call(call: Call, facts: Facts | None) -> list[Reached]:
    match = facts.find(call.method, call.path) if facts else None
    return reached(match, call.params) if match else []


def _of_target(action: Action) -> list[Reached]:
    target = action.target
    if target is None:
        return []
    if target.kind in ("vm", "ct"):
        return [Reached(GUEST, target.id, target.node)]
    return [Reached(NODE, target.node, target.node)] if target.node else []
