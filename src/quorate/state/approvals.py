"""Approvals: what a caller asked for and an operator has to answer before it may happen.

An approval is bound to the caller, the exact arguments and the identity of what they act on. It is used once, and it
expires. Each step is one conditional statement, so of many that answer or use it at once, in any number of processes or
replicas, exactly one succeeds.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from quorate.pve.errors import Conflict, NotFound, Refused
from quorate.state.canonical import canonical
from quorate.state.database import Row
from quorate.state.store import Store

PENDING_SECONDS = 15 * 60.0
"""How long a request waits for its answer."""
APPROVED_SECONDS = 10 * 60.0
"""How long an approved request may be used, from the answer on."""
KEPT_SECONDS = 30 * 24 * 3600.0
MOST_PENDING = 50
"""Open requests of one caller: more would bury the one that matters."""
POLL_SECONDS = (0.25, 0.5, 1.0)

_ID_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"  # none that look alike when read aloud or typed
_ID_GROUP = 5


class State(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    USED = "used"
    EXPIRED = "expired"


OPEN = (State.PENDING, State.APPROVED)
DRY_RUN = "the dry run"
"""Who has answered a plan token: it was made with its answer."""
TARGET_CHANGED = "the target has changed since"


class Use(StrEnum):
    """What became of an attempt to use an approval. Only OK is true."""

    OK = "ok"
    UNKNOWN = "there is no such approval"
    PENDING = "it is not answered yet"
    DENIED = "it was denied"
    EXPIRED = "it has expired"
    USED = "it was used already"
    OTHER_CALLER = "it was asked for by another caller"
    OTHER_ARGUMENTS = "it was given for other arguments"
    OTHER_IDENTITY = "what it was given for has changed since"

    def __bool__(self) -> bool:
        return self is Use.OK


@dataclass(frozen=True, slots=True)
class Request:
    """What a caller wants to do. Everything in it is stored and shown, so it comes here without secrets."""

    caller: str
    """Who asks: token subject and client."""
    cluster: str
    tool: str
    risk: str
    digest: str
    """From `request_digest`."""
    identity: str
    """Kind, vmid, name and config digest of every target, as text."""
    summary: str
    plan: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    """What whoever answers should know beside the steps: the state of the target, what would be lost, warnings."""


@dataclass(frozen=True, slots=True)
class Approval:
    id: str
    created: float
    expires: float
    caller: str
    cluster: str
    tool: str
    risk: str
    digest: str
    identity: str
    summary: str
    plan: tuple[str, ...]
    state: State
    answered_by: str | None
    answered_at: float | None
    reason: str | None
    remarks: tuple[str, ...] = ()

    @property
    def standing(self) -> str:
        """What its state means, for people."""
        by_token = self.answered_by == DRY_RUN
        match self.state:
            case State.PENDING:
                return "waits for an answer"
            case State.APPROVED:
                return "plan token of a dry run, not used yet" if by_token else "approved, not used yet"
            case State.USED:
                return "plan token, used" if by_token else "approved and used"
            case State.DENIED:
                return "denied"
        if self.reason == TARGET_CHANGED:
            return f"void: {self.reason}"
        if by_token:
            return "plan token, expired unused"
        return "approved, expired unused" if self.answered_by else "expired unanswered"


def request_digest(caller: str, cluster: str, tool: str, arguments: Mapping[str, Any]) -> str:
    """What makes two calls the same call. The arguments are the exact ones; only their digest is kept."""
    return hashlib.sha256(
        canonical({"caller": caller, "cluster": cluster, "tool": tool, "arguments": arguments})
    ).hexdigest()


class Approvals:
    def __init__(
        self, store: Store, *, pending_seconds: float = PENDING_SECONDS, approved_seconds: float = APPROVED_SECONDS
    ) -> None:
        self._store = store
        self._clock = store.clock
        self._pending_seconds = pending_seconds
        self._approved_seconds = approved_seconds

    async def ask(self, request: Request) -> Approval:
        """The open approval for this request: a new one, or the one that the same caller asked for before.

        A request that was denied stays denied until it would have expired, so that nobody is asked into giving in.
        """
        while True:
            await self._tidy()
            await self._drop_outdated(request)
            found = await self.find(request.caller, request.digest)
            if found is not None and found.identity == request.identity:
                return found
            await self._leave_room(request.caller)
            created = await self._insert(request)
            if created is not None:
                return created
            # Another call of the same caller was quicker: its row is found in the next round.

    async def find(self, caller: str, digest: str) -> Approval | None:
        """The newest approval of this request that has not expired: pending, approved or denied."""
        rows = await self._store.fetch(
            """SELECT * FROM quorate_approvals
                WHERE caller = $1 AND digest = $2 AND state IN ('pending', 'approved', 'denied') AND expires > $3
                ORDER BY created DESC, state = 'denied' LIMIT 1""",
            caller,
            digest,
            self._clock.time(),
        )
        return self._approval(rows[0]) if rows else None

    async def get(self, id: str) -> Approval | None:
        rows = await self._store.fetch("SELECT * FROM quorate_approvals WHERE id = $1", _as_written(id))
        return self._approval(rows[0]) if rows else None

    async def list(self, states: Collection[State] = (State.PENDING,), limit: int = 50) -> list[Approval]:
        """Newest first."""
        if not states:
            return []
        await self._tidy()
        wanted = ", ".join(f"${number}" for number in range(2, len(states) + 2))
        rows = await self._store.fetch(
            f"SELECT * FROM quorate_approvals WHERE state IN ({wanted}) ORDER BY created DESC, id LIMIT $1",  # noqa: S608
            limit,
            *(state.value for state in states),
        )
        return [self._approval(row) for row in rows]

    async def pending(self) -> int:
        """How many wait for an answer. Only reads: it may be asked every few seconds."""
        rows = await self._store.fetch(
            "SELECT count(*) AS pending FROM quorate_approvals WHERE state = 'pending' AND expires > $1",
            self._clock.time(),
        )
        count: int = rows[0]["pending"]
        return count

    async def answer(self, id: str, approve: bool, by: str, reason: str | None = None) -> Approval:
        """Approve or deny what is pending. Raises NotFound, or Conflict if it is answered, used or expired."""
        key, now = _as_written(id), self._clock.time()
        answered = await self._store.execute(
            """UPDATE quorate_approvals
                SET state = $1, answered_by = $2, answered_at = $3, reason = $4, expires = $5
                WHERE id = $6 AND state = 'pending' AND expires > $3""",
            State.APPROVED.value if approve else State.DENIED.value,
            by,
            now,
            reason,
            now + (self._approved_seconds if approve else self._pending_seconds),
            key,
        )
        found = await self.get(key)
        if found is None:
            raise NotFound(f"There is no approval {key}", next_step="`quorate approvals` lists those that are pending")
        if not answered:
            whose = f" by {found.answered_by}" if found.answered_by and found.state is not State.EXPIRED else ""
            raise Conflict(
                f"The approval {key} cannot be answered ({found.standing}{whose})",
                next_step="If it is still wanted, the call has to be made again",
            )
        return found

    async def use(self, id: str, caller: str, digest: str, identity: str) -> Use:
        """Use an approval up. Of all that try, one gets Use.OK; the others get the reason why not."""
        key, now = _as_written(id), self._clock.time()
        used = await self._store.execute(
            """UPDATE quorate_approvals SET state = 'used'
                WHERE id = $1 AND caller = $2 AND digest = $3 AND identity = $4
                AND state = 'approved' AND expires > $5""",
            key,
            caller,
            digest,
            identity,
            now,
        )
        if used:
            return Use.OK
        found = await self.get(key)
        if found is None:
            return Use.UNKNOWN
        if found.caller != caller:
            return Use.OTHER_CALLER
        if found.digest != digest:
            return Use.OTHER_ARGUMENTS
        if found.state is State.APPROVED:  # with the same identity it was answered only this moment
            return Use.OTHER_IDENTITY if found.identity != identity else Use.PENDING
        return Use[found.state.name]

    async def wait(self, id: str, seconds: float) -> Approval | None:
        """The approval once it is no longer pending, or as it stands when the time is up."""
        deadline = self._clock.monotonic() + seconds
        polls = 0
        while True:
            found = await self.get(id)
            left = deadline - self._clock.monotonic()
            if found is None or found.state is not State.PENDING or left <= 0:
                return found
            await self._clock.sleep(min(POLL_SECONDS[min(polls, len(POLL_SECONDS) - 1)], left))
            polls += 1

    async def _insert(self, request: Request) -> Approval | None:
        key, now = _new_id(), self._clock.time()
        inserted = await self._store.execute(
            """INSERT INTO quorate_approvals
                (id, created, expires, caller, cluster, tool, risk, digest, identity, summary, plan, remarks, state)
                VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 'pending') ON CONFLICT DO NOTHING""",
            key,
            now,
            now + self._pending_seconds,
            request.caller,
            request.cluster,
            request.tool,
            request.risk,
            request.digest,
            request.identity,
            request.summary,
            json.dumps(request.plan),
            json.dumps(request.remarks),
        )
        return await self.get(key) if inserted else None

    async def _tidy(self) -> None:
        """Name what has expired, forget what is long past (the audit trail keeps it)."""
        now = self._clock.time()
        await self._store.execute(
            "UPDATE quorate_approvals SET state = 'expired' WHERE state IN ('pending', 'approved') AND expires <= $1",
            now,
        )
        await self._store.execute("DELETE FROM quorate_approvals WHERE created < $1", now - KEPT_SECONDS)

    async def _drop_outdated(self, request: Request) -> None:
        """The same call, but its target is another one now: what was asked or approved before is void."""
        await self._store.execute(
            """UPDATE quorate_approvals SET state = 'expired', reason = $1
                WHERE caller = $2 AND digest = $3 AND identity <> $4 AND state IN ('pending', 'approved')""",
            TARGET_CHANGED,
            request.caller,
            request.digest,
            request.identity,
        )

    async def _leave_room(self, caller: str) -> None:
        rows = await self._store.fetch(
            "SELECT count(*) AS pending FROM quorate_approvals WHERE caller = $1 AND state = 'pending'", caller
        )
        if rows[0]["pending"] >= MOST_PENDING:
            raise Refused(
                f"{MOST_PENDING} requests of {caller} already wait for an operator's answer",
                next_step="Wait until some are answered or have expired",
            )

    def _approval(self, row: Row) -> Approval:
        state = State(row["state"])
        if state in OPEN and row["expires"] <= self._clock.time():
            state = State.EXPIRED
        lists = {name: tuple(json.loads(row[name])) for name in ("plan", "remarks")}
        return Approval(**{**row, "state": state, **lists})


def _new_id() -> str:
    """50 random bits, as k7m2q-9xqdh."""
    groups = ("".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_GROUP)) for _ in range(2))
    return "-".join(groups)


def _as_written(id: str) -> str:
    return id.strip().lower()
