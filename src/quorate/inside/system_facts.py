"""What is known about the system inside a guest, from whichever source told it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class FileSystem:
    mount: str
    total: int
    used: int
    type: str = ""


@dataclass(frozen=True, slots=True)
class SystemFacts:
    os: str = ""
    kernel: str = ""
    hostname: str = ""
    uptime: float | None = None
    load: str = ""
    cpus: int | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    timezone: str = ""
    clock: float | None = None
    """The guest's own time, since 1970."""
    filesystems: list[FileSystem] = field(default_factory=list)
    users: list[str] = field(default_factory=list)

    def filled_from(self, other: SystemFacts) -> SystemFacts:
        """These facts, and those of the other where these say nothing."""
        missing = {one.name: getattr(other, one.name) for one in fields(self) if _says_nothing(getattr(self, one.name))}
        return replace(self, **missing)


def _says_nothing(value: Any) -> bool:
    return value is None or value == "" or value == []
