"""Deleting rules, aliases, IP sets and security groups."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from quorate.hints import FIREWALL_GET, NAMED, Advice, Sentence
from quorate.operations.firewall.objects import plan_object_deletion, scope_for
from quorate.operations.firewall.rules import plan_rule_deletion
from quorate.operations.firewall.scopes import Digest, Of, Scope, scope_of
from quorate.operations.plan import Plan
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument
from quorate.pve.cluster import Cluster


@operation(
    risk=Risk.DESTROY,
    search_words="remove drop away firewall rule alias ipset security group",
    example="scope=cluster kind=rule item=0",
)
async def firewall_delete(
    pve: Cluster,
    scope: Scope,
    kind: Literal["rule", "alias", "ipset", "group"],
    item: Annotated[int | str, Meta(description="Position of the rule, or the name")],
    of: Of | None = None,
    force: Annotated[bool, Meta(description="Also members of the IP set or rules of the group")] = False,
    digest: Digest | None = None,
) -> Plan:
    """Delete a firewall rule, or an alias, IP set or security group that no rule uses. Returns what was deleted."""
    if kind != "rule":
        if digest is not None:
            raise BadArgument(
                Sentence("{digest} cannot be combined with {kind}", digest=NAMED, kind=kind),
                next_step="It is for rules",
            )
        firewall = await scope_for(pve, scope, of, kind)
        return await plan_object_deletion(pve, firewall, kind, str(item), force=force)
    text = str(item)
    if not (text.isascii() and text.isdecimal()):
        raise BadArgument(
            f"{item!r} is not a position of a rule", next_step=Advice("The first is 0; see the rules", FIREWALL_GET)
        )
    return await plan_rule_deletion(pve, await scope_of(pve, scope, of), int(text), digest)
