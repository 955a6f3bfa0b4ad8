"""HA rules of PVE 9: on which nodes guests may run, and which of them belong together or apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import API_CALL, HA_REMOVE, HA_SET, HA_STATUS, NAMED, Advice, Sentence, see
from quorate.operations.ha.resources import RESOURCES, RULES, has_rules, read_resources, sid_of
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import GuestRef, GuestRefs, Risk, operation
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster, Guest

_TYPES = {"nodes": "node-affinity", "together": "resource-affinity", "apart": "resource-affinity"}


@operation(
    risk=Risk.CHANGE,
    idempotent=True,
    search_words=(
        "end up keep guests apart separate different same node same host anti-affinity prefer pin rule failure not"
    ),
    example="rule=dns-apart kind=apart guests=pihole guests=router",
)
async def ha_rule_set(
    pve: Cluster,
    rule: Annotated[str, Meta(description="Name of the rule")],
    kind: Annotated[
        Literal["nodes", "together", "apart"],
        Meta(description="nodes: guests run on these nodes; together/apart: guests on one node or on several"),
    ],
    guests: GuestRefs,
    nodes: Annotated[list[str], Meta(description="Priorities are optional: pve1:2")] | None = None,
    strict: Annotated[bool, Meta(description="Never on other nodes")] | None = None,
    enabled: bool | None = None,
    comment: str | None = None,
) -> Plan:
    """Create or change an HA rule. The guests must be under HA."""
    await _refuse_without_rules(pve)
    params = {
        "type": _TYPES[kind],
        "resources": ",".join(await _members(pve, guests)),
        **await _affinity(pve, kind, nodes, strict),
        **({} if enabled is None else {"disable": not enabled}),
        **({} if comment is None else {"comment": comment}),
    }
    known = (await _rules(pve)).get(rule)
    if known is None:
        return _plan(pve, rule, f"Create the HA rule {rule}", "POST", RULES, {"rule": rule, **params})
    if known["type"] != params["type"]:
        raise Conflict(
            f"The HA rule {rule} is of type {known['type']}, which cannot change",
            next_step=Advice("Remove it, or choose another name", HA_REMOVE),
        )
    return _plan(pve, rule, f"Change the HA rule {rule}", "PUT", f"{RULES}/{rule}", params)


@operation(
    risk=Risk.DESTROY,
    idempotent=True,
    search_words="guest no longer highly available remove rule",
    example="guest=homeassistant",
)
async def ha_remove(pve: Cluster, guest: GuestRef | None = None, rule: str | None = None) -> Plan:
    """Take a guest out of HA and its rules; it keeps running. Or remove an HA rule; its guests stay under HA."""
    if (guest is None) == (rule is None):
        raise BadArgument("Give either guest or rule", next_step=see("See both", HA_STATUS))
    if guest is not None:
        return await _remove_guest(pve, await pve.guest(guest))
    return await _remove_rule(pve, str(rule))


async def _remove_guest(pve: Cluster, guest: Guest) -> Plan:
    sid, summary = sid_of(guest), f"Take {guest} out of HA"
    if sid not in await read_resources(pve):
        return Plan(summary, unchanged=(f"{guest} is not under HA",))

    return Plan(summary, (Call(summary, "DELETE", f"{RESOURCES}/{sid}", {}, Target.of_guest(guest)),))


async def _remove_rule(pve: Cluster, rule: str) -> Plan:
    await _refuse_without_rules(pve)
    summary = f"Remove the HA rule {rule}"
    known = await _rules(pve)
    if rule not in known:
        return Plan(summary, unchanged=(f"There is no HA rule {rule}; there is {', '.join(known) or 'none'}",))

    return Plan(summary, (Call(summary, "DELETE", f"{RULES}/{rule}", {}, Target("ha rule", rule)),))


def _plan(pve: Cluster, rule: str, summary: str, method: str, path: str, params: Mapping[str, Any]) -> Plan:
    async def after() -> dict[str, Any]:
        errors = (await _rules(pve)).get(rule, {}).get("errors")
        return {"errors": errors, "next": "PVE ignores the rule until this is solved"} if errors else {}

    return Plan(summary, (Call(summary, method, path, params, Target("ha rule", rule)),), after=after)


async def _members(pve: Cluster, refs: int | str | list[int | str]) -> list[str]:
    guests = [await pve.guest(ref) for ref in (refs if isinstance(refs, list) else [refs])]
    if not guests:
        raise BadArgument("No guest was specified", next_step="Give a vmid or a name, or a list of them")
    under_ha = await read_resources(pve)
    for guest in guests:
        if sid_of(guest) not in under_ha:
            raise Conflict(
                f"{guest} is not under HA", next_step=Advice("Put it under HA first", HA_SET(guest=guest.vmid))
            )
    return sorted({sid_of(guest) for guest in guests})


async def _affinity(pve: Cluster, kind: str, nodes: list[str] | None, strict: bool | None) -> dict[str, Any]:
    if kind != "nodes":
        if nodes or strict is not None:
            raise BadArgument(
                Sentence("{nodes} and {strict} cannot be combined with {kind}", nodes=NAMED, strict=NAMED, kind=kind),
                next_step=Advice("They apply to {kind}", kind="nodes"),
            )
        return {"affinity": "positive" if kind == "together" else "negative"}
    if not nodes:
        raise BadArgument(
            Sentence("{kind} needs {nodes}", kind="nodes", nodes=NAMED),
            next_step="Give names such as pve1, or pve1:2 with a priority",
        )
    for name in nodes:
        await pve.inventory.node(name.partition(":")[0])
    return {"nodes": ",".join(nodes), **({} if strict is None else {"strict": strict})}


async def _rules(pve: Cluster) -> dict[str, dict[str, Any]]:
    return {row["rule"]: row for row in await pve.get(RULES)}


async def _refuse_without_rules(pve: Cluster) -> None:
    if not await has_rules(pve):
        raise Conflict(
            "This cluster has HA groups, not rules",
            why="Rules require PVE 9",
            next_step=Advice("Create a group with POST /cluster/ha/groups and name it", API_CALL, HA_SET(group="…")),
        )
