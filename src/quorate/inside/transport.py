"""What every transport into a guest can do. A command is an argument array that never passes through a shell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from quorate.secret import Secret

KEPT_BYTES = 256 * 1024
"""How much of each output stream is kept by default."""


@dataclass(frozen=True, slots=True)
class Command:
    argv: tuple[str, ...]
    stdin: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: str | None = None
    password: Secret | None = None
    """For sudo, if the login has to become another user."""


@dataclass(frozen=True, slots=True)
class Output:
    """The result of a command. Only the beginning of a longer stream is kept."""

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
    """Identifies it to callers, and contains its transport and guest."""

    @property
    def ended(self) -> bool:
        """Whether it is known to have ended, without asking the machine."""
        ...

    async def wait(self, seconds: float) -> Output | None:
        """Its output once it has ended; None if it is still running after that time."""
        ...

    async def partial_output(self) -> Output:
        """The output so far; always empty with the agent, which does not report it."""
        ...

    def leave(self) -> None:
        """Let it continue in the background without a waiting caller."""
        ...

    async def stop(self) -> None:
        """Terminate it, then kill it."""
        ...


class Transport(Protocol):
    name: str
    """agent, pct or ssh: shown in every result."""
    system: str
    """posix or windows"""

    @property
    def description(self) -> str:
        """For people: `pct exec 101 on pve2 as root`."""
        ...

    async def run(self, command: Command, *, seconds: float = 30.0, keep: int = KEPT_BYTES) -> Output:
        """Run it to its end. After `seconds` it is killed and TimedOut raised; cancellation kills it, too."""
        ...

    async def start(self, command: Command, *, limit: float | None = None, keep: int = KEPT_BYTES) -> Job:
        """Start it and return at once; it is killed after `limit` seconds, if given."""
        ...

    async def read_file(self, path: str, *, offset: int = 0, limit: int) -> bytes:
        """Up to `limit` bytes of a file from `offset`. Raises NotFound, or GuestRefused with the guest's message."""
        ...

    async def write_file(self, path: str, data: bytes, *, append: bool = False) -> None:
        """Create or replace a file of any length, or append to it. Not atomic; callers rename for that."""
        ...
