"""Reading and writing files inside guests."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from quorate.operations.inside.parameters import Path, WayName
from quorate.operations.machine import guest_machine, machine_label
from quorate.operations.machine_files import READ_AT_ONCE, Encoding, FileWrite, content_bytes, read_file, write_action
from quorate.operations.plan import Plan
from quorate.operations.registry import GuestRef, Risk, operation
from quorate.pve.cluster import Cluster


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words=(
        "look file compose yml read show open cat tail head contents config inside guest path etc conf log auth"
    ),
    example="guest=pihole path=/etc/hostname",
)
async def guest_file_read(
    pve: Cluster,
    guest: GuestRef,
    path: Path,
    offset: Annotated[int, Meta(ge=0, description="First byte")] = 0,
    limit: Annotated[int, Meta(ge=1, le=READ_AT_ONCE, description="Maximum bytes")] = 64 * 1024,
    encoding: Annotated[Encoding, Meta(description="Default: text if the file is")] | None = None,
    way: WayName | None = None,
) -> dict[str, Any]:
    """Read a file inside a guest, or a part of it."""
    found = await guest_machine(pve, guest, way)
    facts = await read_file(found.transport, path, offset=offset, limit=limit, encoding=encoding)
    return {"guest": machine_label(found), "way": found.transport.description, **facts}


@operation(
    risk=Risk.CHANGE,
    unrecorded=("content",),
    shown_by=("guest_path_stat", "guest", "path", "way"),
    search_words=(
        "script path replace line config nginx write edit change create drop place file inside guest etc conf save"
        " append hosts"
    ),
    example="guest=pihole path=/root/note.txt content='back on Monday'",
)
async def guest_file_write(
    pve: Cluster,
    guest: GuestRef,
    path: Path,
    content: str,
    encoding: Encoding = "text",
    append: bool = False,
    parents: Annotated[bool, Meta(description="Create missing folders")] = False,
    mode: Annotated[str, Meta(description="Such as 0644")] | None = None,
    owner: Annotated[str, Meta(description="user:group")] | None = None,
    way: WayName | None = None,
) -> Plan:
    """Write a file inside a guest, replacing it atomically, or append to it."""
    data = content_bytes(content, encoding)
    found = await guest_machine(pve, guest, way)
    action = write_action(pve.command_rules, found, FileWrite(path, data, append, parents, mode, owner))
    facts = {"guest": machine_label(found), "way": found.transport.description, "path": path, "bytes": len(data)}
    return Plan(f"{action.summary} in {found.guest}", (action,), facts=facts)
