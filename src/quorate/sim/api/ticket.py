"""Logging in with a password: tickets and their CSRF tokens."""

from __future__ import annotations

import re
from typing import Any

from quorate.sim.refusals import Refusal
from quorate.sim.routing import Call, route
from quorate.sim.tickets import Unauthorized

# Which privileges the web page asks for, in which part of the tree.
_CAPABILITIES = {
    "access": re.compile(r"(User|Group)\.|Permissions\.Modify"),
    "dc": re.compile(r"Sys\.Audit|Sys\.Modify|SDN\."),
    "mapping": re.compile(r"Mapping\.|Permissions\.Modify"),
    "nodes": re.compile(r"Sys\.|Permissions\.Modify"),
    "sdn": re.compile(r"SDN\.|Permissions\.Modify"),
    "storage": re.compile(r"Datastore\.|Permissions\.Modify"),
    "vms": re.compile(r"VM\.|Permissions\.Modify"),
}


@route("GET /access/ticket")
def dummy(_call: Call) -> None:
    """Only there so that browsers have something to ask."""


@route("POST /access/ticket", needs_quorum=False)
def log_in(call: Call) -> dict[str, Any]:
    userid = call.params["username"]
    if "realm" in call.params:
        userid = f"{userid}@{call.params['realm']}"
    try:
        call.authentication.log_in(userid, call.params["password"])
    except Unauthorized as error:
        raise Refusal(401, f"{error}\n") from error
    answer: dict[str, Any] = {
        "username": userid,
        "ticket": call.authentication.new_ticket(userid),
        "CSRFPreventionToken": call.authentication.new_csrf_token(userid),
        "cap": _capabilities(call, userid),
    }
    if len(call.world.nodes) > 1:
        answer["clustername"] = call.world.name
    return answer


def _capabilities(call: Call, userid: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {name: {} for name in _CAPABILITIES}
    access = call.world.access
    paths = dict.fromkeys(("/", "/mapping", *(entry.path for entry in access.acl())))
    for path in (*paths, "/access", "/nodes", "/sdn", "/storage", "/vms"):
        part = path.split("/")[1] or "dc"
        if part in found:
            held = access.privileges(userid, path)
            found[part] |= {name: 1 for name in held if _CAPABILITIES[part].match(name)}
    return found
