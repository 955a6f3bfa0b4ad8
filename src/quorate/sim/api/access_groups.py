"""Changing groups of users."""

from __future__ import annotations

from quorate.sim.config_files import changing
from quorate.sim.refusals import failure
from quorate.sim.routing import Call, route


@route("POST /access/groups")
def create_group(call: Call) -> None:
    access, group = call.world.access, call.params["groupid"]
    with changing("create group failed"):
        if group in access.groups:
            raise failure(f"group '{group}' already exists")
        access.groups[group] = call.params.get("comment") or None
    access.changed()


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
