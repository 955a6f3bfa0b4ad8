"""Changing roles; those that come with PVE stay as they are."""

from __future__ import annotations

from quorate.sim.config_files import changing, split_list
from quorate.sim.refusals import bad_parameters, failure
from quorate.sim.routing import Call, route


@route("POST /access/roles")
def create_role(call: Call) -> None:
    access, role = call.world.access, call.params["roleid"]
    if role.upper().startswith("PVE"):
        text = "cannot use role ID starting with the (case-insensitive) 'PVE' namespace"
        raise bad_parameters({"roleid": text})
    with changing("create role failed"):
        if access.role(role) is not None:
            raise failure(f"role '{role}' already exists")
        access.custom_roles[role] = _privileges(call)
    access.changed()


@route("PUT /access/roles/{roleid}")
def update_role(call: Call) -> None:
    access, role = call.world.access, call.values["roleid"]
    _refuse_builtin(call, "modified")
    with changing("update role failed"):
        if role not in access.custom_roles:
            raise failure(f"role '{role}' does not exist")
        kept = access.custom_roles[role] if call.params.get("append") else frozenset()
        access.custom_roles[role] = kept | _privileges(call)
    access.changed()


@route("DELETE /access/roles/{roleid}")
def delete_role(call: Call) -> None:
    access, role = call.world.access, call.values["roleid"]
    _refuse_builtin(call, "deleted")
    with changing("delete role failed"):
        if role not in access.custom_roles:
            raise failure(f"role '{role}' does not exist")
        del access.custom_roles[role]
    access.forget(lambda entry: entry.role == role)


def _privileges(call: Call) -> frozenset[str]:
    return frozenset(split_list(call.params.get("privs")))


def _refuse_builtin(call: Call, what: str) -> None:
    role = call.values["roleid"]
    if role in call.world.access.builtin_roles:
        raise failure(f"auto-generated role '{role}' cannot be {what}")
