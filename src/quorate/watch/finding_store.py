"""What the watch has noticed: findings and events.

A finding is opened, seen again, acknowledged, silenced and resolved. It is one row from the moment it opens until it is
resolved; if the same thing happens again later, that is a new row. Every change that people should hear about raises
its revision. Messages are derived from that number, so a process that dies between the two loses none and sends none
twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from quorate.hints import Advice, ToolHint, see, tools
from quorate.problems import BadArgument, Conflict, NotFound
from quorate.state.store import Row, Store, new_id, normalize_id, placeholders

SEVERITIES = ("critical", "warning", "unchecked", "info")
"""Worst first."""
KEPT_SECONDS = 90 * 86400.0
FLAP_SECONDS = 3600.0
MOST_OPENINGS = 2
"""Openings of a finding within FLAP_SECONDS; after more, it is reported only once it has lasted that long."""
LONGEST_NOTE = 500
_COLUMNS = (
    "id, cluster, kind, finding_key, source, severity, entry, state, opened, last_seen, seen, acknowledged_by, "
    "acknowledged_at, note, silenced_until, resolved, event, revision, notified"
)


class NextCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool that shows or fixes it, in a form that can be stored."""

    tool: str
    arguments: dict[str, Any] = {}
    text: str = ""

    @property
    def advice(self) -> Advice:
        return Advice(self.text, ToolHint(self.tool, self.arguments)) if self.tool else Advice(self.text)


