"""Pruning of backups: what it would do, and doing it."""

from __future__ import annotations

from typing import Any

from quorate.sim import retention, volume_names
from quorate.sim.routing import Call, route
from quorate.sim.tasks import TaskContext

_PRUNE = "/nodes/{node}/storage/{storage}/prunebackups"


@route(f"GET {_PRUNE}")
def preview(call: Call) -> list[dict[str, Any]]:
    storage = volume_names.storage_of_path(call)
    keep = retention.of_storage(storage, call.params.get("prune-backups"))
    found = retention.marked(storage, call.node, keep, vmid=call.params.get("vmid"), kind=call.params.get("type"))
    return [retention.row(volume, mark) for volume, mark in found]


@route(f"DELETE {_PRUNE}")
def prune(call: Call) -> str:
    storage_id, vmid = call.values["storage"], call.params.get("vmid")
    if vmid is None:
        call.require(f"/storage/{storage_id}", "Datastore.Allocate")
    else:
        call.require(f"/storage/{storage_id}", "Datastore.AllocateSpace")
        call.require(f"/vms/{vmid}", "VM.Backup")

    async def work(context: TaskContext) -> None:
        storage = volume_names.storage_of_path(call)
        keep = retention.of_storage(storage, call.params.get("prune-backups"))
        found = retention.marked(storage, call.node, keep, vmid=vmid, kind=call.params.get("type"))
        for volume, mark in found:
            if mark == "remove":
                context.log(f"removing backup '{volume.volid}'")
                await context.sleep(0.2)
                storage.remove(call.node, volume.volid)

    return call.start_task("prunebackups", storage_id if vmid is None else f"{vmid}@{storage_id}", work)
