"""Infrastructure plans: validate a document, show what it would change, apply it, scale."""

from __future__ import annotations

import asyncio
import secrets
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quorate.hints import Advice, ToolHint, see, tools
from quorate.homelab.homelab import Homelab
from quorate.homelab.infra import validation
from quorate.homelab.infra.diff import Difference, compare, find_superfluous
from quorate.homelab.infra.document import MAX_COPIES, Document, Fault, Item, examine_document, read_document
from quorate.homelab.infra.plans import Entry, PlanStore
from quorate.operations.plan import Action, ActionResult, Plan, StepContext
from quorate.operations.registry import Risk, operation
from quorate.problems import REFUSED_LOGIN, BadArgument, Conflict, NotFound, Problem
from quorate.tools.infra_steps import Steps, risk_of_differences
from quorate.units import moment, size

DocumentText = Annotated[
    dict[str, Any] | str, Meta(description="Object or YAML: name, hosts, guests, workloads, services; each by name")
]
PlanId = Annotated[str, Meta(description="From infra_plan, or the name of an applied document")]


async def load_document(homelab: Homelab, document: str | dict[str, Any] | None, plan: str | None) -> Document:
    if (document is None) == (plan is None):
        raise BadArgument("Give either document or plan, not both", next_step="Give either document or plan")
    if document is not None:
        return await asyncio.to_thread(read_document, document)
    assert plan is not None
    return await PlanStore(homelab.store).load_plan(plan)


SHOWN = 200
TODO = ("create", "update", "remove")


@operation(
    toolset="infra",
    risk=Risk.LOOK_INSIDE,
    search_words="validate check infrastructure document schema dependencies ports capacity conflicts",
)
async def infra_validate(
    homelab: Homelab,
    document: DocumentText,
    level: Annotated[
        Literal["basic", "comprehensive", "simulation"],
        Meta(
            description="basic: syntax; comprehensive: also measures the hosts; simulation: also a dry run of each step"
        ),
    ] = "comprehensive",
) -> dict[str, Any]:
    """Check an infrastructure document: syntax, dependencies, cycles, names, ports, secrets, hosts, capacity."""
    parsed, faults = await asyncio.to_thread(examine_document, document)
    findings = validation.Findings(errors=list(faults))
    if not faults:
        await validation.references(homelab, parsed, findings)
    differences: list[Difference] = []
    if level != "basic" and not findings.errors:
        differences = await compare(homelab, parsed)
        await validation.measure(homelab, parsed, differences, findings)
    if level == "simulation" and not findings.errors:
        await _simulate(homelab, parsed, differences, findings)
    sizes = {
        place: {key: size(value) if isinstance(value, int) else value for key, value in measured.items() if value}
        for place, measured in findings.measured.items()
    }
    return {
        "document": parsed.name,
        "level": level,
        "valid": not findings.errors,
        "errors": [str(fault) for fault in findings.errors[:SHOWN]],
        **({"warnings": [str(fault) for fault in findings.warnings[:SHOWN]]} if findings.warnings else {}),
        **({"order": [str(item) for item in parsed.order()][:SHOWN]} if not faults else {}),
        **({"measured": sizes} if sizes else {}),
    }


async def _simulate(
    homelab: Homelab, document: Document, differences: list[Difference], findings: validation.Findings
) -> None:
    """Every step is planned by its own tool, except steps that depend on something that does not exist yet."""
    steps = Steps(homelab, document, "")
    for diff in differences:
        if diff.act not in TODO:
            continue
        if diff.why:
            findings.warnings.append(Fault(diff.item.path, f"{diff.why}, so it can only be checked then"))
            continue
        try:
            findings.warnings += [Fault(diff.item.path, warning) for warning in await steps.rehearse(diff)]
        except Problem as problem:
            findings.errors.append(Fault(diff.item.path, str(problem)))


