"""New guests, power, snapshots, backups and deletion."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from quorate.surfaces.compat.declaration import Recipe
from quorate.surfaces.compat.execution import ToolCall
from quorate.surfaces.compat.solomonneas.answers import PATIENCE, change_answer, guest_change

OF_SNAPSHOT = {"snapshot": "snapname"}


async def create_container(call: ToolCall) -> dict[str, Any]:
    same = ("vmid", "node", "memory", "cores", "start", "pool", "onboot", "unprivileged", "features", "description",
            "password")  # fmt: skip
    keys = call["ssh_public_keys"]
    done = await call.change(
        "container_create",
        follow=PATIENCE,
        **{name: call[name] for name in same},
        name=call["hostname"],
        template=call["ostemplate"],
        storage=await call.usual_storage(call["storage"], call["node"], "rootdir"),
        rootfs=_size(call["rootfs_size"]),
        networks=_one(call["net"]),
        tags=_tags(call["tags"]),
        ssh_keys=keys.splitlines() if keys else None,
        options=_set(call, "protection") or None,
    )
    return change_answer(done, vmid=call["vmid"], node=done.facts.get("node"), hostname=call["hostname"])


async def create_vm(call: ToolCall) -> dict[str, Any]:
    same = ("vmid", "name", "node", "memory", "cores", "iso", "start", "pool", "onboot", "agent", "bios", "machine",
            "cpu", "sockets", "description")  # fmt: skip
    done = await call.change(
        "vm_create",
        follow=PATIENCE,
        **{name: call[name] for name in same},
        disks=[_size(call["disk_size"]) or "32G"],
        storage=await call.usual_storage(call["storage"], call["node"], "images"),
        networks=_one(call["net"]),
        tags=_tags(call["tags"]),
        options=_set(call, "protection", "scsihw", "boot") or None,
        cloud_init=_cloud_init(call) or None,
    )
    return change_answer(done, vmid=call["vmid"], node=done.facts.get("node"), name=call["name"])


def _cloud_init(call: ToolCall) -> dict[str, Any]:
    keys = call["sshkeys"]
    settings = {
        "user": call["ciuser"],
        "password": call["cipassword"],
        # PVE expects them percent-encoded, and some callers send them that way
        "ssh_keys": (unquote(keys) if "%20" in keys else keys).splitlines() if keys else None,
        "ipconfig0": call["ipconfig0"],
        "dns": call["nameserver"],
        "search_domain": call["searchdomain"],
    }
    return {name: value for name, value in settings.items() if value}


def _set(call: ToolCall, *names: str) -> dict[str, Any]:
    return {name: call[name] for name in names if call[name] is not None}


def _one(text: str | None) -> list[str] | None:
    return [text] if text else None


def _size(text: str | None) -> str | None:
    return f"{text}G" if text and text.strip().isdecimal() else text


def _tags(text: str | None) -> list[str] | None:
    return [tag for tag in text.replace(",", ";").split(";") if tag] if text else None


async def clone(call: ToolCall) -> dict[str, Any]:
    same = ("name", "storage", "pool", "description")
    source = await call.guest(call["source_vmid"])
    done = await call.change(
        "guest_clone",
        guest=source.vmid,
        vmid=call["new_vmid"],
        full=call["full"] is not False,
        node=call["target_node"],
        snapshot=call["snapname"],
        **{name: call[name] for name in same},
    )
    about = {"source_vmid": source.vmid, "new_vmid": call["new_vmid"], "node": source.node, "type": source.type}
    return change_answer(done, **about, name=call["name"])


def _with_leftovers(call: ToolCall) -> bool:
    """By default, also delete everything that refers to the guest or has its id."""
    return call["purge"] is not False


RECIPES: dict[str, Recipe] = {
    "proxmox_start_resource": guest_change("guest_power", action="start"),
    "proxmox_stop_resource": guest_change("guest_power", {"timeout": "timeoutSeconds"}, action="shutdown"),
    "proxmox_reboot_resource": guest_change("guest_power", action="reboot"),
    "proxmox_force_stop_resource": guest_change("guest_stop"),
    "proxmox_snapshot_resource": guest_change(
        "snapshot_create", {**OF_SNAPSHOT, "description": "description"}, echo=("snapname",)
    ),
    "proxmox_rollback_snapshot": guest_change(
        "snapshot_rollback", {**OF_SNAPSHOT, "start": "start"}, echo=("snapname", "start")
    ),
    "proxmox_delete_snapshot": guest_change("snapshot_delete", OF_SNAPSHOT, echo=("snapname",)),
    "proxmox_run_backup": guest_change(
        "backup_create", {"storage": "storage", "mode": "mode"}, echo=("storage", "mode")
    ),
    "proxmox_create_container": create_container,
    "proxmox_create_vm": create_vm,
    "proxmox_clone_resource": clone,
    "proxmox_destroy_resource": guest_change(
        "guest_delete",
        {"purge": _with_leftovers, "destroy_unreferenced_disks": _with_leftovers, "stop": "force"},
        follow=PATIENCE,
    ),
}
