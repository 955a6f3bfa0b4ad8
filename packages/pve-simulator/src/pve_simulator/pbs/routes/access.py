"""/access: tickets, users, tokens, roles and privileges."""

from __future__ import annotations

import uuid
from typing import Any

from pve_schema.pbs import pbs_roles
from pve_simulator.pbs.access import REALMS, ROOT, Credential, list_levels, refuse_unknown_path
from pve_simulator.pbs.refusals import Refusal, bad_parameter
from pve_simulator.pbs.routing import Call, Payload, route
from pve_simulator.pbs.sections import check_digest

_USER_PROPERTIES = ("comment", "email", "enable", "expire", "firstname", "lastname")
_TOKEN_PROPERTIES = ("comment", "enable", "expire")
_DEFAULTS = {"enable": True, "expire": 0}
_ROLE_COMMENTS = {
    "Admin": "Administrator",
    "Audit": "Auditor",
    "NoAccess": "Disable Access",
    "DatastoreAdmin": "Datastore Administrator",
    "DatastoreReader": "Datastore Reader (inspect datastore content and do restores)",
    "DatastoreBackup": "Datastore Backup (backup and restore owned backups)",
    "DatastorePowerUser": "Datastore PowerUser (backup, restore and prune owned backup)",
    "DatastoreAudit": "Datastore Auditor",
    "RemoteAudit": "Remote Auditor",
    "RemoteAdmin": "Remote Administrator",
    "RemoteSyncOperator": "Synchronisation Operator",
    "RemoteSyncPushOperator": "Synchronisation Operator (push direction)",
    "RemoteDatastorePowerUser": "Remote Datastore Prune",
    "RemoteDatastoreAdmin": "Remote Datastore Admin",
    "TapeAudit": "Tape Auditor",
    "TapeAdmin": "Tape Administrator",
    "TapeOperator": "Tape Operator",
    "TapeReader": "Tape Reader",
}


@route("POST", "/access/ticket")
def create_ticket(call: Call) -> Any:
    user = str(call["username"])
    if "password" not in call.params:
        raise Refusal("no password provided")
    if not call.server.access.knows_password(user, str(call["password"])):
        raise Refusal("permission check failed.", 401, delay=5.0 if user.endswith("@pam") and user == ROOT else 3.0)
    ticket, csrf = call.server.access.create_ticket(user)
    shown = {"ticket-info": ticket.partition("::")[0]} if call.params.get("http-only") else {"ticket": ticket}
    return Payload({"CSRFPreventionToken": csrf, **shown, "username": user}, {"status": 200, "success": True})


@route("GET", "/access/domains")
def list_domains(call: Call) -> Any:
    rows: list[dict[str, Any]] = [{"comment": text, "realm": realm, "type": realm} for realm, text in REALMS.items()]
    rows[-1]["default"] = True
    return Payload(rows, {"digest": call.server.digest("domains")})


# -- users -------------------------------------------------------------------------------------------------------------


@route("GET", "/access/users")
def list_users(call: Call) -> Any:
    sees_all = call.holds("Sys.Audit", "Permissions.Modify", path="/access/users")
    own = call.auth_id.partition("!")[0]
    users = [name for name in call.server.access.users if sees_all or name == own]
    return Payload(
        [_user_row(call, name, tokens=bool(call.params.get("include_tokens"))) for name in users], _digest(call)
    )


@route("GET", "/access/users/{userid}")
def read_user(call: Call) -> Any:
    return Payload(_user_row(call, _known_user(call)), _digest(call))


@route("POST", "/access/users")
def create_user(call: Call) -> None:
    user = str(call["userid"])
    if user in call.server.access.users:
        raise Refusal(f"user '{user}' already exists.")
    realm = user.rpartition("@")[2]
    if realm not in REALMS:
        raise Refusal(f"unknown realm '{realm}'")
    properties = {name: call[name] for name in _USER_PROPERTIES if name in call.params}
    call.server.access.users[user] = Credential(str(call.params.get("password", "")), properties)


