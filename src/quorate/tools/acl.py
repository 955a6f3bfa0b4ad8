"""Granting and revoking roles on paths of the access tree."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import Advice, tools
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, NotFound, Problem
from quorate.pve.cluster import Cluster
from quorate.tools.directory import (
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
from quorate.units import shortlist

HOLDERS_AT_ONCE = 20
LOST_SHOWN = 8

_PATH = re.compile(
    r"/|/access(/groups(/[^/\s]+)?|/realm(/[^/\s]+)?)?|/nodes(/[^/\s]+)?|/pool(/[^/\s]+){0,3}|/storage(/[^/\s]+)?"
    r"|/vms(/[1-9][0-9]{2,8})?|/sdn(/[^/\s]+){0,4}|/mapping(/[^/\s]+){0,2}"
)


@operation(
    toolset="access",
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
    privileges = await _privileges_of(pve, roles)
    await _check_holders(pve, holders)
    entries = [entry for entry in await acl(pve) if entry["path"] == path]
    present = {(holder(entry), entry["roleid"]): bool(entry.get("propagate", 1)) for entry in entries}
    grants = action == "grant"
    open_pairs = [
        (name, role)
        for name in dict.fromkeys(holders)
        for role in dict.fromkeys(roles)
        if (present.get((name, role)) != propagate if grants else (name, role) in present)
    ]
    if not grants and not open_pairs:
        raise _nothing_to_revoke(path, roles, holders, present)
    verb, preposition = ("Grant", "to") if grants else ("Revoke", "from")
    summary = f"{verb} {', '.join(roles)} on {path} {preposition} {', '.join(holders)}"
    if not open_pairs:
        return Plan(
            summary,
            unchanged=(f"{', '.join(holders)} already {'has' if len(holders) == 1 else 'have'} it on {path}",),
        )
    open_holders = list(dict.fromkeys(name for name, _ in open_pairs))
    open_roles = [role for role in dict.fromkeys(roles) if any(role == open_role for _, open_role in open_pairs)]
    call = _call(summary, path, open_roles, open_holders, grants=grants, propagate=propagate)
    warnings: list[str] = []
    if grants:
        warnings = await _grant_warnings(pve, path, open_holders, privileges, entries)
    elif {pve.client.identity, owner_of(pve.client.identity)} & set(open_holders):
        warnings = ["Quorate itself relies on these privileges"]
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


async def _privileges_of(pve: Cluster, names: list[str]) -> set[str]:
    """The privileges that these roles have together; an unknown role is refused."""
    known = await roles(pve)
    for role in names:
        if role not in known:
            raise unknown("role", role, known)
    return {name for role in names for name in known[role].get("privs", "").split(",") if name}


async def _check_holders(pve: Cluster, holders: list[str]) -> None:
    known_users = await users(pve)
    known_groups = await groups(pve) if any(name.startswith("@") for name in holders) else {}
    for name in holders:
        kind, known = ("token", tokens_in(known_users)) if "!" in name else ("user", known_users)
        if name.startswith("@"):
            kind, name, known = "group", name[1:], known_groups
        if name not in known:
            raise unknown(kind, name, known)


def _call(summary: str, path: str, roles: list[str], holders: list[str], *, grants: bool, propagate: bool) -> Call:
    subjects = {
        "users": [name for name in holders if not name.startswith("@") and "!" not in name],
        "groups": [name[1:] for name in holders if name.startswith("@")],
        "tokens": [name for name in holders if TOKEN_ID.fullmatch(name)],
    }
    params: dict[str, Any] = {"path": path, "roles": ",".join(roles)}
    params |= {kind: ",".join(names) for kind, names in subjects.items() if names}
    params |= {"propagate": int(propagate)} if grants else {"delete": 1}

    return Call(summary, "PUT", "/access/acl", params, Target("acl", path))


def _nothing_to_revoke(
    path: str, roles: list[str], holders: list[str], present: dict[tuple[str, str], bool]
) -> NotFound:
    present_roles = (
        ", ".join(f"{name} {role}" for name, role in sorted(present)[:LOST_SHOWN]) or "nobody holds a role there"
    )
    return NotFound(
        f"{', '.join(holders)} does not have {', '.join(roles)} on {path}",
        why=f"On {path} itself: {present_roles}",
        next_step=Advice("The privileges may come from a path above or from a group", tools.access_list(kind="acl")),
    )


async def _grant_warnings(
    pve: Cluster, path: str, holders: list[str], gained: set[str], entries: list[dict[str, Any]]
) -> list[str]:
    warnings = []
    if "Permissions.Modify" in gained:
        warnings.append("The role can itself grant privileges (Permissions.Modify)")
    already = {holder(entry) for entry in entries}
    for name in holders:
        if not name.startswith("@") and name not in already:
            warnings += await _inheritance_warnings(pve, path, name, gained)
    return warnings


async def _inheritance_warnings(pve: Cluster, path: str, name: str, gained: set[str]) -> list[str]:
    """An entry replaces what its path inherits from above or from groups, which surprises nearly everyone."""
    try:
        held = (await pve.get("/access/permissions", userid=name, path=path)).get(path, {})
    except Problem:
        return []  # the privilege to grant does not include reading the privileges of others
    lost = sorted(set(held) - gained)
    if not lost:
        return []
    shown = shortlist(lost, LOST_SHOWN)
    return [f"On {path} the new entry replaces what {name} inherits there from above or from groups: it loses {shown}"]
