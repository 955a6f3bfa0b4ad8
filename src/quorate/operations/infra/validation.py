"""Infrastructure plans: validating a document, and what it would change."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import INFRA_APPLY, Advice
from quorate.homelab.homelab import Homelab
from quorate.homelab.infra import validation
from quorate.homelab.infra.diff import Difference, compare, find_superfluous
from quorate.homelab.infra.document import Document, Fault, examine_document, read_document
from quorate.homelab.infra.plan_store import Entry, PlanStore
from quorate.operations.infra.steps import Steps
from quorate.operations.registry import Risk, operation
from quorate.operations.units import moment, size
from quorate.problems import BadArgument, Problem

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
    wanted, faults = await asyncio.to_thread(examine_document, document)
    found = validation.Findings(errors=list(faults))
    if not faults:
        await validation.references(homelab, wanted, found)
    differences: list[Difference] = []
    if level != "basic" and not found.errors:
        differences = await compare(homelab, wanted)
        await validation.measure(homelab, wanted, differences, found)
    if level == "simulation" and not found.errors:
        await _simulate(homelab, wanted, differences, found)
    sizes = {
        place: {key: size(value) if isinstance(value, int) else value for key, value in measured.items() if value}
        for place, measured in found.measured.items()
    }
    return {
        "document": wanted.name,
        "level": level,
        "valid": not found.errors,
        "errors": [str(one) for one in found.errors[:SHOWN]],
        **({"warnings": [str(one) for one in found.warnings[:SHOWN]]} if found.warnings else {}),
        **({"order": [str(one) for one in wanted.order()][:SHOWN]} if not faults else {}),
        **({"measured": sizes} if sizes else {}),
    }


async def _simulate(
    homelab: Homelab, document: Document, differences: list[Difference], found: validation.Findings
) -> None:
    """Every step is planned by its own tool, except steps that depend on something that does not exist yet."""
    steps = Steps(homelab, document, "")
    for one in differences:
        if one.act not in TODO:
            continue
        if one.why:
            found.warnings.append(Fault(one.item.path, f"{one.why}, so it can only be checked then"))
            continue
        try:
            found.warnings += [Fault(one.item.path, said) for said in await steps.rehearse(one)]
        except Problem as problem:
            found.errors.append(Fault(one.item.path, str(problem)))


@operation(
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
    wanted = await load_document(homelab, document, plan)
    differences, left = await find_differences(homelab, wanted, prune=prune)
    kept = PlanStore(homelab.store)
    counts = {act: count for act in (*TODO, "none", "going on", "unknown")
              if (count := sum(one.act == act for one in differences))}  # fmt: skip
    shown = [one.as_dict() for one in differences if one.act != "none"]
    return {
        "plan": await kept.plan(wanted),
        "document": wanted.name,
        "result": counts or "The document is empty",
        "changes": shown[:SHOWN],
        **({"more": len(shown) - SHOWN} if len(shown) > SHOWN else {}),
        "as_wanted": [f"{one.item.kind} {one.name}" for one in differences if one.act == "none"][:SHOWN],
        **(
            {"left_over": left[:SHOWN], "note": Advice("{prune} removes what is left over", prune=True)} if left else {}
        ),
        **last_run(await kept.entry(wanted.name)),
        "next": Advice("Apply it", INFRA_APPLY(plan=wanted.id, **({"prune": True} if prune else {}))),
    }


async def find_differences(homelab: Homelab, document: Document, *, prune: bool) -> tuple[list[Difference], list[str]]:
    """All differences, with what is to be removed if requested, or what is left over otherwise."""
    differences = await compare(homelab, document)
    entry = await PlanStore(homelab.store).entry(document.name)
    left = await find_superfluous(homelab, document.name, entry.made.values(), differences) if entry else []
    if prune:
        busy = {one.place for one in differences if one.act == "create"}
        first = [one for one in left if one.item.kind == "workload" and one.place in busy]  # it may be in the way
        return [*first, *differences, *(one for one in left if one not in first)], []
    return differences, [f"{one.item.kind} {one.name}" + (f" on {one.place}" if one.place else "") for one in left]


def last_run(entry: Entry | None) -> dict[str, Any]:
    if entry is None or not entry.steps:
        return {}
    steps = [
        {"step": one.step, "state": one.state, "at": moment(one.time), **({"why": one.why} if one.why else {})}
        for one in entry.steps[-50:]
    ]
    return {"last_run": steps}
