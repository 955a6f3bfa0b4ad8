"""Granting and revoking roles on paths of the access tree."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import ACCESS_LIST, Advice
from quorate.operations.access.directory import (
    TOKEN_ID,
    acl,
    forget_own_privileges,
    groups,
    holder,
    roles,
    tokens_in,
    unknown,
    users,
)
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import Risk, operation
from quorate.operations.units import shortlist
from quorate.problems import BadArgument, NotFound, Problem
from quorate.pve.cluster import Cluster

HOLDERS_AT_ONCE = 20
LOST_SHOWN = 8

_PATH = re.compile(
    r"/|/access(/groups(/[^/\s]+)?|/realm(/[^/\s]+)?)?|/nodes(/[^/\s]+)?|/pool(/[^/\s]+){0,3}|/storage(/[^/\s]+)?"
    r"|/vms(/[1-9][0-9]{2,8})?|/sdn(/[^/\s]+){0,4}|/mapping(/[^/\s]+){0,2}"
)


@operation(
    risk=Risk.DESTROY,
    idempotent=True,
    search_words=(
        "intern colleague may restart start manage vms someone see not change grant allow permission rights "
        "access role view look read-only admin share user vm pool storage revoke away"
    ),
    example="action=grant path=/vms/108 roles=PVEAuditor holders=dave@pve",
)
async def acl_set(
    pve: Cluster,
    action: Literal["grant", "revoke"],
    path: Annotated[str, Meta(description="/, /vms/100, /pool/lab, /storage/local, /nodes/pve1 …")],
    roles: Annotated[list[str], Meta(min_length=1)],
    holders: Annotated[list[str], Meta(min_length=1, description="user@realm, user@realm!token or @group")],
    propagate: Annotated[bool, Meta(description="Also below the path")] = True,
) -> Plan:
    """Grant roles on a path to users, groups or tokens, or revoke them."""
    path = checked_path(path)
    if len(holders) > HOLDERS_AT_ONCE:
        raise BadArgument(f"{len(holders)} holders are too many for one call", next_step=f"At most {HOLDERS_AT_ONCE}")
    privileges = await _check_roles(pve, roles)
    await _check_holders(pve, holders)
    entries = [entry for entry in await acl(pve) if entry["path"] == path]
    present = {(holder(entry), entry["roleid"]): bool(entry.get("propagate", 1)) for entry in entries}
    grants = action == "grant"
    open_pairs = [
        (who, role)
        for who in dict.fromkeys(holders)
        for role in dict.fromkeys(roles)
        if (present.get((who, role)) != propagate if grants else (who, role) in present)
    ]
    if not grants and not open_pairs:
        raise _nothing_to_revoke(path, roles, holders, present)
    verb, towards = ("Grant", "to") if grants else ("Revoke", "from")
    summary = f"{verb} {', '.join(roles)} on {path} {towards} {', '.join(holders)}"
    if not open_pairs:
        return Plan(
            summary,
            unchanged=(f"{', '.join(holders)} already {'has' if len(holders) == 1 else 'have'} it on {path}",),
        )
    who = list(dict.fromkeys(who for who, _ in open_pairs))
    wanted = [role for role in dict.fromkeys(roles) if any(role == open_role for _, open_role in open_pairs)]
    call = _call(summary, path, wanted, who, grants=grants, propagate=propagate)
    warnings = await _warnings(pve, path, who, privileges, entries) if grants else _own_privileges(pve, who)
    return Plan(summary, (call,), warnings=tuple(warnings), after=forget_own_privileges(pve))


def checked_path(path: str) -> str:
    """The canonical spelling of a path of the access tree."""
    clean = "/" + "/".join(part for part in path.strip().split("/") if part)
    if _PATH.fullmatch(clean):
        return clean
    raise BadArgument(
        f"{path!r} is not a path of the access tree",
        next_step="Write /, /vms/<vmid>, /nodes/<node>, /storage/<id>, /pool/<id>, /sdn/…, /mapping/… or /access/…",
    )


async def _check_roles(pve: Cluster, wanted: list[str]) -> set[str]:
    """The privileges that the roles hold together."""
    known = await roles(pve)
    for role in wanted:
        if role not in known:
            raise unknown("role", role, known)
    return {name for role in wanted for name in known[role].get("privs", "").split(",") if name}


async def _check_holders(pve: Cluster, holders: list[str]) -> None:
    known_users = await users(pve)
    known_groups = await groups(pve) if any(who.startswith("@") for who in holders) else {}
    for who in holders:
        if who.startswith("@"):
            if who[1:] not in known_groups:
                raise unknown("group", who[1:], known_groups)
        elif "!" in who:
            if who not in tokens_in(known_users):
                raise unknown("token", who, tokens_in(known_users))
        elif who not in known_users:
            raise unknown("user", who, known_users)


def _call(summary: str, path: str, wanted: list[str], who: list[str], *, grants: bool, propagate: bool) -> Call:
    subjects = {
        "users": [one for one in who if not one.startswith("@") and "!" not in one],
        "groups": [one[1:] for one in who if one.startswith("@")],
        "tokens": [one for one in who if TOKEN_ID.fullmatch(one)],
    }
    params: dict[str, Any] = {"path": path, "roles": ",".join(wanted)}
    params |= {kind: ",".join(names) for kind, names in subjects.items() if names}
    params |= {"propagate": int(propagate)} if grants else {"delete": 1}

    return Call(summary, "PUT", "/access/acl", params, Target("acl", path))


def _nothing_to_revoke(
    path: str, wanted: list[str], holders: list[str], present: dict[tuple[str, str], bool]
) -> NotFound:
    present_roles = (
        ", ".join(f"{who} {role}" for who, role in sorted(present)[:LOST_SHOWN]) or "nobody holds a role there"
    )
    return NotFound(
        f"{', '.join(holders)} does not have {', '.join(wanted)} on {path}",
        why=f"On {path} itself: {present_roles}",
        next_step=Advice("The privileges may come from a path above or from a group", ACCESS_LIST(kind="acl")),
    )


def _own_privileges(pve: Cluster, who: list[str]) -> list[str]:
    own = {pve.client.identity, pve.client.identity.partition("!")[0]}
    return ["Quorate itself relies on these privileges"] if own & set(who) else []


async def _warnings(
    pve: Cluster, path: str, who: list[str], gained: set[str], entries: list[dict[str, Any]]
) -> list[str]:
    found = []
    if "Permissions.Modify" in gained:
        found.append("The role can itself grant privileges (Permissions.Modify)")
    already = {holder(entry) for entry in entries}
    for one in who:
        if not one.startswith("@") and one not in already:
            found += await _inheritance_warnings(pve, path, one, gained)
    return found


async def _inheritance_warnings(pve: Cluster, path: str, who: str, gained: set[str]) -> list[str]:
    """An entry replaces what its path inherits from above or from groups, which surprises nearly everyone."""
    try:
        held = (await pve.get("/access/permissions", userid=who, path=path)).get(path, {})
    except Problem:
        return []  # the privilege to grant does not include reading the privileges of others
    lost = sorted(set(held) - gained)
    if not lost:
        return []
    shown = shortlist(lost, LOST_SHOWN)
    return [f"On {path} the new entry replaces what {who} inherits there from above or from groups: it loses {shown}"]
