"""Shells on a node over VNC, terminal and SPICE: tickets and ports."""

from __future__ import annotations

from typing import Any

from quorate.sim.access import ROOT
from quorate.sim.consoles import Consoles, node_of, open_console, spice_file
from quorate.sim.node_certificates import Certificates
from quorate.sim.refusals import Refusal, forbidden
from quorate.sim.routing import Call, route


def _refuse_token(call: Call) -> None:
    """A shell that is more than a login prompt is for root@pam alone."""
    if call.params.get("cmd", "login") != "login" and call.user != ROOT:
        raise forbidden("user != root@pam")


def _path(call: Call) -> str:
    return f"/nodes/{call.node}"


@route("POST /nodes/{node}/vncshell", needs_quorum=False)
def vnc_shell(call: Call) -> dict[str, Any]:
    node_of(call)
    _refuse_token(call)
    console = open_console(call, "vncshell", "", _path(call))
    return console | {"cert": call.world.part(Certificates).authority_pem()}


@route("POST /nodes/{node}/termproxy", needs_quorum=False)
def terminal(call: Call) -> dict[str, Any]:
    node_of(call)
    _refuse_token(call)
    return open_console(call, "vncshell", "", _path(call))


@route("POST /nodes/{node}/spiceshell", needs_quorum=False)
def spice_shell(call: Call) -> dict[str, Any]:
    _refuse_token(call)
    if "@" in call.authid and not call.authid.partition("!")[0].endswith("@pam"):
        raise Refusal(403, "Permission check failed (realm != pam)\n")
    console = open_console(call, "spiceshell", "", _path(call))
    return spice_file(call, f"{call.node} - Proxmox Console", int(console["port"]))


@route("GET /nodes/{node}/vncwebsocket")
def websocket(call: Call) -> dict[str, Any]:
    node_of(call)
    call.world.part(Consoles).check(call.params["vncticket"], _path(call), call.params["port"])
    return {"port": str(call.params["port"])}
