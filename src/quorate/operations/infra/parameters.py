"""What the operations on infrastructure have in common."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from quorate.homelab.home import Homelab
from quorate.homelab.infra.document import Document, read
from quorate.homelab.infra.kept import Kept
from quorate.problems import BadArgument

DocumentText = Annotated[
    dict[str, Any] | str, Meta(description="Object or YAML: name, hosts, guests, workloads, services; each by name")
]
PlanId = Annotated[str, Meta(description="As infra_plan told it, or the name of a document that was applied")]


async def the_document(home: Homelab, document: str | dict[str, Any] | None, plan: str | None) -> Document:
    if (document is None) == (plan is None):
        raise BadArgument("What is wanted is not clear", next_step="Give either document or plan")
    if document is not None:
        return read(document)
    assert plan is not None
    return await Kept(home.store).planned(plan)
