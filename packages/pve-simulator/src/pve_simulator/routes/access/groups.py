"""Groups of users."""

from __future__ import annotations

from typing import Any

from pve_simulator.cluster.config_files import changing
from pve_simulator.http.refusals import failure
from pve_simulator.http.routing import Call, route


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


@route("POST /access/groups")
def create_group(call: Call) -> None:
    access, group = call.world.access, call.params["groupid"]
    with changing("create group failed"):
        if group in access.groups:
            raise failure(f"group '{group}' already exists")
        access.groups[group] = call.params.get("comment") or None
    access.invalidate_cache()


@route("PUT /access/groups/{groupid}")
def update_group(call: Call) -> None:
    with changing("update group failed"):
        _check_existing(call)
        if "comment" in call.params:
            call.world.access.groups[call.values["groupid"]] = call.params["comment"] or None


@route("DELETE /access/groups/{groupid}")
def delete_group(call: Call) -> None:
    access, group = call.world.access, call.values["groupid"]
    with changing("delete group failed"):
        _check_existing(call)
    del access.groups[group]
    for user in access.users.values():
        user.groups.discard(group)
    access.forget(lambda entry: entry.kind == "group" and entry.subject == group)


def _check_existing(call: Call) -> None:
    group = call.values["groupid"]
    if group not in call.world.access.groups:
        raise failure(f"group '{group}' does not exist")
