"""The audit trail: hash-chained records of every attempted change, and their view as one entry each."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, Protocol

from quorate.problems import Problem, ProblemCode
from quorate.state import chain
from quorate.state.canonical import limit_size
from quorate.state.chain import Link, Verification
from quorate.state.entries import CHANGE, OUTCOME, PHASE, Folding, fold_change, is_continuation
from quorate.state.store import StateUnavailable, Store

COLUMNS = (
    "seq",
    "time",
    "caller",
    "cluster",
    "tool",
    "risk",
    "access",
    "decision",
    "rule",
    "approval",
    "dry_run",
    "outcome",
    "error",
    "plan",
    "arguments",
    "calls",
    "tasks",
    "seconds",
    "prev",
    "hash",
)
"""Columns of a CSV export; everything else goes into a last column, `more`."""

_LOG = logging.getLogger(__name__)


class AuditUnwritable(Problem):
    code = ProblemCode.AUDIT


@dataclass(frozen=True, slots=True)
class Filters:
    """Which entries to show. Texts may contain * and ?; times are seconds since the epoch."""

    tool: str | None = None
    outcome: str | None = None
    caller: str | None = None
    """Matches subject, client or transport."""
    cluster: str | None = None
    approval: str | None = None
    """The id of an approval: the calls that waited for it, and the change that used it."""
    target: str | None = None
    """Matches an argument, such as a vmid or the name of a guest, or a word of the plan or of the steps."""
    since: float | None = None
    until: float | None = None
    clusters: frozenset[str] | None = None
    """Only entries of these clusters."""

    def accept(self, entry: Mapping[str, Any]) -> bool:
        return (
            (self.clusters is None or entry.get("cluster") in self.clusters)
            and _fits(self.tool, entry.get("tool"))
            and _fits(self.outcome, entry.get("outcome"))
            and _fits(self.caller, entry.get("caller"))
            and _fits(self.cluster, entry.get("cluster"))
            and (self.approval is None or self.approval in str(entry.get("approval", "")).split())
            and (self.target is None or any(_fits(self.target, word) for word in _target_words(entry)))
            and self._in_time(entry.get("time"))
        )

    def _in_time(self, text: object) -> bool:
        if self.since is None and self.until is None:
            return True
        time = seconds_of(text)
        if time is None:
            return False
        return (self.since is None or time >= self.since) and (self.until is None or time < self.until)


class TrailStorage(Protocol):
    """Where the records are kept."""

    place: str
    name: str
    """Its name in the store."""

    async def ensure_writable(self) -> None: ...

    async def append(self, entry: Mapping[str, Any]) -> None: ...

    async def whole(self) -> tuple[AsyncIterator[bytes], Link | None]: ...

    def newest_first(self) -> AsyncIterator[bytes]: ...


class AuditHead:
    """The end of the audit trail as recorded in the store: number and hash of the newest record."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name

    async def ensure_writable(self) -> None:
        await self._store.execute("UPDATE quorate_audit_head SET seq = seq WHERE name = $1", self._name)

    async def read(self) -> Link | None:
        rows = await self._store.fetch("SELECT seq, hash FROM quorate_audit_head WHERE name = $1", self._name)
        return Link(**rows[0]) if rows else None

    async def move(self, known: Link | None, to: Link) -> None:
        """Move the head, but only from the known one: a head that differs is evidence and stays."""
        if known is None:
            await self._store.execute(
                "INSERT INTO quorate_audit_head (name, seq, hash) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
                self._name,
                to.seq,
                to.hash,
            )
            return
        await self._store.execute(
            "UPDATE quorate_audit_head SET seq = $1, hash = $2 WHERE name = $3 AND seq = $4 AND hash = $5",
            to.seq,
            to.hash,
            self._name,
            known.seq,
            known.hash,
        )


