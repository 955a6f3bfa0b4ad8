"""Which guests a backup is about and which options go together; the same for a job and for a single run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.sim.config_files import split_list
from quorate.sim.refusals import bad_parameters, forbidden
from quorate.sim.routing import Call
from quorate.sim.world import World

_CONFLICT = "option conflicts with option 'vmid'"
_ROOT_ONLY = ("tmpdir", "dumpdir", "script", "job-id")
_NEEDS_SYSTEM_RIGHTS = ("bwlimit", "ionice", "performance")


def vmid_list(text: Any) -> list[str]:
    """The guests of a `vmid` or `exclude` option, each once and in order."""
    return sorted(dict.fromkeys(split_list(text)), key=int)


def check_rights(call: Call) -> None:
    """Options that not everybody with the right to back up may use."""
    params = call.params
    if call.is_root:
        return
    for name in _ROOT_ONLY:
        if name in params:
            raise bad_parameters({name: "Only root may set this option."})
    if any(name in params for name in _NEEDS_SYSTEM_RIGHTS):
        call.require("/", "Sys.Modify")
    if "prune-backups" in params and "storage" in params:
        call.require(f"/storage/{params['storage']}", "Datastore.Allocate")
    pool = params.get("pool")
    if pool:
        if pool not in call.world.access.pools:
            raise forbidden(f"pool '{pool}' does not exist")
        call.require(f"/pool/{pool}", "VM.Backup")


def check_options(params: Mapping[str, Any], *, complete: bool = True) -> None:
    """Refuse contradictions, and with `complete` a selection that selects nothing."""
    if params.get("vmid"):
        for name in ("all", "exclude", "pool"):
            if params.get(name):
                raise bad_parameters({name: _CONFLICT})
    if "\n" in str(params.get("notes-template", "")):
        raise bad_parameters({"notes-template": "contains a line feed"})
    takes_all = params.get("all") or ("exclude" in params and not params.get("pool"))
    if complete and not (takes_all or params.get("stop") or params.get("pool") or params.get("vmid")):
        raise bad_parameters({"vmid": "property is missing"})


def selected_vmids(world: World, params: Mapping[str, Any]) -> list[int]:
    """The guests meant, on any node; numbers that nobody has are kept when they were named."""
    if params.get("vmid"):
        return [int(vmid) for vmid in vmid_list(params["vmid"])]
    pool = params.get("pool")
    if pool:  # `exclude` says nothing about a pool
        return sorted(world.access.pools[pool].vms) if pool in world.access.pools else []
    if params.get("all") or "exclude" in params:
        excluded = {int(vmid) for vmid in split_list(params.get("exclude"))}
        return sorted(vmid for vmid in world.guests if vmid not in excluded)
    return []


def is_meant(world: World, params: Mapping[str, Any], vmid: int) -> bool:
    """Whether a job includes this guest, seen on the job's node if it has one."""
    guest = world.guests.get(vmid)
    node = params.get("node")
    if node and guest is not None and guest.node != node:
        return False
    return vmid in selected_vmids(world, params)
