"""The appliance list of a node, and fetching a template of it."""

from __future__ import annotations

from typing import Any

from quorate.sim import downloads, volumes
from quorate.sim.appliances import APPLIANCES
from quorate.sim.refusals import bad_parameters, failure
from quorate.sim.routing import Call, route


@route("GET /nodes/{node}/aplinfo")
def list_appliances(_call: Call) -> list[dict[str, Any]]:
    return [appliance.row() for appliance in APPLIANCES.values()]


@route("POST /nodes/{node}/aplinfo")
def fetch_appliance(call: Call) -> str:
    appliance = APPLIANCES.get(call.params["template"])
    if appliance is None:
        raise bad_parameters({"template": "no such template"})
    storage = volumes.usable_storage(call.world, call.node, call.params["storage"])
    if "vztmpl" not in storage.content:
        raise failure(f"storage '{storage.id}' does not support templates")
    work = downloads.download(
        call.world,
        call.node,
        storage,
        "vztmpl",
        appliance.template,
        appliance.location,
        source=appliance.file,
        expected=("sha512", appliance.file.checksum("sha512")),
        overwrite=True,
    )
    return call.start_task("download", appliance.template, work)
