"""The registered hosts in the state store."""

from __future__ import annotations

from typing import Any

import msgspec

from quorate.hints import HOST_LIST, HOST_REGISTER, HOST_UPDATE, Advice, see
from quorate.homelab.host import Host, validate_host
from quorate.problems import BadArgument, Conflict, NotFound, Problem
from quorate.pve.subjects import Hides
from quorate.state.store import Store
from quorate.suggestions import suggest

MAX_JUMPS = 5


class Hosts:
    def __init__(self, store: Store, hides: Hides | None = None) -> None:
        self._store = store
        self.hides = hides

    def behind(self, hides: Hides | None) -> Hosts:
        """The same hosts without what rules hide from a call."""
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
        hint = suggest(name, names, see("See which hosts exist, or register one", HOST_LIST, HOST_REGISTER))
        raise NotFound(f"There is no registered host {name!r}", next_step=hint)

    def require_visible(self, host: Host) -> None:
        if problem := self._why_not(host):
            raise problem

    async def add(self, host: Host) -> None:
        statement = "INSERT INTO quorate_hosts (name, entry) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING"
        if not await self._store.execute(statement, host.name, _encode(validate_host(host))):
            raise Conflict(f"Host {host.name!r} already exists", next_step=Advice("Change it", HOST_UPDATE))

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
                advice = Advice("Look at it again before you change it", HOST_LIST)
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
    found: list[Host] = []
    at = host
    while at.jump:
        names = [host.name, *(one.name for one in found), at.jump]
        if at.jump in names[:-1] or len(names) > MAX_JUMPS + 1:
            what = "form a loop" if at.jump in names[:-1] else f"are more than {MAX_JUMPS}"
            raise BadArgument(f"The jump hosts of {host} {what}", why=" -> ".join(names))
        at = await hosts.get(at.jump)
        found.append(at)
    return found


def _encode(host: Host) -> str:
    return msgspec.json.encode(host).decode()
