"""Infrastructure plans: bring about what a document wants, or another number of copies."""

from __future__ import annotations

import secrets
from typing import Annotated

import msgspec
from msgspec import Meta

from quorate.homelab.home import Homelab
from quorate.homelab.infra.comparing import Difference, compared, superfluous
from quorate.homelab.infra.document import MOST_COPIES, Document, Item, read
from quorate.homelab.infra.kept import Kept
from quorate.operations.infra.parameters import DocumentText, PlanId, the_document
from quorate.operations.infra.planning import TODO, surveyed
from quorate.operations.infra.steps import Steps, gravest
from quorate.operations.plan import Plan
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, Conflict, NotFound

SHOWN = 50


@operation(risk=Risk.CHANGE, idempotent=True, unrecorded=("document",))
async def infra_apply(
    home: Homelab,
    document: DocumentText | None = None,
    plan: PlanId | None = None,
    prune: Annotated[bool, Meta(description="Remove what it made before and no longer wants; data stays")] = False,
) -> Plan:
    """Bring about what an infrastructure document wants, in the order of its needs, up to the first step that fails.
    Call it again to go on: everything is compared anew, and what is as wanted is left alone."""
    wanted = await the_document(home, document, plan)
    differences, left = await surveyed(home, wanted, prune=prune)
    warnings = (f"Left over, for prune is off: {', '.join(left)}",) if left else ()
    return await _plan(home, f"Apply {wanted.name}", wanted, differences, warnings)


@operation(risk=Risk.CHANGE, idempotent=True, unrecorded=("document",))
async def infra_scale(
    home: Homelab,
    name: Annotated[str, Meta(description="Workload or guest of the document")],
    replicas: Annotated[int, Meta(ge=0, le=MOST_COPIES)],
    document: DocumentText | None = None,
    plan: PlanId | None = None,
) -> Plan:
    """Run so many copies of a workload, with ports one after the other, or of a guest. Without document and plan, the
    one that was applied and has it. Fewer copies remove the last ones: containers, or guests with their disks."""
    old = await the_document(home, document, plan) if document or plan else await _having(home, name)
    item = old.items.get(name)
    if item is None or not hasattr(item.wanted, "replicas"):
        names = [one.name for one in old.items.values() if hasattr(one.wanted, "replicas")]
        raise NotFound(f"{old.name} has no workload or guest {name!r}", next_step=f"There are {', '.join(names)}")
    scaled = Item(item.kind, name, msgspec.structs.replace(item.wanted, replicas=replicas))
    wanted = read(Document(old.name, {**old.items, name: scaled}).to_builtins())
    differences = await compared(home, wanted, name)
    if changed := [one for one in differences if one.act == "update"]:
        raise Conflict(
            f"{changed[0].item.kind} {changed[0].name} is not as the document wants it",
            why=", ".join(field for field, _, _ in changed[0].changes),
            next_step="infra_plan shows it, infra_apply mends it; then scale",
        )
    entry = await Kept(home.store).entry(wanted.name)
    made = [one for one in (entry.made.values() if entry else ()) if one.item == name]
    differences = [*differences, *await superfluous(home, wanted.name, made, differences)]
    return await _plan(home, f"Scale {name} of {wanted.name} to {replicas}", wanted, differences)


async def _having(home: Homelab, name: str) -> Document:
    entries = await Kept(home.store).entries()
    found = [document for entry in entries.values() if name in (document := read(entry.document)).items]
    if len(found) == 1:
        return found[0]
    if found:
        raise BadArgument(
            f"Several documents have a {name!r}", why=", ".join(one.name for one in found), next_step="Say which: plan"
        )
    raise NotFound(f"No document that was applied has a {name!r}", next_step="Give the document")


def _asking(one: Difference) -> str:
    tool, word = ("workload_get", "name") if one.item.kind == "workload" else ("service_status", "service")
    return f"{tool} host={one.place} {word}={one.name}"


async def _plan(
    home: Homelab, summary: str, wanted: Document, differences: list[Difference], warnings: tuple[str, ...] = ()
) -> Plan:
    """Nothing is begun as long as something cannot be looked at, or is still going on."""
    if unknown := [one for one in differences if one.act == "unknown"]:
        raise Conflict(
            f"{unknown[0].item.kind} {unknown[0].name} cannot be looked at",
            why=unknown[0].why,
            next_step="Nothing was done; infra_validate tells all that stands against it",
            facts={"unknown": [one.told() for one in unknown[:20]]},
        )
    if busy := [one for one in differences if one.act == "going on"]:
        raise Conflict(
            f"{busy[0].item.kind} {busy[0].name} is still being deployed",
            next_step=f"Nothing was done; {_asking(busy[0])} tells how it stands",
        )
    run = secrets.token_hex(6)
    steps = Steps(home, wanted, run)
    todo = [one for one in differences if one.act in TODO]
    as_wanted = tuple(f"{one.item.kind} {one.name} is as wanted" for one in differences if one.act == "none")
    await Kept(home.store).plan(wanted)
    return Plan(
        summary,
        tuple([await steps.of(one) for one in todo]),
        unchanged=as_wanted[:SHOWN],
        facts={"plan_id": wanted.id, **({"changes": [one.told() for one in todo[:SHOWN]]} if todo else {})},
        warnings=warnings,
        next_step=f"infra_plan plan={wanted.id} shows how it stands; infra_apply goes on after a failure",
        risk=gravest(todo),
    )
