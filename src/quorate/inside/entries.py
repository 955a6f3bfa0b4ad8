"""Paths and entries of folders inside a machine."""

from __future__ import annotations

import re
from dataclasses import dataclass

from quorate.problems import BadArgument

LONGEST_PATH = 4096
LONGEST_NAME = 255

_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
# Forbidden in Windows names; another colon would name an alternate data stream.
_NOT_IN_WINDOWS_NAMES = re.compile(r'[<>:"|?*\x00-\x1f]')


def guest_path(path: str, system: str) -> str:
    """The path as programs of that system receive it. Raises BadArgument if it is not valid."""
    if "\0" in path:
        raise BadArgument("The path contains a NUL character", why="No file system has such names")
    if any("\ud800" <= char <= "\udfff" for char in path):
        raise BadArgument("The path contains an invalid Unicode surrogate", why="It cannot be sent to the guest")
    return _windows(path) if system == "windows" else _posix(path)


def parent_of(path: str) -> str:
    """The folder of a path from `guest_path`."""
    separator = "/" if path.startswith("/") else "\\"
    folder = path.rpartition(separator)[0]
    return folder if folder and not folder.endswith(":") else folder + separator


def _posix(path: str) -> str:
    if not path.startswith("/"):
        hint = "this guest does not run Windows; write /folder/file" if _DRIVE.match(path) else "start it with /"
        raise BadArgument(f"{path!r} is not an absolute path", next_step=f"Give the whole path: {hint}")
    names = [name for name in path.split("/") if name not in ("", ".")]
    _refuse_dots(path, names)
    if any(len(name.encode()) > LONGEST_NAME for name in names) or len(path.encode()) >= LONGEST_PATH:
        raise BadArgument(
            "The path is too long", why=f"A name may have {LONGEST_NAME} bytes, a path less than {LONGEST_PATH}"
        )
    return "/" + "/".join(names)


def _windows(path: str) -> str:
    if not _DRIVE.match(path):
        raise BadArgument(
            f"{path!r} is not an absolute Windows path",
            next_step="Give the whole path with its drive, such as C:\\folder\\file",
        )
    names = [name for name in re.split(r"[\\/]", path[3:]) if name not in ("", ".")]
    _refuse_dots(path, names)
    for name in names:
        if _NOT_IN_WINDOWS_NAMES.search(name) or name.endswith((" ", ".")):
            raise BadArgument(
                f"{name!r} is not a valid file name on Windows",
                why='Names contain none of < > : " | ? * and no control characters, and do not end in a space or dot',
            )
    return f"{path[0].upper()}:\\" + "\\".join(names)


def _refuse_dots(path: str, names: list[str]) -> None:
    if ".." in names:
        raise BadArgument(
            f"{path!r} contains ..",
            why="Where it leads depends on links inside the guest",
            next_step="Write the path without ..",
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """One file, folder or link."""

    name: bytes
    """The raw bytes, which are almost always UTF-8."""
    type: str
    """file, folder, link, fifo, socket, device or other"""
    size: int
    modified: float
    mode: str = ""
    """Four octal digits; on Windows the attributes."""
    owner: str = ""
    group: str = ""
    links: int = 1
    target: str = ""
    """Where a link points."""


@dataclass(frozen=True, slots=True)
class Listing:
    entries: list[Entry]
    cut: bool = False
    """Whether there are more entries."""


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """Where a file is about to be written: the path behind all links, and a temporary file in the same folder."""

    path: str
    temporary: str
    """Empty for an append."""
    old: Entry | None
    """The existing file, if any."""
