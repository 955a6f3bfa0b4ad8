"""A host that was registered, as it is kept."""

from __future__ import annotations

import hashlib
import ipaddress
import re

import msgspec

from quorate.problems import BadArgument, Problem
from quorate.pve.reach import HOST
from quorate.pve.subjects import Subject
from quorate.ssh.settings import split_port
from quorate.ssh.target import SSH_PORT, address

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
    """Another reference; without it, `password` is taken for sudo, too."""
    jump: str | None = None
    """The name of the registered host to go through."""
    labels: tuple[str, ...] = ()
    display_name: str = ""
    active: bool = True
    """Off: it is kept, but not used."""
    verified: float | None = None
    """When it was last tried to log in."""
    verdict: str = ""
    """What came of it: `ok`, or why not."""

    def __str__(self) -> str:
        return f"host {self.name}"

    @property
    def at(self) -> str:
        return address(self.address, self.port)

    @property
    def digest(self) -> str:
        """Of what decides where commands go, and as whom."""
        parts = (self.address, self.port, self.user, self.key, self.password, self.sudo_password, self.jump)
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]

    @property
    def subject(self) -> Subject:
        """As rules see it."""
        return Subject(HOST, self.name, self.address, tags=self.labels)


def checked(host: Host) -> Host:
    """The same host, if name and address are fit to be used."""
    if not _NAME.fullmatch(host.name):
        raise BadArgument(
            f"{host.name!r} is no name for a host", next_step="Use letters, digits, and . _ - between them"
        )
    require_address(host.address)
    if host.name == host.jump:
        raise BadArgument(f"{host} cannot be reached through itself")
    return host


def unregistered(name: str) -> Host:
    """An address that a caller has given; what is no address is a host of that name and nothing more is known of it."""
    try:
        at, port = split_port(name)
    except Problem:
        at, port = name, None
    return Host(name, at, port or SSH_PORT)


def require_address(text: str) -> None:
    if not (is_ip(text) if ":" in text else _ADDRESS.fullmatch(text)):
        raise BadArgument(
            f"{text!r} is no address", next_step="Give a host name or an IP address, and the port apart from it"
        )


def is_ip(text: str) -> bool:
    """Also with an interface, `fe80::1%eth0`, but with nothing that a shell would read as more than that."""
    _, percent, zone = text.partition("%")
    try:
        return bool(ipaddress.ip_address(text)) and (not percent or _ZONE.fullmatch(zone) is not None)
    except ValueError:
        return False
