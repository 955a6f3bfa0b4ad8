"""Backups and uploads."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from quorate.operations.registry import Risk
from quorate.pve.errors import BadArgument
from quorate.surfaces.compat.brynnjocelyn.shapes import NODE, task
from quorate.surfaces.compat.declaring import Tool, may, need
from quorate.surfaces.compat.placed import number, placed
from quorate.surfaces.compat.running import Run


async def back_up(run: Run) -> Any:
    guest = await placed(run)
    compress = "none" if run["compress"] == "0" else run["compress"]
    done = await run.change(
        "backup_create",
        guest=guest.vmid,
        storage=run["storage"],
        mode=run["mode"],
        compress=compress,
        notes=run["notes"],
    )
    return await task(run, done)


async def restore(run: Run) -> Any:
    """`storage` holds the backup. Where the backup's own name says another one, `storage` is for the disks."""
    holder, colon, name = run["volid"].partition(":")
    if not colon or "/" in holder:  # backup servers have colons in their times
        holder, name = run["storage"], run["volid"]
    done = await run.change(
        "backup_restore",
        node=run["node"],
        backup=f"{holder}:{name}",
        vmid=number("vmid")(run),
        overwrite=run["force"],
        storage=None if holder == run["storage"] else run["storage"],
    )
    return await task(run, done)


async def upload(run: Run) -> Any:
    if run["contentType"] == "backup":
        raise BadArgument(
            "A backup cannot be uploaded",
            why="The API of Proxmox VE takes only ISO images and container templates",
            next_step=f"Copy {run['filename']} into the dump folder of {run['storage']} on {run['node']}, by scp",
        )
    done = await run.change(
        "image_upload",
        node=run["node"],
        storage=run["storage"],
        filename=run["filename"],
        content=run["contentType"],
        data=_as_base64(run["content"]),
    )
    return await task(run, done)


def _as_base64(content: str) -> str:
    """Binary content comes in base64 already, text may come as it is."""
    try:
        base64.b64decode(re.sub(r"\s", "", content), validate=True)
    except (binascii.Error, ValueError):
        return base64.b64encode(content.encode()).decode()
    return content


TOOLS = (
    Tool(
        "create_backup",
        "Back up a VM or container.",
        (
            NODE,
            need("vmid", "number", "VM or container"),
            need("storage", "string", "Where the backup goes"),
            may(
                "mode",
                "string",
                "snapshot",
                "How consistent, at what downtime",
                choices=("snapshot", "suspend", "stop"),
            ),
            may("compress", "string", "zstd", "0: not at all", choices=("0", "gzip", "lzo", "zstd")),
            may("notes", "string"),
        ),
        Risk.CHANGE,
        "backup_create",
        back_up,
    ),
    Tool(
        "restore_backup",
        "Bring a VM or container back from a backup.",
        (
            NODE,
            need("storage", "string", "Storage of the backup"),
            need("volid", "string", "The backup, with or without its storage in front"),
            need("vmid", "number", "Id that the guest gets"),
            may("force", "boolean", about="Replace the guest that has this id; its data are lost"),
        ),
        Risk.DESTROY,
        "backup_restore",
        restore,
    ),
    Tool(
        "upload_file",
        "Put an ISO image or container template on a storage.",
        (
            NODE,
            need("storage", "string", "Storage id"),
            need("filename", "string", "Its name there"),
            need("content", "string", "The file, in base64 if it is binary"),
            need("contentType", "string", "What it is", choices=("iso", "vztmpl", "backup")),
        ),
        Risk.CHANGE,
        "image_upload",
        upload,
    ),
)
