"""Turning guests into templates."""

from __future__ import annotations

from quorate.operations.plan import Plan, guest_call
from quorate.operations.readiness import refuse_locked, snapshots_of
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.pve.cluster import Cluster
from quorate.pve.errors import Conflict


@operation(risk=Risk.DESTROY)
async def guest_template(pve: Cluster, guest: GuestRef) -> Plan:
    """Convert a stopped guest into a template. It can never run again; there is no way back."""
    found = await pve.guest(guest)
    if found.row.template:
        return Plan(f"Convert {found} to a template", unchanged=(f"{found} is a template already",))
    status = await found.get("status/current")
    refuse_locked(found, status)
    if status.get("status") != "stopped":
        raise Conflict(
            f"{found} is running, and only a stopped guest can become a template",
            next_step="Shut it down first with guest_power action=shutdown",
        )
    snapshots = await snapshots_of(found)
    if snapshots:
        raise Conflict(
            f"{found} has snapshots, and a template cannot have any",
            why=f"They are {', '.join(row['name'] for row in snapshots)}",
            next_step="Delete them with snapshot_delete, or make a full clone and convert that",
        )

    async def converted() -> bool:
        return bool((await found.get("config")).get("template"))

    says = f"Convert {found} on {found.row.node} to a template"
    return Plan(
        says,
        (guest_call(found, "POST", "template", says, settled=converted, task_unnamed=True),),
        warnings=("This cannot be undone: a template never runs again, it is only cloned",),
        next_step=f"Make guests of it with guest_clone guest={found.vmid}",
    )
