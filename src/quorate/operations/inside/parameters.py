"""What the operations inside guests have in common: their parameters, and the calls that a change makes."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from quorate.inside.way import Way
from quorate.operations.plan import Call, Target, guest_call
from quorate.pve.cluster import Guest

WayName = Annotated[Literal["agent", "pct", "ssh"], Meta(description="Way in, instead of the best one")]
Path = Annotated[str, Meta(description="Absolute path in the guest")]


def target_of(guest: Guest) -> Target:
    return Target(guest.row.kind, str(guest.vmid), guest.row.name, guest.row.node)


def needs_of(guest: Guest, way: Way, *, writes: bool = False) -> tuple[Call, ...]:
    """The calls of the API by which the agent runs a command and writes files; the other ways make none."""
    if way.name != "agent":
        return ()
    runs = guest_call(guest, "POST", "agent/exec", "Run a command inside", command=["true"])
    stores = guest_call(guest, "POST", "agent/file-write", "Write a file inside", file="/x", content="")
    return (runs, stores) if writes else (runs,)
