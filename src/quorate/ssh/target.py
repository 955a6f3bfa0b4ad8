"""Where an SSH connection goes and who logs in there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quorate.problems import NotConfigured
from quorate.secret import Secret

SSH_PORT = 22


@dataclass(frozen=True, slots=True)
class SshTarget:
    host: str
    port: int = SSH_PORT
    user: str = "root"
    key: Path | None = None
    """A private key. Without one, the keys of the SSH agent or the default files of `~/.ssh` are tried."""
    password: Secret | None = None
    jump: SshTarget | None = None
    """Connect through this host."""

    @property
    def address(self) -> str:
        """The address as `quorate trust` accepts it."""
        return address(self.host, self.port)

    def __str__(self) -> str:
        through = f" through {self.jump}" if self.jump else ""
        return f"{self.user}@{self.address}{through}"


def address(host: str, port: int) -> str:
    if port == SSH_PORT:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_port(text: str) -> tuple[str, int | None]:
    """Host and port of `host`, `host:port`, an IPv6 address or `[address]:port`."""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    else:
        host, port = text, ""
    if not host or (port and not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536)):
        raise NotConfigured(f"{text!r} is not an SSH address", next_step="Write host, host:port or [address]:port")
    return host, int(port) if port else None
