"""Commands, files and services inside guests."""

from __future__ import annotations

import datetime
import posixpath
from typing import Any

from quorate.operations.registry import Risk
from quorate.surfaces.compat.declaring import Parameter, Recipe, Tool, may, need
from quorate.surfaces.compat.gates import CONFIRM as CONFIRMED
from quorate.surfaces.compat.running import Run
from quorate.surfaces.compat.solomonneas.shapes import CONFIRM, VMID, place

PATH = need("path", "string", "Absolute path in the guest")
SERVICE = need("service", "string")
COMMAND_SECONDS = 30
MOST_BYTES = 1024 * 1024
LINKS = 8  # so many links are followed
TYPES = {"file": ("regular file", "f"), "folder": ("directory", "d"), "link": ("symbolic link", "l"),
         "fifo": ("fifo", "p"), "socket": ("socket", "s"), "device": ("device", "b")}  # fmt: skip
OTHER = ("other", "?")


async def execute(run: Run) -> dict[str, Any]:
    guest = await run.guest(run["vmid"])
    seconds = run["timeout"] or COMMAND_SECONDS
    done = await run.change(
        "guest_exec",
        follow=seconds + 5,  # a command is given a moment to end by itself
        guest=guest.vmid,
        command=run["command"],
        timeout=seconds,
        max_output=MOST_BYTES,
    )
    if done.was_dry_run:
        return {"vmid": guest.vmid, "type": guest.type, "dry_run": True, **done.facts}
    late = {"note": "It has not ended yet, although its time is over"} if done.is_running else {}
    return {"vmid": guest.vmid, "type": guest.type, **_outputs(done.facts), **late}


def _outputs(facts: Any) -> dict[str, Any]:
    """Both outputs and the exit code, always; and what is to be said about them, such as that one was cut."""
    more = {
        key: facts[key] for key in facts if key.startswith(("stdout_", "stderr_")) or key in ("signal", "timed_out")
    }
    told = {"stdout": facts.get("stdout", ""), "stderr": facts.get("stderr", ""), "exit_code": facts.get("exit_code")}
    return {**told, **more}


async def read_file(run: Run) -> dict[str, Any]:
    found = await run.facts("guest_file_read", guest=run["vmid"], path=run["path"], limit=MOST_BYTES)
    told: dict[str, Any] = {key: found[key] for key in ("content", "base64", "note") if key in found}
    cut = {"truncated": f"It has {found['size']} bytes; only the first {found['bytes']} are shown"}
    return {"vmid": run["vmid"], "path": run["path"], **told, **(cut if "next" in found else {})}


async def write_file(run: Run) -> dict[str, Any]:
    done = await run.change(
        "guest_file_write", guest=run["vmid"], path=run["path"], content=run["content"], parents=True
    )
    if done.was_dry_run:
        return {"dry_run": True, **done.facts}
    return {"vmid": run["vmid"], "path": run["path"], "bytes_written": done.facts["bytes"]}


async def stat_path(run: Run) -> dict[str, Any]:
    """What is at the path, at the end of the links that may stand there."""
    guest = await run.guest(run["vmid"])
    path = run["path"]
    for _ in range(LINKS):
        found = await run.facts("guest_path_stat", guest=guest.vmid, path=path)
        if found["type"] != "link" or not found.get("target"):
            break
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), found["target"]))
    return {
        **place(guest),
        "path": run["path"],
        "file_type": TYPES.get(found["type"], OTHER)[0],
        "size": found["size"],
        "owner": found["owner"],
        "group": found["group"],
        "mode": found["mode"].lstrip("0") or "0",
        "mtime": _epoch(found["modified"]),
        "name": path,
    }


async def list_directory(run: Run) -> dict[str, Any]:
    guest = await run.guest(run["vmid"])
    rows = await run.rows("guest_dir_list", guest=guest.vmid, path=run["path"])
    entries = [
        {
            "name": row["name"],
            "kind": TYPES.get(row["type"], OTHER)[1],
            "size": row.get("size", 0),
            "mtime": _epoch(row["modified"]),
        }
        for row in rows
    ]
    return {**place(guest), "path": run["path"], "count": len(entries), "entries": entries}


def _epoch(moment: str) -> int:
    return int(datetime.datetime.fromisoformat(moment).timestamp())


async def service_status(run: Run) -> dict[str, Any]:
    guest = await run.guest(run["vmid"])
    return {**place(guest), "service": run["service"], "status": await _service(run)}


def controlling(action: str) -> Recipe:
    async def recipe(run: Run) -> dict[str, Any]:
        guest = await run.guest(run["vmid"])
        done = await run.change("guest_service_control", guest=guest.vmid, service=run["service"], action=action)
        about = {**place(guest), "service": run["service"], "action": action}
        return (
            {**about, "dry_run": True, **done.facts} if done.was_dry_run else {**about, "status": await _service(run)}
        )

    return recipe


async def _service(run: Run) -> dict[str, str]:
    """In systemd's words, also where another service manager is at work."""
    found = await run.facts("guest_service", guest=run["vmid"], service=run["service"], log_lines=0)
    state, _, detail = str(found["state"]).partition(" (")
    return {
        "Id": found["service"],
        "LoadState": "loaded",
        "ActiveState": state,
        "SubState": detail.rstrip(")") or state,
        "UnitFileState": found.get("enabled", ""),
        "Description": found.get("description", ""),
    }


def look(name: str, about: str, native: str, recipe: Recipe, *parameters: Parameter) -> Tool:
    return Tool(name, about, (VMID, *parameters, CONFIRM), Risk.LOOK_INSIDE, native, recipe, CONFIRMED)


def act(name: str, about: str, native: str, recipe: Recipe, *parameters: Parameter) -> Tool:
    return Tool(name, about, (VMID, *parameters, CONFIRM), Risk.CHANGE, native, recipe, CONFIRMED)


TOOLS = (
    look("proxmox_read_file", "Read a file inside a guest.", "guest_file_read", read_file, PATH),
    act(
        "proxmox_exec",
        "Run a shell command inside a guest; answers with its outputs and exit code.",
        "guest_exec",
        execute,
        need("command", "string", "For the guest's shell"),
        may("timeout", "integer", about=f"Seconds until it is ended, default {COMMAND_SECONDS}"),
    ),
    act(
        "proxmox_write_file",
        "Write a text file inside a guest, with the folders it needs.",
        "guest_file_write parents=true",
        write_file,
        PATH,
        need("content", "string"),
    ),
    look("proxmox_stat_path", "What is at a path inside a guest.", "guest_path_stat", stat_path, PATH),
    look("proxmox_list_directory", "List a folder inside a guest.", "guest_dir_list", list_directory, PATH),
    look("proxmox_service_status", "How a service in a guest stands.", "guest_service", service_status, SERVICE),
    *(
        act(
            f"proxmox_service_{action}",
            f"{action.capitalize()} a service inside a guest.",
            f"guest_service_control action={action}",
            controlling(action),
            SERVICE,
        )
        for action in ("start", "stop", "restart")
    ),
)
