"""Groups of users. Privileges come with membership, so every change is DESTROY."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from quorate.operations.plan import Call, Plan, Target, create_or_change, find_stored
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument
from quorate.pve.cluster import Cluster
from quorate.tools.directory import (
    ENTRIES_SHOWN,
    PLAIN_ID,
    acl,
    forget_own_privileges,
    groups_of,
    holder,
    unknown,
    users,
)

MEMBERS_AT_ONCE = 50


@operation(
    toolset="access",
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
    note, target = {} if comment is None else {"comment": comment}, Target("group", group)
    edit = await create_or_change(
        pve,
        await find_stored(pve, "/access/groups", groupid=group),
        Call(f"Create group {group}", "POST", "/access/groups", {"groupid": group, **note}, target),
        Call(f"Change the comment of group {group}", "PUT", f"/access/groups/{group}", note, target),
    )
    calls = [edit.call] if edit.call else []
    unchanged: list[str] = []
    known = await users(pve) if joining or leaving else {}
    for user in [*joining, *leaving]:
        if user not in known:
            raise unknown("user", user, known)
        current_groups = groups_of(known[user])
        if (group in current_groups) == (user in joining):
            unchanged.append(f"{user} is {'already' if user in joining else 'not'} in {group}")
        else:
            calls.append(_membership(user, group, current_groups, joins=user in joining))
    if not calls and not unchanged:
        unchanged.append(f"group {group} already has these settings")
    granted = [f"{entry['roleid']} on {entry['path']}" for entry in await acl(pve) if holder(entry) == f"@{group}"]
    facts = {"rights_of_group": granted[:ENTRIES_SHOWN]} if granted and (joining or leaving) else {}
    return Plan(f"Set group {group}", tuple(calls), tuple(unchanged), facts=facts, after=forget_own_privileges(pve))


def _membership(user: str, group: str, current_groups: list[str], *, joins: bool) -> Call:
    summary = f"Add {user} to {group}" if joins else f"Take {user} out of {group}"
    params: dict[str, Any] = (
        {"groups": group, "append": 1}
        if joins
        else {"groups": ",".join(name for name in current_groups if name != group)}
    )
    return Call(summary, "PUT", f"/access/users/{user}", params, Target("user", user))
