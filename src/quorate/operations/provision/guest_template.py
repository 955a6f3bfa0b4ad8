"""Turning guests into templates."""

from __future__ import annotations

from quorate.hints import GUEST_CLONE, GUEST_POWER, SNAPSHOT_DELETE, Advice
from quorate.operations.plan import Plan, guest_call
from quorate.operations.preconditions import refuse_locked, snapshots_of
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.problems import Conflict
from quorate.pve.cluster import Cluster


@operation(
    risk=Risk.DESTROY,
    search_words="base image convert turn vm template golden",
    example="guest=win11",
)
async def guest_template(pve: Cluster, guest: GuestRef) -> Plan:
    """Convert a stopped guest into a template. It can never run again; this cannot be undone."""
    found = await pve.guest(guest)
    status = await found.get("status/current")
    if found.row.template:
        return Plan(f"Convert {found} to a template", unchanged=(f"{found} is already a template",))
    refuse_locked(found, status)
    if status.get("status") != "stopped":
        raise Conflict(
            f"{found} is running, and only a stopped guest can become a template",
            next_step=Advice("Shut it down first", GUEST_POWER(guest=found.vmid, action="shutdown")),
        )
    snapshots = await snapshots_of(found)
    if snapshots:
        raise Conflict(
            f"{found} has snapshots, and a template cannot have any",
            why=f"They are {', '.join(row['name'] for row in snapshots)}",
            next_step=Advice("Delete them, or make a full clone and convert that", SNAPSHOT_DELETE(guest=found.vmid)),
        )

    summary = f"Convert {found} on {found.row.node} to a template"
    return Plan(
        summary,
        (guest_call(found, "POST", "template", summary, task_unnamed=True),),
        warnings=("This cannot be undone: a template never runs again, it is only cloned",),
        next_step=Advice("Clone guests from it", GUEST_CLONE(guest=found.vmid)),
    )
