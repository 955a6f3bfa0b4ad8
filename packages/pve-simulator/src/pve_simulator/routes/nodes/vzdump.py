"""Immediate backups."""

from __future__ import annotations

import re
from typing import Any

from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import bad_parameters, failure
from pve_simulator.http.routing import Call, route
from pve_simulator.storage import archives, backup_jobs, volume_access, volumes, vzdump

_UNSAFE = re.compile(r"[^\w!%+,\-./:@^]")
_CLI_ONLY = "option is only allowed on the command line interface."


@route("POST /nodes/{node}/vzdump")
async def back_up(call: Call) -> str:
    params = call.params
    if params.get("stdout"):
        raise bad_parameters({"stdout": _CLI_ONLY})
    backup_jobs.check_privileges(call)
    backup_jobs.check_options(params)
    world, pool = call.world, params.get("pool")
    if pool and pool not in world.access.pools:
        raise failure(f"pool '{pool}' does not exist")
    backup_jobs.check_pool(call)
    call.require(f"/storage/{params.get('storage', 'local')}", "Datastore.AllocateSpace")
    if params.get("stop"):
        for task in world.tasks.active(kind="vzdump"):
            if task.upid.node == call.node:
                await world.tasks.cancel(str(task.upid))
    chosen = backup_jobs.selected_vmids(world, params)
    local = tuple(vmid for vmid in chosen if vmid not in world.guests or world.guests[vmid].node == call.node)
    elsewhere = tuple(vmid for vmid in chosen if vmid not in local)
    if not local and (params.get("stop") or not _takes_all(params)):
        return "OK"
    job = vzdump.Job(world, call.node, call.authid, _command_line(params), params, local, elsewhere)
    return call.start_task("vzdump", str(local[0]) if len(local) == 1 else "", vzdump.run(job))


def _takes_all(params: dict[str, Any]) -> bool:
    return bool(params.get("all") or ("exclude" in params and "pool" not in params))


def _command_line(params: dict[str, Any]) -> str:
    """The call as a shell command, the first line of every backup log."""
    words = ["vzdump", *backup_jobs.vmid_list(params.get("vmid"))]
    for name, value in params.items():
        if name in ("vmid", "stdout"):
            continue
        for each in value if isinstance(value, list) else [value]:
            text = str(int(each)) if isinstance(each, bool) else str(each)
            if name == "mailto":
                text = ",".join(split_list(text))
            words += [f"--{name}", _quote(text)] if text else []
    return " ".join(words)


def _quote(text: str) -> str:
    return text if text and not _UNSAFE.search(text) else "'" + text.replace("'", "'\\''") + "'"


@route("GET /nodes/{node}/vzdump/defaults")
def defaults(call: Call) -> dict[str, Any]:
    storage_id = call.params.get("storage", "local")
    call.require(f"/storage/{storage_id}", "Datastore.Audit", "Datastore.AllocateSpace", any_of=True)
    storage = call.world.storage(storage_id)
    if "backup" not in storage.content:
        raise failure(f"can't use storage '{storage_id}' for backups - wrong content type")
    row: dict[str, Any] = {
        "all": 0, "bwlimit": 0, "compress": "0", "fleecing": {"enabled": 0}, "ionice": 7, "lockwait": 180,
        "mailnotification": "always", "mode": "snapshot", "notification-mode": "auto",
        "performance": {"max-workers": 16, "pbs-entries-max": 1048576}, "pigz": 0,
        "prune-backups": storage.config.get("prune-backups", "keep-all=1"), "quiet": 0, "remove": 1, "stdexcludes": 1,
        "stop": 0, "stopwait": 10, "storage": storage_id, "zstd": 1,
    }  # fmt: skip
    if storage.type != "pbs":
        row["dumpdir"] = volumes.path_of(storage, "backup/").rstrip("/")
    if not call.allowed(f"/nodes/{call.node}", "Sys.Audit"):
        row = {key: value for key, value in row.items() if key not in ("dumpdir", "ionice")}
    return row


@route("GET /nodes/{node}/vzdump/extractconfig")
def extract_config(call: Call) -> str:
    volid = call.params["volume"]
    storage, parsed = volume_access.check_access(call, volid, content="backup")
    if parsed.vmid is not None:
        call.require(f"/vms/{parsed.vmid}", "VM.Backup")
    volume = volumes.find(call.world, call.node, volid)
    if volume is None:
        if storage.type != "pbs":
            raise failure(f"volume '{volid}' does not exist")
        raise failure(f"cannot extract configuration of '{volid}'")
    return archives.open_archive(call.world, volume).text
