"""Files inside a guest: status, listing, reading, and atomic writing."""

from __future__ import annotations

import asyncio
import contextlib

from quorate.hints import see, tools
from quorate.inside import posix_files, windows_files
from quorate.inside.entries import Entry, Listing, WriteTarget
from quorate.inside.transport import Transport
from quorate.problems import Conflict, Problem

# Reading one of these could block or never end.
_UNREADABLE = {"fifo": "a pipe", "socket": "a socket", "device": "a device"}


async def stat_path(transport: Transport, path: str) -> Entry:
    """The entry at a path; links are not followed."""
    return (
        await windows_files.stat_path(transport, path)
        if transport.system == "windows"
        else await posix_files.stat_path(transport, path)
    )


async def list_folder(transport: Transport, path: str) -> Listing:
    if transport.system == "windows":
        return await windows_files.list_folder(transport, path)
    return await posix_files.list_folder(transport, path)


async def require_readable(transport: Transport, path: str) -> Entry:
    """The file behind a path and its links. Raises Conflict if it has no content to read."""
    if transport.system == "windows":
        entry = await windows_files.stat_path(transport, path)
    else:
        entry = await posix_files.stat_path(transport, path, behind_links=True)
    if entry.type == "folder":
        raise Conflict(f"{path} is a folder", next_step=see("List its contents", tools.guest_dir_list(path=path)))
    if entry.type in _UNREADABLE:
        raise Conflict(f"{path} is {_UNREADABLE[entry.type]}, not a file", why="Reading it might never end")
    return entry


async def write_atomically(
    transport: Transport,
    path: str,
    data: bytes,
    *,
    parents: bool = False,
    append: bool = False,
    owner: str | None = None,
    mode: str | None = None,
) -> WriteTarget:
    """Replace a file atomically: a reader sees the old content or the new, never a part. An append is not atomic."""
    windows = transport.system == "windows"
    if windows:
        windows_files.refuse_ownership(owner, mode)
        target = await windows_files.prepare(transport, path, parents=parents, append=append)
    else:
        target = await posix_files.prepare(transport, path, parents=parents, append=append)
    if not target.temporary:
        await transport.write_file(target.path, data, append=True)
        if owner or mode:
            await posix_files.adjust(transport, target.path, owner=owner, mode=mode)
        return target
    try:
        await transport.write_file(target.temporary, data)
        if windows:
            await windows_files.finish(transport, target, size=len(data))
        else:
            await posix_files.finish(transport, target, owner=owner, mode=mode, size=len(data))
    except BaseException as error:
        await _tidy(transport, target.temporary)
        if isinstance(error, Problem):  # callers know the file by its own name
            error.what = error.what.replace(target.temporary, target.path)
        raise
    return target


async def _tidy(transport: Transport, temporary: str) -> None:
    """Remove the temporary file, even if the caller was canceled; the original error is what counts."""
    removal = asyncio.ensure_future(
        (windows_files if transport.system == "windows" else posix_files).discard(transport, temporary)
    )
    with contextlib.suppress(Problem):
        await asyncio.shield(removal)
