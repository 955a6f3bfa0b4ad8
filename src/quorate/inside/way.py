"""What every way into a guest can do. A command is an argument array; no way ever passes it through a shell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from quorate.secret import Secret

KEPT_BYTES = 256 * 1024
"""How much of each output stream is kept unless the caller says otherwise."""


@dataclass(frozen=True, slots=True)
class Command:
    argv: tuple[str, ...]
    stdin: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: str | None = None
    password: Secret | None = None
    """For sudo, where the login has to become another user."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a command left behind. Of a longer stream its first bytes are kept, and its whole length if known."""

    exit_code: int | None
    """None if a signal ended it."""
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_cut: bool = False
    stderr_cut: bool = False
    signal: str | None = None


class Job(Protocol):
    """A command that was started and may still run."""

    handle: str
    """Names it to guest_job, and tells which way and guest it belongs to."""

    @property
    def over(self) -> bool:
        """Whether it is known to have ended, without asking anybody."""
        ...

    async def wait(self, seconds: float) -> Output | None:
        """Its output once it has ended; None if it still runs after that time."""
        ...

    async def so_far(self) -> Output:
        """What it has printed up to now, where the way can tell; empty where it cannot (the agent)."""
        ...

    async def stop(self) -> None:
        """End it: politely first, then not."""
        ...


class Way(Protocol):
    name: str
    """agent, pct or ssh: shown in every answer."""
    system: str
    """posix or windows: which commands there are."""

    @property
    def description(self) -> str:
        """For people: `pct exec 101 on pve2 as root`."""
        ...

    async def run(self, command: Command, *, seconds: float = 30.0, keep: int = KEPT_BYTES) -> Output:
        """Run it to its end. It is ended, and TimedOut raised, after `seconds` or when the caller gives up."""
        ...

    async def start(self, command: Command, *, limit: float | None = None, keep: int = KEPT_BYTES) -> Job:
        """Start it and come back at once; it is ended after `limit` seconds if that is given."""
        ...

    async def read_file(self, path: str, *, offset: int = 0, limit: int) -> bytes:
        """Up to `limit` bytes of a file from `offset`. NotFound, or GuestRefused with the guest's own words."""
        ...

    async def write_file(self, path: str, data: bytes, *, append: bool = False) -> None:
        """Make or replace a file, of any length; `append` adds to it. Not atomic: that is made of this and a rename."""
        ...
