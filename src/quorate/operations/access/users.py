"""Users. Groups give them privileges, so creating or changing one is DESTROY."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import ACL_SET, Advice
from quorate.operations.access.directory import (
    USER_ID,
    Expire,
    forget_own_privileges,
    groups,
    groups_of,
    owner_of,
    parse_expiry,
    unknown,
    user_target,
    users,
)
from quorate.operations.plan import Call, Plan
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster

REALMS_WITH_PASSWORDS = ("pve", "pam")


@operation(
    risk=Risk.DESTROY,
    search_words="new user account login person create add password email disable enable lock someone",
    example="user=alice@pve email=alice@example.com",
)
async def user_set(
    pve: Cluster,
    user: Annotated[str, Meta(description="name@realm; created if missing")],
    groups: Annotated[list[str], Meta(description="Replaces the current ones")] | None = None,
    enabled: bool | None = None,
    expire: Expire | None = None,
    password: Annotated[str, Meta(min_length=8, max_length=64, description="Only for a new user")] | None = None,
    email: str | None = None,
    firstname: str | None = None,
    lastname: str | None = None,
    comment: str | None = None,
) -> Plan:
    """Create or change a user. Groups give privileges; grant others with acl_set."""
    given: dict[str, Any] = {
        "groups": None if groups is None else ",".join(sorted(set(groups))),
        "enable": None if enabled is None else int(enabled),
        "expire": None if expire is None else parse_expiry(pve, expire),
        "email": email,
        "firstname": firstname,
        "lastname": lastname,
        "comment": comment,
    }
    given = {name: value for name, value in given.items() if value is not None}
    await _check_groups(pve, groups or [])
    known = await users(pve)
    if user in known:
        return _change_user(pve, user, known[user], given, password)
    return await _create_user(pve, user, given, password)


async def _check_groups(pve: Cluster, wanted: list[str]) -> None:
    known = await groups(pve) if wanted else {}
    for name in wanted:
        if name not in known:
            raise unknown("group", name, known)


async def _create_user(pve: Cluster, user: str, given: dict[str, Any], password: str | None) -> Plan:
    if not USER_ID.fullmatch(user):
        raise BadArgument(f"{user!r} is not a user id", next_step="Write name@realm, such as alice@pve")
    realms = {row["realm"]: row["type"] for row in await pve.get("/access/domains")}
    realm = user.rpartition("@")[2]
    if realm not in realms:
        raise unknown("realm", realm, realms)
    if password and realms[realm] not in REALMS_WITH_PASSWORDS:
        raise BadArgument(
            f"Realm {realm} ({realms[realm]}) keeps its own passwords", next_step="Leave the password out"
        )
    warnings = []
    if realms[realm] == "pve" and not password:
        warnings.append(f"{user} cannot log in before it has a password: `pveum passwd {user}` on a node")
    if realm == "pam":
        warnings.append("A pam user can log in only where the system knows it: `adduser` on the nodes")
    params = {"userid": user, **given, **({"password": password} if password else {})}
    call = Call(f"Create user {user}", "POST", "/access/users", params, user_target(user))
    return Plan(
        call.summary, (call,), warnings=tuple(warnings), after=forget_own_privileges(pve), facts=_roles_of_groups(given)
    )


def _change_user(pve: Cluster, user: str, now: dict[str, Any], given: dict[str, Any], password: str | None) -> Plan:
    if password:
        raise BadArgument(
            f"The password of {user} cannot be changed here",
            why="PVE accepts a new password for an existing user only from a person who is logged in",
            next_step=f"On a node: `pveum passwd {user}`",
        )
    if user == owner_of(pve.client.identity) and given.get("enable") == 0:
        raise Conflict(f"Quorate itself logs in as {user}", next_step="To disable it anyway, do so on a node")
    changed = {name: value for name, value in given.items() if not _same(now, name, value)}
    if not changed:
        return Plan(f"Change user {user}", unchanged=(f"user {user} already has these settings",))
    call = Call(
        f"Change user {user}",
        "PUT",
        f"/access/users/{user}",
        changed,
        user_target(user),
    )
    before = {"groups": ",".join(groups_of(now))} if "groups" in changed else {}
    was = {name: now.get(name, "") for name in changed if name != "groups"} | before
    return Plan(call.summary, (call,), facts={"was": was}, after=forget_own_privileges(pve))


def _same(now: dict[str, Any], name: str, value: Any) -> bool:
    if name == "groups":
        return ",".join(groups_of(now)) == str(value)
    default: Any = {"enable": 1, "expire": 0}.get(name, "")
    return str(now.get(name, default)) == str(value)


def _roles_of_groups(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"groups": given["groups"]} if given.get("groups") else {"rights": Advice("None yet; grant roles", ACL_SET)}