class Writes:
    """Writes that run to their end even if the call that they belong to is canceled."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_failure)
            raise

    async def finish(self) -> None:
        await asyncio.gather(*self._running, return_exceptions=True)


class AuditTrail:
    def __init__(self, storage: TrailStorage) -> None:
        self._storage = storage
        self.writes = Writes()

    @property
    def place(self) -> str:
        return self._storage.place

    @property
    def name(self) -> str:
        return self._storage.name

    async def ensure_writable(self) -> None:
        """Raises AuditUnwritable: changes that cannot be recorded are not made."""
        try:
            await self._storage.ensure_writable()
        except (OSError, StateUnavailable) as error:
            raise self.unwritable("so nothing is changed", error) from None

    async def record(self, entry: Mapping[str, Any]) -> None:
        """Write the entry, even if the call that made it is canceled."""
        await self.writes.run(self._record(entry))

    async def verify(self) -> Verification:
        """Whether the chain is intact, or where it breaks first and how."""
        lines, head = await self._storage.whole()
        return await chain.verify(lines, head)

    async def append(self, entry: Mapping[str, Any]) -> None:
        """Write one record to disk. Raises OSError or StateUnavailable if that fails."""
        await self._storage.append(limit_size(entry))

    async def newest_first(self) -> AsyncIterator[dict[str, Any]]:
        """Every readable record, newest first."""
        async for line in self._storage.newest_first():
            if (entry := chain.parse_line(line)) is not None:
                yield entry

    async def entries(
        self,
        filters: Filters = Filters(),  # noqa: B008
        limit: int = 100,
        *,
        before: int | None = None,
    ) -> list[dict[str, Any]]:
        """The newest matching entries, newest last; with `before`, only those that began before that record."""
        found: list[dict[str, Any]] = []
        folding = Folding()
        async for line in self.newest_first():
            if len(found) >= limit:
                break
            entry = folding.fold_back(line)
            if entry is not None and filters.accept(entry) and (before is None or entry.get("seq", 0) < before):
                found.append(entry)
        return found[::-1]

    async def entry(self, seq: int) -> dict[str, Any] | None:
        """The entry that begins with this record."""
        folding = Folding()
        async for line in self.newest_first():
            entry = folding.fold_back(line)
            if line.get("seq", 0) <= seq:
                return entry if entry is not None and entry.get("seq") == seq else None
        return None

    async def export(self, format: Literal["jsonl", "csv"], filters: Filters = Filters()) -> AsyncIterator[str]:  # noqa: B008
        """The matching entries: CSV rows, or the records as they were written, which can be verified."""
        if format == "csv":
            yield _csv_line((*COLUMNS, "more"))
            async for entry in self._oldest_first():
                if filters.accept(entry):
                    yield _csv_line(_cells(entry))
            return
        wanted = {entry[CHANGE] async for entry in self._oldest_first() if CHANGE in entry and filters.accept(entry)}
        lines, _ = await self._storage.whole()
        async for line in lines:
            found = chain.parse_line(line)
            if found is not None and (found[CHANGE] in wanted if CHANGE in found else filters.accept(found)):
                yield line.decode(errors="replace").rstrip("\n") + "\n"

    async def _oldest_first(self) -> AsyncIterator[dict[str, Any]]:
        """Each entry when its last record is reached; those without an outcome come last.

        Few changes have records after their first outcome. A first pass finds those, so the second holds no more in
        memory than the changes that ran at the same time.
        """
        late = await self._written_about_later()
        going_on: dict[str, list[dict[str, Any]]] = {}
        async for line in self._read_entries():
            if CHANGE not in line:
                yield line
                continue
            change = str(line[CHANGE])
            lines = going_on.setdefault(change, [])
            lines.append(line)
            if line.get(PHASE) == OUTCOME and late.get(change, line["seq"]) == line["seq"]:
                yield fold_change(lines[0], going_on.pop(change)[1:])
        for lines in going_on.values():
            yield fold_change(lines[0], lines[1:])

    async def _written_about_later(self) -> dict[str, int]:
        """Changes with records after their first outcome, and the number of the last one."""
        open_changes: set[str] = set()
        late: dict[str, int] = {}
        async for line in self._read_entries():
            change = str(line.get(CHANGE, ""))
            if change and not is_continuation(line):
                open_changes.add(change)
            elif line.get(PHASE) == OUTCOME:
                if change in open_changes:
                    open_changes.discard(change)
                else:
                    late[change] = line["seq"]
        return late

    async def _read_entries(self) -> AsyncIterator[dict[str, Any]]:
        lines, _ = await self._storage.whole()
        async for line in lines:
            if (entry := chain.parse_line(line)) is not None:
                yield entry

    async def close(self) -> None:
        """Finish the writes in progress."""
        await self.writes.finish()

    async def _record(self, entry: Mapping[str, Any]) -> None:
        try:
            await self.append(entry)
        except (OSError, StateUnavailable) as error:
            tool = entry.get("tool", "The change")
            what = f"{tool} is not recorded there; it ended with: {entry.get('outcome')}"
            raise self.unwritable(what, error) from None

    def unwritable(self, what: str, error: OSError | StateUnavailable) -> AuditUnwritable:
        return AuditUnwritable(
            f"The audit trail {self.place} cannot be written, {what}",
            why=(error.strerror or str(error)) if isinstance(error, OSError) else f"{error.what} {error.why or ''}",
            next_step="Make room or set QUORATE_AUDIT_FILE to a writable place"
            if isinstance(error, OSError)
            else error.next_step,
        )


def open_trail(store: Store, file: Path) -> AuditTrail:
    """The audit trail in a file, or in the store if replicas share it. Nothing is opened before the first use."""
    if store.shared:
        from quorate.state.trail_table import TrailTable

        return AuditTrail(TrailTable(store))
    from quorate.state.trail_file import TrailFile

    return AuditTrail(TrailFile(file, store))


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.error("%s", error)


def _fits(wanted: str | None, value: object) -> bool:
    if wanted is None:
        return True
    parts = value.values() if isinstance(value, Mapping) else (value,)
    return any(fnmatchcase(str(part), wanted) for part in parts if part is not None)


def _target_words(entry: Mapping[str, Any]) -> Iterator[str]:
    """What the change names: values of arguments, and words of its plan and its calls."""
    pending: list[object] = [entry.get("arguments")]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
        elif value is not None:
            yield str(value)
    for text in (entry.get("plan"), *(entry.get("calls") or ())):
        yield from re.split(r"[\s/,:]+", str(text or ""))


def seconds_of(text: object) -> float | None:
    """The time of an entry, or None."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _cells(entry: Mapping[str, Any]) -> list[str]:
    more = {name: value for name, value in entry.items() if name not in COLUMNS}
    return [_cell(entry.get(name)) for name in COLUMNS] + [_cell(more or None)]


def _cell(value: object) -> str:
    """A CSV cell. What a spreadsheet would read as a formula is quoted, because strangers may have written it."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _csv_line(cells: tuple[str, ...] | list[str]) -> str:
    import csv
    import io

    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()
