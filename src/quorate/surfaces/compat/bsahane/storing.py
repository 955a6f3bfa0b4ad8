"""Images, snapshots and backups."""

from __future__ import annotations

from typing import Any

from quorate.operations.registry import Risk
from quorate.surfaces.compat.bsahane.shapes import (
    ANY,
    GUEST,
    NODE,
    STORAGE,
    SURE,
    act,
    acting,
    chosen,
    following,
    making,
    read,
)
from quorate.surfaces.compat.declaring import Recipe, may
from quorate.surfaces.compat.running import Run

FILE = may("file_path", "string", "", "On the machine that runs this server")
SNAPSHOT = may("snapname", "string", "")
OF_SNAPSHOT = {"snapshot": "snapname"}


def uploading(content: str) -> Recipe:
    return making("image_upload", {"file": "file_path", "node": "node", "storage": "storage"}, content=content)


async def snapshots(run: Run) -> Any:
    return await run.get(f"{(await chosen(run)).path}/snapshot")


TOOLS = (
    act(
        "proxmox-upload-iso",
        "Upload an ISO image to a storage.",
        "image_upload content=iso",
        uploading("iso"),
        NODE,
        STORAGE,
        FILE,
        *SURE,
        needs=("file_path",),
    ),
    act(
        "proxmox-upload-template",
        "Upload a container template to a storage.",
        "image_upload content=vztmpl",
        uploading("vztmpl"),
        NODE,
        STORAGE,
        FILE,
        *SURE,
        needs=("file_path",),
    ),
    read("proxmox-list-snapshots", "Snapshots of a guest.", "snapshot_list", snapshots, *GUEST),
    act(
        "proxmox-create-snapshot",
        "Take a snapshot of a guest.",
        "snapshot_create",
        acting("snapshot_create", ANY, {**OF_SNAPSHOT, "description": "description", "ram": "vmstate"}),
        *GUEST,
        SNAPSHOT,
        may("description", "string"),
        may("vmstate", "boolean", False, "With the memory of a running VM"),
        *SURE,
        needs=("snapname",),
    ),
    act(
        "proxmox-delete-snapshot",
        "Delete a snapshot of a guest.",
        "snapshot_delete",
        acting("snapshot_delete", ANY, OF_SNAPSHOT),
        *GUEST,
        SNAPSHOT,
        *SURE,
        risk=Risk.DESTROY,
        needs=("snapname",),
    ),
    act(
        "proxmox-rollback-snapshot",
        "Take a guest back to a snapshot; what happened since is lost.",
        "snapshot_rollback",
        acting("snapshot_rollback", ANY, OF_SNAPSHOT),
        *GUEST,
        SNAPSHOT,
        *SURE,
        *following(True, 900),
        risk=Risk.DESTROY,
        needs=("snapname",),
    ),
    act(
        "proxmox-backup-vm",
        "Back a guest up.",
        "backup_create",
        acting("backup_create", ANY, {"mode": "mode", "compress": "compress", "storage": "storage"}),
        *GUEST,
        may("mode", "string", "snapshot", "snapshot, suspend, stop"),
        may("compress", "string", "zstd", "zstd, gzip, lzo, none"),
        STORAGE,
        *SURE,
        *following(True, 3600, 5.0),
    ),
    act(
        "proxmox-restore-vm",
        "Make a guest from a backup; with force over the one that is there.",
        "backup_restore",
        making(
            "backup_restore",
            {
                "node": "node",
                "vmid": lambda run: run["vmid"] or None,
                "backup": "archive",
                "storage": "storage",
                "overwrite": "force",
            },
        ),
        NODE,
        may("vmid", "integer", 0, "0: the next free one"),
        may("archive", "string", "", "Volume of the backup"),
        STORAGE,
        may("force", "boolean", False, "Overwrite the guest with that id"),
        *SURE,
        *following(True, 3600, 5.0),
        risk=Risk.DESTROY,
        needs=("archive",),
    ),
)
