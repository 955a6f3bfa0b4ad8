"""Looking around: nodes, guests, storages, bridges, tasks, metrics."""

from __future__ import annotations

from typing import Any

from quorate.surfaces.compat.bsahane.shapes import CONTAINER, GUEST, NODE, PATIENCE, STORAGE, VM, chosen, read
from quorate.surfaces.compat.declaring import Recipe, may, need
from quorate.surfaces.compat.recipes import reading
from quorate.surfaces.compat.running import Run

FILTERS = (NODE, may("status", "string", about="running, stopped"), may("search", "string", about="Part of the name"))
UPID = need("upid", "string", "Task id")
OF_TASK = may("node", "string", about="Accepted; the task id tells its node")
PERIOD = (
    may("timeframe", "string", "hour", "hour, day, week, month, year"),
    may("cf", "string", "AVERAGE", "AVERAGE or MAX"),
)


async def node_status(run: Run) -> Any:
    return await run.get(f"/nodes/{await run.node(run['node'])}/status")


def guests(type: str) -> Recipe:
    async def recipe(run: Run) -> list[dict[str, Any]]:
        return [
            row for row in await run.get("/cluster/resources", type="vm") if row["type"] == type and wanted(run, row)
        ]

    def wanted(run: Run, row: dict[str, Any]) -> bool:
        return (
            run["node"] in (None, "", row["node"])
            and run["status"] in (None, "", row.get("status"))
            and (run["search"] or "").lower() in str(row.get("name", "")).lower()
        )

    return recipe


def info(type: str) -> Recipe:
    async def recipe(run: Run) -> dict[str, Any]:
        guest = await chosen(run, type)
        rows = await run.get("/cluster/resources", type="vm")
        selector = next(row for row in rows if row["vmid"] == guest.vmid)
        return {"selector": selector, "config": await run.get(f"{guest.path}/config")}

    return recipe


async def storages(run: Run) -> list[dict[str, Any]]:
    """The definitions, each with its room: of a storage that is on each node apart, the sum."""
    rows = await run.get("/cluster/resources", type="storage")
    return [{**one, **_room([row for row in rows if row["storage"] == one["storage"]])} for one in
            await run.get("/storage")]  # fmt: skip


def _room(places: list[dict[str, Any]]) -> dict[str, int]:
    counted = places[:1] if any(place.get("shared") for place in places) else places
    total, used = (sum(int(place.get(key, 0)) for place in counted) for key in ("maxdisk", "disk"))
    return {"total": total, "used": used, "avail": total - used} if total else {}


async def content(run: Run) -> Any:
    return await run.get(f"/nodes/{await run.node(run['node'])}/storage/{run.storage(run['storage'])}/content")


async def bridges(run: Run) -> Any:
    return await run.get(f"/nodes/{await run.node(run['node'])}/network", type="any_bridge")


async def tasks(run: Run) -> list[dict[str, Any]]:
    node, user = run["node"], run["user"]
    if node:
        rows = await run.get(f"/nodes/{node}/tasks", source="all", limit=500)
    else:
        rows = await run.get("/cluster/tasks")
    found = [row for row in rows if not user or row["user"] == user or row["user"].startswith(f"{user}!")]
    return sorted(found, key=lambda row: -row["starttime"])[: max(run["limit"], 0)]


async def task_status(run: Run) -> dict[str, Any]:
    return await run.task_status(run["upid"])


async def wait_task(run: Run) -> dict[str, Any]:
    return await run.wait_for(run["upid"], run["timeout"] or PATIENCE)


async def guest_metrics(run: Run) -> Any:
    guest = await chosen(run, VM)
    return await run.get(f"{guest.path}/rrddata", timeframe=run["timeframe"], cf=run["cf"])


async def node_metrics(run: Run) -> Any:
    node = await run.node(run["node"])
    return await run.get(f"/nodes/{node}/rrddata", timeframe=run["timeframe"], cf=run["cf"])


TOOLS = (
    read("proxmox-list-nodes", "Nodes of the cluster with their load.", "node_list", reading("/nodes")),
    read("proxmox-node-status", "One node: load, uptime, versions.", "node_get", node_status, NODE),
    read("proxmox-list-vms", "VMs, filtered.", "guest_list type=vm", guests(VM), *FILTERS),
    read("proxmox-vm-info", "A VM with its configuration.", "guest_get", info(VM), *GUEST),
    read("proxmox-list-lxc", "Containers, filtered.", "guest_list type=ct", guests(CONTAINER), *FILTERS),
    read("proxmox-lxc-info", "A container with its configuration.", "guest_get", info(CONTAINER), *GUEST),
    read("proxmox-list-storage", "Storages: type, content, room.", "storage_list", storages),
    read("proxmox-storage-content", "What is on a storage.", "volume_list", content, NODE, STORAGE),
    read("proxmox-list-bridges", "Bridges of a node.", "network_list of=node kind=bridge", bridges, NODE),
    read(
        "proxmox-list-tasks",
        "Recent tasks, newest first.",
        "task_list",
        tasks,
        NODE,
        may("user", "string"),
        may("limit", "integer", 50),
    ),
    read("proxmox-task-status", "How a task stands.", "task_get", task_status, UPID, OF_TASK),
    read("proxmox-vm-metrics", "Load of a VM over time.", "metrics_get", guest_metrics, *GUEST, *PERIOD),
    read("proxmox-node-metrics", "Load of a node over time.", "metrics_get", node_metrics, NODE, *PERIOD),
    read(
        "proxmox-wait-task",
        "Wait until a task has ended or the time is over.",
        "task_wait",
        wait_task,
        UPID,
        OF_TASK,
        may("timeout", "integer", 900),
        may("poll_interval", "number", 2.0),
    ),
)
