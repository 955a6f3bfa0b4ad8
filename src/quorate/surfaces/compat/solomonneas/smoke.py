"""Smoke tests on a real cluster: whether a VM can be cloned, which privileges exist, what was left behind."""

from __future__ import annotations

from typing import Any

from quorate.problems import Problem
from quorate.pve import values
from quorate.surfaces.compat.declaration import Recipe
from quorate.surfaces.compat.execution import ToolCall
from quorate.surfaces.compat.solomonneas.answers import LONGEST_WAIT, PATIENCE, SMOKE_POOL, guest_facts
from quorate.units import parse_size

SMOKE_PREFIX = "mcp-smoke-"
MOST_GIB = 64
WAIT = 180
GIB = 1024**3

# Privileges to create, start, back up, roll back and destroy a guest of the pool.
PRIVILEGES = (
    "Datastore.AllocateSpace",
    "Datastore.Audit",
    "Pool.Allocate",
    "Pool.Audit",
    "SDN.Use",
    "Sys.Audit",
    "VM.Allocate",
    "VM.Audit",
    "VM.Backup",
    "VM.Clone",
    "VM.Config.Disk",
    "VM.Config.Memory",
    "VM.Config.Network",
    "VM.Config.Options",
    "VM.GuestAgent.Audit",
    "VM.PowerMgmt",
    "VM.Snapshot",
    "VM.Snapshot.Rollback",
)


async def validate_source(call: ToolCall) -> dict[str, Any]:
    guest = await call.guest(call["vmid"], type="qemu", fresh=True)
    config = await call.get(f"{guest.path}/config")
    gib = _disks(config) / GIB
    blockers = _blockers(config, gib, call["max_disk_gb"] or MOST_GIB)
    if guest.status == "running" and not call["allow_running"]:
        blockers.append("The VM is running: stop it, or allow running sources")
    return {
        **guest_facts(guest),
        "ok": not blockers,
        "blockers": blockers,
        "warnings": [] if guest.status in ("running", "stopped", "template") else [f"The VM is {guest.status}"],
        "resource": {
            "name": guest.name,
            "status": guest.status,
            "template": guest.status == "template",
            "tags": config.get("tags"),
            "disk_gb": round(gib, 1),
        },
        "config_summary": {
            "agent": config.get("agent"),
            "unsafe_keys": _passed_through(config),
            "has_raw_args": bool(config.get("args")),
        },
    }


def _blockers(config: dict[str, Any], gib: float, most: int) -> list[str]:
    fixed = [key for key in config if key.startswith("ipconfig") and not _is_dynamic(str(config[key]))]
    blockers = {
        f"Devices of the host are passed through: {', '.join(_passed_through(config))}": _passed_through(config),
        "It has raw QEMU arguments (args)": config.get("args"),
        "The guest agent is not enabled": not values.agent_enabled(str(config.get("agent", ""))),
        f"A clone would have the same address: {', '.join(fixed)}": fixed,
        f"Its disks have {gib:.1f} GiB, more than {most}": gib > most,
    }
    return [text for text, is_so in blockers.items() if is_so]


def _passed_through(config: dict[str, Any]) -> list[str]:
    return sorted(key for key in config if key.startswith(("hostpci", "usb")))


def _is_dynamic(text: str) -> bool:
    return all(value in ("dhcp", "auto") for key, value in values.parse(text).items() if key in ("ip", "ip6"))


def _disks(config: dict[str, Any]) -> int:
    sizes = [values.parse(str(text)).get("size") for key, text in config.items() if values.is_disk(key, str(text))]
    return sum(parse_size(size, unit="K") for size in sizes if size)


async def audit_permissions(call: ToolCall) -> dict[str, Any]:
    required = call["required_privileges"] or list(PRIVILEGES)
    paths = [await _audit_path(call, path, required) for path in call["paths"] or _smoke_paths(call)]
    return {"userid": call["userid"] or "current", "required_privileges": required, "paths": paths}


def _smoke_paths(call: ToolCall) -> list[str]:
    guests = [call["source_vmid"], call["target_vmid"]]
    storages = [call["template_storage"] or "local", call["root_storage"] or "local-lvm"]
    return list(
        dict.fromkeys(
            [
                "/",
                f"/pool/{call['pool'] or SMOKE_POOL}",
                *(f"/storage/{storage}" for storage in storages),
                "/sdn",
                *(f"/vms/{vmid}" for vmid in guests if vmid is not None),
            ]
        )
    )


async def _audit_path(call: ToolCall, path: str, required: list[str]) -> dict[str, Any]:
    answer = await call.get("/access/permissions", path=path, userid=call["userid"])
    held = (answer or {}).get(path, {})
    missing = [privilege for privilege in required if privilege not in held]
    return {
        "path": path,
        "privilege_count": len(held),
        "missing_required": missing,
        "has_all_required": not missing,
        "privileges": held,
    }


async def pool_resources(call: ToolCall) -> dict[str, Any]:
    pool = call["pool"] or SMOKE_POOL
    members = await _members(call, pool)
    return {"pool": pool, "count": len(members), "resources": members}


async def _members(call: ToolCall, pool: str) -> list[dict[str, Any]]:
    await call.rows("access_list", kind="pools", name=pool)  # raises if there is no such pool
    return [row for row in await call.guests(fresh=True) if row.get("pool") == pool]


async def clean_up(call: ToolCall) -> dict[str, Any]:
    """Delete the guests of the pool that carry the prefix; only show them by default."""
    pool, prefix = call["pool"] or SMOKE_POOL, call["name_prefix"] or SMOKE_PREFIX
    members = await _members(call, pool)
    targets = [_target(row) for row in members if str(row.get("name", "")).startswith(prefix)]
    running = [] if call["force"] else [target for target in targets if target["status"] == "running"]
    about = {"pool": pool, "name_prefix": prefix, "matched": len(targets)}
    left = {"skipped_running": running, "skipped": len(members) - len(targets) + len(running)}
    if call["dry_run"] is not False:
        return {**about, "dry_run": True, "targets": targets, **left}
    destroyed: list[dict[str, Any]] = []
    for target in targets:
        if target not in running:
            destroyed.append({**target, **await _destroy(call, target, destroyed)})
    return {**about, "dry_run": False, "destroyed": destroyed, **left}


def _target(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row.get(key) for key in ("vmid", "node", "type", "name", "status")}


async def _destroy(call: ToolCall, target: dict[str, Any], before: list[dict[str, Any]]) -> dict[str, Any]:
    # Stopping it first makes two steps, and the second must not be skipped.
    only_begin = call["wait"] is False and target["status"] != "running"
    patience = min(call["timeoutSeconds"] or WAIT, LONGEST_WAIT)
    try:
        done = await call.change(
            "guest_delete",
            follow=0 if only_begin else max(patience, PATIENCE if target["status"] == "running" else 0),
            guest=target["vmid"],
            purge=True,
            destroy_unreferenced_disks=True,
            stop=call["force"],
        )
    except Problem as problem:
        if before:
            gone = ", ".join(str(guest["vmid"]) for guest in before)
            problem.why = f"{problem.why or ''} Deleted before it: {gone}.".strip()
        raise
    return {"upid": done.task, "done": not done.is_running}


RECIPES: dict[str, Recipe] = {
    "proxmox_validate_qemu_smoke_source": validate_source,
    "proxmox_audit_permissions": audit_permissions,
    "proxmox_list_pool_resources": pool_resources,
    "proxmox_cleanup_smoke_resources": clean_up,
}
