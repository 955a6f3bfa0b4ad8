"""Network of a node: edits wait until they are applied, or are taken back."""

from __future__ import annotations

import re
from typing import Any

from quorate.sim.networks import Networks, NodeNetwork
from quorate.sim.routing import Answer, Call, route
from quorate.sim.sdn import Sdn
from quorate.sim.tasks import TaskContext

_BASE = "/nodes/{node}/network"
_LIST = re.compile(r"[,;\s]+")
_BRIDGES = ("bridge", "OVSBridge")


def _network(call: Call) -> NodeNetwork:
    return call.world.part(Networks).of(call.node)


def _options(call: Call) -> dict[str, Any]:
    return {key: value for key, value in call.params.items() if key not in ("node", "iface", "delete")}


def _may_see(call: Call, name: str, kind: str) -> bool:
    """A plain bridge belongs to the zone `localnetwork`, which may be open to its users only."""
    if call.is_root or call.allowed(f"/nodes/{call.node}", "Sys.Audit", "Sys.Modify"):
        return True
    return kind in _BRIDGES and call.allowed(f"/sdn/zones/localnetwork/{name}", "SDN.Audit", "SDN.Use")


def _vnets(call: Call) -> list[dict[str, Any]]:
    """The vnets that SDN has brought to the node; guests use them like bridges."""
    sdn = call.world.part(Sdn)
    rows: list[dict[str, Any]] = []
    for name, vnet in sorted(sdn.running("vnets").items()):
        zone = sdn.running("zones").get(str(vnet["zone"]), {})
        only = str(zone.get("nodes") or call.node).split(",")
        visible = call.is_root or call.allowed(f"/sdn/zones/{vnet['zone']}/{name}", "SDN.Audit", "SDN.Use")
        if call.node in only and visible:
            rows.append({"iface": name, "type": "vnet", "active": "1", "comments": str(vnet.get("alias", ""))})
    return rows


@route(f"GET {_BASE}")
def interfaces(call: Call) -> Answer:
    network, wanted = _network(call), call.params.get("type")
    rows = []
    for name, settings in network.rows():
        kind = settings["type"]
        bridges_wanted = wanted in ("any_bridge", "any_local_bridge") and kind in _BRIDGES
        matches = wanted in (None, "include_sdn", kind) or bridges_wanted
        if matches and _may_see(call, name, kind):
            rows.append({"iface": name, **settings})
    if wanted in ("any_bridge", "include_sdn", "vnet"):
        rows += _vnets(call)
    return Answer(rows, changes=network.changes())


@route(f"GET {_BASE}/{{iface}}")
def interface(call: Call) -> dict[str, Any]:
    return _network(call).shown(call.values["iface"])


@route(f"POST {_BASE}")
def create(call: Call) -> None:
    _network(call).create(call.params["iface"], _options(call))


@route(f"PUT {_BASE}/{{iface}}")
def update(call: Call) -> None:
    delete = [key for key in _LIST.split(call.params.get("delete", "")) if key]
    _network(call).update(call.values["iface"], _options(call), delete)


@route(f"DELETE {_BASE}/{{iface}}")
def delete(call: Call) -> None:
    _network(call).delete(call.values["iface"])


@route(f"PUT {_BASE}")
def apply(call: Call) -> str:
    network = _network(call)

    async def work(context: TaskContext) -> None:
        await context.sleep(1.5)
        network.apply()

    return call.start_task("srvreload", "networking", work)


@route(f"DELETE {_BASE}")
def revert(call: Call) -> None:
    _network(call).revert()