@operation(
    toolset="infra",
    risk=Risk.LOOK_INSIDE,
    search_words="infrastructure diff what would change desired state drift preview plan declarative",
)
async def infra_plan(
    homelab: Homelab,
    document: DocumentText | None = None,
    plan: PlanId | None = None,
    prune: Annotated[bool, Meta(description="Remove what it created before and no longer lists")] = False,
) -> dict[str, Any]:
    """What an infrastructure document would change, field by field. Returns the plan's id."""
    desired = await load_document(homelab, document, plan)
    differences, left = await find_differences(homelab, desired, prune=prune)
    store = PlanStore(homelab.store)
    counts = {act: count for act in (*TODO, "none", "going on", "unknown")
              if (count := sum(diff.act == act for diff in differences))}  # fmt: skip
    shown = [diff.as_dict() for diff in differences if diff.act != "none"]
    return {
        "plan": await store.plan(desired),
        "document": desired.name,
        "result": counts or "The document is empty",
        "changes": shown[:SHOWN],
        **({"more": len(shown) - SHOWN} if len(shown) > SHOWN else {}),
        "as_wanted": [f"{diff.item.kind} {diff.name}" for diff in differences if diff.act == "none"][:SHOWN],
        **(
            {"left_over": left[:SHOWN], "note": Advice("{prune} removes what is left over", prune=True)} if left else {}
        ),
        **last_run(await store.entry(desired.name)),
        "next": Advice("Apply it", tools.infra_apply(plan=desired.id, **({"prune": True} if prune else {}))),
    }


async def find_differences(homelab: Homelab, document: Document, *, prune: bool) -> tuple[list[Difference], list[str]]:
    """All differences, with what is to be removed if requested, or what is left over otherwise."""
    differences = await compare(homelab, document)
    entry = await PlanStore(homelab.store).entry(document.name)
    left = await find_superfluous(homelab, document.name, entry.made.values(), differences) if entry else []
    if prune:
        busy = {diff.place for diff in differences if diff.act == "create"}
        first = [diff for diff in left if diff.item.kind == "workload" and diff.place in busy]  # it may be in the way
        return [*first, *differences, *(diff for diff in left if diff not in first)], []
    return differences, [f"{diff.item.kind} {diff.name}" + (f" on {diff.place}" if diff.place else "") for diff in left]


def last_run(entry: Entry | None) -> dict[str, Any]:
    if entry is None or not entry.steps:
        return {}
    steps = [
        {"step": step.step, "state": step.state, "at": moment(step.time), **({"why": step.why} if step.why else {})}
        for step in entry.steps[-50:]
    ]
    return {"last_run": steps}


STEPS_SHOWN = 50


@operation(
    toolset="infra",
    risk=Risk.CHANGE,
    idempotent=True,
    unrecorded=("document",),
    shown_by=("infra_plan", "document", "plan"),
    search_words="apply deploy infrastructure declarative document desired state converge resume roll out",
)
async def infra_apply(
    homelab: Homelab,
    document: DocumentText | None = None,
    plan: PlanId | None = None,
    prune: Annotated[bool, Meta(description="Remove what it created before and no longer lists; data stays")] = False,
) -> Plan:
    """Apply an infrastructure document in dependency order, up to the first step that fails.
    Call again to continue: everything is compared again, and what matches is left alone."""
    desired = await load_document(homelab, document, plan)
    differences, left = await find_differences(homelab, desired, prune=prune)
    warnings = (f"Left over, because prune is off: {', '.join(left)}",) if left else ()
    return await _plan(homelab, f"Apply {desired.name}", desired, differences, warnings, stores=True)


