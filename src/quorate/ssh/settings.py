"""The operator's settings for SSH to nodes and guests."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quorate.secret import Secret
from quorate.ssh.target import SSH_PORT, SshTarget, split_port

MAX_OUTPUT = 1024 * 1024

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Login:
    """How to log in; None means that a broader setting applies."""

    host: str | None = None
    port: int | None = None
    user: str | None = None
    key: Path | None = None
    password: Secret | None = None
    jump: SshTarget | None = None

    def at(self, host: str) -> SshTarget:
        """The target at `host`, which may include a port: `10.0.0.5:2222`."""
        name, port = split_port(host)
        return SshTarget(
            name, port or self.port or SSH_PORT, self.user or "root", self.key, self.password, jump=self.jump
        )


@dataclass(frozen=True, slots=True)
class SshSettings:
    nodes: Login = Login()
    node_hosts: Mapping[str, str] = field(default_factory=dict)
    guests: Login = Login()
    """For every guest."""
    single_guests: Mapping[int, Login] = field(default_factory=dict)
    known_hosts: tuple[Path, ...] = ()
    pins: Path = Path("known_hosts")
    networks: tuple[Network, ...] = ()
    """Networks that contain every usable address reported by a cluster or guest; empty means any."""
    follow_reported: bool = True
    """Whether such addresses are used without networks: not for a cluster that a `.env` file describes."""
    max_output: int = MAX_OUTPUT
    """The limit for each output of a command, whatever the caller requests."""
    variables: Callable[[], Mapping[str, str]] = field(default=dict, compare=False)
    """The environment at the time of a lookup: PROXMOX_VM_101_SSH_HOST and similar."""
