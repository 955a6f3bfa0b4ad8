"""Backups on a node: make them, ask for the defaults, look into one."""

from __future__ import annotations

import re
from typing import Any

from quorate.sim import archives, backup_selection, volume_names, volumes, vzdump
from quorate.sim.refusals import bad_parameters, failure
from quorate.sim.routing import Call, route

_UNSAFE = re.compile(r"[^\w!%+,\-./:=@^]")
_CLI_ONLY = "option is only allowed on the command line interface."


@route("POST /nodes/{node}/vzdump")
async def back_up(call: Call) -> str:
    params = call.params
    if params.get("stdout"):
        raise bad_parameters({"stdout": _CLI_ONLY})
    backup_selection.check_rights(call)
    backup_selection.check_options(params)
    world = call.world
    if params.get("stop"):
        for task in world.tasks.active(kind="vzdump"):
            if task.upid.node == call.node:
                await world.tasks.cancel(str(task.upid))
    chosen = backup_selection.selected_vmids(world, params)
    local = tuple(vmid for vmid in chosen if vmid not in world.guests or world.guests[vmid].node == call.node)
    elsewhere = tuple(vmid for vmid in chosen if vmid not in local)
    if not local and (params.get("stop") or not _takes_all(params)):
        return "OK"
    if "storage" in params:
        call.require(f"/storage/{params['storage']}", "Datastore.AllocateSpace")
    job = vzdump.Job(world, call.node, call.authid, _command_line(params), params, local, elsewhere)
    return call.start_task("vzdump", str(local[0]) if len(local) == 1 else "", vzdump.run(job))


def _takes_all(params: dict[str, Any]) -> bool:
    return bool(params.get("all") or ("exclude" in params and "pool" not in params))


def _command_line(params: dict[str, Any]) -> str:
    """The call as a shell command, which begins every backup's log."""
    words = ["vzdump", *backup_selection.vmid_list(params.get("vmid"))]
    for name, value in params.items():
        if name in ("vmid", "stdout"):
            continue
        for each in value if isinstance(value, list) else [value]:
            text = str(int(each)) if isinstance(each, bool) else str(each)
            words += [f"--{name}", _quoted(text)]
    return " ".join(words)


def _quoted(text: str) -> str:
    return text if text and not _UNSAFE.search(text) else "'" + text.replace("'", "'\\''") + "'"


@route("GET /nodes/{node}/vzdump/defaults")
def defaults(call: Call) -> dict[str, Any]:
    storage_id = call.params.get("storage", "local")
    call.require(f"/storage/{storage_id}", "Datastore.Audit", "Datastore.AllocateSpace", any_of=True)
    storage = volume_names.existing_storage(call.world, storage_id)
    if "backup" not in storage.content:
        raise failure(f"can't use storage '{storage_id}' for backups - wrong content type")
    row: dict[str, Any] = {
        "all": 0,
        "bwlimit": 0,
        "compress": "0",
        "fleecing": {"enabled": 0},
        "ionice": 7,
        "lockwait": 180,
        "mailnotification": "always",
        "mode": "snapshot",
        "notification-mode": "auto",
        "performance": {"max-workers": 16, "pbs-entries-max": 1048576},
        "pigz": 0,
        "prune-backups": storage.config.get("prune-backups", "keep-all=1"),
        "quiet": 0,
        "remove": 1,
        "stdexcludes": 1,
        "stop": 0,
        "stopwait": 10,
        "storage": storage_id,
        "zstd": 1,
    }
    if storage.type != "pbs":
        row["dumpdir"] = volumes.path_of(storage, "backup/").rstrip("/")
    if not call.allowed(f"/nodes/{call.node}", "Sys.Audit"):
        row = {key: value for key, value in row.items() if key not in ("dumpdir", "ionice")}
    return row


@route("GET /nodes/{node}/vzdump/extractconfig")
def extract_config(call: Call) -> str:
    volid = call.params["volume"]
    storage, parsed = volume_names.check_access(call, volid)
    if parsed.vmid is not None:
        call.require(f"/vms/{parsed.vmid}", "VM.Backup")
    volume = volumes.find(call.world, call.node, volid)
    if parsed.content != "backup" or volume is None:
        if parsed.content == "backup" and storage.type != "pbs":
            raise failure(f"volume '{volid}' does not exist")
        raise failure(f"cannot extract configuration of '{volid}'")
    return archives.open_archive(call.world, volume).text
