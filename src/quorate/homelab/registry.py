"""The hosts that were registered, in the state store."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

import msgspec

from quorate.homelab.host import Host, checked
from quorate.problems import BadArgument, Conflict, NotFound, Problem
from quorate.pve.subjects import Subject
from quorate.state.store import Store

Hides = Callable[[Subject], Problem | None]
"""Why a host is not to be seen or used by a call; None if it is."""

MOST_JUMPS = 5


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
        """The hidden ones as well: for judging, not for showing."""
        rows = await self._store.fetch("SELECT entry FROM quorate_hosts ORDER BY name")
        return [msgspec.json.decode(row["entry"], type=Host) for row in rows]

    async def find(self, name: str) -> Host | None:
        entry = await self._entry(name)
        if entry is None:
            return None
        host = msgspec.json.decode(entry, type=Host)
        self.require_seen(host)
        return host

    async def named(self, name: str) -> Host:
        if host := await self.find(name):
            return host
        names = [host.name for host in await self.all()]
        near = difflib.get_close_matches(name, names, 1)
        hint = f"Did you mean {near[0]!r}?" if near else "host_list shows the hosts, host_register adds one"
        raise NotFound(f"There is no registered host {name!r}", next_step=hint)

    def require_seen(self, host: Host) -> None:
        if problem := self._why_not(host):
            raise problem

    async def add(self, host: Host) -> None:
        statement = "INSERT INTO quorate_hosts (name, entry) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING"
        if not await self._store.execute(statement, host.name, _stored(checked(host))):
            raise Conflict(f"There is a host {host.name!r} already", next_step="host_update changes it")

    async def change(self, name: str, was: Host | None = None, **fields: Any) -> None:
        """Set these fields and leave the others as they are, whoever changes those at the same time.

        If it `was` to be so before and is not, but for when it was tried, that is a Conflict. What is known of the old
        way in says nothing about a new one.
        """
        while True:
            entry = await self._entry(name)
            if entry is None:
                raise NotFound(f"There is no registered host {name!r}", next_step="It was removed meanwhile")
            old = msgspec.json.decode(entry, type=Host)
            if was is not None and old != msgspec.structs.replace(was, verified=old.verified, verdict=old.verdict):
                raise Conflict(f"{was} was changed meanwhile", next_step="Look at it with host_list, and decide anew")
            statement = "UPDATE quorate_hosts SET entry = $2 WHERE name = $1 AND entry = $3"
            new = checked(msgspec.structs.replace(old, **fields))
            if "verified" not in fields and old.digest != new.digest:
                new = msgspec.structs.replace(new, verified=None, verdict="")
            if await self._store.execute(statement, name, _stored(new), entry):
                return

    async def remove(self, name: str) -> bool:
        return bool(await self._store.execute("DELETE FROM quorate_hosts WHERE name = $1", name))

    async def _entry(self, name: str) -> str | None:
        rows = await self._store.fetch("SELECT entry FROM quorate_hosts WHERE name = $1", name)
        return str(rows[0]["entry"]) if rows else None

    def _why_not(self, host: Host) -> Problem | None:
        return None if self.hides is None else self.hides(host.subject)


async def jumps(hosts: Hosts, host: Host) -> list[Host]:
    """The hosts that it is reached through, the nearest to it first; raises where the way leads nowhere."""
    found: list[Host] = []
    at = host
    while at.jump:
        names = [host.name, *(one.name for one in found), at.jump]
        if at.jump in names[:-1] or len(names) > MOST_JUMPS + 1:
            what = "go round in a circle" if at.jump in names[:-1] else f"are more than {MOST_JUMPS}"
            raise BadArgument(f"The jump hosts of {host} {what}", why=" -> ".join(names))
        at = await hosts.named(at.jump)
        found.append(at)
    return found


def _stored(host: Host) -> str:
    return msgspec.json.encode(host).decode()
