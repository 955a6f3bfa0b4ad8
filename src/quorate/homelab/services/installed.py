"""What was installed where, as it is kept."""

from __future__ import annotations

from typing import Literal

import msgspec

from quorate.homelab.machines import Machine
from quorate.homelab.services.template import Method
from quorate.problems import Conflict
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

    async def find(self, place: str, service: str) -> Installed | None:
        rows = await self._store.fetch(
            "SELECT entry FROM quorate_records WHERE kind = $1 AND id = $2", KIND, f"{place}/{service}"
        )
        return msgspec.json.decode(rows[0]["entry"], type=Installed) if rows else None

    async def everything(self) -> list[Installed]:
        rows = await self._store.fetch("SELECT entry FROM quorate_records WHERE kind = $1 ORDER BY id", KIND)
        return [msgspec.json.decode(row["entry"], type=Installed) for row in rows]

    async def keep(self, one: Installed) -> None:
        await self._store.execute(
            "INSERT INTO quorate_records (kind, id, entry, created, changed) VALUES ($1, $2, $3, $4, $4) "
            "ON CONFLICT (kind, id) DO UPDATE SET entry = excluded.entry, changed = excluded.changed",
            KIND, f"{one.host}/{one.service}", msgspec.json.encode(one).decode(), self._store.clock.time(),
        )  # fmt: skip

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
        await self._store.execute(
            "DELETE FROM quorate_records WHERE kind = $1 AND id = $2", _CLAIM, f"{place}/{service}"
        )

    async def forget(self, place: str, service: str) -> None:
        await self._store.execute("DELETE FROM quorate_records WHERE kind = $1 AND id = $2", KIND, f"{place}/{service}")
