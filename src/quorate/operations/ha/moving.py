"""What the HA manager could not carry over to another node. It copies local disks by itself, but chooses nothing."""

from __future__ import annotations

import asyncio

from quorate.operations.provision.migrate import Mode, local_volumes, refuse_snapshots, refuse_untransferable
from quorate.operations.readiness import refuse_locked, storages_on, volumes
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.errors import Conflict

WAY_OUT = (
    "Move its disks with disk_change action=move to a storage that both nodes have, or take it out of HA with ha_remove"
    " and use guest_migrate, which can do more"
)


async def disks_to_copy(pve: Cluster, guest: Guest, node: str, *, live: bool) -> list[str]:
    """The local disks that would be copied; what cannot be is refused, as the manager would fail at it unheard."""
    status, config = await asyncio.gather(guest.get("status/current"), guest.get("config"))
    refuse_locked(guest, status)
    local = await local_volumes(pve, guest, config)
    here, there = await storages_on(pve, guest.row.node), await storages_on(pve, node)
    used = {one.storage for one in volumes(config) if one.on_storage}
    if lacking := sorted(name for name in used if name in here and name not in there):
        raise Conflict(f"{node} does not have the storage {', '.join(lacking)} of {guest}", next_step=WAY_OUT)
    runs = status.get("status") == "running"
    mode: Mode = "live" if live and runs and guest.is_vm else "offline"
    try:
        await refuse_snapshots(pve, guest, node, local, mode)
        if mode != "live":
            await refuse_untransferable(pve, guest, node, local, {})
    except Conflict as problem:
        raise Conflict(problem.what, why=problem.why, next_step=WAY_OUT) from None
    return [str(one) for one in local]
