"""Snapshots and backups."""

from __future__ import annotations

from typing import Any

from quorate.operations.registry import Risk
from quorate.operations.stored import Volume
from quorate.pve.errors import BadArgument
from quorate.surfaces.compat.declaring import Tool, may, need
from quorate.surfaces.compat.gates import ELEVATED
from quorate.surfaces.compat.gilby125.shapes import BOTH, LXC, NODE, VMID, Kind, about_guest, told
from quorate.surfaces.compat.placed import changing_guest, number
from quorate.surfaces.compat.recipes import changing
from quorate.surfaces.compat.running import Done, Run

SNAPSHOT = need("snapname", "string", "Name of the snapshot")
MODES = ("snapshot", "suspend", "stop")
COMPRESSIONS = ("none", "lzo", "gzip", "zstd")


def _snapshot(kind: Kind, verb: str, about: str, operation: str, icon: str, title: str, risk: Risk) -> Tool:
    facts = about_guest(kind, Snapshot_Name="snapname")
    return Tool(
        f"proxmox_{verb}_snapshot_{kind.suffix}",
        about.format(kind.word),
        (NODE, VMID, SNAPSHOT),
        risk,
        operation,
        changing_guest(operation, {"snapshot": "snapname"}, type=kind.type, shape=told(icon, title, facts)),
        ELEVATED,
    )


SNAPSHOTS = (
    ("create", "Take a snapshot of a {}.", "snapshot_create", "📸", "Snapshot", Risk.CHANGE),
    (
        "rollback",
        "Put a {} back to a snapshot; what came after it is lost.",
        "snapshot_rollback",
        "⏮️",
        "Rollback to snapshot",
        Risk.DESTROY,
    ),
    ("delete", "Delete a snapshot of a {}.", "snapshot_delete", "🗑️", "Deletion of snapshot", Risk.DESTROY),
)


def _back_up(kind: Kind) -> Tool:
    shape = told(
        "💾",
        f"Backup of {kind.word}",
        about_guest(kind, Storage="storage", Mode="mode", Compression="compress", Backup=_made),
        "**Tip**: `proxmox_list_backups` shows all of them.",
    )
    return Tool(
        f"proxmox_create_backup_{kind.suffix}",
        f"Back up a {kind.word}.",
        (
            NODE,
            VMID,
            may("storage", "string", "local", "Where the backup goes"),
            may("mode", "string", "snapshot", "How consistent, at what downtime", choices=MODES),
            may("compress", "string", "zstd", choices=COMPRESSIONS),
        ),
        Risk.CHANGE,
        "backup_create",
        changing_guest(
            "backup_create",
            {name: name for name in ("storage", "mode", "compress")},
            type=kind.type,
            shape=shape,
        ),
        ELEVATED,
    )


def _made(_: Run, done: Done) -> str:
    return ", ".join(done.facts.get("backups", {}).values())


def _restore(kind: Kind) -> Tool:
    shape = told(
        "♻️",
        f"Restore of {kind.word}",
        {
            "New VM ID": "vmid",
            "Archive": "archive",
            "Type": lambda *_: kind.label,
            "Node": "node",
            "Storage": "storage",
        },
        f"**Next**: `proxmox_start_{kind.suffix}` starts it.",
    )
    restored = changing(
        "backup_restore",
        {"node": "node", "vmid": number("vmid"), "backup": "archive", "storage": "storage"},
        shape=shape,
    )

    async def recipe(run: Run) -> Any:
        if Volume(run["archive"]).is_container is not (kind is LXC):
            other = next(one for one in BOTH if one is not kind)
            raise BadArgument(
                f"{run['archive']} is no backup of a {kind.word}",
                next_step=f"If it is meant, use proxmox_restore_backup_{other.suffix}",
            )
        return await restored(run)

    return Tool(
        f"proxmox_restore_backup_{kind.suffix}",
        f"Make a new {kind.word} from a backup. It replaces none.",
        (
            NODE,
            need("vmid", "string", "Id of the new guest, which must be free"),
            need("archive", "string", "The backup as proxmox_list_backups names its volume"),
            may("storage", "string", about="For its disks; left out: as they were"),
        ),
        Risk.CHANGE,
        "backup_restore",
        recipe,
        ELEVATED,
    )


async def _delete_backup(run: Run) -> Any:
    """Only what is a backup of that storage: the tool promises no more."""
    volume = run["volume"] if run["volume"].startswith(f"{run['storage']}:") else f"{run['storage']}:{run['volume']}"
    if not volume.removeprefix(f"{run['storage']}:").startswith("backup/"):
        raise BadArgument(f"{run['volume']} is no backup on {run['storage']}", next_step="See proxmox_list_backups")
    done = await run.change("volume_delete", node=run["node"], volume=volume)
    shape = told("🗑️", "Deletion of backup", {"Node": "node", "Storage": "storage", "Volume": lambda *_: volume})
    return await shape(run, done)


TOOLS = (
    *(_snapshot(kind, *one) for one in SNAPSHOTS for kind in BOTH),
    *map(_back_up, BOTH),
    *map(_restore, BOTH),
    Tool(
        "proxmox_delete_backup",
        "Delete a backup, for good.",
        (
            NODE,
            need("storage", "string", "Storage name"),
            need("volume", "string", "The backup as proxmox_list_backups names its volume"),
        ),
        Risk.DESTROY,
        "volume_delete",
        _delete_backup,
        ELEVATED,
    ),
)
