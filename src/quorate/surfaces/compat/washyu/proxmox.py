"""Proxmox VE: resources, and guests: creation, clones, power, deletion."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from quorate.problems import BadArgument
from quorate.surfaces.compat.declaration import Recipe
from quorate.surfaces.compat.execution import ChangeResult, LocatedGuest, ToolCall
from quorate.surfaces.compat.recipes import Source, guest_on_node, map_arguments
from quorate.surfaces.compat.washyu.answers import change_answer, success
from quorate.surfaces.compat.washyu.machines import PATIENCE

TYPES = {"vm": "qemu", "lxc": "lxc", "node": "node", "storage": "storage", "pool": "pool"}
"""Their word for a kind of resource -> PVE's own."""
KINDS = {"qemu": "VM", "lxc": "container"}
ACTIONS = ("start", "stop", "shutdown", "reboot", "reset", "suspend", "resume")


def on_cluster_of_host(recipe: Callable[[ToolCall], Awaitable[dict[str, Any]]]) -> Recipe:
    """The tool is about the cluster behind `host`."""

    async def on_cluster(call: ToolCall) -> dict[str, Any]:
        call.aim_at(call["host"])
        return await recipe(call)

    return on_cluster


async def resources(call: ToolCall) -> dict[str, Any]:
    kind = TYPES.get(call["resource_type"] or "")
    rows = await call.up_to_date(await call.get("/cluster/resources"))
    selected = [row for row in rows if kind in (None, row["type"])]
    return success(total=len(selected), resources=selected)


async def node_status(call: ToolCall) -> dict[str, Any]:
    return success(node=call["node"], data=await call.get(f"/nodes/{call['node']}/status"))


async def find_guest(call: ToolCall) -> LocatedGuest:
    """The guest of `node` and `vmid`. A wrong type means that the caller has another guest in mind."""
    guest = await guest_on_node(call)
    if guest.type != call["vm_type"]:
        raise BadArgument(
            f"{guest.vmid} {guest.name} is a {KINDS[guest.type]}, not a {KINDS[call['vm_type']]}",
            next_step=f"If it is the right guest, call again with vm_type={guest.type}",
        )
    return guest


async def guest_status(call: ToolCall) -> dict[str, Any]:
    guest = await find_guest(call)
    data = await call.get(f"{guest.path}/status/current")
    return success(node=guest.node, vmid=guest.vmid, type=guest.type, data=data)


async def manage(call: ToolCall) -> dict[str, Any]:
    """Stopping and resetting, which lose unsaved data, are a separate native tool."""
    guest = await find_guest(call)
    action = call["action"]
    if action in ("stop", "reset"):
        done = await call.change("guest_stop", guest=guest.vmid, reset=action == "reset")
    else:
        done = await call.change("guest_power", guest=guest.vmid, action=action)
    return task_answer(done, node=guest.node, vmid=guest.vmid, action=action)


async def clone(call: ToolCall) -> dict[str, Any]:
    guest = await find_guest(call)
    done = await call.change(
        "guest_clone", follow=PATIENCE, guest=guest.vmid, vmid=call["new_vmid"], name=call["name"], full=call["full"]
    )
    return task_answer(done, node=guest.node, source_vmid=guest.vmid, new_vmid=call["new_vmid"])


async def delete(call: ToolCall) -> dict[str, Any]:
    """Delete a guest; if it runs, its power is cut first."""
    guest = await find_guest(call)
    done = await call.change("guest_delete", follow=PATIENCE, guest=guest.vmid, purge=call["purge"], stop=True)
    return task_answer(done, node=guest.node, vmid=guest.vmid)


def create(operation: str, parameters: Mapping[str, Source]) -> Recipe:
    async def make(call: ToolCall) -> dict[str, Any]:
        done = await call.change(operation, follow=PATIENCE, **map_arguments(call, parameters))
        named = {name: call[name] for name in ("hostname", "name") if name in call.arguments}
        return task_answer(done, node=call["node"], vmid=call["vmid"], **named)

    return on_cluster_of_host(make)


def task_answer(done: ChangeResult, **about: Any) -> dict[str, Any]:
    """The answer of that server, whose `data` is the task."""
    answer = change_answer(done, **about)
    return {**answer, "data": done.task} if done.task else answer


RECIPES: dict[str, Recipe] = {
    "list_proxmox_resources": on_cluster_of_host(resources),
    "get_proxmox_node_status": on_cluster_of_host(node_status),
    "get_proxmox_vm_status": on_cluster_of_host(guest_status),
    "manage_proxmox_vm": on_cluster_of_host(manage),
    "create_proxmox_lxc": create(
        "container_create",
        {
            "name": "hostname",
            **{name: name for name in ("node", "vmid", "storage", "memory", "cores", "password")},
            "template": "ostemplate",
            "rootfs": lambda call: f"{call['rootfs_size']}G",
            "start": "start",
        },
    ),
    "create_proxmox_vm": create(
        "vm_create",
        {
            **{name: name for name in ("node", "vmid", "name", "memory", "cores", "storage", "iso", "start")},
            "disks": lambda call: [f"{call['disk_size']}G"],
        },
    ),
    "clone_proxmox_vm": on_cluster_of_host(clone),
    "delete_proxmox_vm": on_cluster_of_host(delete),
}
