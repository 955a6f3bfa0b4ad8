"""Changing API tokens: the secret is shown when it is made and never again."""

from __future__ import annotations

import uuid
from typing import Any

from quorate.sim.access import Token, User
from quorate.sim.config_files import split_list
from quorate.sim.refusals import bad_parameters, failure
from quorate.sim.routing import Call, route

_ONE = "/access/users/{userid}/token/{tokenid}"


@route(f"POST {_ONE}")
def create_token(call: Call) -> dict[str, Any]:
    user, name = _owner(call), call.values["tokenid"]
    if name in user.tokens:
        raise bad_parameters({"tokenid": "Token already exists."})
    token = Token(str(uuid.uuid4()))
    _set(call, token)
    user.tokens[name] = token
    call.world.access.changed()
    info = {"privsep": 1, **_as_given(call)}
    return {"info": info, "value": token.secret, "full-tokenid": f"{user.userid}!{name}"}


@route(f"PUT {_ONE}")
def update_token(call: Call) -> dict[str, Any]:
    user, name = _owner(call), call.values["tokenid"]
    token = _existing(user, name)
    _set(call, token)
    for option in split_list(call.params.get("delete")):
        if option == "comment":
            token.comment = None
        elif option == "expire":
            token.expire = 0
    call.world.access.changed()
    shown: dict[str, Any] = {"privsep": int(token.privsep), "expire": token.expire}
    if token.comment:
        shown["comment"] = token.comment
    shown |= _as_given(call)
    if call.params.get("regenerate"):
        token.secret = str(uuid.uuid4())
        shown |= {"value": token.secret, "full-tokenid": f"{user.userid}!{name}"}
    return shown


@route(f"DELETE {_ONE}")
def delete_token(call: Call) -> None:
    user, name = _owner(call), call.values["tokenid"]
    _existing(user, name)
    del user.tokens[name]
    full_id = f"{user.userid}!{name}"
    call.world.access.forget(lambda entry: entry.kind == "token" and entry.subject == full_id)


def _owner(call: Call) -> User:
    user = call.world.access.users.get(call.values["userid"])
    if user is None:
        raise failure(f"no such user ('{call.values['userid']}')")
    return user


def _existing(user: User, name: str) -> Token:
    token = user.tokens.get(name)
    if token is None:
        raise failure(f"no such token '{name}' for user '{user.userid}'")
    return token


def _set(call: Call, token: Token) -> None:
    token.privsep = call.params.get("privsep", token.privsep)
    token.expire = call.params.get("expire", token.expire)
    token.comment = call.params.get("comment") or token.comment


def _as_given(call: Call) -> dict[str, Any]:
    """PVE repeats what it was given as text, also where it is a number everywhere else."""
    shown = {name: str(int(call.params[name])) for name in ("privsep", "expire") if name in call.params}
    return shown | ({"comment": call.params["comment"]} if call.params.get("comment") else {})
