"""What the steps of a plan reach: what their calls name, and what the stored objects that they change are about."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from pve_schema.formats import split_list
from pve_schema.schema import Facts
from quorate.hints import Advice, tools
from quorate.operations.backend import Backend
from quorate.operations.exemptions import is_exempt
from quorate.operations.plan import Action, Call, Plan, Target
from quorate.operations.protection import weakened_protections
from quorate.operations.registry import Operation, Risk
from quorate.operations.risk import ORDER, Effect, Reason, effects
from quorate.operations.takeover import takes_over
from quorate.pipeline.caller import Caller, Gate
from quorate.pipeline.pipeline import Invocation
from quorate.pipeline.sites import Site, Sites
from quorate.problems import NotFound, ParameterRejected, Problem, Refused
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Resource
from quorate.pve.placement import UNMANAGED, Relocation, affects_placement, find_relocations, relocation_targets
from quorate.pve.targets import (
    BACKUP,
    DATASTORE,
    GUEST,
    GUESTS,
    HOST,
    NODE,
    Subject,
    TargetRef,
    find_targets,
    subject_of,
)
from quorate.pve.tasks import gather_bounded
from quorate.pve.wire import Request, encode, read
from quorate.state.limits import Tally

_STORED: Final = re.compile(r"/cluster/(?:backup|ha/rules|ha/groups|mapping/(?:pci|usb|dir))/[^/]+")
_GROUP: Final = re.compile(r"/cluster/ha/groups/(?P<name>[^/]+)")
_STORAGE: Final = re.compile(r"/storage/[^/]+")
_KEEPS_BACKUPS: Final = frozenset({"prune-backups", "maxfiles", "encryption-key", "master-pubkey"})
"""Parameters of a storage that decide which backups are kept and who can read them."""
_TARGET_KEYS: Final = ("vmid", "all", "exclude", "pool", "resources", "nodes", "map")


def reach_of_step(step: Call | Action, facts: Facts | None) -> list[list[TargetRef]]:
    if isinstance(step, Call):
        return [reach_of_call(step, facts)]
    return [_target_refs(step), *(reach_of_call(call, facts) for call in step.needs)]


def reach_of_call(call: Call, facts: Facts | None) -> list[TargetRef]:
    request = read(facts, call.method, call.path, call.params)
    return find_targets(request) if request else []


def _target_refs(action: Action) -> list[TargetRef]:
    targets = (*((action.target,) if action.target else ()), *action.concerns)
    return [ref for target in targets for ref in _refs_of_target(action, target)]


def _refs_of_target(action: Action, target: Target) -> list[TargetRef]:
    if target.kind == HOST:
        return [TargetRef(HOST, target.id, becomes=msgspec.structs.asdict(action.becomes) if action.becomes else {})]
    if target.kind == BACKUP:
        place, _, group = target.id.partition(":")
        kind, backup_id, *_ = group.split("/")
        of_guest = kind in ("vm", "ct") and backup_id.isascii() and backup_id.isdecimal()
        return [TargetRef(DATASTORE, place), *([TargetRef(GUEST, str(int(backup_id)))] if of_guest else [])]
    if target.kind == DATASTORE:
        return [TargetRef(DATASTORE, target.id)]
    if target.kind in ("vm", "ct"):
        return [TargetRef(GUEST, target.id, target.node)]
    return [TargetRef(NODE, target.node, target.node)] if target.node else []


async def stored_reach(cluster: Cluster, facts: Facts, call: Call) -> list[TargetRef]:
    """What a stored object is about now, such as the guests of a backup job: changing it concerns them as well."""
    named = {*call.params, *split_list(str(call.params.get("delete", "")))}
    if call.method == "PUT" and _STORAGE.fullmatch(call.path) and _KEEPS_BACKUPS & named:
        return [TargetRef(GUESTS)]  # any of them may have backups there
    if call.method not in ("PUT", "DELETE") or not _STORED.fullmatch(call.path):
        return []
    try:
        stored = await cluster.get(call.path)
        group = _GROUP.fullmatch(call.path)
        resources = await cluster.get("/cluster/ha/resources") if group else []
    except (NotFound, ParameterRejected):  # PVE will report it
        return []
    members = [str(row["sid"]) for row in resources if group and row.get("group") == group["name"]]
    return [
        *stored_targets(facts, call.path, stored),
        *(target for sid in members for target in _targets_of(facts, f"/cluster/ha/resources/{sid}", {})),
    ]


async def placement_reach(cluster: Cluster, facts: Facts, calls: Iterable[Call]) -> list[list[TargetRef]]:
    """The guests that calls move or let run on other nodes, with everything else that those calls name."""
    requests = [request for call in calls if (request := read(facts, call.method, call.path, call.params))]
    if not any(affects_placement(request) for request in requests):
        return []
    relocations = await find_relocations(cluster, facts, requests)
    return [
        [*find_targets(request), *relocation_targets(moved)]
        for request, moved in zip(requests, relocations, strict=True)
        if moved
    ]


def stored_targets(facts: Facts, path: str, stored: Mapping[str, Any]) -> list[TargetRef]:
    """What an object with this content is about, such as the guests that a backup job selects."""
    return _targets_of(facts, path, {name: stored[name] for name in _TARGET_KEYS if name in stored})


def _targets_of(facts: Facts, path: str, params: dict[str, Any]) -> list[TargetRef]:
    request = read(facts, "PUT", path, encode(params))
    return find_targets(request) if request else []


_SHUTDOWN: Final = re.compile(r"/nodes/{node}/(?:qemu|lxc)/{vmid}/status/shutdown")
_OF_HA: Final = "/cluster/"
"""Calls below it may also move guests that are not under HA yet."""


async def forced_stops(backend: Backend, plan: Plan, facts: Facts | None) -> list[tuple[Call, Effect]]:
    """The calls by which HA may stop guests by force, each with its effect."""
    if facts is None:
        return []
    asked = [
        (call, request)
        for call in plan.api_calls
        if (request := read(facts, call.method, call.path, call.params)) is not None and _may_stop(request)
    ]
    if not asked:
        return []
    rows = {row.vmid: row for row in await backend.api.inventory.named_guests()}
    asked = [(call, request) for call, request in asked if _concerns_ha(request, rows)]
    requests = [request for _, request in asked]
    relocations: list[list[Relocation]] = [[] for _ in requests]
    if any(affects_placement(request) for request in requests):
        relocations = await find_relocations(backend.api, facts, requests)
    stopping = []
    for (call, request), moved in zip(asked, relocations, strict=True):
        stops = _SHUTDOWN.fullmatch(request.template) is not None
        for relocation in moved:
            stops = stops or await _is_stopped(backend.api, relocation, rows)
        if stops:
            stopping.append((call, Effect(Reason.STOPS_GUESTS, "under HA")))
    return stopping


def _may_stop(request: Request) -> bool:
    return affects_placement(request) or (request.method == "POST" and bool(_SHUTDOWN.fullmatch(request.template)))


def _concerns_ha(request: Request, rows: Mapping[int, Resource]) -> bool:
    """Whether a guest under HA can be concerned: of the calls about single guests, only those of such guests."""
    vmid = request.match.values.get("vmid", "")
    if vmid.isdecimal():
        return int(vmid) in rows and rows[int(vmid)].hastate not in UNMANAGED
    return request.template.startswith(_OF_HA) or any(row.hastate not in UNMANAGED for row in rows.values())


async def _is_stopped(api: Cluster, moved: Relocation, rows: Mapping[int, Resource]) -> bool:
    """Whether a running container is moved. One that HA has just started is still shown as stopped in the view."""
    row = rows.get(moved.vmid)
    if not (moved.managed and moved.next and row and row.type == "lxc"):
        return False
    return row.status == "running" or (await api.inventory.fresh_guest(row.vmid)).status == "running"


ASKED_AT_ONCE = 32
_FILE_WRITE = "/agent/file-write"
_TYPED = ("/sendkey", "/monitor")
COMMANDS = (
    "A command can destroy anything where it runs, so a rule that denies `destroy` there denies it, unless a pattern "
    "under allow in [inside] names it"
)
TAKEOVER = (
    "At the next start, {option} may decide what runs in the guest or who can log in, so a rule that denies `destroy` "
    "there denies this change"
)
ON_A_NODE = "a command on a Proxmox VE node can do anything to every guest"


@dataclass(frozen=True, slots=True)
class Verdict:
    risk: Risk
    """The risk of the plan, which may be higher than that of the tool."""
    objection: Refused | None = None
    passing: Problem | None = None
    """A temporary objection: hours, limits, or no answer. A dry run is not affected."""
    why: str = ""
    """Why the risk is higher than that of the tool."""

    def require(self, *, dry_run: bool = False, at_most: Risk = Risk.DESTROY) -> None:
        refusal = self.objection or (None if dry_run else self.passing)
        if refusal is not None:
            raise refusal
        if ORDER.index(self.risk) > ORDER.index(at_most):
            raise Refused(
                "The plan now has a higher risk than what was approved", next_step="Nothing was done; call again"
            )


async def authorize(sites: Sites, site: Site, general: Gate, call: Invocation, plan: Plan, tally: Tally) -> Verdict:
    """Judge each part of the plan where it acts. The highest risk and the first objection count."""
    operation, risk, caller = call.operation, call.risk, call.caller
    verdicts = []
    for where, part in plan.parts():
        there = sites.site_of(where) if where else site
        gate = there.gate(general)
        objection = gate.objection(operation, caller, risk) if where else None
        verdict = Verdict(risk, objection)
        if objection is None:
            verdict = await _assess_part(there, gate, operation, risk, part, caller)
        if verdict.objection is None and verdict.passing is None:
            verdict = replace(verdict, passing=await _limit(tally, there, operation, verdict.risk, part))
        verdicts.append(verdict)
    return Verdict(
        max((verdict.risk for verdict in verdicts), key=ORDER.index),
        next((verdict.objection for verdict in verdicts if verdict.objection), None),
        next((verdict.passing for verdict in verdicts if verdict.passing), None),
        next((verdict.why for verdict in verdicts if verdict.why), ""),
    )


async def _assess_part(site: Site, gate: Gate, operation: Operation, risk: Risk, plan: Plan, caller: Caller) -> Verdict:
    """Judge by what is known; if nothing forbids it, ask the machines whether they are PVE nodes."""
    verdict = await _assess(site, gate, operation, risk, plan, caller)
    if verdict.objection is not None or verdict.risk is Risk.DESTROY:
        return verdict
    try:
        on_a_node = await _is_on_a_node(plan)
    except Problem as problem:  # a machine that does not answer cannot be changed either
        return replace(verdict, passing=verdict.passing or problem)
    if not on_a_node:
        return verdict
    return await _assess(site, gate, operation, risk, replace(plan, risk=Risk.DESTROY, summary=ON_A_NODE), caller)


async def _is_on_a_node(plan: Plan) -> bool:
    asking = [step.on_a_node for step in plan.calls if isinstance(step, Action) and step.on_a_node is not None]
    return any(await gather_bounded(ASKED_AT_ONCE, asking))


async def _assess(site: Site, gate: Gate, operation: Operation, risk: Risk, plan: Plan, caller: Caller) -> Verdict:
    """Without rules and limits this costs no request that the preflight check does not need anyway."""
    facts = await site.cluster.facts() if plan.api_calls else None
    grave, why = await effect(operation, risk, plan, facts, site.cluster if plan.api_calls else None)
    if grave is not Risk.DESTROY and (consequences := await _consequences(site, plan, facts)):
        call, consequence = consequences[0]
        grave, why = consequence.risk, f"{call.method} {call.path}: {consequence}"
    if grave is not risk and (refusal := gate.objection(operation, caller, grave)):
        refusal.why = f"{refusal.why or ''} {why}.".strip()
        return Verdict(grave, refusal)
    if refused := _raw_command(site, plan):
        return Verdict(grave, refused)
    calls = await _subjects(site, gate, plan)
    opened = await _execution_reach(site, gate, plan)
    concerned = [*calls, *await _stored_subjects(site, gate, plan, facts)]
    lasting = _objection(gate, operation, grave, concerned, None) or _execution_objection(gate, operation, opened, None)
    if lasting is not None:
        return Verdict(grave, lasting)
    now = site.backend.clock.time()
    passing = (
        gate.rules.tool_objection(operation, grave, now)
        or _objection(gate, operation, grave, concerned, now)
        or _execution_objection(gate, operation, opened, now)
        or _guest_limit(site, operation, calls)
    )
    return Verdict(grave, passing=passing, why=why)


async def _consequences(site: Site, plan: Plan, facts: Facts | None) -> list[tuple[Call, Effect]]:
    """The effects of calls that only the state of the cluster shows; all of them are DESTROY."""
    if facts is None:  # without calls of an API there may be no cluster either
        return []
    stopped = await forced_stops(site.backend, plan, facts)
    return [*stopped, *await weakened_protections(site.cluster, plan, facts)]


def _raw_command(site: Site, plan: Plan) -> Refused | None:
    """Apply the operator's command patterns to API calls that run commands; refuse what they cannot judge."""
    rules = site.backend.command_rules
    for call in [call for step in plan.calls for call in _raw_calls(step)] if rules else []:
        refused = next((objection for argv in _commands_of(call) if (objection := rules.objection(argv))), None)
        if refused := refused or rules.environment_objection(_variables_of(call)):
            return refused
        if call.path.endswith(_FILE_WRITE):
            return Refused(
                "Files are not written through the raw API where commands are limited by patterns",
                next_step=Advice("Use the tool for files", tools.guest_file_write),
            )
        if call.path.endswith(_TYPED):
            return Refused(
                "Consoles and monitors of guests are not used where commands are limited by patterns",
                why="Any command can be typed there",
                next_step=Advice("Use the tool for commands", tools.guest_exec),
            )
    return None


