"""Files and folders on hosts."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.selection import select
from quorate.inside import files
from quorate.inside.paths import guest_path
from quorate.operations.hosts.parameters import HostRefs, Sudo
from quorate.operations.hosts.several import answer_each, plan_each
from quorate.operations.machine import machine_label
from quorate.operations.machine_files import (
    COLUMNS,
    READ_AT_ONCE,
    Encoding,
    FileWrite,
    content_bytes,
    entry_row,
    list_folder,
    read_file,
    write_action,
)
from quorate.operations.plan import Action, Plan
from quorate.operations.registry import Risk, Table, operation, page

SEVERAL_BYTES = 4096
"""The limit for each file where several hosts are asked."""
SEVERAL_ENTRIES = 100
"""The same for folders."""


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words="read file on host server cat config list folder directory ls look at etc nas raspberry pi",
    example="host=nas path=/etc/hostname",
)
async def host_file(
    homelab: Homelab,
    host: HostRefs,
    path: Annotated[str, Meta(description="Absolute path of a file or folder")],
    offset: Annotated[int, Meta(ge=0, description="First byte or entry")] = 0,
    limit: Annotated[int, Meta(ge=1, le=READ_AT_ONCE, description="Maximum bytes")] = 64 * 1024,
    sudo: Sudo = False,
) -> dict[str, Any] | Table:
    """Read a file or list a folder on hosts."""
    chosen = await select(homelab, host)
    if not chosen.several:
        return await _one(_as(chosen.machines[0], sudo), path, offset, limit)
    contents: dict[str, str] = {}
    remarks: dict[str, str] = {}

    async def ask(one: Machine) -> list[list[Any]]:
        into = _as(one, sudo).transport
        entry = await files.stat_path(into, guest_path(path, into.system))
        if entry.type == "folder":
            entries, cut = await list_folder(into, path)
            shown = entries[offset : offset + SEVERAL_ENTRIES]
            if cut or len(shown) < len(entries) - offset:
                remarks[machine_label(one)] = f"{len(shown)} of {len(entries)} entries are shown"
            return [entry_row(each) for each in shown]
        answer = await read_file(into, path, offset=offset, limit=min(limit, SEVERAL_BYTES))
        contents[machine_label(one)] = answer.get("content") or answer.get("base64", "")
        if remark := answer.get("next") or ("it is base64" if answer.get("base64") else ""):
            remarks[machine_label(one)] = remark
        return [entry_row(entry)]

    table = await answer_each(chosen, ask, COLUMNS)
    for name, found in (("content", contents), ("notes", remarks)):
        if found:
            table.facts[name] = dict(sorted(found.items()))
    return table


async def _one(one: Machine, path: str, offset: int, limit: int) -> dict[str, Any] | Table:
    into = one.transport
    origin = {"host": machine_label(one), "way": into.description}
    path = guest_path(path, into.system)
    if (await files.stat_path(into, path)).type != "folder":
        return origin | await read_file(into, path, offset=offset, limit=limit)
    entries, cut = await list_folder(into, path)
    table = page(COLUMNS, [entry_row(entry) for entry in entries], limit=min(limit, 1000), offset=offset)
    table.facts = {**origin, "path": path, **({"note": cut} if cut else {})}
    return table


@operation(
    risk=Risk.CHANGE,
    unrecorded=("content",),
    shown_by=("host_file", "host", "path", "sudo"),
    search_words="write file on host server edit change config create replace append save etc nas raspberry pi",
    example="host=nas path=/tmp/note.txt content='back on Monday'",
)
async def host_file_write(
    homelab: Homelab,
    host: HostRefs,
    path: Annotated[str, Meta(description="Absolute path")],
    content: str,
    encoding: Encoding = "text",
    append: bool = False,
    parents: Annotated[bool, Meta(description="Create missing folders")] = False,
    mode: Annotated[str, Meta(description="Default: as it was")] | None = None,
    owner: Annotated[str, Meta(description="user:group")] | None = None,
    sudo: Sudo = False,
) -> Plan:
    """Write a file on hosts, replacing it atomically, or append to it."""
    write = FileWrite(path, content_bytes(content, encoding), append, parents, mode, owner)

    async def prepare(one: Machine) -> Action:
        return write_action(homelab.command_rules, _as(one, sudo), write)

    verb = "Append to" if append else "Write"
    return await plan_each(homelab, host, f"{verb} {path} on", prepare, ("file",))


def _as(one: Machine, sudo: bool) -> Machine:
    return one.with_root() if sudo else one