class Observation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something wrong, as a check sees it now."""

    kind: str
    target: str
    """What it is about: `node pve1`, `guest 105`; empty for the whole cluster."""
    severity: str
    what: str
    source: str = ""
    """Which facts show it. It counts as resolved only if those were read again and no longer show it."""
    subjects: tuple[str, ...] = ()
    """The guests or nodes that share it; one that nobody was notified of is worth another message."""
    evidence: dict[str, Any] = {}
    next: NextCall = NextCall("")
    link: str = ""
    """A page where a person can see and decide it; opening the page decides nothing."""

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.target}"


@dataclass(frozen=True, slots=True)
class Finding:
    id: str
    cluster: str
    seen_as: Observation
    """The latest observation."""
    state: str
    """open, acknowledged or resolved"""
    opened: float
    last_seen: float
    seen: int
    acknowledged_by: str | None
    acknowledged_at: float | None
    note: str
    silenced_until: float | None
    resolved: float | None
    event: str
    """What happened last that people should hear about: opened, worse, more, again, resolved."""
    revision: int
    notified: int
    reported: frozenset[str] = frozenset()
    """Every guest or node that shared it since it opened."""

    @property
    def kind(self) -> str:
        return self.seen_as.kind

    @property
    def severity(self) -> str:
        return self.seen_as.severity

    def is_silenced(self, now: float) -> bool:
        return self.silenced_until is not None and self.silenced_until > now


@dataclass(frozen=True, slots=True)
class CycleChanges:
    """What one cycle changed."""

    opened: int = 0
    worse: int = 0
    resolved: int = 0


class Findings:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._clock = store.clock

    # -- what the watch writes -------------------------------------------------------------------------------------

    async def observe(
        self,
        cluster: str,
        observations: Iterable[Observation],
        covers: Callable[[str], bool],
        known: Iterable[Finding] | None = None,
        *,
        may_flap: bool = True,
    ) -> CycleChanges:
        """Bring the findings of a cluster up to date.

        `covers` says whether the facts of a source were read this time. `known` are the open findings, if the caller
        has just read them. With `may_flap`, a finding that comes and goes, such as a value around its threshold, causes
        no more messages after a while.
        """
        now = self._clock.time()
        current = {observation.key: observation for observation in observations}
        known = await self.open(cluster) if known is None else known
        open_findings = {finding.seen_as.key: finding for finding in known}
        opened = worse = resolved = 0
        unchanged: list[str] = []
        for key, observation in current.items():
            old = open_findings.get(key)
            if old is None:
                opened += await self._open(cluster, observation, now, may_flap=may_flap)
            elif event := news_of(old, observation, now):
                worse += await self._renew(old, observation, event, now)
            elif old.seen_as != observation:
                await self._renew(old, observation, old.event, now, quiet=True)
            else:
                unchanged.append(old.id)
        await self._seen_again(unchanged, now)
        for key, old in open_findings.items():
            if key not in current and covers(old.seen_as.source):
                resolved += await self._resolve(old, now)
        return CycleChanges(opened, worse, resolved)

    async def _open(self, cluster: str, observation: Observation, now: float, *, may_flap: bool) -> int:
        before = await self._read(
            "WHERE cluster = $1 AND finding_key = $2 AND (silenced_until > $3 OR opened > $4) ORDER BY opened DESC",
            cluster,
            observation.key,
            now,
            now - FLAP_SECONDS,
        )
        by, at, note, until = _quiet(before, now, may_flap=may_flap)
        return await self._store.execute(
            f"INSERT INTO quorate_findings ({_COLUMNS}) "  # noqa: S608 - names of columns
            "VALUES ($1, $2, $3, $4, $5, $6, $7, 'open', $8, $8, 1, $9, $10, $11, $12, NULL, 'opened', 1, 0) "
            "ON CONFLICT DO NOTHING",
            new_id(8),
            cluster,
            observation.kind,
            observation.key,
            observation.source,
            observation.severity,
            _encode(observation, ()),
            now,
            by,
            at,
            note,
            until,
        )

    async def _renew(
        self, known: Finding, observation: Observation, event: str, now: float, *, quiet: bool = False
    ) -> int:
        """A finding that got worse or larger is open again, even if someone acknowledged the smaller one."""
        state = known.state if quiet else "open"
        return await self._store.execute(
            """UPDATE quorate_findings SET entry = $2, severity = $3, source = $4, event = $5, state = $6,
                revision = revision + $7, last_seen = $8, seen = seen + 1,
                silenced_until = CASE WHEN silenced_until <= $8 THEN NULL ELSE silenced_until END
                WHERE id = $1 AND resolved IS NULL AND revision = $9""",
            known.id,
            _encode(observation, known.reported),
            observation.severity,
            observation.source,
            event,
            state,
            0 if quiet else 1,
            now,
            known.revision,
        )

    async def _seen_again(self, ids: list[str], now: float) -> None:
        for start in range(0, len(ids), 500):
            batch = ids[start : start + 500]
            await self._store.execute(
                f"UPDATE quorate_findings SET last_seen = $1, seen = seen + 1 WHERE id IN ({placeholders(batch, 2)})",  # noqa: S608
                now,
                *batch,
            )

    async def _resolve(self, known: Finding, now: float) -> int:
        return await self._store.execute(
            """UPDATE quorate_findings SET resolved = $2, state = 'resolved', event = 'resolved',
                revision = revision + 1 WHERE id = $1 AND resolved IS NULL""",
            known.id,
            now,
        )

    async def to_notify(self) -> list[Finding]:
        """Findings with news that has not been put into a message yet."""
        return await self._read("WHERE revision > notified ORDER BY last_seen, opened, id")

    async def mark_notified(self, finding: Finding) -> None:
        """Note that messages about this revision are in the outbox, or that none is needed."""
        await self._store.execute(
            "UPDATE quorate_findings SET notified = $2 WHERE id = $1 AND notified < $2", finding.id, finding.revision
        )

    async def forget_old(self) -> None:
        await self._store.execute("DELETE FROM quorate_findings WHERE resolved < $1", self._clock.time() - KEPT_SECONDS)

    # -- what people do --------------------------------------------------------------------------------------------

    async def acknowledge(self, id: str, by: str, note: str = "") -> Finding:
        """Acknowledge it: no more messages unless it gets worse, or until it is resolved."""
        changed = await self._store.execute(
            """UPDATE quorate_findings SET state = 'acknowledged', acknowledged_by = $2, acknowledged_at = $3, note = $4
                WHERE id = $1 AND resolved IS NULL""",
            normalize_id(id),
            by,
            self._clock.time(),
            " ".join(note.split())[:LONGEST_NOTE],
        )
        return await self._require_open(id, changed)

    async def silence(self, id: str, until: float, by: str, note: str = "") -> Finding:
        """Send no messages before then. If it is still open at that time, it is reported again."""
        if until <= self._clock.time():
            raise BadArgument("The time until which it is silenced has passed", next_step="Give a later one")
        changed = await self._store.execute(
            """UPDATE quorate_findings SET silenced_until = $2, acknowledged_by = $3, acknowledged_at = $4, note = $5
                WHERE id = $1 AND resolved IS NULL""",
            normalize_id(id),
            until,
            by,
            self._clock.time(),
            " ".join(note.split())[:LONGEST_NOTE],
        )
        return await self._require_open(id, changed)

    async def _require_open(self, id: str, changed: int) -> Finding:
        finding = await self.get(id)
        if not changed:
            raise Conflict(f"Finding {finding.id} is already resolved", next_step="It needs no answer")
        return finding

    # -- what people read ------------------------------------------------------------------------------------------

    async def get(self, id: str) -> Finding:
        findings = await self._read("WHERE id = $1", normalize_id(id))
        if not findings:
            raise NotFound(f"There is no finding {id!r}", next_step=see("See which exist", tools.finding_list))
        return findings[0]

    async def open(self, cluster: str | None = None) -> list[Finding]:
        """Worst first, then the newest."""
        where = "WHERE resolved IS NULL" + ("" if cluster is None else " AND cluster = $1")
        findings = await self._read(where, *(() if cluster is None else (cluster,)))
        return sorted(findings, key=lambda finding: (SEVERITIES.index(finding.severity), -finding.opened, finding.id))

    async def resolved_since(self, since: float) -> list[Finding]:
        return await self._read("WHERE resolved >= $1 ORDER BY resolved DESC, id", since)

    async def opened_since(self, since: float) -> list[Finding]:
        return await self._read("WHERE opened >= $1 ORDER BY opened DESC, id", since)

    async def counts(self) -> Mapping[tuple[str, str, str, str], int]:
        """How many are open, by cluster, kind, severity and state. One read, so it can be polled."""
        rows = await self._store.fetch(
            "SELECT cluster, kind, severity, state, count(*) AS number FROM quorate_findings WHERE resolved IS NULL "
            "GROUP BY cluster, kind, severity, state"
        )
        return {(row["cluster"], row["kind"], row["severity"], row["state"]): row["number"] for row in rows}

    async def _read(self, where: str, *values: Any) -> list[Finding]:
        rows = await self._store.fetch(f"SELECT {_COLUMNS} FROM quorate_findings {where}", *values)  # noqa: S608
        return [_finding(row) for row in rows]


def news_of(known: Finding, observation: Observation, now: float) -> str:
    """What is new about a known finding and worth a message; empty if nothing is."""
    if SEVERITIES.index(observation.severity) < SEVERITIES.index(known.severity):
        return "worse"
    if set(observation.subjects) - known.reported:
        return "more"
    if known.silenced_until is not None and known.silenced_until <= now:
        return "again"
    return ""


def _quiet(before: list[Finding], now: float, *, may_flap: bool) -> tuple[str | None, float | None, str, float | None]:
    """Who silenced it, when, the note and until when.

    `before` are earlier findings of the same key: a silence still applies to one that was resolved and opens again.
    """
    silences = [finding for finding in before if finding.is_silenced(now)]
    silenced = max(silences, key=lambda finding: finding.silenced_until or 0, default=None)
    if silenced is not None:
        return silenced.acknowledged_by, silenced.acknowledged_at, silenced.note, silenced.silenced_until
    if may_flap and len(before) >= MOST_OPENINGS:
        return None, None, "It comes and goes, so it is reported if it lasts for an hour", now + FLAP_SECONDS
    return None, None, "", None


def _finding(row: Row) -> Finding:
    facts = {name: row[name] for name in row if name not in ("kind", "finding_key", "source", "severity", "entry")}
    observation = msgspec.json.decode(row["entry"], type=Observation)
    reported = msgspec.json.decode(row["entry"], type=_Reported).reported
    return Finding(**facts, seen_as=observation, reported=reported | set(observation.subjects))


class _Reported(msgspec.Struct):
    """The part of a stored entry that is not the latest observation."""

    reported: frozenset[str] = frozenset()


def _encode(observation: Observation, reported: Iterable[str]) -> str:
    entry = msgspec.to_builtins(observation, enc_hook=str)
    return msgspec.json.encode(entry | {"reported": sorted({*reported, *observation.subjects})}).decode()


@dataclass(frozen=True, slots=True)
class Event:
    cluster: str
    time: float
    kind: str
    """created, gone, moved, changed, started, stopped, task-failed"""
    target: str
    says: str

    def id(self, before: float) -> str:
        """Equal in every process that notices the event after the cycle at `before`, so that it is recorded once."""
        text = "\0".join((self.cluster, self.kind, self.target, self.says, repr(before)))
        return hashlib.sha256(text.encode()).hexdigest()[:32]


class Events:
    """What happened to guests and tasks, as the watch noticed it; `changes_since` reads it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def record(self, events: Iterable[Event], *, before: float) -> None:
        """Record what changed since the cycle at `before`."""
        for event in events:
            await self._store.execute(
                "INSERT INTO quorate_events (id, cluster, time, kind, target, says) VALUES ($1, $2, $3, $4, $5, $6) "
                "ON CONFLICT DO NOTHING",
                event.id(before), event.cluster, event.time, event.kind, event.target, event.says,
            )  # fmt: skip

    async def since(self, time: float, limit: int) -> list[Event]:
        """Newest first."""
        rows = await self._store.fetch(
            "SELECT cluster, time, kind, target, says FROM quorate_events WHERE time >= $1 "
            "ORDER BY time DESC, id LIMIT $2",
            time,
            limit,
        )
        return [Event(**row) for row in rows]

    async def forget_old(self) -> None:
        await self._store.execute("DELETE FROM quorate_events WHERE time < $1", self._store.clock.time() - KEPT_SECONDS)
