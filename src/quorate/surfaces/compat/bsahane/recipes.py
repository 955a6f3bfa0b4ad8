"""What bsahane's tools do here, except for changes of a guest's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from quorate.problems import BadArgument, Conflict
from quorate.pve import values
from quorate.surfaces.compat.declaration import Recipe
from quorate.surfaces.compat.execution import ChangeResult, LocatedGuest, ToolCall
from quorate.surfaces.compat.recipes import Source, map_arguments, read

PATIENCE = 600  # seconds, where a tool waits and no other limit is given
SETTLING = 5.0  # a task that has the timeout itself, such as a shutdown, ends a moment after it


VM, CONTAINER, ANY = "qemu", "lxc", None


def patience(call: ToolCall) -> float | None:
    """How long to follow a change: what the caller asks for, or the default if the tool has no such argument."""
    if call.arguments.get("wait") is None:
        return None
    return (call["timeout"] or PATIENCE) + SETTLING if call["wait"] else 0.0


async def find_guest(call: ToolCall, type: str | None = ANY) -> LocatedGuest:
    """The guest by vmid or name; the node distinguishes guests of the same name."""
    return await call.guest(call["vmid"] or None, call["name"], node=call["node"], type=type)


def guest_change(
    operation: str, type: str | None, parameters: Mapping[str, Source] | None = None, /, **fixed: Any
) -> Recipe:
    """One change of the guest that `find_guest` finds."""

    async def recipe(call: ToolCall) -> dict[str, Any]:
        guest = await find_guest(call, type)
        arguments = {"guest": guest.vmid, **fixed, **map_arguments(call, parameters or {})}
        return await task_answer(call, await call.change(operation, follow=patience(call), **arguments))

    return recipe


def change(operation: str, parameters: Mapping[str, Source], /, **fixed: Any) -> Recipe:
    """One change of anything but an existing guest."""

    async def recipe(call: ToolCall) -> dict[str, Any]:
        arguments = {**fixed, **map_arguments(call, parameters)}
        return await task_answer(call, await call.change(operation, follow=patience(call), **arguments))

    return recipe


def creation(operation: str, content: str, parameters: Mapping[str, Source]) -> Recipe:
    """A new guest, with its disks where that server puts them."""

    async def recipe(call: ToolCall) -> dict[str, Any]:
        storage = await call.usual_storage(call["storage"], call["node"], content)
        arguments = {**map_arguments(call, parameters), "storage": storage}
        return await task_answer(call, await call.change(operation, follow=patience(call), **arguments))

    return recipe


async def task_answer(call: ToolCall, done: ChangeResult) -> dict[str, Any]:
    """The task, and its status unless the caller does not wait; `result` if PVE did it at once."""
    if done.was_dry_run:
        return {"dry_run": True, **done.facts}
    new = {"vmid": done.facts["vmid"]} if "vmid" in done.facts else {}
    if done.task is None:
        return {"result": None, **new, **done.remarks}
    status = {} if call.arguments.get("wait") is False else {"status": await call.task_status(done.task)}
    return {"upid": done.task, **new, **status, **done.remarks}


def keys_in(text: str | None) -> list[str] | None:
    """Public keys, one per line. PVE expects them percent-encoded, and some callers send them that way."""
    if not text:
        return None
    return (unquote(text) if "%20" in text else text).splitlines()


# -- guests ------------------------------------------------------------------------------------------------------------


def _vmid(call: ToolCall) -> int | None:
    return call["vmid"] or None


def _gib(name: str) -> Any:
    return lambda call: f"{call[name]}G"


def _card(call: ToolCall) -> list[dict[str, Any]] | None:
    """One network card, by default on the usual bridge. Options may follow an address: `10.0.0.5/24,gw=10.0.0.1`."""
    address = values.parse(call.arguments.get("net_ip") or "", default_key="ip")
    parts = {**({"bridge": call["bridge"]} if call["bridge"] else {}), **address}
    return [parts] if parts else None


def _clone_storage(call: ToolCall) -> str | None:
    """A linked clone stays on the storage of its template."""
    return call["storage"] or (call.default_storage if call["full"] else None)


# -- images, snapshots and backups -------------------------------------------------------------------------------------


OF_SNAPSHOT = {"snapshot": "snapname"}
COMPRESSION = {"0": "none", "1": "lzo"}
"""PVE's other words for a compression."""


def _compression(call: ToolCall) -> str:
    compression: str = call["compress"]
    return COMPRESSION.get(compression, compression)


def upload(content: str) -> Recipe:
    return change("image_upload", {"file": "file_path", "node": "node", "storage": "storage"}, content=content)


async def snapshots(call: ToolCall) -> Any:
    return await call.get(f"{(await find_guest(call)).path}/snapshot")


# -- pools, users and permissions --------------------------------------------------------------------------------------


def pool_member(argument: str) -> Recipe:
    async def recipe(call: ToolCall) -> dict[str, Any]:
        await call.rows("access_list", kind="pools", name=call["poolid"])  # raises if there is no such pool
        members: dict[str, Any] = {argument: [(await find_guest(call)).vmid]}
        return await task_answer(call, await call.change("pool_set", pool=call["poolid"], **members))

    return recipe


async def create_pool(call: ToolCall) -> dict[str, Any]:
    """Create a pool; an existing one is not changed."""
    pool, comment = call["poolid"], call["comment"]
    there = next((row for row in await call.get("/pools") if row["poolid"] == pool), None)
    if there is not None and comment not in (None, there.get("comment", "")):
        raise Conflict(f"Pool {pool} already exists", why=f"Its comment is {there.get('comment', '')!r}")
    return await task_answer(call, await call.change("pool_set", pool=pool, comment=comment))


