"""Roles and their privileges."""

from __future__ import annotations

from typing import Any

from pve_simulator.cluster.config_files import changing
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import bad_parameters, existing, failure
from pve_simulator.http.routing import Call, route


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
    access.invalidate_cache()


@route("PUT /access/roles/{roleid}")
def update_role(call: Call) -> None:
    access, role = call.world.access, call.values["roleid"]
    _refuse_builtin(call, "modified")
    with changing("update role failed"):
        before = existing(access.custom_roles.get(role), f"role '{role}' does not exist")
        access.custom_roles[role] = _privileges(call) | (before if call.params.get("append") else frozenset())
    access.invalidate_cache()


@route("DELETE /access/roles/{roleid}")
def delete_role(call: Call) -> None:
    access, role = call.world.access, call.values["roleid"]
    _refuse_builtin(call, "deleted")
    with changing("delete role failed"):
        existing(access.custom_roles.pop(role, None), f"role '{role}' does not exist")
    access.forget(lambda entry: entry.role == role)


def _privileges(call: Call) -> frozenset[str]:
    return frozenset(split_list(call.params.get("privs")))


def _refuse_builtin(call: Call, what: str) -> None:
    role = call.values["roleid"]
    if role in call.world.access.builtin_roles:
        raise failure(f"auto-generated role '{role}' cannot be {what}")
