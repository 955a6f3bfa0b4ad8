"""What was installed where, as it is kept."""

from __future__ import annotations

from typing import Literal

import msgspec

from quorate.homelab.machines import Machine
from quorate.homelab.services.template import Method
from quorate.problems import Conflict
from quorate.state.records import Records
from quorate.state.store import Store

KIND = "service"
_CLAIM = "work on a service"
STALE_SECONDS = 3 * 3600
"""No work takes longer, with all that it may wait for; whoever began it is not there any more."""
State = Literal["installing", "installed", "upgrading", "failed", "removed"]


class Installed(msgspec.Struct, frozen=True, omit_defaults=True):
    service: str
    host: str
    """As `machine` understands it: a registered host, or cluster/guest."""
    method: Method
    state: State
    version: str = ""
    settings: dict[str, str] = {}
    """Without secrets."""
    why: str = ""
    """What went wrong, if it did."""


def place_of(machine: Machine) -> str:
    return (
        f"{machine.where.name}/{machine.guest.vmid if machine.guest else machine.name}"
        if machine.where
        else machine.name
    )


class Ledger:
    """Every service on every host."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._records = Records(store, KIND, Installed)

    async def find(self, place: str, service: str) -> Installed | None:
        return await self._records.find(f"{place}/{service}")

    async def everything(self) -> list[Installed]:
        return [one for _, one in sorted((await self._records.all()).items())]

    async def keep(self, one: Installed) -> None:
        await self._records.keep(f"{one.host}/{one.service}", one)

    async def begin_work(self, place: str, service: str) -> None:
        """One at a time works on a service of a host, in all replicas together."""
        now, key = self._store.clock.time(), f"{place}/{service}"
        taken = await self._store.execute(
            "INSERT INTO quorate_records (kind, id, entry, created, changed) VALUES ($1, $2, '{}', $3, $3) "
            "ON CONFLICT (kind, id) DO UPDATE SET changed = excluded.changed WHERE quorate_records.changed < $4",
            _CLAIM, key, now, now - STALE_SECONDS,
        )  # fmt: skip
        if not taken:
            raise Conflict(
                f"Somebody works on {service} on {place} at this moment",
                next_step=f"service_status tells how it stands. If a server died over it, it is free again after "
                f"{STALE_SECONDS // 3600} hours",
            )

    async def end_work(self, place: str, service: str) -> None:
        await Records(self._store, _CLAIM, dict[str, str]).forget(f"{place}/{service}")

    async def forget(self, place: str, service: str) -> None:
        await self._records.forget(f"{place}/{service}")
