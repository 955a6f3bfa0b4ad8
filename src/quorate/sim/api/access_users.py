"""Changing users: create, update, delete, passwords."""

from __future__ import annotations

from quorate.sim.access import ROOT, Access, User
from quorate.sim.config_files import changing, split_list
from quorate.sim.refusals import Refusal, bad_parameters, failure, forbidden
from quorate.sim.routing import Call, route
from quorate.sim.tickets import Unauthorized

_TEXTS = ("comment", "firstname", "lastname")


@route("POST /access/users")
def create_user(call: Call) -> None:
    access, userid = call.world.access, call.params["userid"]
    with changing("create user failed"):
        if userid in access.users:
            raise failure(f"user '{userid}' already exists")
        user = User(userid, email=call.params.get("email", ""))
        if "password" in call.params:
            store_password(access, user, call.params["password"])
        user.enable = call.params.get("enable", True)
        user.expire = call.params.get("expire", 0)
        user.groups = _existing_groups(access, call.params.get("groups"))
        _set_texts(call, user)
        access.users[userid] = user
    access.changed()


@route("PUT /access/users/{userid}")
def update_user(call: Call) -> None:
    access, params = call.world.access, call.params
    with changing("update user failed"):
        user = access.users.get(params["userid"])
        if user is None:
            raise failure(f"no such user ('{params['userid']}')")
        if "groups" in params:
            wanted = _existing_groups(access, params["groups"])
            user.groups = user.groups | wanted if params.get("append") else wanted
        user.enable = params.get("enable", user.enable)
        user.expire = params.get("expire", user.expire)
        user.email = params.get("email", user.email)
        _set_texts(call, user)
    access.changed()


@route("DELETE /access/users/{userid}")
def delete_user(call: Call) -> None:
    """PVE does not mind if there is no such user, and its own administrator comes back at once."""
    access, userid = call.world.access, call.values["userid"]
    if userid != ROOT:
        access.users.pop(userid, None)
        access.forget(lambda entry: entry.subject == userid or entry.subject.startswith(f"{userid}!"))
    access.changed()


@route("PUT /access/password")
def change_password(call: Call) -> None:
    access, userid = call.world.access, call.params["userid"]
    user = access.users.get(userid)
    if user is None:
        raise failure(f"no such user ('{userid}')")
    if not call.is_root:
        if userid != call.user and user.realm == "pam":
            raise forbidden()
        _confirm(call)
    store_password(access, user, call.params["password"])


def _confirm(call: Call) -> None:
    """Everyone but root has to show the own password again."""
    given = call.params.get("confirmation-password")
    if given is None:
        raise bad_parameters({"confirmation-password": "password is required to modify user"})
    try:
        call.authentication.log_in(call.authid, given)
    except Unauthorized as error:
        raise Refusal(401, f"{error}\n") from error


def store_password(access: Access, user: User, password: str) -> None:
    """Set a password where the realm keeps one; system users have to be there already."""
    realm = access.realms.get(user.realm)
    if realm is None:
        raise failure(f"auth domain '{user.realm}' does not exist")
    if realm.type not in ("pve", "pam"):
        raise failure(f"can't set password on auth type '{realm.type}'")
    if realm.type == "pam" and user.userid != ROOT:
        name = user.userid.rpartition("@")[0]
        raise failure(f"change password failed: usermod: user '{name}' does not exist")
    user.password = password


def _existing_groups(access: Access, text: str | None) -> set[str]:
    wanted = split_list(text)
    for group in wanted:
        if group not in access.groups:
            raise failure(f"no such group '{group}'")
    return set(wanted)


def _set_texts(call: Call, user: User) -> None:
    """The words about a user; an empty one is dropped."""
    for name in _TEXTS:
        if name in call.params:
            setattr(user, name, call.params[name] or None)
