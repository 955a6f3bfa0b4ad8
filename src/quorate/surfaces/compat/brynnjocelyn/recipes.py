"""What brynnjocelyn's tools do here."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from typing import Any

from quorate.problems import BadArgument
from quorate.surfaces.compat.declaration import Recipe
from quorate.surfaces.compat.execution import ChangeResult, ToolCall
from quorate.surfaces.compat.recipes import change, change_guest, guest_on_node, number, read

LONGEST_WAIT = 45.0  # some clients give up soon after


def patience(call: ToolCall) -> float | None:
    seconds = number("timeout")(call)
    return None if seconds is None else min(max(0.0, seconds), LONGEST_WAIT)


async def task_answer(_: ToolCall, done: ChangeResult) -> dict[str, Any]:
    """The task's id and its result so far; of a new guest, also its id and node."""
    if done.was_dry_run:
        return dict(done.facts)
    known = {key: done.facts[key] for key in ("vmid", "node", "backups", "volume") if key in done.facts}
    return {
        **({} if done.task is None else {"upid": done.task}),
        "result": done.facts["result"],
        **known,
        **done.remarks,
    }


# -- reads -------------------------------------------------------------------------------------------------------------


TASKS = 50
LOG_LINES = 50


async def cluster(call: ToolCall) -> dict[str, Any]:
    rows = await call.get("/cluster/status")
    whole = next((row for row in rows if row["type"] == "cluster"), {"quorate": 1})  # a node alone has no such row
    nodes = [
        {
            "name": row["name"],
            "type": "node",
            "status": "online" if row.get("online") else "offline",
            **({"ip": row["ip"]} if row.get("ip") else {}),
        }
        for row in sorted((row for row in rows if row["type"] == "node"), key=lambda row: str(row["name"]))
    ]
    away = [node["name"] for node in nodes if node["status"] != "online"]
    return {
        "nodes": nodes,
        "quorum": bool(whole["quorate"]),
        "health": "no quorum" if not whole["quorate"] else f"offline: {', '.join(away)}" if away else "ok",
        **{key: whole[key] for key in ("name", "version") if key in whole},
    }


async def storages(call: ToolCall) -> Any:
    return await call.get(f"/nodes/{call['node']}/storage" if call["node"] else "/storage")


async def backups(call: ToolCall) -> Any:
    path = f"/nodes/{call['node']}/storage/{call['storage']}/content"
    return await call.get(path, content="backup", vmid=number("vmid")(call))


async def tasks(call: ToolCall) -> Any:
    """List tasks, running ones included, which PVE omits by default."""
    limit = number("limit")(call) or TASKS
    return await call.get(f"/nodes/{call['node']}/tasks", source="all", vmid=number("vmid")(call), limit=limit)


async def task_status(call: ToolCall) -> dict[str, Any]:
    """State, progress and the end of the log. Only the node in its id knows a task."""
    status, task = await asyncio.gather(
        call.task_status(call["upid"]), call.facts("task_get", task=call["upid"], log_lines=LOG_LINES)
    )
    progress = {"progress": task["percent"]} if "percent" in task else {}
    return {**status, **progress, "log": task["log"]}


def guest_read(type: str, part: str) -> Recipe:
    async def recipe(call: ToolCall) -> Any:
        return await call.get(f"{(await guest_on_node(call, type)).path}/{part}")

    return recipe


# -- VMs ---------------------------------------------------------------------------------------------------------------


async def shutdown(call: ToolCall) -> Any:
    """A clean shutdown; with `forceStop`, PVE adds the hard stop in the same task, which no other tool asks for."""
    guest = await guest_on_node(call, "qemu")
    seconds = number("timeout")(call)
    if not call["forceStop"]:
        done = await call.change("guest_power", guest=guest.vmid, action="shutdown", timeout=seconds)
    else:
        params = {"forceStop": 1, **({} if seconds is None else {"timeout": seconds})}
        done = await call.change("api_call", method="POST", path=f"{guest.path}/status/shutdown", params=params)
    return await task_answer(call, done)


def migration_mode(call: ToolCall) -> str | None:
    return None if call["online"] is None else "live" if call["online"] else "offline"


# -- containers --------------------------------------------------------------------------------------------------------


def keys(call: ToolCall) -> list[str] | None:
    return call["ssh_public_keys"].splitlines() if call["ssh_public_keys"] else None


