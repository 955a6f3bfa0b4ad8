"""PVE's access control as a whole: users, groups, roles, tokens and grants, listed and deleted."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NAMED, Sentence
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster
from quorate.tools import pools
from quorate.tools.directory import (
    ENTRIES_SHOWN,
    TOKEN_ID,
    acl,
    expiry,
    forget_own_privileges,
    groups,
    groups_of,
    holder,
    owner_of,
    roles,
    tokens_in,
    unknown,
    users,
)
from quorate.tools.pools import plan_pool_deletion
from quorate.units import count_of, yes, yes_or_no

Listing = tuple[tuple[str, ...], list[list[Any]], int]
"""Columns, rows, and how many of the first columns `name` searches."""
Kind = Literal["users", "groups", "roles", "realms", "tokens", "acl", "pools"]


@operation(
    toolset="access",
    risk=Risk.READ,
    search_words="access accounts logins users groups roles realms tokens permissions members admins",
    example="kind=users",
)
async def access_list(
    pve: Cluster,
    kind: Kind,
    name: Annotated[
        str, Meta(description="Part of the id; for acl, of path, holder or role; for pools, the whole name")
    ]
    | None = None,
    enabled: Annotated[bool, Meta(description="Only enabled users; false: only disabled")] | None = None,
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """List users, groups, roles, realms, API tokens, the ACL or pools.

    With name, roles are shown with their privileges and a pool with its members.
    """
    if enabled is not None and kind != "users":
        raise BadArgument(
            Sentence("{enabled} cannot be combined with {kind}", enabled=NAMED, kind=kind), next_step="It filters users"
        )
    if kind == "pools" and name is not None:
        return await pools.members(pve, name, limit=limit, offset=offset)
    columns, rows, searched = await _LISTS[kind](pve)
    if name is not None:
        rows = [row for row in rows if any(name.lower() in str(cell).lower() for cell in row[:searched])]
    if enabled is not None:
        rows = [row for row in rows if (row[1] == "yes") == enabled]
    if kind == "roles" and name is None:
        rows = [
            [role, builtin, count_of(len(privileges.split(",")), "privilege") if privileges else ""]
            for role, builtin, privileges in rows
        ]
    table = page(columns, rows, limit=limit, offset=offset)
    if table.next_offset is not None and kind != "pools":
        table.note = "narrow with name"
    return table


async def _users(pve: Cluster) -> Listing:
    columns = ("user", "enabled", "expires", "groups", "tokens", "name", "email", "comment")
    rows = [
        [
            userid,
            yes_or_no(user.get("enable", 1)),
            expiry(user),
            ",".join(groups_of(user)),
            len(user.get("tokens") or []) or "",
            f"{user.get('firstname', '')} {user.get('lastname', '')}".strip(),
            user.get("email", ""),
            user.get("comment", ""),
        ]
        for userid, user in (await users(pve)).items()
    ]
    return columns, rows, 1


async def _groups(pve: Cluster) -> Listing:
    rows = [[name, group.get("users", ""), group.get("comment", "")] for name, group in (await groups(pve)).items()]
    return ("group", "members", "comment"), rows, 1


async def _roles(pve: Cluster) -> Listing:
    rows = [[name, yes(role.get("special")), role.get("privs", "")] for name, role in (await roles(pve)).items()]
    return ("role", "builtin", "privileges"), rows, 1


async def _realms(pve: Cluster) -> Listing:
    rows = [
        [row["realm"], row["type"], yes(row.get("default")), row.get("tfa", ""), row.get("comment", "")]
        for row in await pve.get("/access/domains")
    ]
    return ("realm", "type", "default", "tfa", "comment"), rows, 1


async def _tokens(pve: Cluster) -> Listing:
    rows = [
        [name, "own" if token.get("privsep", 1) else "all of its user", expiry(token), token.get("comment", "")]
        for name, token in tokens_in(await users(pve)).items()
    ]
    return ("token", "rights", "expires", "comment"), rows, 1


async def _acl(pve: Cluster) -> Listing:
    rows = [
        [entry["path"], holder(entry), entry["roleid"], "" if entry.get("propagate", 1) else "no"]
        for entry in await acl(pve)
    ]
    return ("path", "holder", "role", "propagates"), rows, 3


async def _pools(pve: Cluster) -> Listing:
    return ("pool", "guests", "comment"), await pools.summaries(pve), 1


_LISTS = {
    "users": _users,
    "groups": _groups,
    "roles": _roles,
    "realms": _realms,
    "tokens": _tokens,
    "acl": _acl,
    "pools": _pools,
}


ROOT = "root@pam"


@operation(
    toolset="access",
    risk=Risk.DESTROY,
    search_words="remove account revoke token user group role pool offboard someone left no longer key",
    example="kind=user name=dave@pve",
)
async def access_delete(
    pve: Cluster,
    kind: Literal["user", "group", "role", "token", "pool"],
    name: Annotated[str, Meta(description="A token as user@realm!name")],
    remove_members: Annotated[
        bool, Meta(description="Of a pool: remove its members first; they stay as they are")
    ] = False,
) -> Plan:
    """Delete a user (with its tokens), group, role, API token or pool, and the ACL entries that name it."""
    if remove_members and kind != "pool":
        raise BadArgument(
            Sentence("{remove_members} cannot be combined with {kind}", remove_members=NAMED, kind=kind),
            next_step="It is for pools",
        )
    if kind == "pool":
        return await plan_pool_deletion(pve, name, remove_members=remove_members)
    load = {"user": users, "token": users, "group": groups, "role": roles}[kind]
    known = tokens_in(await load(pve)) if kind == "token" else await load(pve)
    if name not in known:
        raise unknown(kind, name, known)
    _refuse_own(pve, kind, name, known[name])
    lost_entries = [entry for entry in await acl(pve) if _is_lost_with(entry, kind, name)]
    facts = {
        "acl_entries_lost": [
            f"{entry['path']} {holder(entry)} {entry['roleid']}" for entry in lost_entries[:ENTRIES_SHOWN]
        ],
        "tokens_lost": list(tokens_in({name: known[name]})) if kind == "user" else [],
        "members": known[name].get("users", "") if kind == "group" else "",
    }

    call = Call(f"Delete {kind} {name}", "DELETE", _path(kind, name), {}, Target(kind, name))
    return Plan(
        call.summary,
        (call,),
        facts={key: value for key, value in facts.items() if value},
        after=forget_own_privileges(pve),
    )


def _path(kind: str, name: str) -> str:
    if token := TOKEN_ID.fullmatch(name) if kind == "token" else None:
        return f"/access/users/{token['user']}/token/{token['name']}"
    return f"/access/{kind}s/{name}"


def _refuse_own(pve: Cluster, kind: str, name: str, entry: dict[str, Any]) -> None:
    identity = pve.client.identity
    if name in (identity, owner_of(identity)):
        raise Conflict(f"Quorate itself logs in as {identity}", next_step="To delete it anyway, do so on a node")
    if kind == "user" and name == ROOT:
        raise Conflict(f"{ROOT} cannot be deleted: PVE needs it")
    if kind == "role" and entry.get("special"):
        raise Conflict(f"Role {name} is built into PVE and cannot be deleted")


def _is_lost_with(entry: dict[str, Any], kind: str, name: str) -> bool:
    if kind == "role":
        return bool(entry["roleid"] == name)
    who = holder(entry)
    return who == (f"@{name}" if kind == "group" else name) or (kind == "user" and who.startswith(f"{name}!"))
