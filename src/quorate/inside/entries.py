"""Files and folders inside guests, on POSIX and Windows."""

from __future__ import annotations

from dataclasses import dataclass


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
