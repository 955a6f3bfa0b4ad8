"""Infrastructure plans: applying a document, and scaling."""

from __future__ import annotations

import secrets
from typing import Annotated

import msgspec
from msgspec import Meta

from quorate.hints import INFRA_APPLY, INFRA_PLAN, INFRA_VALIDATE, SERVICE_STATUS, WORKLOAD_GET, Advice, ToolHint, see
from quorate.homelab.homelab import Homelab
from quorate.homelab.infra.diff import Difference, compare, find_superfluous
from quorate.homelab.infra.document import MAX_COPIES, Document, Item, read_document
from quorate.homelab.infra.plan_store import PlanStore
from quorate.operations.infra.steps import Steps, risk_of_differences
from quorate.operations.infra.validation import TODO, DocumentText, PlanId, find_differences, load_document
from quorate.operations.plan import Plan
from quorate.operations.registry import Risk, operation
from quorate.problems import REFUSED_LOGIN, BadArgument, Conflict, NotFound

SHOWN = 50


@operation(
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
    wanted = await load_document(homelab, document, plan)
    differences, left = await find_differences(homelab, wanted, prune=prune)
    warnings = (f"Left over, because prune is off: {', '.join(left)}",) if left else ()
    return await _plan(homelab, f"Apply {wanted.name}", wanted, differences, warnings)


@operation(
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
    if item is None or not hasattr(item.wanted, "replicas"):
        names = [one.name for one in old.items.values() if hasattr(one.wanted, "replicas")]
        raise NotFound(f"{old.name} has no workload or guest {name!r}", next_step=f"Available: {', '.join(names)}")
    scaled = Item(item.kind, name, msgspec.structs.replace(item.wanted, replicas=replicas))
    wanted = read_document(Document(old.name, {**old.items, name: scaled}).to_builtins())
    differences = await compare(homelab, wanted, name)
    if changed := [one for one in differences if one.act == "update"]:
        raise Conflict(
            f"{changed[0].item.kind} {changed[0].name} does not match the document",
            why=", ".join(field for field, _, _ in changed[0].changes),
            next_step=see("See the difference and apply the document, then scale", INFRA_PLAN, INFRA_APPLY),
        )
    entry = await PlanStore(homelab.store).entry(wanted.name)
    made = [one for one in (entry.made.values() if entry else ()) if one.item == name]
    differences = [*differences, *await find_superfluous(homelab, wanted.name, made, differences)]
    return await _plan(homelab, f"Scale {name} of {wanted.name} to {replicas}", wanted, differences)


async def _find_document_with(homelab: Homelab, name: str) -> Document:
    entries = await PlanStore(homelab.store).entries()
    found = [document for entry in entries.values() if name in (document := read_document(entry.document)).items]
    if len(found) == 1:
        return found[0]
    if found:
        raise BadArgument(
            f"Several documents have a {name!r}",
            why=", ".join(one.name for one in found),
            next_step="Say which with plan",
        )
    raise NotFound(f"No applied document has a {name!r}", next_step="Give the document")


def _status_tool(one: Difference) -> ToolHint:
    if one.item.kind == "workload":
        return WORKLOAD_GET(host=one.place, name=one.name)
    return SERVICE_STATUS(host=one.place, service=one.name)


async def _plan(
    homelab: Homelab, summary: str, wanted: Document, differences: list[Difference], warnings: tuple[str, ...] = ()
) -> Plan:
    """Refuse to start while something cannot be inspected or is still in progress."""
    if unknown := [one for one in differences if one.act == "unknown"]:
        raise Conflict(
            f"{unknown[0].item.kind} {unknown[0].name} cannot be inspected",
            why=unknown[0].why,
            next_step=Advice("Nothing was done. See everything that blocks it", INFRA_VALIDATE),
            facts={"unknown": [one.as_dict() for one in unknown[:20]], REFUSED_LOGIN: unknown[0].refused_login},
        )
    if busy := [one for one in differences if one.act == "going on"]:
        raise Conflict(
            f"{busy[0].item.kind} {busy[0].name} is still being deployed",
            next_step=Advice("Nothing was done. See its state", _status_tool(busy[0])),
        )
    run = secrets.token_hex(6)
    steps = Steps(homelab, wanted, run)
    todo = [one for one in differences if one.act in TODO]
    as_wanted = tuple(f"{one.item.kind} {one.name} matches" for one in differences if one.act == "none")
    await PlanStore(homelab.store).plan(wanted)
    return Plan(
        summary,
        tuple([await steps.of(one) for one in todo]),
        unchanged=as_wanted[:SHOWN],
        facts={"plan_id": wanted.id, **({"changes": [one.as_dict() for one in todo[:SHOWN]]} if todo else {})},
        warnings=warnings,
        next_step=see(
            "See the state; apply again after a failure", INFRA_PLAN(plan=wanted.id), INFRA_APPLY(plan=wanted.id)
        ),
        risk=risk_of_differences(todo),
    )
