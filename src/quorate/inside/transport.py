"""Transports: ways to run commands and move files inside a guest or host, all with the same interface.

Names that become part of commands there (users, groups, modes, services) are checked by strict patterns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from quorate.hints import see, tools
from quorate.problems import BadArgument
from quorate.secret import Secret

_ACCOUNT = r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}\$?"
_USER = re.compile(_ACCOUNT)
_OWNER = re.compile(rf"{_ACCOUNT}(?::{_ACCOUNT})?|:{_ACCOUNT}")
_MODE = re.compile(r"[0-7]{3,4}")
_UNIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9:_.@\\+-]{0,254}")
_WINDOWS_SERVICE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ .@$()+&#{}-]{0,254}")
_UNIT_TYPES = ("service", "socket", "timer", "path", "mount", "automount", "swap", "target", "slice", "scope", "device")


def require_user(text: str) -> str:
    if _USER.fullmatch(text) is None:
        raise BadArgument(f"{text!r} is not a user name", why="User names consist of letters, digits and _ . @ + -")
    return text


def require_owner(text: str) -> str:
    """`user`, `user:group` or `:group`, by name or number."""
    if _OWNER.fullmatch(text) is None:
        raise BadArgument(
            f"{text!r} is not an owner",
            why="User and group consist of letters, digits and _ . @ + -",
            next_step="Write user, user:group or :group, by name or number",
        )
    return text


def require_mode(text: str) -> str:
    if _MODE.fullmatch(text) is None:
        raise BadArgument(f"{text!r} is not a file mode", next_step="Write three or four octal digits, such as 0644")
    return text


def require_service(text: str, system: str) -> str:
    """A service name, without wildcards or options."""
    pattern = _WINDOWS_SERVICE if system == "windows" else _UNIT
    if pattern.fullmatch(text) is None:
        raise BadArgument(
            f"{text!r} is not a service name",
            why="A name starts with a letter or digit and contains no spaces, wildcards or quotes"
            if system != "windows"
            else "A name starts with a letter or digit and contains no wildcards or quotes",
            next_step=see("List the services", tools.host_service, tools.guest_service),
        )
    return text


def unit_name(text: str) -> str:
    """The full name of a unit: `ssh` is `ssh.service`."""
    return text if text.rpartition(".")[2] in _UNIT_TYPES else f"{text}.service"


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
    """The password for sudo, if the login has to become another user."""


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

    @property
    def text(self) -> str:
        """The standard output as text."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def complaint(self) -> str:
        """The error output as text, without surrounding space."""
        return self.stderr.decode("utf-8", "replace").strip()


def fault_of(output: Output, *, late: bool = False, limit: float | None = None) -> str:
    """How a command that has ended failed; empty if it succeeded."""
    if late:
        return f"stopped after {limit:g} s" if limit else "stopped at its time limit"
    if output.signal is not None:
        return f"command failed (signal {output.signal})"
    if output.exit_code is None:
        return "command failed (no exit code)"
    return f"command failed (exit {output.exit_code})" if output.exit_code else ""


def is_fault(text: object) -> bool:
    """Whether the result or the state of a command says that it failed."""
    return str(text).startswith(("command failed", "stopped after", "stopped at"))


class Job(Protocol):
    """A command that was started and may still run."""

    handle: str
    """Identifies it to callers, and contains its transport and guest."""

    @property
    def ended(self) -> bool:
        """True if the command is known to have ended, without asking the machine."""
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
        """A description for people, such as `pct exec 101 on pve2 as root`."""
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
