"""Roles: named sets of privileges."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.operations.access.directory import (
    ENTRIES_SHOWN,
    PLAIN_ID,
    acl,
    forget_own_privileges,
    holder,
    roles,
    unknown,
)
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster


@operation(
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
    known = await roles(pve)
    now = known.get(role)
    _check_role_name(role, now, mode)
    held = set(filter(None, (now or {}).get("privs", "").split(",")))
    wanted = {"replace": set(privileges), "add": held | set(privileges), "remove": held - set(privileges)}[mode]
    if now is not None and wanted == held:
        return Plan(f"Set role {role}", unchanged=(f"role {role} already has these settings",))

    params = {"privs": ",".join(sorted(wanted))}
    target = Target("role", role)
    if now is None:
        call = Call(f"Create role {role}", "POST", "/access/roles", {"roleid": role, **params}, target)
    else:
        call = Call(f"Change role {role}", "PUT", f"/access/roles/{role}", params, target)
    facts = {"gains": sorted(wanted - held), "loses": sorted(held - wanted), **await _holders_of(pve, role)}
    return Plan(call.summary, (call,), facts=facts, after=forget_own_privileges(pve))


def _check_role_name(role: str, now: dict[str, Any] | None, mode: str) -> None:
    if now is not None and now.get("special"):
        raise Conflict(f"Role {role} is built into PVE and cannot be changed", next_step="Create your own role")
    if now is not None:
        return
    if mode == "remove":
        raise unknown("role", role, ())
    if not PLAIN_ID.fullmatch(role):
        raise BadArgument(f"{role!r} is not a role name", next_step="Use letters, digits, dot, dash and underscore")
    if role.upper().startswith("PVE"):
        raise BadArgument("Role names that begin with PVE are reserved for PVE itself", next_step="Choose another name")


async def _holders_of(pve: Cluster, role: str) -> dict[str, Any]:
    entries = [f"{holder(entry)} on {entry['path']}" for entry in await acl(pve) if entry["roleid"] == role]
    return {"held_by": entries[:ENTRIES_SHOWN]} if entries else {}
