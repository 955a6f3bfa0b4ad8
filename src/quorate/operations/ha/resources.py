"""High availability: the guests that the HA manager manages, their state, and moving them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import DISK_CHANGE, GUEST_MIGRATE, HA_REMOVE, HA_RULE_SET, HA_SET, HA_STATUS, TASK_GET, Advice, see
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.preconditions import refuse_locked, storages_on, volumes
from quorate.operations.provision.guest_migrate import Mode, local_volumes, refuse_snapshots, refuse_untransferable
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.operations.wait_until import comes_true
from quorate.problems import BadArgument, Conflict, Problem, TaskFailed
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.values import same

WAY_OUT = Advice(
    "Move its disks to a storage that both nodes have, or take it out of HA and migrate it, which can do more",
    DISK_CHANGE(action="move"),
    HA_REMOVE,
    GUEST_MIGRATE,
)


async def disks_to_copy(pve: Cluster, guest: Guest, node: str, *, live: bool) -> list[str]:
    """The local disks that would be copied; others are refused, since the manager would fail without a report."""
    status, config = await asyncio.gather(guest.get("status/current"), guest.get("config"))
    refuse_locked(guest, status)
    local = await local_volumes(pve, guest, config)
    used = {one.storage for one in volumes(config) if one.on_storage}
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
    return [str(one) for one in local]


RESOURCES = "/cluster/ha/resources"
RULES = "/cluster/ha/rules"
ROWS_SHOWN = 200

State = Literal["started", "stopped", "disabled", "ignored"]

# What the manager shows when a resource has reached the requested state.
_REACHED = {
    "started": {"started"},
    "stopped": {"stopped"},
    "disabled": {"disabled", "stopped"},
    "ignored": {"ignored"},
}


@operation(
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
        kind: [_without_bookkeeping(row) for row in limits[:ROWS_SHOWN]],
        "resources_in_all": len(resources) if len(resources) > ROWS_SHOWN else "",
        "next": "" if resources else Advice("No guest is under HA; add one", HA_SET),
    }


def _resource(row: Mapping[str, Any], service: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "guest": row["sid"],
        "node": service.get("node", ""),
        "wanted": row.get("state", "started"),
        "state": service.get("state", "unknown"),
        **{key: row[key] for key in ("group", "max_restart", "max_relocate", "failback", "comment") if key in row},
    }


def _without_bookkeeping(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("digest", "order")}


def _risk_of(arguments: Mapping[str, Any]) -> Risk:
    """A change, unless it stops the guest, by force if needed, or ends its HA management."""
    return Risk.DESTROY if arguments["state"] in ("stopped", "disabled", "ignored") else Risk.CHANGE


@operation(
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
    found = await pve.guest(guest)
    await _refuse_other_version(pve, failback=failback, group=group)
    if found.row.template:
        raise Conflict(f"{found} is a template and cannot run, so HA has nothing to do for it")
    sid = sid_of(found)
    given = {
        "state": state,
        "max_restart": max_restart,
        "max_relocate": max_relocate,
        "failback": failback,
        "group": group,
        "comment": comment,
    }
    options = {key: value for key, value in given.items() if value is not None}
    known = (await read_resources(pve)).get(sid)
    if known is None:
        return _plan(pve, found, f"Put {found} under HA", "POST", RESOURCES, {"sid": sid, **options})
    changed = {
        key: value for key, value in options.items() if not same(_normalize_state(known.get(key, _default(key))), value)
    }
    if not changed:
        return Plan(f"Change HA of {found}", unchanged=(f"{found} is already under HA with these settings",))
    if state != "disabled":
        await _refuse_in_error(pve, found)
    return _plan(pve, found, f"Change HA of {found}", "PUT", f"{RESOURCES}/{sid}", changed)


def _plan(pve: Cluster, guest: Guest, summary: str, method: str, path: str, params: Mapping[str, Any]) -> Plan:
    sid = sid_of(guest)

    async def after() -> dict[str, Any]:
        if method == "PUT" and "state" not in params:
            return {}
        wanted = _REACHED[str(params.get("state", "started"))]

        async def reached() -> bool:
            return await _state(pve, sid) in wanted

        if await comes_true(pve, reached):
            return {"state": await _state(pve, sid)}
        return {
            "result": "running",
            "state": await _state(pve, sid),
            "next": Advice("The HA manager is still working on it", HA_STATUS),
        }

    return Plan(summary, (Call(summary, method, path, params, Target.of_guest(guest)),), after=after)


def _risk_of_moving(arguments: Mapping[str, Any]) -> Risk:
    """A change, unless the guest is stopped for it: the HA manager does that by force after a minute."""
    return Risk.DESTROY if arguments["how"] == "relocate" else Risk.CHANGE


@operation(
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
    found = await pve.guest(guest)
    await pve.inventory.node(node)
    summary = f"{how.capitalize()} {found} from {found.row.node} to {node}"
    if sid_of(found) not in await read_resources(pve):
        raise Conflict(
            f"{found} is not under HA",
            next_step=Advice(
                "Migrate it, or put it under HA first", GUEST_MIGRATE(guest=found.vmid), HA_SET(guest=found.vmid)
            ),
        )
    if found.row.node == node:
        return Plan(summary, unchanged=(f"{found} is already on {node}",))
    await pve.inventory.online_node(node)
    await _refuse_in_error(pve, found)
    await _refuse_against_rules(pve, found, node)
    copied = await disks_to_copy(pve, found, node, live=how == "migrate")
    earlier = {str(row["upid"]) for row in await _failed_moves(pve, found)}

    async def arrived() -> bool:
        """No task belongs to the request, and the HA manager's own record does not show it."""
        pve.inventory.forget()
        return (await pve.inventory.guest(found.vmid)).node == node

    async def at_rest() -> bool:
        """A relocated guest has arrived before it is started again."""
        return await arrived() and await _state(pve, sid_of(found)) in set().union(*_REACHED.values())

    async def over() -> bool:
        if await at_rest():
            return True
        for row in await _failed_moves(pve, found):
            if row["upid"] not in earlier:
                raise TaskFailed(
                    f"{summary}: the HA manager tried and failed",
                    why=str(row["status"]),
                    next_step=Advice(f"{found} is still where it was; see the log", TASK_GET(task=row["upid"])),
                    facts={"task": row["upid"]},
                )
        return False

    async def after() -> dict[str, Any]:
        if await comes_true(pve, over):
            return {"node": node}
        return {"result": "running", "next": Advice("The HA manager is still working on it", HA_STATUS)}

    call = Call(
        summary, "POST", f"{RESOURCES}/{sid_of(found)}/{how}", {"node": node}, Target.of_guest(found), settled=arrived
    )
    facts = {"copied_disks": copied} if copied else {}
    return Plan(summary, (call,), facts=facts, after=after, from_answers=_companions)


