"""Users and their API tokens and passwords."""

from __future__ import annotations

import uuid
from typing import Any

from pve_simulator.access.directory import ROOT, Access, Token, User
from pve_simulator.access.tickets import Unauthorized
from pve_simulator.cluster.config_files import changing
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import Refusal, bad_parameters, existing, failure, forbidden
from pve_simulator.http.routing import Call, route

TEXTS = ("comment", "firstname", "lastname", "keys", "email")


@route("GET /access/users")
def users(call: Call) -> list[dict[str, Any]]:
    enabled = call.params.get("enabled")
    full = bool(call.params.get("full"))
    return [
        _user_row(call, user, full=full)
        for user in sorted(call.world.access.users.values(), key=lambda user: user.userid)
        if enabled in (None, user.enable) and _may_see(call, user)
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


@route("GET /access/users/{userid}")
def one_user(call: Call) -> dict[str, Any]:
    user = existing_user(call)
    return {
        **_details(user),
        "groups": sorted(user.groups),
        "tokens": {name: _token_row(token) for name, token in sorted(user.tokens.items())} or None,
    }


@route("POST /access/users")
def create_user(call: Call) -> None:
    access, userid = call.world.access, call.params["userid"]
    with changing("create user failed"):
        if userid in access.users:
            raise failure(f"user '{userid}' already exists")
        user = User(userid)
        if "password" in call.params:
            store_password(access, user, call.params["password"])
        user.enable = call.params.get("enable", True)
        user.expire = call.params.get("expire", 0)
        user.groups = _existing_groups(access, call.params.get("groups"))
        _set_texts(call, user)
        access.users[userid] = user
    access.invalidate_cache()


@route("PUT /access/users/{userid}")
def update_user(call: Call) -> None:
    access, params = call.world.access, call.params
    with changing("update user failed"):
        user = existing_user(call)
        if "groups" in params:
            groups = _existing_groups(access, params["groups"])
            user.groups = user.groups | groups if params.get("append") else groups
        user.enable = params.get("enable", user.enable)
        user.expire = params.get("expire", user.expire)
        _set_texts(call, user)
    access.invalidate_cache()


@route("DELETE /access/users/{userid}")
def delete_user(call: Call) -> None:
    """PVE accepts an unknown user; root@pam is created again at once, without its tokens."""
    access, userid = call.world.access, call.values["userid"]
    removed = access.users.pop(userid, None)
    if userid == ROOT and removed is not None:
        access.users[ROOT] = User(ROOT, password=removed.password)
    access.forget(lambda entry: entry.subject == userid or entry.subject.startswith(f"{userid}!"))
    access.invalidate_cache()


@route("PUT /access/password")
def change_password(call: Call) -> None:
    user = existing_user(call)
    if not call.is_root:
        if user.userid != call.user and user.realm == "pam":
            raise forbidden()
        confirm(call, "confirmation-password", "password is required to modify user")
    store_password(call.world.access, user, call.params["password"])


def confirm(call: Call, key: str, missing: str) -> None:
    """Everyone but root confirms their own password."""
    password = existing(call.params.get(key), bad_parameters({key: missing}))
    try:
        call.authentication.log_in(call.authid, password)
    except Unauthorized as error:
        raise Refusal(401, f"{error}\n") from error


def store_password(access: Access, user: User, password: str) -> None:
    """Set a password where the realm keeps one; system users must already exist."""
    realm = existing(access.realms.get(user.realm), f"auth domain '{user.realm}' does not exist")
    if realm.type not in ("pve", "pam"):
        raise failure(f"can't set password on auth type '{realm.type}'")
    if realm.type == "pam" and user.userid != ROOT:
        name = user.userid.rpartition("@")[0]
        raise failure(f"change password failed: usermod: user '{name}' does not exist")
    user.password = password


def _existing_groups(access: Access, text: str | None) -> set[str]:
    groups = split_list(text)
    for group in groups:
        if group not in access.groups:
            raise failure(f"no such group '{group}'")
    return set(groups)


def _set_texts(call: Call, user: User) -> None:
    """The text fields of a user; an empty one is dropped."""
    for name in TEXTS:
        if name in call.params:
            setattr(user, name, call.params[name] or None)


_ONE = "/access/users/{userid}/token/{tokenid}"


@route("GET /access/users/{userid}/token")
def tokens(call: Call) -> list[dict[str, Any]]:
    user = existing_user(call)
    return [{"tokenid": name, **_token_row(token)} for name, token in sorted(user.tokens.items())]


@route(f"GET {_ONE}")
def one_token(call: Call) -> dict[str, Any]:
    return _token_row(existing_token(call)[1])


def _token_row(token: Token) -> dict[str, Any]:
    row: dict[str, Any] = {"privsep": int(token.privsep), "expire": token.expire}
    return row | ({"comment": token.comment} if token.comment else {})


@route(f"POST {_ONE}")
def create_token(call: Call) -> dict[str, Any]:
    user, name = existing_user(call), call.values["tokenid"]
    if name in user.tokens:
        raise bad_parameters({"tokenid": "Token already exists."})
    token = Token(str(uuid.uuid4()))
    _set(call, token)
    user.tokens[name] = token
    call.world.access.invalidate_cache()
    info = {"privsep": 1, **_echo_parameters(call)}
    return {"info": info, "value": token.secret, "full-tokenid": f"{user.userid}!{name}"}


@route(f"PUT {_ONE}")
def update_token(call: Call) -> dict[str, Any]:
    user, token = existing_token(call)
    _set(call, token)
    for option in split_list(call.params.get("delete")):
        if option == "comment":
            token.comment = None
        elif option == "expire":
            token.expire = 0
    call.world.access.invalidate_cache()
    shown: dict[str, Any] = {"privsep": int(token.privsep), "expire": token.expire}
    if token.comment:
        shown["comment"] = token.comment
    shown |= _echo_parameters(call)
    if call.params.get("regenerate"):
        token.secret = str(uuid.uuid4())
        shown |= {"value": token.secret, "full-tokenid": f"{user.userid}!{call.values['tokenid']}"}
    return shown


@route(f"DELETE {_ONE}")
def delete_token(call: Call) -> None:
    user, name = existing_token(call)[0], call.values["tokenid"]
    del user.tokens[name]
    full_id = f"{user.userid}!{name}"
    call.world.access.forget(lambda entry: entry.kind == "token" and entry.subject == full_id)


def existing_user(call: Call) -> User:
    """The user in the path or the parameters."""
    userid = call.params["userid"]
    return existing(call.world.access.users.get(userid), f"no such user ('{userid}')")


def existing_token(call: Call) -> tuple[User, Token]:
    """The token in the path, and its owner."""
    user, name = existing_user(call), call.values["tokenid"]
    return user, existing(user.tokens.get(name), f"no such token '{name}' for user '{user.userid}'")


def _set(call: Call, token: Token) -> None:
    token.privsep = call.params.get("privsep", token.privsep)
    token.expire = call.params.get("expire", token.expire)
    token.comment = call.params.get("comment") or token.comment


def _echo_parameters(call: Call) -> dict[str, Any]:
    """PVE returns these parameters as text, even numbers."""
    shown = {name: str(int(call.params[name])) for name in ("privsep", "expire") if name in call.params}
    return shown | ({"comment": call.params["comment"]} if call.params.get("comment") else {})
