"""Looking at paths and folders inside guests."""

from __future__ import annotations

import base64
import unicodedata
from typing import Annotated, Any

from msgspec import Meta

from quorate.inside import files
from quorate.inside.entries import Entry
from quorate.inside.paths import guest_path
from quorate.inside.reaching import way_into
from quorate.operations.inside.parameters import Path, WayName
from quorate.operations.registry import GuestRef, Risk, Table, operation, page
from quorate.operations.units import moment
from quorate.pve.cluster import Cluster

COLUMNS = ("name", "type", "size", "mode", "owner", "group", "modified", "name_base64")


@operation(risk=Risk.LOOK_INSIDE)
async def guest_path_stat(pve: Cluster, guest: GuestRef, path: Path, way: WayName | None = None) -> dict[str, Any]:
    """What is at a path inside a guest: type, size, mode, owner, time; of a link its target."""
    found = await pve.guest(guest)
    into = await way_into(pve, found, prefer=way)
    path = guest_path(path, into.system)
    entry = await files.look_at(into, path)
    return {
        "guest": found.label,
        "way": into.description,
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


@operation(risk=Risk.LOOK_INSIDE)
async def guest_dir_list(
    pve: Cluster,
    guest: GuestRef,
    path: Path,
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200,
    offset: Annotated[int, Meta(ge=0)] = 0,
    way: WayName | None = None,
) -> Table:
    """List a folder inside a guest, hidden files too, by name; name_base64 where a name cannot be shown as it is."""
    found = await pve.guest(guest)
    into = await way_into(pve, found, prefer=way)
    path = guest_path(path, into.system)
    listing = await files.list_folder(into, path)
    entries = sorted(listing.entries, key=lambda entry: entry.name)
    table = page(COLUMNS, [_row(entry) for entry in entries[offset : offset + limit]], limit=limit, offset=0)
    table.offset, table.total = offset, len(entries)
    table.facts = {"guest": found.label, "way": into.description, "path": path}
    if listing.cut:
        table.facts["note"] = f"The folder holds more than the {len(entries)} that were read, in no order"
    return table


def _row(entry: Entry) -> list[Any]:
    name = entry.name.decode("utf-8", "replace")
    return [
        name,
        entry.type,
        entry.size if entry.type == "file" else None,
        entry.mode,
        entry.owner,
        entry.group,
        moment(entry.modified),
        "" if _is_plain(name, entry.name) else base64.b64encode(entry.name).decode(),
    ]


def _is_plain(text: str, name: bytes) -> bool:
    """Whether the text shows the name as it is: nothing unseen, nothing replaced."""
    return text.encode() == name and all(unicodedata.category(char)[0] not in "CZ" or char == " " for char in text)