async def _failed_moves(pve: Cluster, guest: Guest) -> list[dict[str, Any]]:
    """Failed migrations of the guest off its node; none if these credentials may not see them."""
    try:
        rows = await pve.get(f"/nodes/{guest.row.node}/tasks", vmid=guest.vmid, errors=1, limit=50)
    except Problem:
        return []
    return [row for row in rows if row["type"] in ("qmigrate", "vzmigrate") and row.get("endtime")]


def _companions(answers: list[Any]) -> dict[str, Any]:
    """PVE 9 lists the guests that move along, or those that block the move; then nothing moves."""
    answer = answers[0] if isinstance(answers[0], dict) else {}
    blocking = [f"{one['sid']} ({one['cause']})" for one in answer.get("blocking-resources", [])]
    if blocking:
        raise Conflict(
            f"HA rules keep it from moving there: {', '.join(blocking)}", next_step=see("See the rules", HA_STATUS)
        )
    together = answer.get("comigrated-resources")
    return {"moved_along": together} if together else {}


# -- what the HA tools share -------------------------------------------------------------------------------------------


def sid_of(guest: Guest) -> str:
    """The guest's resource id in HA, such as vm:100."""
    return f"{guest.row.kind}:{guest.vmid}"


async def read_resources(pve: Cluster) -> dict[str, dict[str, Any]]:
    """The configured HA resources by their names."""
    return {row["sid"]: row for row in await pve.get(RESOURCES)}


async def has_rules(pve: Cluster) -> bool:
    """PVE 9 has rules where PVE 8 has groups."""
    return int(str((await pve.version())["version"]).partition(".")[0]) >= 9


async def _state(pve: Cluster, sid: str) -> str:
    rows = await pve.get("/cluster/ha/status/current")
    return next((str(row["state"]) for row in rows if row.get("sid") == sid), "unknown")


async def _refuse_other_version(pve: Cluster, *, failback: bool | None, group: str | None) -> None:
    if await has_rules(pve):
        if group is not None:
            raise BadArgument(
                "PVE 9 has no HA groups",
                why="Rules replaced them",
                next_step=Advice("Use a rule", HA_RULE_SET(kind="nodes")),
            )
    elif failback is not None:
        raise BadArgument("failback requires PVE 9", next_step="On PVE 8 it is the group's nofailback")


async def _refuse_in_error(pve: Cluster, guest: Guest) -> None:
    if await _state(pve, sid_of(guest)) == "error":
        raise Conflict(
            f"HA has given up on {guest}: it is in the state error",
            next_step=Advice(
                "Repair what keeps it from starting, then disable and start it",
                HA_SET(guest=guest.vmid, state="disabled"),
                HA_SET(guest=guest.vmid, state="started"),
            ),
        )


async def _refuse_against_rules(pve: Cluster, guest: Guest, node: str) -> None:
    """A move that the rules forbid is accepted by PVE and then never happens."""
    sid = sid_of(guest)
    rules = await pve.get(RULES) if await has_rules(pve) else []
    for rule in rules:
        members = str(rule.get("resources", "")).split(",")
        if sid not in members or rule.get("disable"):
            continue
        nodes = {one.partition(":")[0] for one in str(rule.get("nodes", "")).split(",") if one}
        apart = rule.get("affinity") == "negative"
        if nodes and (node in nodes) == apart:
            raise Conflict(
                f"The HA rule {rule['rule']} keeps {guest} {'off' if apart else 'on'} {', '.join(sorted(nodes))}",
                next_step=Advice("Choose another node, or change the rule", HA_RULE_SET),
            )
        if apart and not nodes:
            await _refuse_separated(pve, guest, node, [one for one in members if one != sid], rule["rule"])


async def _refuse_separated(pve: Cluster, guest: Guest, node: str, others: list[str], rule: str) -> None:
    for other in others:
        row = await pve.inventory.guest(other.partition(":")[2])
        if row.node == node:
            raise Conflict(
                f"The HA rule {rule} keeps {guest} away from {other}, which is on {node}",
                next_step=Advice("Choose another node, or change the rule", HA_RULE_SET),
            )


def _default(key: str) -> Any:
    return {"state": "started", "max_restart": 1, "max_relocate": 1, "failback": True}.get(key, "")


def _normalize_state(value: Any) -> Any:
    """PVE has two names for the same state."""
    return "started" if value == "enabled" else value
