"""Users. Groups give them privileges, so creating or changing one is DESTROY."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import Advice, tools
from quorate.operations.plan import Call, Plan, Target, create_or_change
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster
from quorate.tools.directory import (
    USER_ID,
    Expire,
    forget_own_privileges,
    groups,
    groups_of,
    owner_of,
    parse_expiry,
    unknown,
    users,
)

REALMS_WITH_PASSWORDS = ("pve", "pam")
_NO_ROLES = Advice("none yet; grant roles", tools.acl_set)


@operation(
    toolset="access",
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
    requested = {
        "groups": None if groups is None else ",".join(sorted(set(groups))),
        "enable": None if enabled is None else int(enabled),
        "expire": None if expire is None else parse_expiry(pve, expire),
        "email": email,
        "firstname": firstname,
        "lastname": lastname,
        "comment": comment,
    }
    settings = {name: value for name, value in requested.items() if value is not None}
    await _check_groups(pve, groups or [])
    stored = (await users(pve)).get(user)
    warnings = await _check_new_user(pve, user, password) if stored is None else ()
    if stored is not None:
        _check_change(pve, user, settings, password)
    secret = {"password": password} if password else {}
    target = Target("user", user)
    edit = await create_or_change(
        pve,
        stored,
        Call(
            f"Create user {user}", "POST", "/access/users", {"userid": user, **settings, **secret}, Target("user", user)
        ),
        Call(f"Change user {user}", "PUT", f"/access/users/{user}", settings, target),
        defaults={"enable": 1, "expire": 0},
    )
    facts: dict[str, Any] = {"groups": settings["groups"]} if settings.get("groups") else {"rights": _NO_ROLES}
    if stored is not None:
        shown = {**stored, "groups": ",".join(groups_of(stored))}
        facts = {"was": {name: shown.get(name, "") for name in edit.changed}}
    return edit.plan(
        f"user {user} already has these settings", warnings=warnings, after=forget_own_privileges(pve), facts=facts
    )


async def _check_groups(pve: Cluster, names: list[str]) -> None:
    known = await groups(pve) if names else {}
    for name in names:
        if name not in known:
            raise unknown("group", name, known)


async def _check_new_user(pve: Cluster, user: str, password: str | None) -> tuple[str, ...]:
    """Warnings about how it can log in."""
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
    return tuple(warnings)


def _check_change(pve: Cluster, user: str, settings: Mapping[str, Any], password: str | None) -> None:
    if password:
        raise BadArgument(
            f"The password of {user} cannot be changed here",
            why="PVE accepts a new password for an existing user only from a person who is logged in",
            next_step=f"On a node: `pveum passwd {user}`",
        )
    if user == owner_of(pve.client.identity) and settings.get("enable") == 0:
        raise Conflict(f"Quorate itself logs in as {user}", next_step="To disable it anyway, do so on a node")
