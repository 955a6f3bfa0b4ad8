"""A registered host, as it is stored."""

from __future__ import annotations

import hashlib
import ipaddress
import re

import msgspec

from quorate.problems import BadArgument, Problem
from quorate.pve.subjects import Subject
from quorate.pve.targets import HOST
from quorate.ssh.target import SSH_PORT, address, split_port

ALL = "all"
"""Stands for every registered host, so no host can be called that."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,62}[A-Za-z0-9])?")
_ZONE = re.compile(r"[A-Za-z0-9._-]{1,15}", re.ASCII)
_ADDRESS = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,253}[A-Za-z0-9])?")


class Host(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    address: str
    port: int = SSH_PORT
    user: str | None = None
    key: str | None = None
    """The path of a private key."""
    password: str | None = None
    """A reference, never the password itself: `env:NAME`, `file:PATH`, `keyring:NAME` or `vault:NAME`."""
    sudo_password: str | None = None
    """Another reference; without it, `password` is used for sudo, too."""
    jump: str | None = None
    """The name of the registered host to connect through."""
    labels: tuple[str, ...] = ()
    display_name: str = ""
    active: bool = True
    """False: it stays registered, but is not used."""
    verified: float | None = None
    """When the login was last tried."""
    verdict: str = ""
    """The result: `ok`, or why it failed."""

    def __str__(self) -> str:
        return f"host {self.name}"

    @property
    def at(self) -> str:
        return address(self.address, self.port)

    @property
    def digest(self) -> str:
        """Identifies where commands go, and as which user."""
        parts = (self.address, self.port, self.user, self.key, self.password, self.sudo_password, self.jump)
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]

    @property
    def subject(self) -> Subject:
        """As rules refer to it."""
        return Subject(HOST, self.name, self.address, tags=self.labels)


def validate_host(host: Host) -> Host:
    """The host itself. Raises BadArgument if its name or address is invalid."""
    if not _NAME.fullmatch(host.name):
        raise BadArgument(
            f"{host.name!r} is not a valid host name", next_step="Use letters and digits, with . _ - between them"
        )
    if host.name == ALL:
        raise BadArgument(f"A host cannot be called {ALL!r}", why="That means every registered host")
    require_address(host.address)
    if host.name == host.jump:
        raise BadArgument(f"{host} cannot be reached through itself")
    return host


def address_to_host(name: str) -> Host:
    """A host at an address that a caller gave."""
    try:
        at, port = split_port(name)
    except Problem:
        at, port = name, None
    return Host(name, at, port or SSH_PORT)


def require_address(text: str) -> None:
    if not (is_ip(text) if ":" in text else _ADDRESS.fullmatch(text)):
        raise BadArgument(
            f"{text!r} is not an address", next_step="Give a host name or an IP address, and the port separately"
        )


def is_ip(text: str) -> bool:
    """An interface may follow, as in `fe80::1%eth0`, but nothing that is special to a shell."""
    _, percent, zone = text.partition("%")
    try:
        return bool(ipaddress.ip_address(text)) and (not percent or _ZONE.fullmatch(zone) is not None)
    except ValueError:
        return False
