"""Files inside a guest of either kind: looking, listing, reading, and writing that is never seen half done."""

from __future__ import annotations

import asyncio
import contextlib

from quorate.inside import posix_files, windows_files
from quorate.inside.entries import Entry, Listing, Place
from quorate.inside.way import Way
from quorate.problems import Conflict, Problem

# What reads as if it were a file and would block or never end.
_UNREADABLE = {"fifo": "a pipe", "socket": "a socket", "device": "a device"}


async def look_at(way: Way, path: str) -> Entry:
    """What is at a path; of a link the link itself."""
    return await windows_files.look_at(way, path) if way.system == "windows" else await posix_files.look_at(way, path)


async def list_folder(way: Way, path: str) -> Listing:
    if way.system == "windows":
        return await windows_files.list_folder(way, path)
    return await posix_files.list_folder(way, path)


async def readable(way: Way, path: str) -> Entry:
    """The file behind a path and its links, if its content can be read."""
    if way.system == "windows":
        found = await windows_files.look_at(way, path)
    else:
        found = await posix_files.look_at(way, path, behind_links=True)
    if found.type == "folder":
        raise Conflict(f"{path} is a folder", next_step=f"guest_dir_list path={path} shows what is in it")
    if found.type in _UNREADABLE:
        raise Conflict(f"{path} is {_UNREADABLE[found.type]} and no file", why="Reading it could go on for ever")
    return found


async def write(
    way: Way,
    path: str,
    data: bytes,
    *,
    parents: bool = False,
    append: bool = False,
    owner: str | None = None,
    mode: str | None = None,
) -> Place:
    """Write a file in one go: whoever looks sees the old content or the new, never a part. Appending just adds."""
    windows = way.system == "windows"
    if windows:
        windows_files.refuse_rights(owner, mode)
        place = await windows_files.prepare(way, path, parents=parents, append=append)
    else:
        place = await posix_files.prepare(way, path, parents=parents, append=append)
    if not place.temporary:
        await way.write_file(place.target, data, append=True)
        if owner or mode:
            await posix_files.adjust(way, place.target, owner=owner, mode=mode)
        return place
    try:
        await way.write_file(place.temporary, data)
        if windows:
            await windows_files.finish(way, place, size=len(data))
        else:
            await posix_files.finish(way, place, owner=owner, mode=mode, size=len(data))
    except BaseException:
        await _tidy(way, place.temporary)
        raise
    return place


async def _tidy(way: Way, temporary: str) -> None:
    """Remove the temporary file, also where the caller has given up; what went wrong before is what is told."""
    removal = asyncio.ensure_future((windows_files if way.system == "windows" else posix_files).discard(way, temporary))
    with contextlib.suppress(Problem):
        await asyncio.shield(removal)