def _raw_calls(step: Call | Action) -> list[Call]:
    """The calls of a step that were not checked against the patterns yet; an action checks its own agent calls."""
    return [step] if isinstance(step, Call) else [call for call in step.needs if "/agent/" not in call.path]


def _commands_of(call: Call) -> list[tuple[str, ...]]:
    """The commands that a call runs in a guest: through the agent, or as the entry point of a container."""
    if call.path.endswith("/agent/exec"):
        command = call.params.get("command", ())
        return [(command,) if isinstance(command, str) else tuple(command)]
    return [(str(call.params["entrypoint"]),)] if call.params.get("entrypoint") else []


def _variables_of(call: Call) -> list[str]:
    """The variables that a container is started with."""
    variables = str(call.params.get("env", "")) if "/lxc" in call.path else ""
    return [variable.partition("=")[0] for variable in variables.split("\0") if variable]


@dataclass(frozen=True, slots=True)
class ExecutionReach:
    """What a step reaches by running code that the caller chooses."""

    subjects: Sequence[Subject]
    takeover: str | None = None
    """The option by which it takes a guest over without running a command; general rules that deny `destroy` do not
    apply then."""


async def _execution_reach(site: Site, gate: Gate, plan: Plan) -> list[ExecutionReach]:
    """What the caller's own code could reach; on a node, that is the whole cluster."""
    reaches = []
    for step in plan.calls if gate.rules.denies_something else ():
        opens = _opens(site, step)
        takeover = await _takeover(site, step) if gate.rules.about_targets and not opens else None
        if takeover or opens:
            reach = await _reach_of(site, replace(plan, calls=(step,)), by_name=gate.rules.rests_on_names)
            reaches.append(ExecutionReach([subject for call in reach for subject in call], takeover))
            if step.target is not None and step.target.kind == "node":
                rows = (await site.cluster.inventory.complete_view()).rows
                subjects = [subject for row in rows if (subject := subject_of(row)) is not None]
                reaches.append(ExecutionReach([replace(subject, secret=True) for subject in subjects]))
    return reaches


