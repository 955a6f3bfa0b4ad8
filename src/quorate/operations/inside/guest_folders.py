"""Looking at paths and folders inside guests."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from quorate.inside import files
from quorate.inside.paths import guest_path
from quorate.operations.inside.parameters import Path, WayName
from quorate.operations.machine import guest_machine, machine_label
from quorate.operations.machine_files import COLUMNS, entry_row, list_folder
from quorate.operations.registry import GuestRef, Risk, Table, operation, page
from quorate.operations.units import moment
from quorate.pve.cluster import Cluster


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words="big file size exists owner mode permissions modified inside guest path changed",
    example="guest=pihole path=/etc/hosts",
)
async def guest_path_stat(pve: Cluster, guest: GuestRef, path: Path, way: WayName | None = None) -> dict[str, Any]:
    """What is at a path inside a guest: type, size, mode, owner, time; for a link, its target."""
    found = await guest_machine(pve, guest, way)
    path = guest_path(path, found.transport.system)
    entry = await files.stat_path(found.transport, path)
    return {
        "guest": machine_label(found),
        "way": found.transport.description,
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
    found = await guest_machine(pve, guest, way)
    entries, cut = await list_folder(found.transport, path)
    table = page(COLUMNS, [entry_row(entry) for entry in entries[offset : offset + limit]], limit=limit, offset=0)
    table.offset, table.total = offset, len(entries)
    table.facts = {"guest": machine_label(found), "way": found.transport.description, "path": path}
    table.facts |= {"note": cut} if cut else {}
    return table
