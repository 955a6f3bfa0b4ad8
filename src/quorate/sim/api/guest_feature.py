"""Whether a guest's storages can do something with all of its disks."""

from __future__ import annotations

from typing import Any

from quorate.sim.disks import disks
from quorate.sim.guests import Guest, Value
from quorate.sim.refusals import failure
from quorate.sim.routing import Call, route
from quorate.sim.storage_features import Feature, format_of, has_feature
from quorate.sim.world import World


@route("GET /nodes/{node}/qemu/{vmid}/feature")
def vm_feature(call: Call) -> dict[str, Any]:
    guest = call.guest("qemu")
    return {"hasFeature": _answer(call, guest), "nodes": _nodes_of(call.world, guest)}


@route("GET /nodes/{node}/lxc/{vmid}/feature")
def container_feature(call: Call) -> dict[str, Any]:
    return {"hasFeature": _answer(call, call.guest("lxc"))}


def _answer(call: Call, guest: Guest) -> int:
    snapname = call.params.get("snapname")
    config = guest.config
    if snapname is not None:
        if snapname not in guest.snapshots:
            raise failure(f"snapshot '{snapname}' does not exist")
        config = guest.snapshots[snapname].config
    return int(_all_have(call.world, config, call.params["feature"], of_snapshot=snapname is not None))


def _all_have(world: World, config: dict[str, Value], feature: Feature, *, of_snapshot: bool) -> bool:
    return all(
        drive.storage in world.storages
        and has_feature(
            world.storages[drive.storage], drive.volid, format_of(drive.volid), feature, of_snapshot=of_snapshot
        )
        for drive in disks(config)
    )


def _nodes_of(world: World, guest: Guest) -> list[str]:
    """The nodes that can reach all disks: just its own as soon as one of them is local."""
    nodes = list(world.nodes)
    for drive in disks(guest.config):
        storage = world.storages.get(drive.storage)
        if storage is not None:
            nodes = [node for node in nodes if storage.on_node(node) and (storage.shared or node == guest.node)]
    return nodes
