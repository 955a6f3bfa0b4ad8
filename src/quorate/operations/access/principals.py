"""Users, groups and roles: everything here gives or takes rights, so all of it is DESTROY."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.operations.access.directory import (
    PLAIN_ID,
    TOKEN_ID,
    USER_ID,
    acl,
    groups,
    groups_of,
    holder,
    roles,
    tokens_in,
    unknown,
    users,
)
from quorate.operations.access.expiry import Expire, parse_expiry
from quorate.operations.access.pools import plan_pool_deletion
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import Risk, operation
from quorate.pve.cluster import Cluster
from quorate.pve.errors import BadArgument, Conflict

ROOT = "root@pam"
MEMBERS_AT_ONCE = 50
ENTRIES_SHOWN = 20
REALMS_WITH_PASSWORDS = ("pve", "pam")


@operation(risk=Risk.DESTROY)
async def user_set(
    pve: Cluster,
    user: Annotated[str, Meta(description="name@realm; made if there is none")],
    groups: Annotated[list[str], Meta(description="Replaces the present ones")] | None = None,
    enabled: bool | None = None,
    expire: Expire | None = None,
    password: Annotated[str, Meta(min_length=8, max_length=64, description="Only for a new user")] | None = None,
    email: str | None = None,
    firstname: str | None = None,
    lastname: str | None = None,
    comment: str | None = None,
) -> Plan:
    """Create or change a user. Groups bring rights; give others with acl_set."""
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
    call = Call(
        f"Create user {user}", "POST", "/access/users", params, _user(user), settled=_has_user(pve, user, given)
    )
    return Plan(call.says, (call,), warnings=tuple(warnings), after=_forget_rights(pve), facts=_rights_of_groups(given))


def _change_user(pve: Cluster, user: str, now: dict[str, Any], given: dict[str, Any], password: str | None) -> Plan:
    if password:
        raise BadArgument(
            f"The password of {user} cannot be changed here",
            why="PVE takes a new password of an existing user only from a person who is logged in",
            next_step=f"On a node: `pveum passwd {user}`",
        )
    if user == owner_of(pve.client.identity) and given.get("enable") == 0:
        raise Conflict(f"{user} is the user that Quorate works as", next_step="Disable it on a node, if that is meant")
    changed = {name: value for name, value in given.items() if not _same(now, name, value)}
    if not changed:
        return Plan(f"Change user {user}", unchanged=(f"user {user} is so already",))
    call = Call(
        f"Change user {user}", "PUT", f"/access/users/{user}", changed, _user(user), settled=_has_user(pve, user, given)
    )
    before = {"groups": ",".join(groups_of(now))} if "groups" in changed else {}
    was = {name: now.get(name, "") for name in changed if name != "groups"} | before
    return Plan(call.says, (call,), facts={"was": was}, after=_forget_rights(pve))


def _same(now: dict[str, Any], name: str, value: Any) -> bool:
    if name == "groups":
        return ",".join(groups_of(now)) == str(value)
    default: Any = {"enable": 1, "expire": 0}.get(name, "")
    return str(now.get(name, default)) == str(value)


def _has_user(pve: Cluster, user: str, given: Mapping[str, Any]) -> Any:
    async def settled() -> bool:
        now = (await users(pve)).get(user)
        return now is not None and all(_same(now, name, value) for name, value in given.items())

    return settled


def _rights_of_groups(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"groups": given["groups"]} if given.get("groups") else {"rights": "none yet; acl_set grants roles"}


@operation(risk=Risk.DESTROY)
async def group_set(
    pve: Cluster,
    group: Annotated[str, Meta(description="Made if there is none")],
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
    present = (await groups(pve)).get(group)
    calls = _group_calls(pve, group, present, comment)
    unchanged: list[str] = []
    known = await users(pve) if joining or leaving else {}
    for user in [*joining, *leaving]:
        if user not in known:
            raise unknown("user", user, known)
        mine = groups_of(known[user])
        if (group in mine) == (user in joining):
            unchanged.append(f"{user} is {'already' if user in joining else 'not'} in {group}")
        else:
            calls.append(_membership(pve, user, group, mine, joins=user in joining))
    if not calls and not unchanged:
        unchanged.append(f"group {group} is so already")
    brings = [f"{entry['roleid']} on {entry['path']}" for entry in await acl(pve) if holder(entry) == f"@{group}"]
    facts = {"rights_of_group": brings[:ENTRIES_SHOWN]} if brings and (joining or leaving) else {}
    return Plan(f"Set group {group}", tuple(calls), tuple(unchanged), facts=facts, after=_forget_rights(pve))


def _group_calls(pve: Cluster, group: str, present: dict[str, Any] | None, comment: str | None) -> list[Call]:
    async def settled() -> bool:
        now = (await groups(pve)).get(group)
        return now is not None and (comment is None or now.get("comment", "") == comment)

    target = Target("group", group)
    if present is None:
        params = {"groupid": group, **({"comment": comment} if comment else {})}
        return [Call(f"Create group {group}", "POST", "/access/groups", params, target, settled=settled)]
    if comment is None or comment == present.get("comment", ""):
        return []
    path = f"/access/groups/{group}"
    return [Call(f"Change the comment of group {group}", "PUT", path, {"comment": comment}, target, settled=settled)]


def _membership(pve: Cluster, user: str, group: str, mine: list[str], *, joins: bool) -> Call:
    async def settled() -> bool:
        return (group in groups_of((await users(pve))[user])) == joins

    says = f"Add {user} to {group}" if joins else f"Take {user} out of {group}"
    params: dict[str, Any] = (
        {"groups": group, "append": 1} if joins else {"groups": ",".join(name for name in mine if name != group)}
    )
    return Call(says, "PUT", f"/access/users/{user}", params, _user(user), settled=settled)


@operation(risk=Risk.DESTROY)
async def role_set(
    pve: Cluster,
    role: Annotated[str, Meta(description="Made if there is none")],
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
        return Plan(f"Set role {role}", unchanged=(f"role {role} is so already",))

    async def settled() -> bool:
        there = (await roles(pve)).get(role)
        return there is not None and set(filter(None, there.get("privs", "").split(","))) == wanted

    params = {"privs": ",".join(sorted(wanted))}
    target = Target("role", role)
    if now is None:
        call = Call(f"Create role {role}", "POST", "/access/roles", {"roleid": role, **params}, target, settled=settled)
    else:
        call = Call(f"Change role {role}", "PUT", f"/access/roles/{role}", params, target, settled=settled)
    facts = {"gains": sorted(wanted - held), "loses": sorted(held - wanted), **await _holders_of(pve, role)}
    return Plan(call.says, (call,), facts=facts, after=_forget_rights(pve))


def _check_role_name(role: str, now: dict[str, Any] | None, mode: str) -> None:
    if now is not None and now.get("special"):
        raise Conflict(f"Role {role} comes with PVE and cannot be changed", next_step="Make a role of your own")
    if now is not None:
        return
    if mode == "remove":
        raise unknown("role", role, ())
    if not PLAIN_ID.fullmatch(role):
        raise BadArgument(f"{role!r} is not a role name", next_step="Use letters, digits, dot, dash and underscore")
    if role.upper().startswith("PVE"):
        raise BadArgument("Names of roles that begin with PVE are kept for PVE itself", next_step="Choose another name")


async def _holders_of(pve: Cluster, role: str) -> dict[str, Any]:
    entries = [f"{holder(entry)} on {entry['path']}" for entry in await acl(pve) if entry["roleid"] == role]
    return {"held_by": entries[:ENTRIES_SHOWN]} if entries else {}


@operation(risk=Risk.DESTROY)
async def access_delete(
    pve: Cluster,
    kind: Literal["user", "group", "role", "token", "pool"],
    name: Annotated[str, Meta(description="A token as user@realm!name")],
    remove_members: Annotated[bool, Meta(description="Of a pool: take them out first; they stay as they are")] = False,
) -> Plan:
    """Delete a user (with its tokens), group, role, API token or pool, and the ACL entries that name it."""
    if remove_members and kind != "pool":
        raise BadArgument(f"remove_members does not go with kind={kind}", next_step="It is for pools")
    if kind == "pool":
        return await plan_pool_deletion(pve, name, remove_members=remove_members)
    known = await _known(pve, kind)
    if name not in known:
        raise unknown(kind, name, known)
    _refuse_own(pve, kind, name, known[name])
    lost = [entry for entry in await acl(pve) if _goes_along(entry, kind, name)]
    facts = {
        "acl_entries_lost": [f"{entry['path']} {holder(entry)} {entry['roleid']}" for entry in lost[:ENTRIES_SHOWN]],
        "tokens_lost": list(tokens_in({name: known[name]})) if kind == "user" else [],
        "members": known[name].get("users", "") if kind == "group" else "",
    }

    async def settled() -> bool:
        return name not in await _known(pve, kind)

    call = Call(f"Delete {kind} {name}", "DELETE", _path(kind, name), {}, Target(kind, name), settled=settled)
    return Plan(
        call.says, (call,), facts={key: value for key, value in facts.items() if value}, after=_forget_rights(pve)
    )


async def _known(pve: Cluster, kind: str) -> dict[str, dict[str, Any]]:
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
        raise Conflict(f"Quorate itself works as {identity}", next_step="Delete it on a node, if that is meant")
    if kind == "user" and name == ROOT:
        raise Conflict(f"{ROOT} cannot be deleted: PVE needs it")
    if kind == "role" and entry.get("special"):
        raise Conflict(f"Role {name} comes with PVE and cannot be deleted")


def _goes_along(entry: dict[str, Any], kind: str, name: str) -> bool:
    if kind == "role":
        return bool(entry["roleid"] == name)
    who = holder(entry)
    return who == (f"@{name}" if kind == "group" else name) or (kind == "user" and who.startswith(f"{name}!"))


def owner_of(identity: str) -> str:
    return identity.partition("!")[0]


def _user(user: str) -> Target:
    return Target("user", user)


def _forget_rights(pve: Cluster) -> Any:
    """Our own rights may be among those that changed."""

    async def after() -> dict[str, Any]:
        pve.forget_rights()
        return {}

    return after