async def _takeover(site: Site, step: Call | Action) -> str | None:
    """The option by which a call of the step takes a guest over."""
    for call in _raw_calls(step):
        if option := await takes_over(site.cluster, call):
            return option
    return None


def _opens(site: Site, step: Call | Action) -> bool:
    calls = _raw_calls(step)
    if (isinstance(step, Action) and step.opens) or any(call.path.endswith((_FILE_WRITE, *_TYPED)) for call in calls):
        return True
    return not all(site.backend.command_rules.allows(argv) for call in calls for argv in _commands_of(call))


def _execution_objection(
    gate: Gate, operation: Operation, opened: Sequence[ExecutionReach], now: float | None
) -> Refused | None:
    for reach in opened:
        if refused := gate.rules.denial(operation, Risk.DESTROY, reach.subjects, now, general=not reach.takeover):
            because = TAKEOVER.format(option=reach.takeover) if reach.takeover else COMMANDS
            refused.why = f"{(refused.why or '').rstrip('.')}. {because}"
            return refused
    return None


def _objection(
    gate: Gate, operation: Operation, risk: Risk, calls: Sequence[Sequence[Subject]], now: float | None
) -> Refused | None:
    return next((refused for call in calls if (refused := gate.rules.call_objection(operation, risk, call, now))), None)


