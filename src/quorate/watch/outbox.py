"""Messages to people: a durable outbox and the log of deliveries.

A message is a row before it is sent. One process claims it, sends it and marks it sent. If that process dies in
between, nobody knows whether the message arrived, and the row says so (`unsure`): the channel decides what is right for
its receiver. Ids are derived from finding, revision and channel, so the same message is never enqueued twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from quorate.state.store import Row, Store, placeholders

KEPT_SECONDS = 30 * 86400.0
RETRIES = (30.0, 120.0, 600.0, 1800.0, 3600.0)
"""Seconds until the next attempts; the last one repeats."""
GIVE_UP_SECONDS = 86400.0
LONGEST_ERROR = 300
WAITING, SENT, FAILED = "waiting", "sent", "failed"
_IN_ORDER = """NOT EXISTS (SELECT 1 FROM quorate_deliveries e WHERE e.channel = d.channel AND e.finding = d.finding
    AND e.state IN ('waiting', 'sending') AND e.created < d.created AND (e.together = 0 OR e.batch <> ''))"""
"""An earlier message about the same finding goes first: nobody reads "resolved" before "opened"."""


class Notice(msgspec.Struct, frozen=True, omit_defaults=True):
    """One piece of news about a finding, as it will be shown."""

    event: str
    severity: str
    cluster: str
    kind: str
    what: str
    means: str = ""
    next: str = ""
    link: str = ""
    finding: str = ""
    opened: float = 0.0


@dataclass(frozen=True, slots=True)
class Delivery:
    id: str
    channel: str
    created: float
    due: float
    together: bool
    """Whether one message may combine it with others."""
    finding: str
    event: str
    notice: Notice
    state: str
    batch: str
    owner: str
    attempts: int
    tried: float | None
    error: str


@dataclass(frozen=True, slots=True)
class Parcel:
    """What is sent as one message."""

    id: str
    """Stays the same for every attempt, so that a receiver can recognize a repetition."""
    channel: str
    deliveries: tuple[Delivery, ...]
    unsure: bool
    """An earlier attempt may have arrived."""
    since: float
    """When the first of the deliveries was enqueued."""

    @property
    def notices(self) -> list[Notice]:
        return [delivery.notice for delivery in self.deliveries]


class Outbox:
    def __init__(self, store: Store, owner: str) -> None:
        self._store = store
        self._clock = store.clock
        self._owner = owner
        """A name that this process holds for as long as it lives."""

    async def put(
        self, channel: str, finding: str, revision: int, notice: Notice, *, due: float, together: bool
    ) -> bool:
        """Enqueue it unless it was enqueued before."""
        key = hashlib.sha256(f"{finding}\0{revision}\0{channel}".encode()).hexdigest()[:32]
        return bool(
            await self._store.execute(
                """INSERT INTO quorate_deliveries (id, channel, created, due, together, finding, event, notice, state)
                    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'waiting') ON CONFLICT DO NOTHING""",
                key,
                channel,
                self._clock.time(),
                due,
                int(together),
                finding,
                notice.event,
                msgspec.json.encode(notice, enc_hook=str).decode(),
            )
        )

    async def claim(self, channel: str) -> Parcel | None:
        """The next message of a channel that is due, for this process alone."""
        now = self._clock.time()
        await self._store.hold(self._owner)
        rows = await self._store.fetch(
            f"""SELECT id, batch, together FROM quorate_deliveries d
                WHERE channel = $1 AND state = 'waiting' AND due <= $2 AND {_IN_ORDER}
                ORDER BY due, created, id LIMIT 1""",  # noqa: S608 - our own condition
            channel,
            now,
        )
        if not rows:
            return None
        first, batch = rows[0]["id"], rows[0]["batch"]
        values: tuple[object, ...] = (batch or first,)
        where = "id = $3"
        if batch:  # an earlier attempt of several notices in one message: the same ones again
            where = "batch = $3"
        elif rows[0]["together"]:
            where = f"together = 1 AND batch = '' AND due <= $4 AND channel = $5 AND {_IN_ORDER}"
            values = (first, now, channel)
        await self._store.execute(
            "UPDATE quorate_deliveries AS d SET state = 'sending', owner = $1, tried = $2, attempts = attempts + 1, "  # noqa: S608
            f"batch = $3 WHERE state = 'waiting' AND {where}",
            self._owner,
            now,
            *values,
        )
        return await self._parcel(batch or first)

    async def claim_of(self, channel: str, finding: str) -> Parcel | None:
        """The message about this finding, even if it is not due yet."""
        await self._store.hold(self._owner)
        rows = await self._store.fetch(
            "SELECT id FROM quorate_deliveries WHERE channel = $1 AND finding = $2", channel, finding
        )
        await self._store.execute(
            """UPDATE quorate_deliveries SET state = 'sending', owner = $1, tried = $2, attempts = attempts + 1,
                batch = id WHERE id = $3 AND state = 'waiting'""",
            self._owner,
            self._clock.time(),
            rows[0]["id"],
        )
        return await self._parcel(rows[0]["id"])

    async def _parcel(self, batch: str) -> Parcel | None:
        deliveries = await self._read("WHERE batch = $1 AND state = 'sending' AND owner = $2", batch, self._owner)
        if not deliveries:
            return None  # another process was faster
        unsure = any(delivery.error.startswith(UNSURE) for delivery in deliveries)
        since = min(delivery.created for delivery in deliveries)
        return Parcel(batch, deliveries[0].channel, tuple(deliveries), unsure, since)

    async def mark_sent(self, parcel: Parcel) -> None:
        await self._finish(parcel, SENT, "")

    async def mark_failed(self, parcel: Parcel, why: str, *, unsure: bool = False, for_good: bool = False) -> None:
        """It was not sent, or may have been (`unsure`). Unless it failed `for_good`, it is retried for a day."""
        now = self._clock.time()
        if for_good or now - parcel.since > GIVE_UP_SECONDS:
            await self._finish(parcel, FAILED, why)
            return
        attempts = max(delivery.attempts for delivery in parcel.deliveries)
        pause = RETRIES[min(attempts, len(RETRIES)) - 1]
        error = f"{UNSURE}{why}" if unsure or parcel.unsure else why
        await self._finish(parcel, WAITING, error, now + pause)

    async def _finish(self, parcel: Parcel, state: str, error: str, due: float | None = None) -> None:
        await self._store.execute(
            """UPDATE quorate_deliveries SET state = $3, error = $4, due = COALESCE($5, due), tried = $6
                WHERE batch = $1 AND owner = $2 AND state = 'sending'""",
            parcel.id,
            self._owner,
            state,
            error[:LONGEST_ERROR],
            due,
            self._clock.time(),
        )

    async def recover(self) -> int:
        """Enqueue messages again whose process died while it sent them, and return their number. They may have arrived.

        Call this before this process sends anything. A message that it seems to be sending is one whose result it could
        not store.
        """
        rows = await self._store.fetch("SELECT DISTINCT owner FROM quorate_deliveries WHERE state = 'sending'")
        recovered = 0
        for owner in [row["owner"] for row in rows]:
            ours = owner == self._owner
            if not ours and await self._store.is_held(owner):
                continue
            recovered += await self._store.execute(
                "UPDATE quorate_deliveries SET state = 'waiting', error = $2 WHERE state = 'sending' AND owner = $1",
                owner,
                f"{UNSURE}{'its result could not be stored' if ours else 'the server stopped while it sent this'}",
            )
        return recovered

    async def drop(self, finding: str) -> None:
        """Drop waiting messages about a finding that was resolved before anyone was notified."""
        await self._store.execute(
            "UPDATE quorate_deliveries SET state = 'dropped' "
            "WHERE finding = $1 AND state = 'waiting' AND together = 1 AND batch = ''",
            finding,
        )

    async def has_heard(self, channel: str, finding: str) -> bool:
        """Whether a message about it was sent to the channel, or will be."""
        rows = await self._store.fetch(
            "SELECT id FROM quorate_deliveries WHERE channel = $1 AND finding = $2 AND state <> 'dropped' LIMIT 1",
            channel,
            finding,
        )
        return bool(rows)

    async def unheard(self, finding: str) -> set[str]:
        """The channels whose message about its opening still waits to be sent together with others."""
        rows = await self._store.fetch(
            "SELECT DISTINCT channel FROM quorate_deliveries "
            "WHERE finding = $1 AND state = 'waiting' AND together = 1 AND batch = '' AND event = 'opened'",
            finding,
        )
        return {row["channel"] for row in rows}

    async def failing(self) -> Mapping[str, tuple[int, str]]:
        """Channel -> failed attempts since its last success, and why."""
        rows = await self._store.fetch(
            """SELECT d.channel, max(d.attempts) AS attempts, max(d.error) AS error FROM quorate_deliveries d
                WHERE d.error <> '' AND d.state IN ('waiting', 'sending', 'failed') AND d.tried > COALESCE((
                    SELECT max(s.tried) FROM quorate_deliveries s WHERE s.channel = d.channel AND s.state = 'sent'), 0)
                GROUP BY d.channel"""
        )
        return {row["channel"]: (row["attempts"], row["error"].removeprefix(UNSURE)) for row in rows}

    async def log(self, limit: int, channel: str | None = None) -> list[Delivery]:
        """Newest first."""
        where = "" if channel is None else "WHERE channel = $2 "
        return await self._read(
            f"{where}ORDER BY created DESC, id LIMIT $1", limit, *(() if channel is None else (channel,))
        )

    async def counts(self) -> Mapping[tuple[str, str], int]:
        rows = await self._store.fetch(
            "SELECT channel, state, count(*) AS number FROM quorate_deliveries GROUP BY channel, state"
        )
        return {(row["channel"], row["state"]): row["number"] for row in rows}

    async def forget_old(self, channels: Iterable[str]) -> None:
        """Delete old entries of the log, and drop messages that no server has sent because their channel was removed.

        Another server on the same store may have channels of its own, so a message is dropped a day after it was due.
        """
        await self._store.execute(
            "DELETE FROM quorate_deliveries WHERE created < $1", self._clock.time() - KEPT_SECONDS
        )
        known = list(channels)
        listed = placeholders(known, 2) or "''"
        await self._store.execute(
            f"UPDATE quorate_deliveries SET state = 'dropped', error = 'the channel was removed' "  # noqa: S608
            f"WHERE state = 'waiting' AND due < $1 AND channel NOT IN ({listed})",
            self._clock.time() - GIVE_UP_SECONDS,
            *known,
        )

    async def _read(self, where: str, *values: object) -> list[Delivery]:
        return [_delivery(row) for row in await self._store.fetch(f"SELECT * FROM quorate_deliveries {where}", *values)]  # noqa: S608


UNSURE = "unsure: "
"""Prefix of the error of a message that may have arrived."""


def _delivery(row: Row) -> Delivery:
    notice = msgspec.json.decode(row["notice"], type=Notice)
    return Delivery(**{**row, "notice": notice, "together": bool(row["together"])})