# -- backups and uploads -----------------------------------------------------------------------------------------------


async def back_up(call: ToolCall) -> Any:
    guest = await guest_on_node(call)
    compress = "none" if call["compress"] == "0" else call["compress"]
    done = await call.change(
        "backup_create",
        guest=guest.vmid,
        storage=call["storage"],
        mode=call["mode"],
        compress=compress,
        notes=call["notes"],
    )
    return await task_answer(call, done)


async def restore(call: ToolCall) -> Any:
    """`storage` holds the backup; if the volume id names another storage, `storage` is for the disks."""
    holder, colon, name = call["volid"].partition(":")
    if not colon or "/" in holder:  # backup servers have colons in their times
        holder, name = call["storage"], call["volid"]
    done = await call.change(
        "backup_restore",
        node=call["node"],
        backup=f"{holder}:{name}",
        vmid=number("vmid")(call),
        overwrite=call["force"],
        storage=None if holder == call["storage"] else call["storage"],
    )
    return await task_answer(call, done)


async def upload(call: ToolCall) -> Any:
    if call["contentType"] == "backup":
        raise BadArgument(
            "A backup cannot be uploaded",
            why="The API of Proxmox VE takes only ISO images and container templates",
            next_step=f"Copy {call['filename']} into the dump folder of {call['storage']} on {call['node']}, by scp",
        )
    done = await call.change(
        "image_upload",
        node=call["node"],
        storage=call["storage"],
        filename=call["filename"],
        content=call["contentType"],
        data=_as_base64(call["content"]),
    )
    return await task_answer(call, done)


def _as_base64(content: str) -> str:
    """Binary content is already base64; plain text is encoded."""
    try:
        base64.b64decode(re.sub(r"\s", "", content), validate=True)
    except (binascii.Error, ValueError):
        return base64.b64encode(content.encode()).decode()
    return content


RECIPES: dict[str, Recipe] = {
    "get_cluster_status": cluster,
    "list_nodes": read("/nodes"),
    "get_node_status": read("/nodes/{node}/status"),
    "get_version": read("/version"),
    "list_storage": storages,
    "get_storage_content": read("/nodes/{node}/storage/{storage}/content", content="content"),
    "list_backups": backups,
    "get_task_status": task_status,
    "list_tasks": tasks,
    "list_vms": read("/nodes/{node}/qemu"),
    "get_vm_status": guest_read("qemu", "status/current"),
    "get_vm_config": guest_read("qemu", "config"),
    "start_vm": change_guest("guest_power", type="qemu", action="start", follow=patience, shape=task_answer),
    "stop_vm": change_guest("guest_stop", type="qemu", follow=patience, shape=task_answer),
    "reboot_vm": change_guest(
        "guest_power", {"timeout": number("timeout")}, type="qemu", action="reboot", shape=task_answer
    ),
    "shutdown_vm": shutdown,
    "create_vm": change(
        "vm_create",
        {
            **{name: name for name in ("node", "name", "ostype", "iso", "storage")},
            **{name: number(name) for name in ("vmid", "memory", "cores", "sockets")},
            "disks": lambda call: [call["diskSize"]],
        },
        shape=task_answer,
    ),
    "clone_vm": change_guest(
        "guest_clone",
        {"vmid": number("newid"), "name": "name", "full": "full", "storage": "storage"},
        type="qemu",
        shape=task_answer,
    ),
    "delete_vm": change_guest("guest_delete", {"purge": "purge"}, type="qemu", shape=task_answer),
    "migrate_vm": change_guest(
        "guest_migrate", {"node": "target", "mode": migration_mode}, type="qemu", shape=task_answer
    ),
    "list_containers": read("/nodes/{node}/lxc"),
    "get_container_status": guest_read("lxc", "status/current"),
    "get_container_config": guest_read("lxc", "config"),
    "start_container": change_guest("guest_power", type="lxc", action="start", shape=task_answer),
    "stop_container": change_guest("guest_stop", type="lxc", shape=task_answer),
    "create_container": change(
        "container_create",
        {
            "name": "hostname",
            **{name: name for name in ("node", "storage", "password")},
            **{name: number(name) for name in ("vmid", "memory")},
            "template": "ostemplate",
            "ssh_keys": keys,
        },
        shape=task_answer,
    ),
    "create_backup": back_up,
    "restore_backup": restore,
    "upload_file": upload,
}