@route("PUT", "/access/users/{userid}")
def update_user(call: Call) -> None:
    check_digest(call, _digest(call)["digest"])
    user = call.server.access.users[_known_user(call)]
    _apply(call, user.properties, _USER_PROPERTIES)
    user.secret = str(call.params.get("password", user.secret))


@route("DELETE", "/access/users/{userid}")
def delete_user(call: Call) -> None:
    check_digest(call, _digest(call)["digest"])
    user = _known_user(call)
    access = call.server.access
    del access.users[user]
    access.tokens = {name: token for name, token in access.tokens.items() if name.partition("!")[0] != user}
    access.acl = {entry: value for entry, value in access.acl.items() if entry[1].partition("!")[0] != user}


def _known_user(call: Call) -> str:
    user = str(call["userid"])
    if user not in call.server.access.users:
        raise Refusal(f"no such user '{user}'")
    return user


def _user_row(call: Call, user: str, *, tokens: bool = False) -> dict[str, Any]:
    row = {**_omit_defaults(call.server.access.users[user].properties), "userid": user}
    if tokens:
        row["tokens"] = [_token_row(call, name) for name in _tokens_of(call, user)]
    return row


def _omit_defaults(properties: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in properties.items() if value != _DEFAULTS.get(name)}


def _apply(call: Call, properties: dict[str, Any], allowed: tuple[str, ...]) -> None:
    for name in call.params.get("delete", []):
        properties.pop(name, None)
    properties |= {name: call[name] for name in allowed if name in call.params}


def _digest(call: Call) -> dict[str, str]:
    access = call.server.access
    content = [{name: known.properties for name, known in part.items()} for part in (access.users, access.tokens)]
    return {"digest": call.server.digest(content)}


# -- tokens ------------------------------------------------------------------------------------------------------------


@route("GET", "/access/users/{userid}/token")
def list_tokens(call: Call) -> Any:
    names = _tokens_of(call, str(call["userid"]))
    return Payload([{**_token_row(call, name), "token-name": name.partition("!")[2]} for name in names], _digest(call))


@route("GET", "/access/users/{userid}/token/{token-name}")
def read_token(call: Call) -> Any:
    return Payload(_token_row(call, _known_token(call)), _digest(call))


@route("POST", "/access/users/{userid}/token/{token-name}")
def create_token(call: Call) -> Any:
    """Also for a user that does not exist."""
    user, name = str(call["userid"]), str(call["token-name"])
    token_id = f"{user}!{name}"
    if token_id in call.server.access.tokens:
        raise Refusal(f"token '{name}' for user '{user}' already exists.")
    properties = {key: call[key] for key in _TOKEN_PROPERTIES if key in call.params}
    secret = str(uuid.uuid4())
    call.server.access.tokens[token_id] = Credential(secret, properties)
    return {"tokenid": token_id, "value": secret}


@route("PUT", "/access/users/{userid}/token/{token-name}")
def update_token(call: Call) -> Any:
    check_digest(call, _digest(call)["digest"])
    token = call.server.access.tokens[_known_token(call)]
    _apply(call, token.properties, _TOKEN_PROPERTIES)
    if not call.params.get("regenerate"):
        return None
    token.secret = str(uuid.uuid4())
    return {"secret": token.secret}


@route("DELETE", "/access/users/{userid}/token/{token-name}")
def delete_token(call: Call) -> None:
    token_id = f"{call['userid']}!{call['token-name']}"
    if token_id not in call.server.access.tokens:
        raise Refusal(f"token '{call['token-name']}' of user '{call['userid']}' does not exist.")
    check_digest(call, _digest(call)["digest"])
    del call.server.access.tokens[token_id]
    call.server.access.acl = {entry: value for entry, value in call.server.access.acl.items() if entry[1] != token_id}


