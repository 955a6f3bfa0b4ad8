"""Commands, files and services inside guests."""

from __future__ import annotations

import datetime
import posixpath
from typing import Any

from quorate.surfaces.compat.declaration import Recipe
from quorate.surfaces.compat.execution import ToolCall
from quorate.surfaces.compat.solomonneas.answers import guest_facts

COMMAND_SECONDS = 30
MOST_BYTES = 1024 * 1024
LINKS = 8  # at most this many links are followed
TYPES = {"file": ("regular file", "f"), "folder": ("directory", "d"), "link": ("symbolic link", "l"),
         "fifo": ("fifo", "p"), "socket": ("socket", "s"), "device": ("device", "b")}  # fmt: skip
OTHER = ("other", "?")


async def execute(call: ToolCall) -> dict[str, Any]:
    guest = await call.guest(call["vmid"])
    seconds = call["timeout"] or COMMAND_SECONDS
    done = await call.change(
        "guest_exec",
        follow=seconds + 5,  # a command gets a moment to end on its own
        guest=guest.vmid,
        command=call["command"],
        timeout=seconds,
        max_output=MOST_BYTES,
    )
    if done.was_dry_run:
        return {"vmid": guest.vmid, "type": guest.type, "dry_run": True, **done.facts}
    late = {"note": "It is still running although its timeout has passed"} if done.is_running else {}
    return {"vmid": guest.vmid, "type": guest.type, **_outputs(done.facts), **late}


def _outputs(facts: Any) -> dict[str, Any]:
    """Both outputs and the exit code, always; and remarks, for example if one was truncated."""
    more = {
        key: facts[key] for key in facts if key.startswith(("stdout_", "stderr_")) or key in ("signal", "timed_out")
    }
    outputs = {
        "stdout": facts.get("stdout", ""),
        "stderr": facts.get("stderr", ""),
        "exit_code": facts.get("exit_code"),
    }
    return {**outputs, **more}


async def read_file(call: ToolCall) -> dict[str, Any]:
    facts = await call.facts("guest_file_read", guest=call["vmid"], path=call["path"], limit=MOST_BYTES)
    content: dict[str, Any] = {key: facts[key] for key in ("content", "base64", "note") if key in facts}
    cut = {"truncated": f"It has {facts['size']} bytes; only the first {facts['bytes']} are shown"}
    return {"vmid": call["vmid"], "path": call["path"], **content, **(cut if "next" in facts else {})}


async def write_file(call: ToolCall) -> dict[str, Any]:
    done = await call.change(
        "guest_file_write", guest=call["vmid"], path=call["path"], content=call["content"], parents=True
    )
    if done.was_dry_run:
        return {"dry_run": True, **done.facts}
    return {"vmid": call["vmid"], "path": call["path"], "bytes_written": done.facts["bytes"]}


async def stat_path(call: ToolCall) -> dict[str, Any]:
    """What is at the path, with symbolic links followed."""
    guest = await call.guest(call["vmid"])
    path = call["path"]
    for _ in range(LINKS):
        facts = await call.facts("guest_path_stat", guest=guest.vmid, path=path)
        if facts["type"] != "link" or not facts.get("target"):
            break
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), facts["target"]))
    return {
        **guest_facts(guest),
        "path": call["path"],
        "file_type": TYPES.get(facts["type"], OTHER)[0],
        "size": facts["size"],
        "owner": facts["owner"],
        "group": facts["group"],
        "mode": facts["mode"].lstrip("0") or "0",
        "mtime": _epoch(facts["modified"]),
        "name": path,
    }


async def list_directory(call: ToolCall) -> dict[str, Any]:
    guest = await call.guest(call["vmid"])
    rows = await call.rows("guest_dir_list", guest=guest.vmid, path=call["path"])
    entries = [
        {
            "name": row["name"],
            "kind": TYPES.get(row["type"], OTHER)[1],
            "size": row.get("size", 0),
            "mtime": _epoch(row["modified"]),
        }
        for row in rows
    ]
    return {**guest_facts(guest), "path": call["path"], "count": len(entries), "entries": entries}


def _epoch(moment: str) -> int:
    return int(datetime.datetime.fromisoformat(moment).timestamp())


async def service_status(call: ToolCall) -> dict[str, Any]:
    guest = await call.guest(call["vmid"])
    return {**guest_facts(guest), "service": call["service"], "status": await _service(call)}


def service_control(action: str) -> Recipe:
    async def recipe(call: ToolCall) -> dict[str, Any]:
        guest = await call.guest(call["vmid"])
        done = await call.change("guest_service_control", guest=guest.vmid, service=call["service"], action=action)
        about = {**guest_facts(guest), "service": call["service"], "action": action}
        return (
            {**about, "dry_run": True, **done.facts} if done.was_dry_run else {**about, "status": await _service(call)}
        )

    return recipe


async def _service(call: ToolCall) -> dict[str, str]:
    """In systemd's terms, also for other service managers."""
    facts = await call.facts("guest_service", guest=call["vmid"], service=call["service"], log_lines=0)
    state, _, detail = str(facts["state"]).partition(" (")
    return {
        "Id": facts["service"],
        "LoadState": "loaded",
        "ActiveState": state,
        "SubState": detail.rstrip(")") or state,
        "UnitFileState": facts.get("enabled", ""),
        "Description": facts.get("description", ""),
    }


RECIPES: dict[str, Recipe] = {
    "proxmox_read_file": read_file,
    "proxmox_exec": execute,
    "proxmox_write_file": write_file,
    "proxmox_stat_path": stat_path,
    "proxmox_list_directory": list_directory,
    "proxmox_service_status": service_status,
    **{f"proxmox_service_{action}": service_control(action) for action in ("start", "stop", "restart")},
}
