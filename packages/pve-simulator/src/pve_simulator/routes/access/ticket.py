"""Login: tickets and their CSRF tokens, console tickets."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

from pve_simulator.access.directory import normalize_path
from pve_simulator.access.tickets import Unauthorized
from pve_simulator.guests.consoles import Consoles
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import Refusal
from pve_simulator.http.routing import Call, route
from pve_simulator.routes.access.tfa import Factor, SecondFactors


@route("POST /access/vncticket", needs_quorum=False)
def check_console_ticket(call: Call) -> None:
    """Whether a console may be opened with this ticket; only the log says why not."""
    params = call.params
    try:
        call.world.part(Consoles).check(params["vncticket"], params["path"], params.get("port", 0))
    except Refusal as error:
        raise _authentication_failure() from error
    _require_privileges(call, params["authid"])


# The privileges that the web interface asks about, by part of the ACL tree.
_CAPABILITIES = {
    "access": re.compile(r"(User|Group)\.|Permissions\.Modify"),
    "dc": re.compile(r"Sys\.Audit|Sys\.Modify|SDN\."),
    "mapping": re.compile(r"Mapping\.|Permissions\.Modify"),
    "nodes": re.compile(r"Sys\.|Permissions\.Modify"),
    "sdn": re.compile(r"SDN\.|Permissions\.Modify"),
    "storage": re.compile(r"Datastore\.|Permissions\.Modify"),
    "vms": re.compile(r"VM\.|Permissions\.Modify"),
}


@route("POST /access/ticket", needs_quorum=False)
def log_in(call: Call) -> dict[str, Any]:
    userid = call.params["username"]
    if "realm" in call.params:
        userid = f"{userid}@{call.params['realm']}"
    needed = call.world.part(SecondFactors).enabled_factors(userid)
    try:
        if "tfa-challenge" in call.params:
            _answer_challenge(call, userid, needed)
            needed = []
        else:
            call.authentication.log_in(userid, call.params["password"])
    except Unauthorized as error:
        raise Refusal(401, f"{error}\n") from error
    answer: dict[str, Any] = {"username": userid}
    if call.params.get("path") and call.params.get("privs"):  # only checks these privileges, returns no ticket
        _require_privileges(call, userid)
    else:
        answer["ticket"] = call.authentication.new_ticket(userid, _challenge(needed) if needed else "")
        answer["CSRFPreventionToken"] = call.authentication.new_csrf_token(userid)
    answer |= {"NeedTFA": 1} if needed else {"cap": _capabilities(call, userid)}
    if not call.world.standalone and "Sys.Audit" in call.world.access.privileges(userid, "/"):
        answer["clustername"] = call.world.name
    return answer


def _require_privileges(call: Call, userid: str) -> None:
    required = set(split_list(call.params["privs"]))
    if not required <= call.world.access.privileges(userid, normalize_path(call.params["path"])).keys():
        raise _authentication_failure()


def _authentication_failure() -> Refusal:
    return Refusal(401, "authentication failure\n")


def _challenge(needed: list[Factor]) -> str:
    """The second factors that a login challenge accepts."""
    kinds = {factor.type for factor in needed}
    content = {"totp": "totp" in kinds, "recovery": "available" if "recovery" in kinds else None}
    return "!tfa!" + quote(json.dumps({key: value for key, value in content.items() if value}), safe="")


def _answer_challenge(call: Call, userid: str, needed: list[Factor]) -> None:
    """The second step: the challenge ticket, with a code or a recovery key as the password."""
    call.authentication.check_challenge(call.params["tfa-challenge"], userid)
    if not any(factor.accepts(call.params["password"], call.world.clock.now()) for factor in needed):
        raise Unauthorized("authentication failure")


def _capabilities(call: Call, userid: str) -> dict[str, dict[str, int]]:
    capabilities: dict[str, dict[str, int]] = {name: {} for name in _CAPABILITIES}
    access = call.world.access
    paths = dict.fromkeys(("/", "/mapping", *(entry.path for entry in access.acl())))
    for path in (*paths, "/access", "/nodes", "/sdn", "/storage", "/vms"):
        part = path.split("/")[1] or "dc"
        if part in capabilities:
            held = access.privileges(userid, path)
            capabilities[part] |= {name: 1 for name in held if _CAPABILITIES[part].match(name)}
    return capabilities