async def assign(call: ToolCall) -> dict[str, Any]:
    holders = [*_words(call["users"]), *(f"@{group}" for group in _words(call["groups"]))]
    if not holders:
        raise BadArgument(f"{call.tool} needs someone to grant the roles to", next_step="Give users, groups or both")
    done = await call.change(
        "acl_set",
        action="grant",
        path=call["path"],
        roles=_words(call["roles"]),
        holders=holders,
        propagate=call["propagate"],
    )
    return await task_answer(call, done)


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


# -- inside guests -----------------------------------------------------------------------------------------------------


MOST_BYTES = 1024 * 1024


async def execute(call: ToolCall) -> dict[str, Any]:
    """Run a program with its arguments; without arguments, the text goes to the guest's shell."""
    guest = await find_guest(call, VM)
    command = call["command"] if call["args"] is None else [call["command"], *call["args"]]
    done = await call.change(
        "guest_exec", guest=guest.vmid, command=command, stdin=call["input_data"], max_output=MOST_BYTES
    )
    return dict(done.facts)


async def register(call: ToolCall) -> dict[str, Any]:
    """The host's variables as JSON, and its line of an INI inventory."""
    guest = await find_guest(call, VM)
    asked = {
        "guest": guest.vmid,
        "user": call["ssh_user"],
        "key_file": call["ssh_private_key_path"],
        "interface": call["prefer_interface"],
    }
    inventory = await call.facts("inventory_export", format="json", **asked)
    if not inventory["hosts"]:
        raise Conflict(f"{guest.vmid} {guest.name} cannot be a host", why="; ".join(inventory["left_out"].values()))
    ((hostname, variables),) = inventory["inventory"]["_meta"]["hostvars"].items()
    ini = (await call.facts("inventory_export", format="ini", **asked))["inventory"]
    return {
        "hostname": hostname,
        "ip": variables["ansible_host"],
        "json": {hostname: variables},
        "ini": ini.partition("\n\n")[0],
    }


RECIPES: dict[str, Recipe] = {
    "proxmox-clone-vm": change(
        "guest_clone",
        {
            "guest": "source_vmid",
            "vmid": "new_vmid",
            "node": "target_node",
            "name": "name",
            "storage": _clone_storage,
            "full": "full",
        },
    ),
    "proxmox-create-vm": creation(
        "vm_create",
        "images",
        {
            "node": "node",
            "vmid": _vmid,
            "name": "name",
            "cores": "cores",
            "memory": "memory_mb",
            "disks": lambda call: [f"{call['disk_gb']}G"],
            "networks": _card,
            "iso": "iso",
        },
    ),
    "proxmox-delete-vm": guest_change("guest_delete", VM, {"purge": "purge"}),
    "proxmox-start-vm": guest_change("guest_power", VM, action="start"),
    "proxmox-stop-vm": guest_change("guest_stop", VM),
    "proxmox-reboot-vm": guest_change("guest_power", VM, action="reboot"),
    "proxmox-shutdown-vm": guest_change("guest_power", VM, {"timeout": "timeout"}, action="shutdown"),
    "proxmox-migrate-vm": guest_change(
        "guest_migrate",
        VM,
        {"node": "target_node", "mode": lambda call: None if call["live"] else "offline"},
    ),
    "proxmox-create-lxc": creation(
        "container_create",
        "rootdir",
        {
            "node": "node",
            "vmid": _vmid,
            "name": "hostname",
            "template": "ostemplate",
            "cores": "cores",
            "memory": "memory_mb",
            "rootfs": _gib("rootfs_gb"),
            "networks": _card,
            "password": lambda call: call.container_password,
        },
    ),
    "proxmox-delete-lxc": guest_change("guest_delete", CONTAINER, {"purge": "purge"}),
    "proxmox-start-lxc": guest_change("guest_power", CONTAINER, action="start"),
    "proxmox-stop-lxc": guest_change("guest_stop", CONTAINER),
    "proxmox-upload-iso": upload("iso"),
    "proxmox-upload-template": upload("vztmpl"),
    "proxmox-list-snapshots": snapshots,
    "proxmox-create-snapshot": guest_change(
        "snapshot_create", ANY, {**OF_SNAPSHOT, "description": "description", "ram": "vmstate"}
    ),
    "proxmox-delete-snapshot": guest_change("snapshot_delete", ANY, OF_SNAPSHOT),
    "proxmox-rollback-snapshot": guest_change("snapshot_rollback", ANY, OF_SNAPSHOT),
    "proxmox-backup-vm": guest_change(
        "backup_create", ANY, {"mode": "mode", "compress": _compression, "storage": "storage"}
    ),
    "proxmox-restore-vm": change(
        "backup_restore",
        {
            "node": "node",
            "vmid": lambda call: call["vmid"] or None,
            "backup": "archive",
            "storage": "storage",
            "overwrite": "force",
        },
    ),
    "proxmox-list-pools": read("/pools"),
    "proxmox-create-pool": create_pool,
    "proxmox-delete-pool": change("access_delete", {"name": "poolid"}, kind="pool"),
    "proxmox-pool-add": pool_member("add_guests"),
    "proxmox-pool-remove": pool_member("remove_guests"),
    "proxmox-list-users": read("/access/users"),
    "proxmox-list-roles": read("/access/roles"),
    "proxmox-assign-permission": assign,
    "proxmox-register-vm-as-host": register,
    "proxmox-guest-exec": execute,
}
