"""A lease: among all processes on one store, one at a time does a job."""

from __future__ import annotations

import secrets

import msgspec

from quorate.state.records import Records
from quorate.state.store import Store


class Holder(msgspec.Struct, frozen=True):
    owner: str
    until: float


class Lease:
    """The holder renews it; if its process ends, another takes over at once, and if it only hangs, after `seconds`."""

    def __init__(self, store: Store, name: str, seconds: float) -> None:
        self._store = store
        self._name = name
        self._seconds = seconds
        self._records = Records(store, "lease", Holder)
        self.owner = f"{secrets.randbits(62):016x}"

    async def take(self) -> bool:
        """Take or renew the lease; False if another process holds it."""
        now = self._store.clock.time()
        mine = Holder(self.owner, now + self._seconds)
        await self._store.hold(self.owner)
        if await self._records.keep_new(self._name, mine):
            return True
        held = await self._records.find(self._name)
        if held is None:
            return False  # it was released just now: the next attempt gets it
        if held.owner == self.owner and held.until - now > self._seconds / 2:
            return True
        if held.owner != self.owner and held.until > now and await self._store.is_held(held.owner):
            return False
        return await self._records.replace(self._name, held, mine)

    async def release(self) -> None:
        held = await self._records.find(self._name)
        if held is not None and held.owner == self.owner:
            await self._records.forget(self._name)
