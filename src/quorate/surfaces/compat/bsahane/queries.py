"""Reads: nodes, guests, storages, bridges, tasks, metrics."""

from __future__ import annotations

from typing import Any

from quorate.surfaces.compat.bsahane.recipes import CONTAINER, PATIENCE, VM, find_guest
from quorate.surfaces.compat.declaration import Recipe
from quorate.surfaces.compat.execution import ToolCall
from quorate.surfaces.compat.recipes import read


async def node_status(call: ToolCall) -> Any:
    return await call.get(f"/nodes/{await call.node(call['node'])}/status")


def guests(type: str) -> Recipe:
    async def recipe(call: ToolCall) -> list[dict[str, Any]]:
        return [row for row in await call.guests() if row["type"] == type and matches(call, row)]

    def matches(call: ToolCall, row: dict[str, Any]) -> bool:
        return (
            call["node"] in (None, "", row["node"])
            and call["status"] in (None, "", row.get("status"))
            and (call["search"] or "").lower() in str(row.get("name", "")).lower()
        )

    return recipe


def info(type: str) -> Recipe:
    async def recipe(call: ToolCall) -> dict[str, Any]:
        guest = await find_guest(call, type)
        selector = await call.resource(guest.vmid)
        return {"selector": selector, "config": await call.get(f"{guest.path}/config")}

    return recipe


async def storages(call: ToolCall) -> list[dict[str, Any]]:
    """The definitions, each with its capacity; for local storages, the sum over all nodes."""
    rows = await call.get("/cluster/resources", type="storage")
    return [{**storage, **_room([row for row in rows if row["storage"] == storage["storage"]])} for storage in
            await call.get("/storage")]  # fmt: skip


def _room(places: list[dict[str, Any]]) -> dict[str, int]:
    counted = places[:1] if any(place.get("shared") for place in places) else places
    total, used = (sum(int(place.get(key, 0)) for place in counted) for key in ("maxdisk", "disk"))
    return {"total": total, "used": used, "avail": total - used} if total else {}


async def content(call: ToolCall) -> Any:
    return await call.get(f"/nodes/{await call.node(call['node'])}/storage/{call.storage(call['storage'])}/content")


async def bridges(call: ToolCall) -> Any:
    return await call.get(f"/nodes/{await call.node(call['node'])}/network", type="any_bridge")


async def tasks(call: ToolCall) -> list[dict[str, Any]]:
    node, user = call["node"], call["user"]
    if node:
        rows = await call.get(f"/nodes/{node}/tasks", source="all", limit=500)
    else:
        rows = await call.get("/cluster/tasks")
    matching = [row for row in rows if not user or row["user"] == user or row["user"].startswith(f"{user}!")]
    return sorted(matching, key=lambda row: -row["starttime"])[: max(call["limit"], 0)]


async def task_status(call: ToolCall) -> dict[str, Any]:
    return await call.task_status(call["upid"])


async def wait_task(call: ToolCall) -> dict[str, Any]:
    return await call.wait_for(call["upid"], call["timeout"] or PATIENCE)


async def guest_metrics(call: ToolCall) -> Any:
    guest = await find_guest(call, VM)
    return await call.get(f"{guest.path}/rrddata", timeframe=call["timeframe"], cf=call["cf"])


async def node_metrics(call: ToolCall) -> Any:
    node = await call.node(call["node"])
    return await call.get(f"/nodes/{node}/rrddata", timeframe=call["timeframe"], cf=call["cf"])


RECIPES: dict[str, Recipe] = {
    "proxmox-list-nodes": read("/nodes"),
    "proxmox-node-status": node_status,
    "proxmox-list-vms": guests(VM),
    "proxmox-vm-info": info(VM),
    "proxmox-list-lxc": guests(CONTAINER),
    "proxmox-lxc-info": info(CONTAINER),
    "proxmox-list-storage": storages,
    "proxmox-storage-content": content,
    "proxmox-list-bridges": bridges,
    "proxmox-list-tasks": tasks,
    "proxmox-task-status": task_status,
    "proxmox-vm-metrics": guest_metrics,
    "proxmox-node-metrics": node_metrics,
    "proxmox-wait-task": wait_task,
}
