"""Task identifiers in PVE's format: `UPID:node:pid:pstart:starttime:type:id:user:`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PATTERN = re.compile(
    r"^UPID:([a-zA-Z0-9](?:[a-zA-Z0-9\-]*[a-zA-Z0-9])?):([0-9A-Fa-f]{8}):([0-9A-Fa-f]{8,9}):([0-9A-Fa-f]{8})"
    r":([^:\s/]+):([^:\s/]*):([^:\s/]+):$"
)


@dataclass(frozen=True, slots=True)
class Upid:
    """The parts of a task identifier."""

    node: str
    pid: int
    pstart: int
    starttime: int
    type: str
    id: str
    user: str

    def __str__(self) -> str:
        return (
            f"UPID:{self.node}:{self.pid:08X}:{self.pstart:08X}:{self.starttime:08X}:{self.type}:{self.id}:{self.user}:"
        )

    @property
    def owner(self) -> str:
        """The user, without the token that acted for it."""
        return self.user.partition("!")[0]

    @property
    def tokenid(self) -> str | None:
        """The name of the token that started the task, if one did."""
        return self.user.partition("!")[2] or None


def parse_upid(text: str) -> Upid | None:
    """The parts of `text`, or None where PVE could not parse it either."""
    match = _PATTERN.match(text)
    if match is None:
        return None
    node, pid, pstart, starttime, kind, target, user = match.groups()
    return Upid(node, int(pid, 16), int(pstart, 16), int(starttime, 16), kind, target, user)
