"""A registered host: its record, and the registry."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from typing import Any

import msgspec

from quorate.hints import Advice, see, tools
from quorate.problems import BadArgument, Conflict, NotFound, Problem
from quorate.pve.targets import HOST, Hides, Subject
from quorate.ssh.target import SSH_PORT, address, split_port
from quorate.state.store import Store
from quorate.suggestions import suggest

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
        """The host as rules refer to it."""
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
    """An unregistered host at an address that the caller gave."""
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


MAX_JUMPS = 5


class Hosts:
    def __init__(self, store: Store, hides: Hides | None = None) -> None:
        self._store = store
        self.hides = hides

    def behind(self, hides: Hides | None) -> Hosts:
        """The same registry without the hosts that rules hide from a call."""
        return Hosts(self._store, hides)

    async def all(self) -> list[Host]:
        return [host for host in await self.everyone() if self._why_not(host) is None]

    async def everyone(self) -> list[Host]:
        """Including hidden ones: for decisions, not for display."""
        rows = await self._store.fetch("SELECT entry FROM quorate_hosts ORDER BY name")
        return [msgspec.json.decode(row["entry"], type=Host) for row in rows]

    async def find(self, name: str) -> Host | None:
        entry = await self._entry(name)
        if entry is None:
            return None
        host = msgspec.json.decode(entry, type=Host)
        self.require_visible(host)
        return host

    async def get(self, name: str) -> Host:
        if host := await self.find(name):
            return host
        names = [host.name for host in await self.all()]
        hint = suggest(name, names, see("See which hosts exist, or register one", tools.host_list, tools.host_register))
        raise NotFound(f"There is no registered host {name!r}", next_step=hint)

    def require_visible(self, host: Host) -> None:
        if problem := self._why_not(host):
            raise problem

    async def add(self, host: Host) -> None:
        statement = "INSERT INTO quorate_hosts (name, entry) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING"
        if not await self._store.execute(statement, host.name, _encode(validate_host(host))):
            raise Conflict(f"Host {host.name!r} already exists", next_step=Advice("Change it", tools.host_update))

    async def change(self, name: str, was: Host | None = None, **fields: Any) -> None:
        """Set these fields and leave concurrent changes of other fields alone.

        Raises Conflict if the host is no longer as it `was`, apart from its verification. A new login resets that.
        """
        while True:
            entry = await self._entry(name)
            if entry is None:
                raise NotFound(f"There is no registered host {name!r}", why="It was removed in the meantime")
            old = msgspec.json.decode(entry, type=Host)
            if was is not None and old != msgspec.structs.replace(was, verified=old.verified, verdict=old.verdict):
                advice = Advice("Look at it again before you change it", tools.host_list)
                raise Conflict(f"{was} was changed in the meantime", next_step=advice)
            statement = "UPDATE quorate_hosts SET entry = $2 WHERE name = $1 AND entry = $3"
            new = validate_host(msgspec.structs.replace(old, **fields))
            if "verified" not in fields and old.digest != new.digest:
                new = msgspec.structs.replace(new, verified=None, verdict="")
            if await self._store.execute(statement, name, _encode(new), entry):
                return

    async def remove(self, name: str) -> bool:
        return bool(await self._store.execute("DELETE FROM quorate_hosts WHERE name = $1", name))

    async def _entry(self, name: str) -> str | None:
        rows = await self._store.fetch("SELECT entry FROM quorate_hosts WHERE name = $1", name)
        return str(rows[0]["entry"]) if rows else None

    def _why_not(self, host: Host) -> Problem | None:
        return None if self.hides is None else self.hides(host.subject)


async def resolve_jumps(hosts: Hosts, host: Host) -> list[Host]:
    """The jump hosts, nearest first. Raises a Problem for a missing host or a loop."""
    jumps: list[Host] = []
    at = host
    while at.jump:
        names = [host.name, *(jump.name for jump in jumps), at.jump]
        if at.jump in names[:-1] or len(names) > MAX_JUMPS + 1:
            what = "form a loop" if at.jump in names[:-1] else f"are more than {MAX_JUMPS}"
            raise BadArgument(f"The jump hosts of {host} {what}", why=" -> ".join(names))
        at = await hosts.get(at.jump)
        jumps.append(at)
    return jumps


def _encode(host: Host) -> str:
    return msgspec.json.encode(host).decode()