@operation(
    toolset="infra",
    risk=Risk.CHANGE,
    idempotent=True,
    unrecorded=("document",),
    shown_by=("infra_plan", "document", "plan"),
    search_words="scale replicas copies more instances of container workload or guest up down",
)
async def infra_scale(
    homelab: Homelab,
    name: Annotated[str, Meta(description="Workload or guest of the document")],
    replicas: Annotated[int, Meta(ge=0, le=MAX_COPIES)],
    document: DocumentText | None = None,
    plan: PlanId | None = None,
) -> Plan:
    """Run this many copies of a workload, with consecutive ports, or of a guest. Without document and plan, the
    applied document that has it. Fewer copies remove the last ones: containers, or guests with their disks."""
    old = await load_document(homelab, document, plan) if document or plan else await _find_document_with(homelab, name)
    item = old.items.get(name)
    if item is None or not hasattr(item.desired, "replicas"):
        names = [item.name for item in old.items.values() if hasattr(item.desired, "replicas")]
        raise NotFound(f"{old.name} has no workload or guest {name!r}", next_step=f"Available: {', '.join(names)}")
    scaled = Item(item.kind, name, msgspec.structs.replace(item.desired, replicas=replicas))
    scaled_document = read_document(Document(old.name, {**old.items, name: scaled}).to_builtins())
    differences = await compare(homelab, scaled_document, name)
    if changed := [diff for diff in differences if diff.act == "update"]:
        raise Conflict(
            f"{changed[0].item.kind} {changed[0].name} does not match the document",
            why=", ".join(field for field, _, _ in changed[0].changes),
            next_step=see("See the difference and apply the document, then scale", tools.infra_plan, tools.infra_apply),
        )
    entry = await PlanStore(homelab.store).entry(scaled_document.name)
    records = [record for record in (entry.made.values() if entry else ()) if record.item == name]
    differences = [*differences, *await find_superfluous(homelab, scaled_document.name, records, differences)]
    return await _plan(homelab, f"Scale {name} of {scaled_document.name} to {replicas}", scaled_document, differences)


async def _find_document_with(homelab: Homelab, name: str) -> Document:
    entries = await PlanStore(homelab.store).entries()
    documents = [document for entry in entries.values() if name in (document := read_document(entry.document)).items]
    if len(documents) == 1:
        return documents[0]
    if documents:
        raise BadArgument(
            f"Several documents have a {name!r}",
            why=", ".join(document.name for document in documents),
            next_step="Say which with plan",
        )
    raise NotFound(f"No applied document has a {name!r}", next_step="Give the document")


def _storing(plans: PlanStore, document: Document) -> Action:
    async def perform(_: StepContext) -> ActionResult:
        await plans.store_applied(document)
        return ActionResult({"stored": document.name})

    return Action("Store the document: everything matches it", f"infra: store {document.name}", perform)


def _status_tool(diff: Difference) -> ToolHint:
    if diff.item.kind == "workload":
        return tools.workload_get(host=diff.place, name=diff.name)
    return tools.service_status(host=diff.place, service=diff.name)


async def _plan(
    homelab: Homelab,
    summary: str,
    document: Document,
    differences: list[Difference],
    warnings: tuple[str, ...] = (),
    *,
    stores: bool = False,
) -> Plan:
    """Refuse to start while something cannot be inspected or is still in progress.

    Without a difference, only the document is stored, so that it is the applied one for what follows.
    """
    if unknown := [diff for diff in differences if diff.act == "unknown"]:
        raise Conflict(
            f"{unknown[0].item.kind} {unknown[0].name} cannot be inspected",
            why=unknown[0].why,
            next_step=Advice("Nothing was done. See everything that blocks it", tools.infra_validate),
            facts={"unknown": [diff.as_dict() for diff in unknown[:20]], REFUSED_LOGIN: unknown[0].refused_login},
        )
    if busy := [diff for diff in differences if diff.act == "going on"]:
        raise Conflict(
            f"{busy[0].item.kind} {busy[0].name} is still being deployed",
            next_step=Advice("Nothing was done. See its state", _status_tool(busy[0])),
        )
    run = secrets.token_hex(6)
    steps = Steps(homelab, document, run)
    todo = [diff for diff in differences if diff.act in TODO]
    as_wanted = tuple(f"{diff.item.kind} {diff.name} matches" for diff in differences if diff.act == "none")
    plans = PlanStore(homelab.store)
    await plans.plan(document)
    actions = [await steps.of(diff) for diff in todo]
    if stores and not todo:
        entry = await plans.entry(document.name)
        if entry is None or read_document(entry.document).id != document.id:
            actions.append(_storing(plans, document))
    return Plan(
        summary,
        tuple(actions),
        unchanged=as_wanted[:STEPS_SHOWN],
        facts={
            "plan_id": document.id,
            **({"changes": [diff.as_dict() for diff in todo[:STEPS_SHOWN]]} if todo else {}),
        },
        warnings=warnings,
        next_step=see(
            "See the state; apply again after a failure",
            tools.infra_plan(plan=document.id),
            tools.infra_apply(plan=document.id),
        ),
        risk=risk_of_differences(todo),
    )
