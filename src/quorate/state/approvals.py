"""Approvals: requests of callers that an operator has to answer first.

An approval is bound to the caller, the exact arguments and the identity of what they act on. It is used once, and it
expires. Each step is one conditional statement, so of concurrent attempts to answer or use it, in any process or
replica, exactly one succeeds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from quorate.problems import Conflict, NotFound, Refused
from quorate.state.chain import canonical
from quorate.state.store import Row, Store, new_id, normalize_id, placeholders
from quorate.units import ago, moment

PENDING_SECONDS = 15 * 60.0
"""How long a request waits for its answer."""
APPROVED_SECONDS = 10 * 60.0
"""How long an approved request may be used, from the answer on."""
KEPT_SECONDS = 30 * 24 * 3600.0
REMEMBERED_SECONDS = 24 * 3600.0
"""How long a denial is shown with later requests for the same target."""
MOST_PENDING = 50
"""Open requests of one caller; more would hide the one that matters."""
POLL_SECONDS = (0.25, 0.5, 1.0)


class State(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    USED = "used"
    EXPIRED = "expired"


OPEN = (State.PENDING, State.APPROVED)
DRY_RUN = "the dry run"
"""The `answered_by` of a plan token, which a dry run creates and answers at once."""
TARGET_CHANGED = "the target has changed since"


class Use(StrEnum):
    """The result of an attempt to use an approval. Only OK is true."""

    OK = "ok"
    UNKNOWN = "it does not exist"
    PENDING = "it is not answered yet"
    DENIED = "it was denied"
    EXPIRED = "it has expired"
    USED = "it has already been used"
    OTHER_CALLER = "another caller requested it"
    OTHER_ARGUMENTS = "it is for other arguments"
    OTHER_IDENTITY = "its target has changed since"

    def __bool__(self) -> bool:
        return self is Use.OK


class RemarkKind(StrEnum):
    """What a remark is about, so that a page can sort them."""

    FINAL = "final"
    LOST = "lost"
    TARGET = "target"
    REACH = "reach"
    REASON = "reason"
    WARNING = "warning"
    OTHER = "other"


_LABELS = {
    RemarkKind.LOST: "lost",
    RemarkKind.TARGET: "target",
    RemarkKind.REACH: "reaches",
    RemarkKind.REASON: "asked because",
    RemarkKind.WARNING: "warning",
}


@dataclass(frozen=True, slots=True)
class Remark:
    """What the operator should know besides the steps."""

    kind: RemarkKind
    text: str

    def __str__(self) -> str:
        label = _LABELS.get(self.kind)
        return f"{label}: {self.text}" if label else self.text


@dataclass(frozen=True, slots=True)
class Request:
    """What a caller wants to do. All of it is stored and shown, so it must not contain secrets."""

    caller: str
    """The token subject or the client."""
    cluster: str
    tool: str
    risk: str
    digest: str
    """From `request_digest`."""
    identity: str
    """Every object that it acts on or depends on, with a fingerprint of its content, as text."""
    summary: str
    plan: tuple[str, ...] = ()
    remarks: tuple[Remark, ...] = ()
    word: str = ""
    """What a person types to approve it, such as the guest's name."""
    differences: tuple[tuple[str, str, str], ...] = ()
    """What is changed, with its current and its new value."""
    targets: tuple[str, ...] = ()
    """What it acts on, such as `prod: guest 108`, in the same words for every tool."""


@dataclass(frozen=True, slots=True)
class Denial:
    """An earlier answer about the same target."""

    summary: str
    by: str
    age: float
    """Seconds since then."""
    reason: str | None = None

    def describe(self, who: str) -> str:
        """The denial in a sentence that starts with `who`: "You" if the operator reads it.

        Other callers read this, too, so it does not say what the denied request was.
        """
        return f"{who} denied this {ago(self.age)}" + (f": {self.reason}" if self.reason else "")


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
    remarks: tuple[Remark, ...] = ()
    word: str = ""
    differences: tuple[tuple[str, str, str], ...] = ()
    targets: tuple[str, ...] = ()
    change_id: str = ""
    """The change in the journal that used it."""
    outcome: str = ""
    """How that change ended, as the journal says; empty while it runs."""
    ended: float | None = None
    denial: Denial | None = None
    """The last denial for one of its targets, while it waits for an answer."""

    @property
    def reminder(self) -> str:
        """What the operator reads first if the same was denied before."""
        if self.denial is None:
            return ""
        return f"{self.denial.describe('You')} (the request was: {self.denial.summary}; answered by {self.denial.by})"

    @property
    def history(self) -> str:
        """What happened to it, with names and times."""
        if self.state is State.PENDING or self.answered_at is None:
            return f"{_sentence(self.standing)}."
        answer = "denied" if self.state is State.DENIED else "approved"
        reason = f": {self.reason}" if self.reason and self.reason != TARGET_CHANGED else ""
        text = f"{_sentence(answer)} by {self.answered_by} {moment(self.answered_at)}{reason}."
        match self.state:
            case State.APPROVED:
                return f"{text} Not carried out yet: the caller has to repeat the call by {moment(self.expires)}."
            case State.USED if self.outcome and self.ended is not None:
                return f"{text} {_sentence(self.outcome)} {moment(self.ended)}."
            case State.USED:
                return f"{text} No outcome is recorded yet." if self.change_id else f"{text} Used."
            case State.EXPIRED:
                return f"{text} {f'Void: {TARGET_CHANGED}' if self.is_void else 'Expired unused'}."
        return text

    @property
    def is_void(self) -> bool:
        return self.state is State.EXPIRED and self.reason == TARGET_CHANGED

    @property
    def standing(self) -> str:
        """Its state in words."""
        by_token = self.answered_by == DRY_RUN
        match self.state:
            case State.PENDING:
                return "waits for an answer"
            case State.APPROVED:
                return "plan token of a dry run, not used yet" if by_token else "approved, not used yet"
            case State.USED:
                ending = self.outcome or ("no outcome yet" if self.change_id else "used")
                return f"{'plan token' if by_token else 'approved'}, {ending}"
            case State.DENIED:
                return "denied"
        if self.is_void:
            return f"void: {TARGET_CHANGED}"
        if by_token:
            return "plan token, expired unused"
        return "approved, expired unused" if self.answered_by else "expired unanswered"


