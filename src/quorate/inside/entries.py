"""Files and folders inside guests, as both kinds of system tell about them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One file, folder or link."""

    name: bytes
    """As the guest has it; hardly ever is it not UTF-8."""
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
    """Where a link leads."""


@dataclass(frozen=True, slots=True)
class Listing:
    entries: list[Entry]
    cut: bool = False
    """There are more than were read."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file is about to be written: the target behind all links, and a temporary file beside it."""

    target: str
    temporary: str
    """Empty where the file is only added to."""
    old: Entry | None
    """What is there now."""
