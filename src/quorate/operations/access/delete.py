"""Deleting users, groups, roles, tokens and pools."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NAMED, Sentence
from quorate.operations.access.directory import (
    ENTRIES_SHOWN,
    TOKEN_ID,
    acl,
    forget_own_privileges,
    groups,
    holder,
    owner_of,
    roles,
    tokens_in,
    unknown,
    users,
)
from quorate.operations.access.pools import plan_pool_deletion
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster

ROOT = "root@pam"


@operation(
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
    known = await _existing(pve, kind)
    if name not in known:
        raise unknown(kind, name, known)
    _refuse_own(pve, kind, name, known[name])
    lost = [entry for entry in await acl(pve) if _goes_along(entry, kind, name)]
    facts = {
        "acl_entries_lost": [f"{entry['path']} {holder(entry)} {entry['roleid']}" for entry in lost[:ENTRIES_SHOWN]],
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


async def _existing(pve: Cluster, kind: str) -> dict[str, dict[str, Any]]:
    if kind == "token":
        return tokens_in(await users(pve))
    return await {"user": users, "group": groups, "role": roles}[kind](pve)


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


def _goes_along(entry: dict[str, Any], kind: str, name: str) -> bool:
    if kind == "role":
        return bool(entry["roleid"] == name)
    who = holder(entry)
    return who == (f"@{name}" if kind == "group" else name) or (kind == "user" and who.startswith(f"{name}!"))
