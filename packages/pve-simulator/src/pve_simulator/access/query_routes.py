"""Reading the access configuration: users, groups, roles, ACL, realms, permissions."""

from __future__ import annotations

from typing import Any

from pve_simulator.access.directory import Realm, Token, User, as_numbers, normalize_path
from pve_simulator.access.user_routes import TEXTS, existing_token, existing_user
from pve_simulator.http.refusals import existing, failure
from pve_simulator.http.routing import Call, route


@route("GET /access/domains")
def domains(call: Call) -> list[dict[str, Any]]:
    return [_realm_row(realm) for realm in call.world.access.realms.values()]


def _realm_row(realm: Realm) -> dict[str, Any]:
    row: dict[str, Any] = {"realm": realm.name, "type": realm.type}
    if realm.comment:
        row["comment"] = realm.comment
    if realm.options.get("default"):
        row["default"] = 1
    if "tfa" in realm.options:
        row["tfa"] = str(realm.options["tfa"]).partition("type=")[2].split(",")[0]
    return row


@route("GET /access/permissions")
def permissions(call: Call) -> dict[str, dict[str, int]]:
    access = call.world.access
    who = call.params.get("userid", call.authid)
    if who != call.authid and not who.startswith(f"{call.authid}!"):
        call.require("/access", "Sys.Audit")
    unknown = who.partition("!")[0] not in access.users or ("!" in who and access.token(who) is None)
    path = call.params.get("path")
    if path is None:
        return {} if unknown else access.effective_permissions(who)
    return {path: {} if unknown else as_numbers(access.privileges(who, normalize_path(path)))}


@route("GET /access/users")
def users(call: Call) -> list[dict[str, Any]]:
    wanted = call.params.get("enabled")
    full = bool(call.params.get("full"))
    return [
        _user_row(call, user, full=full)
        for user in sorted(call.world.access.users.values(), key=lambda user: user.userid)
        if wanted in (None, user.enable) and _may_see(call, user)
    ]


def _may_see(call: Call, user: User) -> bool:
    if user.userid == call.authid or call.allowed("/access/groups", "User.Modify", "Sys.Audit"):
        return True
    return any(call.allowed(f"/access/groups/{group}", "User.Modify", "Sys.Audit") for group in user.groups)


def _user_row(call: Call, user: User, *, full: bool) -> dict[str, Any]:
    realm = call.world.access.realms.get(user.realm)
    row = {"userid": user.userid, **_details(user), **({"realm-type": realm.type} if realm else {})}
    if full:
        tokens = [{"tokenid": name, **_token_row(token)} for name, token in sorted(user.tokens.items())]
        row |= {"groups": ",".join(sorted(user.groups)), "tokens": tokens or None}
    return row


def _details(user: User) -> dict[str, Any]:
    """PVE drops empty fields at the end of a line of `user.cfg`; an empty address before other fields stays."""
    row: dict[str, Any] = {"enable": int(user.enable), "expire": user.expire}
    row |= {name: value for name in TEXTS if (value := getattr(user, name))}
    return row | ({"email": user.email or ""} if user.email or user.comment or user.keys else {})


def _token_row(token: Token) -> dict[str, Any]:
    row: dict[str, Any] = {"privsep": int(token.privsep), "expire": token.expire}
    return row | ({"comment": token.comment} if token.comment else {})


@route("GET /access/users/{userid}")
def one_user(call: Call) -> dict[str, Any]:
    user = existing_user(call)
    return {
        **_details(user),
        "groups": sorted(user.groups),
        "tokens": {name: _token_row(token) for name, token in sorted(user.tokens.items())} or None,
    }


@route("GET /access/users/{userid}/token")
def tokens(call: Call) -> list[dict[str, Any]]:
    user = existing_user(call)
    return [{"tokenid": name, **_token_row(token)} for name, token in sorted(user.tokens.items())]


@route("GET /access/users/{userid}/token/{tokenid}")
def one_token(call: Call) -> dict[str, Any]:
    return _token_row(existing_token(call)[1])


@route("GET /access/groups")
def groups(call: Call) -> list[dict[str, Any]]:
    access = call.world.access
    return [
        {"groupid": name, "users": ",".join(_members(call, name))} | ({"comment": comment} if comment else {})
        for name, comment in sorted(access.groups.items())
        if call.allowed(f"/access/groups/{name}", "Sys.Audit", "User.Modify", "Group.Allocate")
    ]


@route("GET /access/groups/{groupid}")
def one_group(call: Call) -> dict[str, Any]:
    name = call.values["groupid"]
    if name not in call.world.access.groups:
        raise failure(f"group '{name}' does not exist")
    comment = call.world.access.groups[name]
    return {"members": _members(call, name)} | ({"comment": comment} if comment else {})


def _members(call: Call, group: str) -> list[str]:
    return sorted(user.userid for user in call.world.access.users.values() if group in user.groups)


@route("GET /access/roles")
def roles(call: Call) -> list[dict[str, Any]]:
    access = call.world.access
    known = [(name, held, 1) for name, held in access.builtin_roles.items()]
    known += [(name, held, 0) for name, held in access.custom_roles.items()]
    return [
        {"roleid": name, "privs": ",".join(sorted(held))} | ({"special": 1} if special else {})
        for name, held, special in known
    ]


@route("GET /access/roles/{roleid}")
def one_role(call: Call) -> dict[str, int]:
    held = existing(call.world.access.role(call.values["roleid"]), f"role '{call.values['roleid']}' does not exist")
    return dict.fromkeys(sorted(held), 1)


@route("GET /access/acl")
def acl(call: Call) -> list[dict[str, Any]]:
    sees_all = call.allowed("/access", "Sys.Audit", "Permissions.Modify")
    return [
        {
            "path": entry.path,
            "type": entry.kind,
            "ugid": entry.subject,
            "roleid": entry.role,
            "propagate": int(entry.propagate),
        }
        for entry in call.world.access.acl()
        if sees_all or call.allowed(entry.path, "Permissions.Modify")
    ]
