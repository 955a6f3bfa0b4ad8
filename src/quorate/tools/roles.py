"""Roles: named sets of privileges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.operations.plan import Call, Plan, Target, create_or_change, find_stored
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster
from quorate.tools.directory import ENTRIES_SHOWN, PLAIN_ID, acl, forget_own_privileges, holder, unknown


@operation(
    toolset="access",
    risk=Risk.DESTROY,
    search_words="define custom role privileges may only",
    example="role=Viewer privileges=VM.Audit",
)
async def role_set(
    pve: Cluster,
    role: Annotated[str, Meta(description="Created if missing")],
    privileges: list[str],
    mode: Literal["replace", "add", "remove"] = "replace",
) -> Plan:
    """Create a role or change its privileges; it takes effect wherever the ACL names the role."""
    known_privileges = (await pve.facts()).privileges
    for name in privileges:
        if name not in known_privileges:
            raise unknown("privilege", name, known_privileges)
    stored = await find_stored(pve, "/access/roles", roleid=role)
    _check_role_name(role, stored, mode)
    held = set(filter(None, (stored or {}).get("privs", "").split(",")))
    result = {"replace": set(privileges), "add": held | set(privileges), "remove": held - set(privileges)}[mode]
    params, target = {"privs": ",".join(sorted(result))}, Target("role", role)
    edit = await create_or_change(
        pve,
        stored,
        Call(f"Create role {role}", "POST", "/access/roles", {"roleid": role, **params}, target),
        Call(f"Change role {role}", "PUT", f"/access/roles/{role}", params, target),
    )
    holders = [f"{holder(entry)} on {entry['path']}" for entry in await acl(pve) if entry["roleid"] == role]
    facts = {"gains": sorted(result - held), "loses": sorted(held - result), "held_by": holders[:ENTRIES_SHOWN]}
    return edit.plan(
        f"role {role} already has these settings",
        facts={name: value for name, value in facts.items() if value or name != "held_by"},
        after=forget_own_privileges(pve),
    )


def _check_role_name(role: str, stored: Mapping[str, Any] | None, mode: str) -> None:
    if stored is not None and stored.get("special"):
        raise Conflict(f"Role {role} is built into PVE and cannot be changed", next_step="Create your own role")
    if stored is not None:
        return
    if mode == "remove":
        raise unknown("role", role, ())
    if not PLAIN_ID.fullmatch(role):
        raise BadArgument(f"{role!r} is not a role name", next_step="Use letters, digits, dot, dash and underscore")
    if role.upper().startswith("PVE"):
        raise BadArgument("Role names that begin with PVE are reserved for PVE itself", next_step="Choose another name")
