"""Second factors and console tickets: nobody in the simulated cluster has set one up."""

from __future__ import annotations

from typing import Any

from quorate.sim.consoles import Consoles
from quorate.sim.refusals import Refusal, failure
from quorate.sim.routing import Call, route


@route("GET /access/tfa")
def all_entries(_call: Call) -> list[Any]:
    """Only users with an entry are listed, and there are none."""
    return []


@route("GET /access/tfa/{userid}")
def entries_of_user(_call: Call) -> list[Any]:
    return []


@route(
    "GET /access/tfa/{userid}/{id}",
    "PUT /access/tfa/{userid}/{id}",
    "DELETE /access/tfa/{userid}/{id}",
)
def one_entry(call: Call) -> None:
    raise Refusal(404, f"No such tfa entry '{call.values['id']}'\n")


@route("GET /access/users/{userid}/tfa")
def types_of_user(call: Call) -> dict[str, Any]:
    realm = call.values["userid"].rpartition("@")[2]
    if realm not in call.world.access.realms:
        raise failure(f"auth domain '{realm}' does not exist")
    return {"user": []} if call.params.get("multiple") else {}


@route("PUT /access/users/{userid}/unlock-tfa")
def unlock(_call: Call) -> int:
    """Whether anything had been locked."""
    return 0


@route("POST /access/vncticket", needs_quorum=False)
def check_console_ticket(call: Call) -> None:
    """Whether a console may be opened with this ticket."""
    params = call.params
    call.world.part(Consoles).check(params["vncticket"], params["path"], params.get("port", 0))