def _guest_limit(site: Site, operation: Operation, calls: Sequence[Sequence[Subject]]) -> Refused | None:
    guests = len(
        {subject.id for call in calls for subject in call if subject.kind == GUEST and subject.level != Risk.READ.value}
    )
    objections = (meter.guests_objection(operation, guests) for meter in site.meters)
    return next((objection for objection in objections if objection is not None), None)


async def _limit(tally: Tally, site: Site, operation: Operation, risk: Risk, plan: Plan) -> Refused | None:
    """Why the plan cannot begin now; that it may is decided only when it begins."""
    for meter in site.meters:
        if meter.counts(risk):
            refused = meter.objection(operation, risk, len(plan.calls), await tally.usage(meter.where))
            if refused is not None:
                return refused
    return None


async def _subjects(site: Site, gate: Gate, plan: Plan) -> list[list[Subject]]:
    """What each call of the plan reaches, if any rule or limit depends on it."""
    counted = any(meter.limits.guests_per_call is not None for meter in site.meters)
    if not (gate.rules.about_targets or counted):
        return []
    if gate.rules.rests_on_facts:
        site.backend.forget()  # a tag that was set a second ago counts
    return await _reach_of(site, plan, by_name=gate.rules.rests_on_names)


async def _stored_subjects(site: Site, gate: Gate, plan: Plan, facts: Facts | None) -> list[list[Subject]]:
    """What the stored objects that the plan changes are about. Limits do not count it: nothing happens to it now."""
    if facts is None or not gate.rules.about_targets:
        return []
    reach = [await stored_reach(site.cluster, facts, call) for call in plan.api_calls]
    if gate.rules.rests_on_nodes:
        reach += await placement_reach(site.cluster, facts, plan.api_calls)
    reach = [things for things in reach if things]
    return await site.backend.subjects(reach, by_name=gate.rules.rests_on_names) if reach else []


