"""The stored records of installed services."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Literal

import msgspec

from quorate.hints import SERVICE_STATUS, Advice
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.services.template import Method
from quorate.problems import Conflict, Problem
from quorate.state.records import Records
from quorate.state.store import Store

KIND = "service"
_CLAIM = "work on a service"
RENEW_SECONDS = 60
STALE_SECONDS = 5 * RENEW_SECONDS
"""A claim that was not renewed for this long belongs to a server that died."""
State = Literal["installing", "installed", "upgrading", "failed", "removed"]


class Installation(msgspec.Struct, frozen=True, omit_defaults=True):
    service: str
    host: str
    """The name that `machine` accepts: a registered host, or cluster/guest."""
    method: Method
    state: State
    version: str = ""
    settings: dict[str, str] = {}
    """Without secrets."""
    why: str = ""
    """What went wrong, if anything."""
    at: str = ""
    """The SSH address at installation time: the record does not apply to a later machine of the same name."""


def machine_ref(machine: Machine) -> str:
    return (
        f"{machine.where.name}/{machine.guest.vmid if machine.guest else machine.name}"
        if machine.where
        else machine.name
    )


def machine_address(machine: Machine) -> str:
    return machine.target.address if machine.target is not None and machine.where is None else ""


class Installations:
    """Every service on every host."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._records = Records(store, KIND, Installation)

    async def find(self, host: str, service: str) -> Installation | None:
        return await self._records.find(f"{host}/{service}")

    async def everything(self) -> list[Installation]:
        return [one for _, one in sorted((await self._records.all()).items())]

    async def on(self, host: str) -> list[Installation]:
        return [one for one in await self.everything() if one.host == host]

    async def keep(self, one: Installation) -> None:
        await self._records.keep(f"{one.host}/{one.service}", one)

    async def begin_work(self, host: str, service: str) -> str:
        """Claim a service of a host across all replicas. Renew the claim, and end it."""
        now, key, claim = self._store.clock.time(), f"{host}/{service}", f'"{secrets.token_hex(8)}"'
        taken = await self._store.execute(
            "INSERT INTO quorate_records (kind, id, entry, created, changed) VALUES ($1, $2, $5, $3, $3) "
            "ON CONFLICT (kind, id) DO UPDATE SET entry = excluded.entry, changed = excluded.changed "
            "WHERE quorate_records.changed < $4",
            _CLAIM, key, now, now - STALE_SECONDS, claim,
        )  # fmt: skip
        if not taken:
            raise Conflict(
                f"{service} on {host} is being changed at this moment",
                next_step=Advice(
                    f"Wait until that has ended. If its server died, try again after {STALE_SECONDS // 60} minutes",
                    SERVICE_STATUS,
                ),
            )
        return claim

    async def is_worked_on(self, host: str, service: str) -> bool:
        rows = await self._store.fetch(
            "SELECT id FROM quorate_records WHERE kind = $1 AND id = $2 AND changed >= $3",
            _CLAIM, f"{host}/{service}", self._store.clock.time() - STALE_SECONDS,
        )  # fmt: skip
        return bool(rows)

    async def renew_work(self, claim: str) -> None:
        await self._store.execute(
            "UPDATE quorate_records SET changed = $3 WHERE kind = $1 AND entry = $2",
            _CLAIM, claim, self._store.clock.time(),
        )  # fmt: skip

    async def end_work(self, claim: str) -> None:
        await self._store.execute("DELETE FROM quorate_records WHERE kind = $1 AND entry = $2", _CLAIM, claim)

    async def forget(self, host: str, service: str) -> None:
        await self._records.forget(f"{host}/{service}")


# -- whether the machines that records name still exist ----------------------------------------------------------------

HOST_GONE, GUEST_GONE, CLUSTER_GONE = "its host is no longer registered", "its guest is gone", "its cluster is gone"
MOVED = "its host is another machine now"


async def find_stale_hosts(homelab: Homelab, records: Iterable[Installation]) -> dict[str, str]:
    """Host of a record -> why the record can no longer be trusted. A cluster that does not answer proves nothing."""
    hosts = {one.name: one for one in await homelab.hosts.everyone()}
    found: dict[str, str] = {}
    for one in records:
        cluster, slash, inner = one.host.partition("/")
        if slash:
            if why := await _gone_in(homelab, cluster, inner):
                found[one.host] = why
        elif one.host not in hosts:
            if not (one.at or one.host).startswith(one.host) or not set(one.host) & set(".:"):
                found[one.host] = HOST_GONE  # a bare address was never registered
        elif one.at and hosts[one.host].at != one.at:
            found[one.host] = MOVED
    return found


async def _gone_in(homelab: Homelab, name: str, inner: str) -> str:
    cluster = next((one for one in homelab.clusters if one.name == name), None)
    if cluster is None:
        return CLUSTER_GONE if all(one.name != name for one in homelab.guarded) else ""
    if not inner.isdecimal():
        return ""
    try:
        rows = await cluster.inventory.guests()
    except Problem:
        return ""
    return "" if any(row.vmid == int(inner) for row in rows) else GUEST_GONE