def request_digest(caller: str, cluster: str, tool: str, arguments: Mapping[str, Any]) -> str:
    """The digest that identifies a call. It covers the exact arguments, which are not stored."""
    return hashlib.sha256(
        canonical({"caller": caller, "cluster": cluster, "tool": tool, "arguments": arguments})
    ).hexdigest()


class Approvals:
    def __init__(
        self, store: Store, *, pending_seconds: float = PENDING_SECONDS, approved_seconds: float = APPROVED_SECONDS
    ) -> None:
        self._store = store
        self.clock = self._clock = store.clock
        self._pending_seconds = pending_seconds
        self._approved_seconds = approved_seconds

    async def ask(self, request: Request) -> Approval:
        """The open approval for this request: a new one, or an earlier one of the same caller.

        A denied request stays denied until it would have expired, so nobody can wear the operator down.
        """
        while True:
            await self._tidy()
            await self._drop_outdated(request)
            known = await self.find(request.caller, request.digest)
            if known is not None and known.identity == request.identity:
                return known
            await self._leave_room(request.caller)
            created = await self._insert(request)
            if created is not None:
                return created
            # Another call of the same caller was faster: the next round finds its row.

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
        return (await self._with_denials(rows))[0] if rows else None

    async def get(self, id: str) -> Approval | None:
        rows = await self._store.fetch("SELECT * FROM quorate_approvals WHERE id = $1", normalize_id(id))
        return (await self._with_denials(rows))[0] if rows else None

    async def list(self, states: Collection[State] = (State.PENDING,), limit: int = 50) -> list[Approval]:
        """Newest first. Read-only: a request may have expired since its state was stored."""
        if not states:
            return []
        now = self._clock.time()
        rows = await self._store.fetch(
            f"""SELECT * FROM quorate_approvals
                WHERE created >= $3
                AND CASE WHEN state IN ('pending', 'approved') AND expires <= $2 THEN 'expired' ELSE state END
                IN ({placeholders(states, 4)}) ORDER BY created DESC, id LIMIT $1""",  # noqa: S608 - numbers of placeholders
            limit,
            now,
            now - KEPT_SECONDS,
            *(state.value for state in states),
        )
        return [*await self._with_denials(rows)]

    async def last_denial(self, targets: Collection[str]) -> Denial | None:
        """The last denial of any request for one of these targets."""
        return self._denial_of(targets, await self._recent_denials()) if targets else None

    async def pending(self, clusters: frozenset[str] | None = None) -> int:
        """How many wait for an answer, in these clusters or in all. Read-only, so it can be polled."""
        rows = await self._store.fetch(
            "SELECT cluster, count(*) AS pending FROM quorate_approvals WHERE state = 'pending' AND expires > $1 "
            "GROUP BY cluster",
            self._clock.time(),
        )
        return sum(row["pending"] for row in rows if clusters is None or row["cluster"] in clusters)

    async def answer(self, id: str, approve: bool, by: str, reason: str | None = None) -> Approval:
        """Approve or deny a pending request. Raises NotFound, or Conflict if it is answered, used or expired."""
        key, now = normalize_id(id), self._clock.time()
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
        approval = await self.get(key)
        if approval is None:
            raise NotFound(f"There is no approval {key}", next_step="`quorate approvals` lists the pending ones")
        if not answered:
            whose = (
                f" by {approval.answered_by}" if approval.answered_by and approval.state is not State.EXPIRED else ""
            )
            raise Conflict(
                f"The approval {key} cannot be answered ({approval.standing}{whose})",
                next_step="If it is still needed, make the call again",
            )
        return approval

    async def use(self, id: str, caller: str, digest: str, identity: str, change: str = "") -> Use:
        """Use an approval for a change. Only one of all attempts gets Use.OK; the others get the reason."""
        key, now = normalize_id(id), self._clock.time()
        used = await self._store.execute(
            """UPDATE quorate_approvals SET state = 'used', change_id = $6
                WHERE id = $1 AND caller = $2 AND digest = $3 AND identity = $4
                AND state = 'approved' AND expires > $5""",
            key,
            caller,
            digest,
            identity,
            now,
            change,
        )
        if used:
            return Use.OK
        approval = await self.get(key)
        if approval is None:
            return Use.UNKNOWN
        if approval.caller != caller:
            return Use.OTHER_CALLER
        if approval.digest != digest:
            return Use.OTHER_ARGUMENTS
        if approval.state is State.APPROVED:  # with the same identity: it was answered just now
            return Use.OTHER_IDENTITY if approval.identity != identity else Use.PENDING
        return Use[approval.state.name]

    async def record_outcome(self, change: str, outcome: str) -> None:
        """Record how the change that used an approval ended; most changes used none."""
        await self._store.execute(
            "UPDATE quorate_approvals SET outcome = $1, ended = $2 WHERE change_id = $3",
            outcome,
            self._clock.time(),
            change,
        )

    async def wait(self, id: str, seconds: float) -> Approval | None:
        """The approval once it is answered, or as it is when the time is up."""
        deadline = self._clock.monotonic() + seconds
        polls = 0
        while True:
            approval = await self.get(id)
            left = deadline - self._clock.monotonic()
            if approval is None or approval.state is not State.PENDING or left <= 0:
                return approval
            await self._clock.sleep(min(POLL_SECONDS[min(polls, len(POLL_SECONDS) - 1)], left))
            polls += 1

    async def _insert(self, request: Request) -> Approval | None:
        key, now = new_id(5, 5), self._clock.time()
        inserted = await self._store.execute(
            """INSERT INTO quorate_approvals
                (id, created, expires, caller, cluster, tool, risk, digest, identity, summary, plan, remarks, word,
                differences, targets, state)
                VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, 'pending')
                ON CONFLICT DO NOTHING""",
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
            json.dumps([[remark.kind, remark.text] for remark in request.remarks]),
            request.word,
            json.dumps(request.differences),
            json.dumps(request.targets),
        )
        return await self.get(key) if inserted else None

    async def _tidy(self) -> None:
        """Mark expired requests and delete old ones; the audit trail keeps them."""
        now = self._clock.time()
        await self._store.execute(
            "UPDATE quorate_approvals SET state = 'expired' WHERE state IN ('pending', 'approved') AND expires <= $1",
            now,
        )
        await self._store.execute("DELETE FROM quorate_approvals WHERE created < $1", now - KEPT_SECONDS)

    async def _drop_outdated(self, request: Request) -> None:
        """Void earlier requests for the same call whose target has changed."""
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

    async def _with_denials(self, rows: Collection[Row]) -> tuple[Approval, ...]:
        """The approvals in these rows. A pending one has the last denial, which may be newer than the request."""
        approvals = tuple(self._approval(row) for row in rows)
        if not any(approval.state is State.PENDING and approval.targets for approval in approvals):
            return approvals
        denied = await self._recent_denials()
        return tuple(
            replace(approval, denial=self._denial_of(approval.targets, denied))
            if approval.state is State.PENDING
            else approval
            for approval in approvals
        )

    async def _recent_denials(self) -> tuple[Approval, ...]:
        """Newest first."""
        rows = await self._store.fetch(
            """SELECT * FROM quorate_approvals WHERE state = 'denied' AND answered_at > $1
                ORDER BY answered_at DESC""",
            self._clock.time() - REMEMBERED_SECONDS,
        )
        return tuple(self._approval(row) for row in rows)

    def _denial_of(self, targets: Collection[str], denied: Collection[Approval]) -> Denial | None:
        last = next((approval for approval in denied if not set(targets).isdisjoint(approval.targets)), None)
        if last is None or last.answered_at is None:
            return None
        return Denial(last.summary, last.answered_by or "nobody", self._clock.time() - last.answered_at, last.reason)

    def _approval(self, row: Row) -> Approval:
        state = State(row["state"])
        if state in OPEN and row["expires"] <= self._clock.time():
            state = State.EXPIRED
        lists = {
            "plan": tuple(json.loads(row["plan"])),
            "remarks": tuple(map(_remark, json.loads(row["remarks"]))),
            "differences": tuple(map(tuple, json.loads(row["differences"]))),
            "targets": tuple(json.loads(row["targets"])),
        }
        return Approval(**{**row, "state": state, **lists})


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _remark(stored: str | list[str]) -> Remark:
    """The remark in a stored item, which is a plain text if an older version wrote it."""
    if isinstance(stored, str):
        return Remark(RemarkKind.OTHER, stored)
    kind, text = stored
    return Remark(RemarkKind(kind), text)