async def reach_of(sites: Sites, site: Site, plan: Plan) -> list[tuple[Backend, list[Subject]]]:
    """What the plan acts on in each place, without duplicates, with the facts that rules are about."""
    places = []
    for where, part in plan.parts():
        reach = await _reach_of(sites.site_of(where) if where else site, part)
        places.append((where or site.backend, list(dict.fromkeys(subject for call in reach for subject in call))))
    return places


async def effects_of(sites: Sites, site: Site, operation: Operation, plan: Plan) -> list[Effect]:
    """The effects of the plan's API calls, as they determine its risk."""
    all_effects: list[Effect] = []
    for where, part in plan.parts():
        there = sites.site_of(where) if where else site
        facts = await there.cluster.facts() if part.api_calls else None
        cluster = there.cluster if part.api_calls else None
        all_effects += [effect for _, effect in await plan_effects(operation, part, facts, cluster)]
        all_effects += [effect for _, effect in await _consequences(there, part, facts)]
    return all_effects


async def _reach_of(site: Site, plan: Plan, *, by_name: bool = False) -> list[list[Subject]]:
    """`by_name`: rules match names, which the cluster's view learns late, so the nodes are asked."""
    if not plan.calls:
        return []
    facts = await site.cluster.facts() if plan.api_calls else None
    things = [things for step in plan.calls for things in reach_of_step(step, facts)]
    return await site.backend.subjects(things, by_name=by_name)


# -- risk by effect ----------------------------------------------------------------------------------------------------


async def plan_effects(
    operation: Operation, plan: Plan, facts: Facts | None, cluster: Cluster | None
) -> list[tuple[Call, Effect]]:
    """The effects of each call, except those for which an exemption of the tool holds at this moment."""
    counted: list[tuple[Call, Effect]] = []
    for call in plan.api_calls:
        request = read(facts, call.method, call.path, call.params)
        if request is None:
            continue  # the preflight check reports it
        counted += [
            (call, effect)
            for effect in effects(request)
            if cluster is None or not await is_exempt(operation.exemptions, cluster, request, effect)
        ]
    return counted


async def effect(
    operation: Operation, risk: Risk, plan: Plan, facts: Facts | None, cluster: Cluster | None
) -> tuple[Risk, str]:
    """The risk of a plan and, if it is higher than the tool's own, the reason."""
    highest, why = risk, ""
    if plan.risk is not None and ORDER.index(plan.risk) > ORDER.index(highest):
        highest, why = plan.risk, plan.summary
    for step in plan.calls:
        grave = step.risk if isinstance(step, Action) else None
        if grave is not None and ORDER.index(grave) > ORDER.index(highest):
            because = step.risk_because if isinstance(step, Action) else ""
            highest, why = grave, f"{step.summary}: {because or ON_A_NODE}"
    for call, consequence in await plan_effects(operation, plan, facts, cluster):
        if ORDER.index(consequence.risk) > ORDER.index(highest):
            unless = " or ".join(
                exemption.only_if for exemption in operation.exemptions if exemption.reason is consequence.reason
            )
            highest = consequence.risk
            why = f"{call.method} {call.path}: {consequence}" + (f", unless {unless}" if unless else "")
    return highest, why
