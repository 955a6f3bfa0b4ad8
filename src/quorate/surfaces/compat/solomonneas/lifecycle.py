"""Starting, stopping, rebooting; snapshots."""

from __future__ import annotations

from quorate.operations.registry import Risk
from quorate.surfaces.compat.declaring import Tool, may, need, one_of
from quorate.surfaces.compat.gates import CONFIRM as CONFIRMED
from quorate.surfaces.compat.gates import DESTRUCTIVE as ENABLED
from quorate.surfaces.compat.solomonneas.shapes import CONFIRM, DESTRUCTIVE, VMID, acting

SNAPSHOT = need("snapname", "string", "Name of the snapshot")
OF_SNAPSHOT = {"snapshot": "snapname"}

TOOLS = (
    Tool(
        "proxmox_start_resource",
        "Start a VM or container.",
        (VMID, CONFIRM),
        Risk.CHANGE,
        "guest_power action=start",
        acting("guest_power", action="start"),
        CONFIRMED,
    ),
    Tool(
        "proxmox_stop_resource",
        "Shut a VM or container down gracefully.",
        (VMID, CONFIRM, may("timeoutSeconds", "integer", about="Seconds the guest gets to shut down")),
        Risk.CHANGE,
        "guest_power action=shutdown",
        acting("guest_power", {"timeout": "timeoutSeconds"}, action="shutdown"),
        CONFIRMED,
    ),
    Tool(
        "proxmox_reboot_resource",
        "Reboot a VM or container.",
        (VMID, CONFIRM),
        Risk.CHANGE,
        "guest_power action=reboot",
        acting("guest_power", action="reboot"),
        CONFIRMED,
    ),
    Tool(
        "proxmox_force_stop_resource",
        "Cut the power of a VM or container.",
        (VMID, CONFIRM, DESTRUCTIVE),
        Risk.DESTROY,
        "guest_stop",
        acting("guest_stop"),
        ENABLED,
    ),
    Tool(
        "proxmox_snapshot_resource",
        "Take a snapshot of a guest.",
        (VMID, SNAPSHOT, may("description", "string"), CONFIRM),
        Risk.CHANGE,
        "snapshot_create",
        acting("snapshot_create", {**OF_SNAPSHOT, "description": "description"}, echo=("snapname",)),
        CONFIRMED,
    ),
    Tool(
        "proxmox_rollback_snapshot",
        "Take a guest back to a snapshot; what happened since is lost.",
        (VMID, SNAPSHOT, may("start", "boolean", about="Start it afterwards"), CONFIRM, DESTRUCTIVE),
        Risk.DESTROY,
        "snapshot_rollback",
        acting("snapshot_rollback", {**OF_SNAPSHOT, "start": "start"}, echo=("snapname", "start")),
        ENABLED,
    ),
    Tool(
        "proxmox_delete_snapshot",
        "Delete a snapshot of a guest.",
        (VMID, SNAPSHOT, CONFIRM, DESTRUCTIVE),
        Risk.DESTROY,
        "snapshot_delete",
        acting("snapshot_delete", OF_SNAPSHOT, echo=("snapname",)),
        ENABLED,
    ),
    Tool(
        "proxmox_run_backup",
        "Back a guest up to a storage.",
        (VMID, need("storage", "string"), one_of("mode", "snapshot", "suspend", "stop"), CONFIRM),
        Risk.CHANGE,
        "backup_create",
        acting("backup_create", {"storage": "storage", "mode": "mode"}, echo=("storage", "mode")),
        CONFIRMED,
    ),
)
