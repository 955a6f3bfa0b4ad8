"""Smoke tests on a real cluster: whether a VM is fit to be cloned, what may be done, what was left behind."""

from __future__ import annotations

from typing import Any

from quorate.operations.registry import Risk
from quorate.operations.units import parse_size
from quorate.pve import values
from quorate.pve.errors import Problem
from quorate.surfaces.compat.declaring import Tool, may
from quorate.surfaces.compat.gates import DESTRUCTIVE_WHEN_TOLD
from quorate.surfaces.compat.running import Run
from quorate.surfaces.compat.solomonneas.shapes import INTERVAL, LONGEST_WAIT, PATIENCE, SMOKE_POOL, VMID, place

SMOKE_PREFIX = "mcp-smoke-"
MOST_GIB = 64
WAIT = 180
GIB = 1024**3

# What creating, starting, backing up, rolling back and destroying a guest of the pool takes.
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


async def validate_source(run: Run) -> dict[str, Any]:
    guest = await run.guest(run["vmid"], type="qemu")
    config = await run.get(f"{guest.path}/config")
    gib = _disks(config) / GIB
    blockers = _blockers(config, gib, run["max_disk_gb"] or MOST_GIB)
    if guest.status == "running" and not run["allow_running"]:
        blockers.append("The VM is running: stop it, or allow running sources")
    return {
        **place(guest),
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
    found = {
        f"Devices of the host are passed through: {', '.join(_passed_through(config))}": _passed_through(config),
        "It has raw QEMU arguments (args)": config.get("args"),
        "The guest agent is not enabled": not values.agent_enabled(str(config.get("agent", ""))),
        f"A clone would take its address along: {', '.join(fixed)}": fixed,
        f"Its disks have {gib:.1f} GiB, more than {most}": gib > most,
    }
    return [text for text, is_so in found.items() if is_so]


def _passed_through(config: dict[str, Any]) -> list[str]:
    return sorted(key for key in config if key.startswith(("hostpci", "usb")))


def _is_dynamic(text: str) -> bool:
    return all(value in ("dhcp", "auto") for key, value in values.parse(text).items() if key in ("ip", "ip6"))


def _disks(config: dict[str, Any]) -> int:
    sizes = [values.parse(str(text)).get("size") for key, text in config.items() if values.is_disk(key, str(text))]
    return sum(parse_size(size, unit="K") for size in sizes if size)


async def audit_permissions(run: Run) -> dict[str, Any]:
    required = run["required_privileges"] or list(PRIVILEGES)
    paths = [await _audited(run, path, required) for path in run["paths"] or _smoke_paths(run)]
    return {"userid": run["userid"] or "current", "required_privileges": required, "paths": paths}


def _smoke_paths(run: Run) -> list[str]:
    guests = [run["source_vmid"], run["target_vmid"]]
    storages = [run["template_storage"] or "local", run["root_storage"] or "local-lvm"]
    return list(
        dict.fromkeys(
            [
                "/",
                f"/pool/{run['pool'] or SMOKE_POOL}",
                *(f"/storage/{storage}" for storage in storages),
                "/sdn",
                *(f"/vms/{vmid}" for vmid in guests if vmid is not None),
            ]
        )
    )


async def _audited(run: Run, path: str, required: list[str]) -> dict[str, Any]:
    answer = await run.get("/access/permissions", path=path, userid=run["userid"])
    held = (answer or {}).get(path, {})
    missing = [privilege for privilege in required if privilege not in held]
    return {
        "path": path,
        "privilege_count": len(held),
        "missing_required": missing,
        "has_all_required": not missing,
        "privileges": held,
    }


async def pool_resources(run: Run) -> dict[str, Any]:
    pool = run["pool"] or SMOKE_POOL
    members = await _members(run, pool)
    return {"pool": pool, "count": len(members), "resources": members}


async def _members(run: Run, pool: str) -> list[dict[str, Any]]:
    await run.rows("access_list", kind="pools", name=pool)  # says so if there is no such pool
    return [row for row in await run.get("/cluster/resources", type="vm") if row.get("pool") == pool]


async def clean_up(run: Run) -> dict[str, Any]:
    """Delete the guests of the pool that carry the prefix; only show them unless told to."""
    pool, prefix = run["pool"] or SMOKE_POOL, run["name_prefix"] or SMOKE_PREFIX
    members = await _members(run, pool)
    targets = [_target(row) for row in members if str(row.get("name", "")).startswith(prefix)]
    running = [] if run["force"] else [one for one in targets if one["status"] == "running"]
    about = {"pool": pool, "name_prefix": prefix, "matched": len(targets)}
    left = {"skipped_running": running, "skipped": len(members) - len(targets) + len(running)}
    if run["dry_run"] is not False:
        return {**about, "dry_run": True, "targets": targets, **left}
    destroyed: list[dict[str, Any]] = []
    for target in targets:
        if target not in running:
            destroyed.append({**target, **await _destroy(run, target, destroyed)})
    return {**about, "dry_run": False, "destroyed": destroyed, **left}


def _target(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row.get(key) for key in ("vmid", "node", "type", "name", "status")}


async def _destroy(run: Run, target: dict[str, Any], before: list[dict[str, Any]]) -> dict[str, Any]:
    # To stop it first takes two steps, and the second must not be left undone.
    only_begin = run["wait"] is False and target["status"] != "running"
    patience = min(run["timeoutSeconds"] or WAIT, LONGEST_WAIT)
    try:
        done = await run.change(
            "guest_delete",
            follow=0 if only_begin else max(patience, PATIENCE if target["status"] == "running" else 0),
            guest=target["vmid"],
            purge=True,
            destroy_unreferenced_disks=True,
            stop=run["force"],
        )
    except Problem as problem:
        if before:
            gone = ", ".join(str(one["vmid"]) for one in before)
            problem.why = f"{problem.why or ''} Deleted before it: {gone}.".strip()
        raise
    return {"upid": done.task, "done": not done.is_running}


TOOLS = (
    Tool(
        "proxmox_validate_qemu_smoke_source",
        "Whether a VM is fit to be cloned for a smoke test: agent, addresses, devices, size, state.",
        (
            VMID,
            may("max_disk_gb", "integer", about=f"Default {MOST_GIB}"),
            may("allow_running", "boolean", about="A running VM is fine"),
        ),
        Risk.READ,
        "guest_get detail=true",
        validate_source,
    ),
    Tool(
        "proxmox_audit_permissions",
        "Which privileges a user or token has on the paths of a smoke test, and which are missing.",
        (
            may("userid", "string", about="User or token; else our own"),
            may("paths", "array<string>", about="Instead of the usual ones"),
            may("pool", "string", about=f"Default {SMOKE_POOL}"),
            may("template_storage", "string", about="Default local"),
            may("root_storage", "string", about="Default local-lvm"),
            may("source_vmid", "integer"),
            may("target_vmid", "integer"),
            may("required_privileges", "array<string>"),
        ),
        Risk.READ,
        "permission_audit",
        audit_permissions,
    ),
    Tool(
        "proxmox_list_pool_resources",
        "Guests of a pool.",
        (may("pool", "string", about=f"Default {SMOKE_POOL}"),),
        Risk.READ,
        "access_list kind=pools",
        pool_resources,
    ),
    Tool(
        "proxmox_cleanup_smoke_resources",
        "Show, and with dry_run=false delete, what smoke tests have left in a pool.",
        (
            may("pool", "string", about=f"Default {SMOKE_POOL}"),
            may("name_prefix", "string", about=f"Only guests so named, default {SMOKE_PREFIX}"),
            may("force", "boolean", about="Running guests, too: their power is cut"),
            may("dry_run", "boolean", about="Default true"),
            may("wait", "boolean", about="For each deletion to end; default true"),
            may("confirm", "boolean", about="Must be true to delete"),
            may("destructive", "boolean", about="Must be true to delete"),
            may("timeoutSeconds", "integer", about=f"For each deletion, default {WAIT}"),
            INTERVAL,
        ),
        Risk.DESTROY,
        "guest_list pool=mcp-smoke, then guest_delete",
        clean_up,
        DESTRUCTIVE_WHEN_TOLD,
    ),
)