def _known_token(call: Call) -> str:
    token_id = f"{call['userid']}!{call['token-name']}"
    if token_id not in call.server.access.tokens:
        raise Refusal(f"no such token '{token_id}'")
    return token_id


def _tokens_of(call: Call, user: str) -> list[str]:
    return [name for name in call.server.access.tokens if name.partition("!")[0] == user]


def _token_row(call: Call, token_id: str) -> dict[str, Any]:
    return {**_omit_defaults(call.server.access.tokens[token_id].properties), "tokenid": token_id}


# -- roles and privileges ----------------------------------------------------------------------------------------------


@route("GET", "/access/roles")
def list_roles(_: Call) -> Any:
    return [
        {"comment": _ROLE_COMMENTS.get(role, role), "privs": sorted(privileges), "roleid": role}
        for role, privileges in pbs_roles().items()
    ]


@route("GET", "/access/acl")
def list_acl(call: Call) -> Any:
    sees_all = call.holds("Sys.Audit", "Permissions.Modify", path="/access/acl")
    where, exact = call.params.get("path"), bool(call.params.get("exact"))
    own = call.auth_id.partition("!")[0]
    rows = [
        {"path": path, "propagate": propagates, "roleid": role, "ugid": who, "ugid_type": "user"}
        for (path, who, role), propagates in sorted(call.server.access.acl.items())
        if (sees_all or who.partition("!")[0] == own)
        and (where is None or path == where or (not exact and path.startswith(f"{where}/")))
    ]
    return Payload(rows, {"digest": call.server.digest(sorted(map(str, call.server.access.acl)))})


@route("PUT", "/access/acl")
def update_acl(call: Call) -> None:
    access = call.server.access
    path, role = str(call["path"]).rstrip("/") or "/", str(call["role"])
    call.server.access.require(call.auth_id, "/access/acl", ["Permissions.Modify"])
    if role not in pbs_roles():
        raise bad_parameter("role", f"value '{role}' is not defined in the enumeration.")
    if "group" in call.params:
        raise Refusal("parameter 'group' is not implemented yet.")
    if "auth-id" not in call.params:
        raise Refusal("missing 'userid' or 'group' parameter.")
    who = str(call["auth-id"])
    removes = bool(call.params.get("delete"))
    if not removes and who.partition("!")[0] not in access.users:
        raise Refusal("no such user.")
    if not removes and "!" in who and who not in access.tokens:
        raise Refusal("no such API token.")
    refuse_unknown_path(path)
    if removes:
        access.acl.pop((path, who, role), None)
    else:
        access.acl[path, who, role] = bool(call.params.get("propagate", True))


@route("GET", "/access/permissions")
def list_permissions(call: Call) -> Any:
    access = call.server.access
    auth_id = str(call.params.get("auth-id", call.auth_id))
    is_own = auth_id == call.auth_id or auth_id.partition("!")[0] == call.auth_id
    if not is_own and not call.holds("Sys.Audit", path="/access"):
        raise Refusal(f"not allowed to list permissions of {auth_id}")
    if "path" in call.params:
        paths = [str(call["path"])]
    else:
        known = {"/", "/access", "/datastore", "/remote", "/system", "/tape"}
        known |= {level for path, _, _ in access.acl for level in list_levels(path)}
        known |= {f"/datastore/{name}" for name in call.server.datastores}
        paths = sorted(known)
    held = {path: access.privileges(auth_id, path) for path in paths}
    return {path: dict.fromkeys(sorted(privileges), True) for path, privileges in held.items() if privileges}


@route("GET", "/access/tfa")
def list_second_factors(_: Call) -> Any:
    return []


@route("PUT", "/access/tfa/{userid}/{id}")
def update_second_factor(_: Call) -> Any:
    raise Refusal("missing password", 401, delay=3.0)


@route("PUT", "/access/password")
def change_password(call: Call) -> None:
    if "!" in call.auth_id:
        raise Refusal("API tokens cannot access this API endpoint")
    call.server.access.users[_known_user(call)].secret = str(call["password"])
