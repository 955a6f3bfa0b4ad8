"""What the operations inside guests have in common: parameters, looking inside, and the calls that a change makes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Literal, TypeVar

from msgspec import Meta

from quorate.inside.transport import Transport
from quorate.inside.transport_selection import select_transport
from quorate.operations.plan import Call, guest_call
from quorate.problems import Problem
from quorate.pve.cluster import Cluster, Guest

WayName = Annotated[Literal["agent", "pct", "ssh"], Meta(description="Transport")]
Path = Annotated[str, Meta(description="Absolute")]

Facts = TypeVar("Facts")


async def look_inside(
    pve: Cluster, guest: Guest, way: WayName | None, collect: Callable[[Transport, str], Awaitable[Facts]]
) -> tuple[str, Facts | Problem]:
    """The transport and the facts that only show inside, or a Problem if no transport works. A named one must work."""
    try:
        into = await select_transport(pve, guest, prefer=way)
        return into.description, await collect(into, guest.label)
    except Problem as problem:
        if way is not None:
            raise
        return "", problem


def needs_of(guest: Guest, transport: Transport, *, writes: bool = False) -> tuple[Call, ...]:
    """The API calls by which the agent runs a command and writes files; other transports make none."""
    if transport.name != "agent":
        return ()
    runs = guest_call(guest, "POST", "agent/exec", "Run a command inside", command=["true"])
    stores = guest_call(guest, "POST", "agent/file-write", "Write a file inside", file="/x", content="")
    return (runs, stores) if writes else (runs,)
