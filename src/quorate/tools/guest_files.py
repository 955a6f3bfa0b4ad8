"""Files and folders inside guests."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from quorate.inside import files
from quorate.inside.entries import guest_path
from quorate.operations.plan import Plan
from quorate.operations.registry import GuestRef, Risk, Table, operation, page
from quorate.pve.cluster import Cluster
from quorate.tools.commands import Path, WayName
from quorate.tools.machines import (
    COLUMNS,
    READ_AT_ONCE,
    Encoding,
    FileWrite,
    content_bytes,
    entry_row,
    guest_machine,
    list_folder,
    machine_label,
    read_file,
    write_action,
)
from quorate.units import moment


@operation(
    toolset="inside",
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
    machine = await guest_machine(pve, guest, way)
    facts = await read_file(machine.transport, path, offset=offset, limit=limit, encoding=encoding)
    return {"guest": machine_label(machine), "way": machine.transport.description, **facts}


@operation(
    toolset="inside",
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
    machine = await guest_machine(pve, guest, way)
    action = write_action(pve.command_rules, machine, FileWrite(path, data, append, parents, mode, owner))
    facts = {"guest": machine_label(machine), "way": machine.transport.description, "path": path, "bytes": len(data)}
    return Plan(action.summary, (action,), facts=facts)


@operation(
    toolset="inside",
    risk=Risk.LOOK_INSIDE,
    search_words="big file size exists owner mode permissions modified inside guest path changed",
    example="guest=pihole path=/etc/hosts",
)
async def guest_path_stat(pve: Cluster, guest: GuestRef, path: Path, way: WayName | None = None) -> dict[str, Any]:
    """What is at a path inside a guest: type, size, mode, owner, time; for a link, its target."""
    machine = await guest_machine(pve, guest, way)
    path = guest_path(path, machine.transport.system)
    entry = await files.stat_path(machine.transport, path)
    return {
        "guest": machine_label(machine),
        "way": machine.transport.description,
        "path": path,
        "type": entry.type,
        "target": entry.target,
        "size": entry.size,
        "mode": entry.mode,
        "owner": entry.owner,
        "group": entry.group,
        "modified": moment(entry.modified),
        **({"hard_links": entry.links} if entry.type == "file" and entry.links > 1 else {}),
    }


@operation(
    toolset="inside",
    risk=Risk.LOOK_INSIDE,
    search_words="files path folder directory ls inside guest",
    example="guest=pihole path=/etc",
)
async def guest_dir_list(
    pve: Cluster,
    guest: GuestRef,
    path: Path,
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200,
    offset: Annotated[int, Meta(ge=0)] = 0,
    way: WayName | None = None,
) -> Table:
    """List a folder inside a guest by name, including hidden files; name_base64 where a name is not valid text."""
    machine = await guest_machine(pve, guest, way)
    entries, cut = await list_folder(machine.transport, path)
    table = page(COLUMNS, [entry_row(entry) for entry in entries[offset : offset + limit]], limit=limit, offset=0)
    table.offset, table.total = offset, len(entries)
    table.facts = {"guest": machine_label(machine), "way": machine.transport.description, "path": path}
    table.facts |= {"note": cut} if cut else {}
    return table
