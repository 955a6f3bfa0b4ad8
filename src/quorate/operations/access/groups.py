"""Groups of users. Privileges come with membership, so every change is DESTROY."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from quorate.operations.access.directory import (
    ENTRIES_SHOWN,
    PLAIN_ID,
    acl,
    forget_own_privileges,
    groups,
    groups_of,
    holder,
    unknown,
    user_target,
    users,
)
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument
from quorate.pve.cluster import Cluster

MEMBERS_AT_ONCE = 50


@operation(
    risk=Risk.DESTROY,
    search_words="create user group team members add",
    example="group=family comment='may look'",
)
async def group_set(
    pve: Cluster,
    group: Annotated[str, Meta(description="Created if missing")],
    comment: str | None = None,
    add: Annotated[list[str], Meta(description="Users")] | None = None,
    remove: Annotated[list[str], Meta(description="Users")] | None = None,
) -> Plan:
    """Create a group, change its comment or its members."""
    if not PLAIN_ID.fullmatch(group):
        raise BadArgument(f"{group!r} is not a group name", next_step="Use letters, digits, dot, dash and underscore")
    joining, leaving = add or [], remove or []
    if both := set(joining) & set(leaving):
        raise BadArgument(f"{sorted(both)[0]} is both added and removed")
    if len(joining) + len(leaving) > MEMBERS_AT_ONCE:
        raise BadArgument("Too many users for one call", next_step=f"Give at most {MEMBERS_AT_ONCE}")
    present = (await groups(pve)).get(group)
    calls = _group_calls(group, present, comment)
    unchanged: list[str] = []
    known = await users(pve) if joining or leaving else {}
    for user in [*joining, *leaving]:
        if user not in known:
            raise unknown("user", user, known)
        mine = groups_of(known[user])
        if (group in mine) == (user in joining):
            unchanged.append(f"{user} is {'already' if user in joining else 'not'} in {group}")
        else:
            calls.append(_membership(user, group, mine, joins=user in joining))
    if not calls and not unchanged:
        unchanged.append(f"group {group} already has these settings")
    brings = [f"{entry['roleid']} on {entry['path']}" for entry in await acl(pve) if holder(entry) == f"@{group}"]
    facts = {"rights_of_group": brings[:ENTRIES_SHOWN]} if brings and (joining or leaving) else {}
    return Plan(f"Set group {group}", tuple(calls), tuple(unchanged), facts=facts, after=forget_own_privileges(pve))


def _group_calls(group: str, present: dict[str, Any] | None, comment: str | None) -> list[Call]:
    target = Target("group", group)
    if present is None:
        params = {"groupid": group, **({"comment": comment} if comment else {})}
        return [Call(f"Create group {group}", "POST", "/access/groups", params, target)]
    if comment is None or comment == present.get("comment", ""):
        return []
    path = f"/access/groups/{group}"
    return [Call(f"Change the comment of group {group}", "PUT", path, {"comment": comment}, target)]


def _membership(user: str, group: str, mine: list[str], *, joins: bool) -> Call:
    summary = f"Add {user} to {group}" if joins else f"Take {user} out of {group}"
    params: dict[str, Any] = (
        {"groups": group, "append": 1} if joins else {"groups": ",".join(name for name in mine if name != group)}
    )
    return Call(summary, "PUT", f"/access/users/{user}", params, user_target(user))
