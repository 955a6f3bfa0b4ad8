"""Who has which role where, and the permissions that follow."""

from __future__ import annotations

import re
from typing import Any

from pve_simulator.access.directory import SubjectKind, as_numbers, normalize_path
from pve_simulator.cluster.config_files import changing
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import bad_parameters, existing, failure
from pve_simulator.http.routing import Call, route

_SUBJECTS = ("users", "groups", "tokens")

# The paths that roles can be granted on; names in them need not exist.
_ACL_PATH = re.compile(
    r"""/
    |/access(?:/groups(?:/[^/]+)?|/realm(?:/[^/]+)?)?
    |/nodes(?:/[^/]+)?
    |/pool(?:/[^/]+){0,3}
    |/sdn(?:/zones(?:/[^/]+(?:/[^/]+(?:/[1-9][0-9]{0,3})?)?)?
        |/(?:controllers|dns|ipams|fabrics|prefix-lists|route-maps)(?:/[^/]+)?)?
    |/storage(?:/[^/]+)?
    |/vms(?:/[1-9][0-9]{2,})?
    |/mapping(?:/[^/]+(?:/[^/]+)?)?""",
    re.VERBOSE,
)


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


@route("PUT /access/acl")
def update_acl(call: Call) -> None:
    params = call.params
    if not any(params.get(name) for name in _SUBJECTS):
        text = "either 'users', 'groups' or 'tokens' is required."
        raise bad_parameters(dict.fromkeys(_SUBJECTS, text))
    path = normalize_path(params["path"])
    if path is None or not (params.get("delete") or _ACL_PATH.fullmatch(path)):
        raise bad_parameters({"path": f"invalid ACL path '{params['path']}'"})
    with changing("ACL update failed"):
        roles = split_list(params["roles"])
        for role in roles:
            _refuse_role(call, path, role)
        subjects = _existing_subjects(call)
        for role in roles:
            for subject in subjects:
                _apply(call, path, role, subject)


def _apply(call: Call, path: str, role: str, subject: str) -> None:
    access = call.world.access
    if call.params.get("delete"):
        kind: SubjectKind = "group" if subject.startswith("@") else "token" if "!" in subject else "user"
        access.revoke(path, role, kind, subject.removeprefix("@"))
    else:
        access.grant(path, role, subject, propagate=call.params.get("propagate", True))


def _refuse_role(call: Call, path: str, role: str) -> None:
    """A caller without permission to change permissions can grant only what they already hold there."""
    held_by_role = existing(call.world.access.role(role), f"role '{role}' does not exist")
    own = call.world.access.privileges(call.authid, path)
    if call.is_root or "Permissions.Modify" in own:
        return
    deletes = bool(call.params.get("delete"))
    verb = "remove" if deletes else "add"
    below = call.params.get("propagate", True) and not deletes
    for privilege in held_by_role:
        if privilege not in own:
            text = f"Cannot {verb} role '{role}' - requires 'Permissions.Modify' or superset of privileges."
            raise bad_parameters({"role": text})
        if below and not own[privilege]:
            text = (
                f"Cannot {verb} role '{role}' with propagation - requires 'Permissions.Modify' or propagated"
                " superset of privileges."
            )
            raise bad_parameters({"role": text})


def _existing_subjects(call: Call) -> list[str]:
    """Users, tokens and groups, spelled as `grant` expects."""
    access = call.world.access
    subjects: list[str] = []
    for group in split_list(call.params.get("groups")):
        if group not in access.groups:
            raise failure(f"group '{group}' does not exist")
        subjects.append(f"@{group}")
    for userid in split_list(call.params.get("users")):
        if userid not in access.users:
            raise failure(f"user '{userid}' does not exist")
        subjects.append(userid)
    for full_id in split_list(call.params.get("tokens")):
        userid, _, name = full_id.partition("!")
        if userid not in access.users:
            raise failure(f"no such user ('{userid}')")
        if access.token(full_id) is None:
            raise failure(f"no such token '{name}' for user '{userid}'")
        subjects.append(full_id)
    return subjects
