"""Virtual machines."""

from __future__ import annotations

from typing import Any

from quorate.operations.registry import Risk
from quorate.surfaces.compat.brynnjocelyn.shapes import NODE, PATIENCE, TIMEOUT, VM, patience, task
from quorate.surfaces.compat.declaring import Tool, may, need
from quorate.surfaces.compat.placed import changing_guest, number, placed
from quorate.surfaces.compat.recipes import changing, reading
from quorate.surfaces.compat.running import Run


async def status(run: Run) -> Any:
    return await run.get(f"{(await placed(run, 'qemu')).path}/status/current")


async def config(run: Run) -> Any:
    return await run.get(f"{(await placed(run, 'qemu')).path}/config")


async def shutdown(run: Run) -> Any:
    """Asked politely, or asked and then cut off: PVE does both in one task, and the second needs more rights here."""
    guest = await placed(run, "qemu")
    seconds = number("timeout")(run)
    if not run["forceStop"]:
        done = await run.change("guest_power", guest=guest.vmid, action="shutdown", timeout=seconds)
    else:
        params = {"forceStop": 1, **({} if seconds is None else {"timeout": seconds})}
        done = await run.change("api_call", method="POST", path=f"{guest.path}/status/shutdown", params=params)
    return await task(run, done)


def migration_mode(run: Run) -> str | None:
    return None if run["online"] is None else "live" if run["online"] else "offline"


TOOLS = (
    Tool("list_vms", "The VMs of a node.", (NODE,), Risk.READ, "guest_list type=vm", reading("/nodes/{node}/qemu")),
    Tool("get_vm_status", "State and load of a VM.", (NODE, VM), Risk.READ, "guest_get", status),
    Tool("get_vm_config", "Configuration of a VM.", (NODE, VM), Risk.READ, "guest_get", config),
    Tool(
        "start_vm",
        "Start a VM.",
        (NODE, VM, PATIENCE),
        Risk.CHANGE,
        "guest_power action=start",
        changing_guest("guest_power", type="qemu", action="start", follow=patience, shape=task),
    ),
    Tool(
        "stop_vm",
        "Cut the power of a VM; unsaved data is lost. shutdown_vm asks it first.",
        (NODE, VM, PATIENCE, may("forceStop", "boolean", about="Makes no difference: a stop is always by force")),
        Risk.DESTROY,
        "guest_stop",
        changing_guest("guest_stop", type="qemu", follow=patience, shape=task),
    ),
    Tool(
        "reboot_vm",
        "Reboot a VM by asking its system.",
        (NODE, VM, TIMEOUT),
        Risk.CHANGE,
        "guest_power action=reboot",
        changing_guest("guest_power", {"timeout": number("timeout")}, type="qemu", action="reboot", shape=task),
    ),
    Tool(
        "shutdown_vm",
        "Shut a VM down by asking its system.",
        (NODE, VM, TIMEOUT, may("forceStop", "boolean", about="Cut its power if it takes longer")),
        Risk.DESTROY,
        "guest_power action=shutdown",
        shutdown,
    ),
    Tool(
        "create_vm",
        "Make a VM.",
        (
            NODE,
            may("vmid", "number", about="Left out: the next free one"),
            may("name", "string"),
            may("memory", "number", 2048, "MiB"),
            may("cores", "number", 1),
            may("sockets", "number", 1),
            may("ostype", "string", "l26", "l26, win10, win11, other …"),
            may("iso", "string", about="Such as local:iso/debian.iso"),
            may("storage", "string", about="For its disk; left out: one with room"),
            may("diskSize", "string", "32G"),
        ),
        Risk.CHANGE,
        "vm_create",
        changing(
            "vm_create",
            {
                **{name: name for name in ("node", "name", "ostype", "iso", "storage")},
                **{name: number(name) for name in ("vmid", "memory", "cores", "sockets")},
                "disks": lambda run: [run["diskSize"]],
            },
            shape=task,
        ),
    ),
    Tool(
        "clone_vm",
        "Clone a VM into a new one.",
        (
            NODE,
            VM,
            need("newid", "number", "Id of the new VM"),
            may("name", "string"),
            may("full", "boolean", True, "false: linked to the template"),
            may("storage", "string", about="For the copied disks"),
        ),
        Risk.CHANGE,
        "guest_clone",
        changing_guest(
            "guest_clone",
            {"vmid": number("newid"), "name": "name", "full": "full", "storage": "storage"},
            type="qemu",
            shape=task,
        ),
    ),
    Tool(
        "delete_vm",
        "Delete a stopped VM with its disks, for good.",
        (NODE, VM, may("purge", "boolean", about="Also from backup jobs, HA and replication")),
        Risk.DESTROY,
        "guest_delete",
        changing_guest("guest_delete", {"purge": "purge"}, type="qemu", shape=task),
    ),
    Tool(
        "migrate_vm",
        "Move a VM to another node.",
        (
            NODE,
            VM,
            need("target", "string", "Where to"),
            may("online", "boolean", about="Live, while it runs; left out: if it runs"),
        ),
        Risk.CHANGE,
        "guest_migrate",
        changing_guest("guest_migrate", {"node": "target", "mode": migration_mode}, type="qemu", shape=task),
    ),
)
