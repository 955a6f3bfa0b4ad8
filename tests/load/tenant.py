"""A client that owns some guests: it reads and changes, and remembers the result of every change."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.load.clients import Answer, McpClient

MOST_SNAPSHOTS = 3
PAUSE_SECONDS = 0.5
"""At most, between two calls."""


@dataclass
class Told:
    """The results of all clients."""

    fates: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Of changes, by tool and fate."""
    reads: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """Texts of failed and unknown changes."""

    @property
    def changes(self) -> int:
        return sum(self.fates.values())

    def told(self, fate: str) -> int:
        return sum(count for (_, reported_fate), count in self.fates.items() if reported_fate == fate)


class Possible:
    """The values that a fact of the cluster may have, after all results."""

    def __init__(self, value: Any) -> None:
        self.values = {value}

    def tried(self, value: Any, fate: str) -> None:
        if fate in ("done", "there already"):
            self.values = {value}
        elif fate == "unknown":
            self.values.add(value)
        else:
            assert fate == "failed", fate


class OwnGuest:
    def __init__(self, vmid: int, facts: dict[str, Any]) -> None:
        self.vmid = vmid
        self.tags = Possible(facts["tags"])
        self.running = Possible(facts["running"])
        self.snapshots: dict[str, Possible] = {}
        self.unknown = 0

    @property
    def kept(self) -> list[str]:
        """The snapshots that are there for certain."""
        return [name for name, possible in self.snapshots.items() if possible.values == {True}]

    def surprises(self, facts: dict[str, Any]) -> list[str]:
        """Where the cluster differs from what this client was given."""
        surprises = []
        if facts["tags"] not in self.tags.values:
            surprises.append(f"{self.vmid} has the tags {facts['tags']!r} instead of {self.tags.values}")
        if facts["running"] not in self.running.values:
            surprises.append(f"{self.vmid} running is {facts['running']} instead of {self.running.values}")
        there = set(facts["snapshots"])
        for name, possible in self.snapshots.items():
            if (name in there) not in possible.values:
                surprises.append(f"{self.vmid} snapshot {name} is {'there' if name in there else 'lost'}")
        if strange := there - set(self.snapshots):
            surprises.append(f"{self.vmid} has snapshots that nobody asked for: {strange}")
        return surprises


class Tenant:
    def __init__(self, number: int, client: McpClient, guests: list[OwnGuest], told: Told) -> None:
        self.client = client
        self.guests = guests
        self._number = number
        self._told = told
        self._chance = random.Random(number)
        self._serial = 0

    async def live(self, until: float) -> None:
        while time.monotonic() < until:
            guest = self._chance.choice(self.guests)
            step = self._chance.choice((self._read, self._read, self._tag, self._switch, self._snapshot))
            begun = time.monotonic()
            await step(guest)
            self._told.seconds.append(time.monotonic() - begun)
            await asyncio.sleep(self._chance.random() * PAUSE_SECONDS)

    async def _read(self, guest: OwnGuest) -> None:
        tool, arguments = self._chance.choice(
            (
                ("guest_list", {"limit": 20}),
                ("guest_get", {"guest": guest.vmid}),
                ("snapshot_list", {"guest": guest.vmid}),
                ("node_list", {}),
            )
        )
        answer = await self.client.call(tool, **arguments)
        self._told.reads["failed" if answer.error else "answered"] += 1

    async def _tag(self, guest: OwnGuest) -> None:
        tag = f"c{self._number}-{self._next()}"
        guest.tags.tried(tag, await self._change(guest, "guest_configure", tags=[tag]))

    async def _switch(self, guest: OwnGuest) -> None:
        if guest.running.values == {True}:
            guest.running.tried(False, await self._change(guest, "guest_stop"))
        else:
            guest.running.tried(True, await self._change(guest, "guest_power", action="start"))

    async def _snapshot(self, guest: OwnGuest) -> None:
        if len(guest.kept) < MOST_SNAPSHOTS:
            name = f"s{self._number}-{self._next()}"
            guest.snapshots[name] = Possible(False)
            guest.snapshots[name].tried(True, await self._change(guest, "snapshot_create", snapshot=name))
        else:
            name = self._chance.choice(guest.kept)
            guest.snapshots[name].tried(False, await self._change(guest, "snapshot_delete", snapshot=name))

    async def _change(self, guest: OwnGuest, tool: str, **arguments: Any) -> str:
        answer: Answer = await self.client.call(tool, guest=guest.vmid, **arguments)
        self._told.fates[tool, answer.fate] += 1
        if answer.fate in ("failed", "unknown"):
            self._told.errors.append(f"{tool} {guest.vmid}: {answer.text[:300]}")
        guest.unknown += answer.fate == "unknown"
        return answer.fate

    def _next(self) -> int:
        self._serial += 1
        return self._serial
