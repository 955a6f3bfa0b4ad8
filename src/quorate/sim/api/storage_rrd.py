"""How full a storage was over time."""

from __future__ import annotations

from typing import Any

from quorate.sim import rrd
from quorate.sim.api.guest_rrd import picture
from quorate.sim.refusals import failure
from quorate.sim.routing import Call, route


@route("GET /nodes/{node}/storage/{storage}/rrddata")
def storage_series(call: Call) -> list[dict[str, Any]]:
    storage = call.world.storages.get(call.values["storage"])
    if storage is None or not storage.on_node(call.node):
        kind = "pve-storage-9.0" if call.world.version_at_least(9, 0) else "pve2-storage"
        raise failure(rrd.missing_file(f"{kind}/{call.node}/{call.values['storage']}"))
    return rrd.storage_points(call.world, call.node, storage, call.params["timeframe"], call.params.get("cf"))


@route("GET /nodes/{node}/storage/{storage}/rrd")
def storage_picture(call: Call) -> dict[str, str]:
    return picture(call, f"pve2-storage/{call.node}/{call.values['storage']}", ("total", "used"))
