"""Proxmox VE: what there is, guests made, cloned, switched and deleted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from quorate.operations.registry import Risk
from quorate.pve.errors import BadArgument
from quorate.surfaces.compat.declaring import Recipe, Tool, may, need
from quorate.surfaces.compat.placed import placed
from quorate.surfaces.compat.recipes import Source, taken
from quorate.surfaces.compat.running import Found, Run
from quorate.surfaces.compat.washyu.shapes import PATIENCE, good, told

NODE = need("node", "string")
VMID = need("vmid", "integer", "VM or container")
VM_TYPE = may("vm_type", "string", "qemu", "qemu: a VM, lxc: a container", choices=("qemu", "lxc"))
HOST = may("host", "string", about="A Proxmox host or cluster of the settings; default: the first cluster")
TYPES = {"vm": "qemu", "lxc": "lxc", "node": "node", "storage": "storage", "pool": "pool"}
"""Their word for a kind of resource -> PVE's own."""
KINDS = {"qemu": "VM", "lxc": "container"}
ACTIONS = ("start", "stop", "shutdown", "reboot", "reset", "suspend", "resume")


def about_host(recipe: Callable[[Run], Awaitable[dict[str, Any]]]) -> Recipe:
    """The tool is about the cluster behind `host`."""

    async def aimed(run: Run) -> dict[str, Any]:
        run.aim_at(run["host"])
        return await recipe(run)

    return aimed


async def resources(run: Run) -> dict[str, Any]:
    wanted = TYPES.get(run["resource_type"] or "")
    rows = await run.get("/cluster/resources")
    found = [row for row in rows if wanted in (None, row["type"])]
    return good(total=len(found), resources=found)


async def node_status(run: Run) -> dict[str, Any]:
    return good(node=run["node"], data=await run.get(f"/nodes/{run['node']}/status"))


async def meant(run: Run) -> Found:
    """The guest of `node` and `vmid`. Who has its type wrong thinks of another one."""
    guest = await placed(run)
    if guest.type != run["vm_type"]:
        raise BadArgument(
            f"{guest.vmid} {guest.name} is no {KINDS[run['vm_type']]}, but a {KINDS[guest.type]}",
            next_step=f"If that is the guest you mean, call again with vm_type={guest.type}",
        )
    return guest


async def guest_status(run: Run) -> dict[str, Any]:
    guest = await meant(run)
    return good(node=guest.node, vmid=guest.vmid, data=await run.get(f"{guest.path}/status/current"))


async def manage(run: Run) -> dict[str, Any]:
    """The hard stop loses what is unsaved, and is therefore another tool of ours."""
    guest = await meant(run)
    action = run["action"]
    if action == "stop":
        done = await run.change("guest_stop", guest=guest.vmid)
    else:
        done = await run.change("guest_power", guest=guest.vmid, action=action)
    return told(done, node=guest.node, vmid=guest.vmid, action=action)


async def clone(run: Run) -> dict[str, Any]:
    guest = await meant(run)
    done = await run.change(
        "guest_clone", follow=PATIENCE, guest=guest.vmid, vmid=run["new_vmid"], name=run["name"], full=run["full"]
    )
    return told(done, node=guest.node, source_vmid=guest.vmid, new_vmid=run["new_vmid"])


async def delete(run: Run) -> dict[str, Any]:
    """Its power is cut first, if it runs."""
    guest = await meant(run)
    done = await run.change("guest_delete", follow=PATIENCE, guest=guest.vmid, purge=run["purge"], stop=True)
    return told(done, node=guest.node, vmid=guest.vmid)


def making(operation: str, parameters: Mapping[str, Source]) -> Recipe:
    async def make(run: Run) -> dict[str, Any]:
        done = await run.change(operation, follow=PATIENCE, **taken(run, parameters))
        return told(done, node=run["node"], vmid=run["vmid"])

    return about_host(make)


TOOLS = (
    Tool(
        "list_proxmox_resources",
        "Guests, nodes, storages and pools of the cluster.",
        (HOST, may("resource_type", "string", about="Default: all", choices=tuple(TYPES))),
        Risk.READ,
        "guest_list, node_list, storage_list",
        about_host(resources),
    ),
    Tool(
        "get_proxmox_node_status",
        "Load, memory, disks and versions of a node.",
        (NODE, HOST),
        Risk.READ,
        "node_get",
        about_host(node_status),
    ),
    Tool(
        "get_proxmox_vm_status",
        "State and load of a guest.",
        (NODE, VMID, VM_TYPE, HOST),
        Risk.READ,
        "guest_get",
        about_host(guest_status),
    ),
    Tool(
        "manage_proxmox_vm",
        "Switch a guest. `stop` cuts its power; `shutdown` asks it first.",
        (NODE, VMID, need("action", "string", choices=ACTIONS), VM_TYPE, HOST),
        Risk.DESTROY,
        "guest_power, guest_stop",
        about_host(manage),
    ),
    Tool(
        "create_proxmox_lxc",
        "Make a container from a template.",
        (
            NODE,
            need("vmid", "integer"),
            need("hostname", "string"),
            may("ostemplate", "string", "local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst"),
            may("storage", "string", "local-lvm"),
            may("memory", "integer", 512, "MiB"),
            may("cores", "integer", 1),
            may("rootfs_size", "integer", 8, "GiB"),
            may("password", "string", about="Of root"),
            may("start", "boolean", False),
            HOST,
        ),
        Risk.CHANGE,
        "container_create",
        making(
            "container_create",
            {
                **{name: name for name in ("node", "vmid", "hostname", "storage", "memory", "cores", "password")},
                "template": "ostemplate",
                "rootfs": lambda run: f"{run['rootfs_size']}G",
                "start": "start",
            },
        ),
    ),
    Tool(
        "create_proxmox_vm",
        "Make a VM.",
        (
            NODE,
            need("vmid", "integer"),
            need("name", "string"),
            may("memory", "integer", 2048, "MiB"),
            may("cores", "integer", 2),
            may("disk_size", "integer", 32, "GiB"),
            may("storage", "string", "local-lvm"),
            may("iso", "string", about="Such as local:iso/debian.iso"),
            may("start", "boolean", False),
            HOST,
        ),
        Risk.CHANGE,
        "vm_create",
        making(
            "vm_create",
            {
                **{name: name for name in ("node", "vmid", "name", "memory", "cores", "storage", "iso", "start")},
                "disks": lambda run: [f"{run['disk_size']}G"],
            },
        ),
    ),
    Tool(
        "clone_proxmox_vm",
        "Clone a VM or container into a new one.",
        (
            NODE,
            VMID,
            need("new_vmid", "integer"),
            may("name", "string"),
            may("full", "boolean", True, "false: linked to the template"),
            VM_TYPE,
            HOST,
        ),
        Risk.CHANGE,
        "guest_clone",
        about_host(clone),
    ),
    Tool(
        "delete_proxmox_vm",
        "Delete a guest with its disks, for good; its power is cut first if it runs.",
        (NODE, VMID, VM_TYPE, may("purge", "boolean", False, "Also from backup jobs, HA and replication"), HOST),
        Risk.DESTROY,
        "guest_delete stop=true",
        about_host(delete),
    ),
)
