"""Listing who may do what: users, groups, roles, realms, tokens, the access control list, and pools."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NAMED, Sentence
from quorate.operations.access import pools
from quorate.operations.access.directory import acl, expiry, groups, groups_of, holder, roles, tokens_in, users
from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.units import yes, yes_or_no
from quorate.problems import BadArgument
from quorate.pve.cluster import Cluster

Kind = Literal["users", "groups", "roles", "realms", "tokens", "acl", "pools"]


@operation(
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
    columns, rows, identifying = await _LISTS[kind](pve)
    if name is not None:
        rows = [row for row in rows if any(name.lower() in str(cell).lower() for cell in row[:identifying])]
    if enabled is not None:
        rows = [row for row in rows if (row[1] == "yes") == enabled]
    if kind == "roles" and name is None:
        rows = [[role, builtin, f"{len(held.split(','))} privileges" if held else ""] for role, builtin, held in rows]
    table = page(columns, rows, limit=limit, offset=offset)
    if table.next_offset is not None and kind != "pools":
        table.note = "narrow with name"
    return table


async def _users(pve: Cluster) -> tuple[tuple[str, ...], list[list[Any]], int]:
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


async def _groups(pve: Cluster) -> tuple[tuple[str, ...], list[list[Any]], int]:
    rows = [[name, group.get("users", ""), group.get("comment", "")] for name, group in (await groups(pve)).items()]
    return ("group", "members", "comment"), rows, 1


async def _roles(pve: Cluster) -> tuple[tuple[str, ...], list[list[Any]], int]:
    rows = [[name, yes(role.get("special")), role.get("privs", "")] for name, role in (await roles(pve)).items()]
    return ("role", "builtin", "privileges"), rows, 1


async def _realms(pve: Cluster) -> tuple[tuple[str, ...], list[list[Any]], int]:
    rows = [
        [row["realm"], row["type"], yes(row.get("default")), row.get("tfa", ""), row.get("comment", "")]
        for row in await pve.get("/access/domains")
    ]
    return ("realm", "type", "default", "tfa", "comment"), rows, 1


async def _tokens(pve: Cluster) -> tuple[tuple[str, ...], list[list[Any]], int]:
    rows = [
        [name, "own" if token.get("privsep", 1) else "all of its user", expiry(token), token.get("comment", "")]
        for name, token in tokens_in(await users(pve)).items()
    ]
    return ("token", "rights", "expires", "comment"), rows, 1


async def _acl(pve: Cluster) -> tuple[tuple[str, ...], list[list[Any]], int]:
    rows = [
        [entry["path"], holder(entry), entry["roleid"], "" if entry.get("propagate", 1) else "no"]
        for entry in await acl(pve)
    ]
    return ("path", "holder", "role", "propagates"), rows, 3


async def _pools(pve: Cluster) -> tuple[tuple[str, ...], list[list[Any]], int]:
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
