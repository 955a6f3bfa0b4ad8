"""High availability: the guests that the HA manager manages, their state, their rules, and moving them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NAMED, Advice, Sentence, see, tools
from quorate.operations.ha_moves import (
    MOVING,
    REACHED,
    HaMove,
    read_state,
    refuse_where_it_would_not_stay,
    sid_of,
)
from quorate.operations.plan import Call, Plan, Target, create_or_change, find_stored
from quorate.operations.preconditions import refuse_locked, storages_on, volumes
from quorate.operations.registry import GuestRef, GuestRefs, Risk, operation
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster, Guest
from quorate.tools.guest_migrate import Mode, local_volumes, refuse_snapshots, refuse_untransferable
from quorate.tools.tasks import comes_true

WAY_OUT = Advice(
    "Move its disks to a storage that both nodes have, or take it out of HA and migrate it, which can do more",
    tools.disk_change(action="move"),
    tools.ha_remove,
    tools.guest_migrate,
)


async def disks_to_copy(pve: Cluster, guest: Guest, node: str, *, live: bool) -> list[str]:
    """The local disks that would be copied; others are refused, since the manager would fail without a report."""
    status, config = await asyncio.gather(guest.get("status/current"), guest.get("config"))
    refuse_locked(guest, status)
    local = await local_volumes(pve, guest, config)
    used = {volume.storage for volume in volumes(config) if volume.on_storage}
    here = await storages_on(pve, guest.row.node, used)
    available = await storages_on(pve, node, used & here.keys())
    if lacking := sorted(name for name in used if name in here and name not in available):
        raise Conflict(f"{node} does not have the storage {', '.join(lacking)} of {guest}", next_step=WAY_OUT)
    runs = status.get("status") == "running"
    mode: Mode = "live" if live and runs and guest.is_vm else "offline"
    try:
        await refuse_snapshots(pve, guest, node, local, mode)
        if mode != "live":
            await refuse_untransferable(pve, guest, node, local, {})
    except Conflict as problem:
        raise Conflict(problem.what, why=problem.why, next_step=WAY_OUT) from None
    return [str(volume) for volume in local]


RESOURCES = "/cluster/ha/resources"
RULES = "/cluster/ha/rules"
ROWS_SHOWN = 200

State = Literal["started", "stopped", "disabled", "ignored"]

_DEFAULTS = {"state": "started", "max_restart": 1, "max_relocate": 1, "failback": True}


@operation(
    toolset="ha",
    risk=Risk.READ,
    search_words=(
        "wrong error fenced guests protected under list high availability working manager crm lrm state failover"
    ),
)
async def ha_status(pve: Cluster) -> dict[str, Any]:
    """HA manager, guests under HA with requested and current state, rules (PVE 9) or groups (PVE 8)."""
    kind = "rules" if await has_rules(pve) else "groups"
    current, resources, limits = await asyncio.gather(
        pve.get("/cluster/ha/status/current"), pve.get(RESOURCES), pve.get(f"/cluster/ha/{kind}")
    )
    services = {row["sid"]: row for row in current if row["type"] == "service"}
    return {
        "manager": {row["id"]: row["status"] for row in current if row["type"] != "service"},
        "resources": [_resource(row, services.get(row["sid"], {})) for row in resources[:ROWS_SHOWN]],
        kind: [
            {key: value for key, value in row.items() if key not in ("digest", "order")} for row in limits[:ROWS_SHOWN]
        ],
        "resources_in_all": len(resources) if len(resources) > ROWS_SHOWN else "",
        "next": "" if resources else Advice("No guest is under HA; add one", tools.ha_set),
    }


def _resource(row: Mapping[str, Any], service: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "guest": row["sid"],
        "node": service.get("node", ""),
        "wanted": row.get("state", "started"),
        "state": service.get("state", "unknown"),
        **{key: row[key] for key in ("group", "max_restart", "max_relocate", "failback", "comment") if key in row},
    }


def _risk_of(arguments: Mapping[str, Any]) -> Risk:
    """A change, unless it stops the guest, by force if needed, or ends its HA management."""
    return Risk.DESTROY if arguments["state"] in ("stopped", "disabled", "ignored") else Risk.CHANGE


@operation(
    toolset="ha",
    risk=Risk.DESTROY,
    risk_of=_risk_of,
    least=Risk.CHANGE,
    idempotent=True,
    search_words=(
        "enable guest under protect keep running survive node host fails dies crash goes down automatically "
        "restart elsewhere failover highly available"
    ),
    example="guest=router",
)
async def ha_set(
    pve: Cluster,
    guest: GuestRef,
    state: Annotated[State, Meta(description="ignored: HA leaves it alone; all but started need access admin")]
    | None = None,
    max_restart: Annotated[int, Meta(ge=0)] | None = None,
    max_relocate: Annotated[int, Meta(ge=0)] | None = None,
    failback: Annotated[bool, Meta(description="Return to the better node; PVE 9")] | None = None,
    group: Annotated[str, Meta(description="HA group; PVE 8")] | None = None,
    comment: str | None = None,
) -> Plan:
    """Put a guest under HA, or change how HA treats it."""
    target = await pve.guest(guest)
    await _refuse_other_version(pve, failback=failback, group=group)
    if target.row.template:
        raise Conflict(f"{target} is a template and cannot run, so HA has nothing to do for it")
    sid = sid_of(target)
    requested = {
        "state": state,
        "max_restart": max_restart,
        "max_relocate": max_relocate,
        "failback": failback,
        "group": group,
        "comment": comment,
    }
    settings = {key: value for key, value in requested.items() if value is not None}
    stored = await find_stored(pve, RESOURCES, sid=sid)
    if stored and stored.get("state") == "enabled":  # PVE's other name of the same state
        stored = {**stored, "state": "started"}
    edit = await create_or_change(
        pve,
        stored,
        Call(f"Put {target} under HA", "POST", RESOURCES, {"sid": sid, **settings}, Target.of_guest(target)),
        Call(f"Change HA of {target}", "PUT", f"{RESOURCES}/{sid}", settings, Target.of_guest(target)),
        defaults=_DEFAULTS,
    )
    if edit.changed and state != "disabled":
        await _refuse_in_error(pve, target)

    async def after() -> dict[str, Any]:
        if stored is not None and "state" not in edit.changed:
            return {}
        final_states = REACHED[state or "started"]

        async def reached() -> bool:
            return await read_state(pve, sid) in final_states

        if await comes_true(pve, reached):
            return {"state": await read_state(pve, sid)}
        return {
            "result": "running",
            "state": await read_state(pve, sid),
            "next": Advice("The HA manager is still working on it", tools.ha_status),
        }

    starts = (state or "started") == "started" and (stored is None or "state" in edit.changed)
    warnings = (f"{target} is stopped; the HA manager starts it",) if starts and not await _runs(target) else ()
    return edit.plan(f"{target} is already under HA with these settings", after=after, warnings=warnings)


async def _runs(guest: Guest) -> bool:
    return bool((await guest.get("status/current")).get("status") == "running")


def _risk_of_moving(arguments: Mapping[str, Any]) -> Risk:
    """A change, unless the guest is stopped for it: the HA manager does that by force after a minute."""
    return Risk.DESTROY if arguments["how"] == "relocate" else Risk.CHANGE


@operation(
    toolset="ha",
    risk=Risk.DESTROY,
    risk_of=_risk_of_moving,
    least=Risk.CHANGE,
    search_words="move ha guest another node manager",
    example="guest=homeassistant node=pve2",
)
async def ha_relocate(
    pve: Cluster,
    guest: GuestRef,
    node: str,
    how: Annotated[
        Literal["migrate", "relocate"], Meta(description="relocate: stop, move, start; needs access admin")
    ] = "migrate",
) -> Plan:
    """Have the HA manager move a guest to another node."""
    target = await pve.guest(guest)
    await pve.inventory.node(node)
    summary = f"{how.capitalize()} {target} from {target.row.node} to {node}"
    if sid_of(target) not in await read_resources(pve):
        raise Conflict(
            f"{target} is not under HA",
            next_step=Advice(
                "Migrate it, or put it under HA first",
                tools.guest_migrate(guest=target.vmid),
                tools.ha_set(guest=target.vmid),
            ),
        )
    if target.row.node == node:
        return Plan(summary, unchanged=(f"{target} is already on {node}",))
    await pve.inventory.online_node(node)
    await _refuse_in_error(pve, target)
    await refuse_where_it_would_not_stay(pve, target, node)
    copied = await disks_to_copy(pve, target, node, live=how == "migrate")
    move = await HaMove.expect(pve, target, node)

    async def after() -> dict[str, Any]:
        if await comes_true(pve, move.has_settled):
            return {"node": node}
        return {"result": "running", "next": Advice("The HA manager is still working on it", tools.ha_status)}

    path = f"{RESOURCES}/{sid_of(target)}/{how}"
    call = Call(summary, "POST", path, {"node": node}, Target.of_guest(target), settled=move.has_arrived)
    facts = {"copied_disks": copied} if copied else {}
    return Plan(summary, (call,), facts=facts, after=after, from_answers=_companions)


def _companions(answers: list[Any]) -> dict[str, Any]:
    """PVE 9 lists the guests that move along, or those that block the move; then nothing moves."""
    answer = answers[0] if isinstance(answers[0], dict) else {}
    blocking = [f"{resource['sid']} ({resource['cause']})" for resource in answer.get("blocking-resources", [])]
    if blocking:
        raise Conflict(
            f"HA rules keep it from moving there: {', '.join(blocking)}",
            next_step=see("See the rules", tools.ha_status),
        )
    together = answer.get("comigrated-resources")
    return {"moved_along": together} if together else {}


# -- what the HA tools share -------------------------------------------------------------------------------------------


async def read_resources(pve: Cluster) -> dict[str, dict[str, Any]]:
    """The configured HA resources by their names."""
    return {row["sid"]: row for row in await pve.get(RESOURCES)}


async def has_rules(pve: Cluster) -> bool:
    """PVE 9 has rules where PVE 8 has groups."""
    return int(str((await pve.version())["version"]).partition(".")[0]) >= 9


async def _refuse_other_version(pve: Cluster, *, failback: bool | None, group: str | None) -> None:
    if await has_rules(pve):
        if group is not None:
            raise BadArgument(
                "PVE 9 has no HA groups",
                why="Rules replaced them",
                next_step=Advice("Use a rule", tools.ha_rule_set(kind="nodes")),
            )
    elif failback is not None:
        raise BadArgument("failback requires PVE 9", next_step="On PVE 8 it is the group's nofailback")


async def _refuse_in_error(pve: Cluster, guest: Guest) -> None:
    if await read_state(pve, sid_of(guest)) == "error":
        raise Conflict(
            f"HA has given up on {guest}: it is in the state error",
            next_step=Advice(
                "Repair what keeps it from starting, then disable and start it",
                tools.ha_set(guest=guest.vmid, state="disabled"),
                tools.ha_set(guest=guest.vmid, state="started"),
            ),
        )


_TYPES = {"nodes": "node-affinity", "together": "resource-affinity", "apart": "resource-affinity"}


@operation(
    toolset="ha",
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
    stored = await find_stored(pve, RULES, rule=rule)
    if stored is not None and stored["type"] != params["type"]:
        raise Conflict(
            f"The HA rule {rule} is of type {stored['type']}, which cannot change",
            next_step=Advice("Remove it, or choose another name", tools.ha_remove),
        )
    edit = await create_or_change(
        pve,
        stored,
        Call(f"Create the HA rule {rule}", "POST", RULES, {"rule": rule, **params}, Target("ha rule", rule)),
        Call(f"Change the HA rule {rule}", "PUT", f"{RULES}/{rule}", params, Target("ha rule", rule)),
        defaults={"strict": False, "disable": False},
        whole=True,
    )

    async def after() -> dict[str, Any]:
        errors = (await _rules(pve)).get(rule, {}).get("errors")
        return {"errors": errors, "next": "PVE ignores the rule until this is solved"} if errors else {}

    return edit.plan(f"The HA rule {rule} already has these settings", after=after)


@operation(
    toolset="ha",
    risk=Risk.DESTROY,
    idempotent=True,
    search_words="guest no longer highly available remove rule",
    example="guest=homeassistant",
)
async def ha_remove(pve: Cluster, guest: GuestRef | None = None, rule: str | None = None) -> Plan:
    """Take a guest out of HA and its rules; it keeps running. Or remove an HA rule; its guests stay under HA."""
    if (guest is None) == (rule is None):
        raise BadArgument("Give either guest or rule", next_step=see("See both", tools.ha_status))
    if guest is None:
        return await _remove_rule(pve, str(rule))
    target = await pve.guest(guest)
    sid, summary = sid_of(target), f"Take {target} out of HA"
    if sid not in await read_resources(pve):
        return Plan(summary, unchanged=(f"{target} is not under HA",))
    await _refuse_on_its_way(pve, target)
    return Plan(summary, (Call(summary, "DELETE", f"{RESOURCES}/{sid}", {}, Target.of_guest(target)),))


async def _refuse_on_its_way(pve: Cluster, guest: Guest) -> None:
    """Nobody would start a container that has been stopped for its move."""
    state = await read_state(pve, sid_of(guest))
    if state in MOVING or (state == "starting" and not await _runs(guest)):
        raise Conflict(
            f"The HA manager is still at work on {guest}: {state}",
            why="If it left HA now, it could stay stopped",
            next_step=Advice("Wait until it has started", tools.ha_status),
        )


async def _remove_rule(pve: Cluster, rule: str) -> Plan:
    await _refuse_without_rules(pve)
    summary = f"Remove the HA rule {rule}"
    known = await _rules(pve)
    if rule not in known:
        return Plan(summary, unchanged=(f"There is no HA rule {rule}; there is {', '.join(known) or 'none'}",))
    return Plan(summary, (Call(summary, "DELETE", f"{RULES}/{rule}", {}, Target("ha rule", rule)),))


async def _members(pve: Cluster, refs: int | str | list[int | str]) -> list[str]:
    guests = [await pve.guest(ref) for ref in (refs if isinstance(refs, list) else [refs])]
    if not guests:
        raise BadArgument("No guest was specified", next_step="Give a vmid or a name, or a list of them")
    under_ha = await read_resources(pve)
    for guest in guests:
        if sid_of(guest) not in under_ha:
            raise Conflict(
                f"{guest} is not under HA", next_step=Advice("Put it under HA first", tools.ha_set(guest=guest.vmid))
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
            next_step=Advice(
                "Create a group with POST /cluster/ha/groups and name it", tools.api_call, tools.ha_set(group="…")
            ),
        )
