"""The cluster, its nodes, storages and tasks."""

from __future__ import annotations

import asyncio
from typing import Any

from quorate.operations.registry import Risk
from quorate.surfaces.compat.brynnjocelyn.shapes import NODE
from quorate.surfaces.compat.declaring import Tool, may, need
from quorate.surfaces.compat.placed import number
from quorate.surfaces.compat.recipes import reading
from quorate.surfaces.compat.running import Run

TASKS = 50
LOG_LINES = 50


async def cluster(run: Run) -> dict[str, Any]:
    rows = await run.get("/cluster/status")
    whole = next((row for row in rows if row["type"] == "cluster"), {"quorate": 1})  # a node alone has no such row
    nodes = [
        {
            "name": row["name"],
            "type": "node",
            "status": "online" if row.get("online") else "offline",
            **({"ip": row["ip"]} if row.get("ip") else {}),
        }
        for row in rows
        if row["type"] == "node"
    ]
    away = [node["name"] for node in nodes if node["status"] != "online"]
    return {
        "nodes": nodes,
        "quorum": bool(whole["quorate"]),
        "health": "no quorum" if not whole["quorate"] else f"offline: {', '.join(away)}" if away else "ok",
        **{key: whole[key] for key in ("name", "version") if key in whole},
    }


async def storages(run: Run) -> Any:
    return await run.get(f"/nodes/{run['node']}/storage" if run["node"] else "/storage")


async def backups(run: Run) -> Any:
    path = f"/nodes/{run['node']}/storage/{run['storage']}/content"
    return await run.get(path, content="backup", vmid=number("vmid")(run))


async def tasks(run: Run) -> Any:
    """Running ones too, which PVE leaves out unless it is asked for all."""
    limit = number("limit")(run) or TASKS
    return await run.get(f"/nodes/{run['node']}/tasks", source="all", vmid=number("vmid")(run), limit=limit)


async def task_status(run: Run) -> dict[str, Any]:
    """State, progress and the end of the log. A task is known only to the node that its id names."""
    status, told = await asyncio.gather(
        run.task_status(run["upid"]), run.facts("task_get", task=run["upid"], log_lines=LOG_LINES)
    )
    progress = {"progress": told["percent"]} if "percent" in told else {}
    return {**status, **progress, "log": told["log"]}


TOOLS = (
    Tool("get_cluster_status", "Nodes, quorum and health of the cluster.", (), Risk.READ, "cluster_status", cluster),
    Tool("list_nodes", "The nodes of the cluster.", (), Risk.READ, "node_list", reading("/nodes")),
    Tool(
        "get_node_status",
        "Load, memory, disks and versions of a node.",
        (NODE,),
        Risk.READ,
        "node_get",
        reading("/nodes/{node}/status"),
    ),
    Tool(
        "get_version", "Version of Proxmox VE.", (), Risk.READ, "api_call method=GET path=/version", reading("/version")
    ),
    Tool(
        "list_storage",
        "Storages of a node, or the definitions of all storages.",
        (may("node", "string", about="Node name; left out: the whole cluster"),),
        Risk.READ,
        "storage_list",
        storages,
    ),
    Tool(
        "get_storage_content",
        "What a storage holds.",
        (
            NODE,
            need("storage", "string", "Storage id"),
            may("content", "string", about="Only this: images, rootdir, vztmpl, backup, iso"),
        ),
        Risk.READ,
        "volume_list",
        reading("/nodes/{node}/storage/{storage}/content", content="content"),
    ),
    Tool(
        "list_backups",
        "Backups on a storage.",
        (NODE, need("storage", "string", "Storage id"), may("vmid", "number", about="Only of this guest")),
        Risk.READ,
        "backup_list",
        backups,
    ),
    Tool(
        "get_task_status",
        "State, progress and log of a task.",
        (NODE, need("upid", "string", "Task id")),
        Risk.READ,
        "task_get",
        task_status,
    ),
    Tool(
        "list_tasks",
        "Recent tasks of a node, newest first.",
        (
            NODE,
            may("vmid", "number", about="Only of this guest"),
            may("limit", "number", about=f"At most so many ({TASKS} if left out)"),
        ),
        Risk.READ,
        "task_list",
        tasks,
    ),
)
