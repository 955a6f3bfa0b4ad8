"""The audit trail: hash-chained records of every attempted change, folded into one entry per change for readers."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import logging
import re
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from quorate.problems import Problem, ProblemCode
from quorate.state import chain
from quorate.state.chain import CHANGE, OUTCOME, PHASE, Verification, is_continuation, limit_size
from quorate.state.store import StateUnavailable, Store
from quorate.state.trail_storage import TrailStorage, open_storage

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
UNFINISHED = "unfinished"
"""The outcome of an entry without one: its process still works on it, or died."""
_RECORD_FIELDS = ("seq", "prev", "hash", PHASE, CHANGE)

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
        lines, head = await self._storage.read_all()
        return await chain.verify(lines, head)

    async def append(self, entry: Mapping[str, Any]) -> None:
        """Write one record to disk. Raises OSError or StateUnavailable if that fails."""
        await self._storage.append(limit_size(entry))

    async def newest_first(self) -> AsyncIterator[dict[str, Any]]:
        """Every readable record, newest first."""
        async for line in self._storage.newest_first():
            if (record := chain.parse_line(line)) is not None:
                yield record

    async def entries(
        self,
        filters: Filters = Filters(),  # noqa: B008
        limit: int = 100,
        *,
        before: int | None = None,
    ) -> list[dict[str, Any]]:
        """The newest matching entries, newest last; with `before`, only those that began before that record."""
        entries: list[dict[str, Any]] = []
        folding = Folding()
        async for record in self.newest_first():
            if len(entries) >= limit:
                break
            entry = folding.fold_back(record)
            if entry is not None and filters.accept(entry) and (before is None or entry.get("seq", 0) < before):
                entries.append(entry)
        return entries[::-1]

    async def entry(self, seq: int) -> dict[str, Any] | None:
        """The entry that begins with this record."""
        folding = Folding()
        async for record in self.newest_first():
            entry = folding.fold_back(record)
            if record.get("seq", 0) <= seq:
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
        changes = {entry[CHANGE] async for entry in self._oldest_first() if CHANGE in entry and filters.accept(entry)}
        lines, _ = await self._storage.read_all()
        async for line in lines:
            record = chain.parse_line(line)
            if record is not None and (record[CHANGE] in changes if CHANGE in record else filters.accept(record)):
                yield line.decode(errors="replace").rstrip("\n") + "\n"

    async def _oldest_first(self) -> AsyncIterator[dict[str, Any]]:
        """Each entry when its last outcome is reached; those without an outcome come last.

        Few changes have more than one outcome. A first pass finds those, so the second holds no more in memory than
        the changes that ran at the same time.
        """
        late = await self._last_records()
        unclosed: dict[str, list[dict[str, Any]]] = {}
        async for record in self._records():
            if CHANGE not in record:
                yield record
                continue
            change = str(record[CHANGE])
            unclosed.setdefault(change, []).append(record)
            if record.get(PHASE) == OUTCOME and late.get(change, record["seq"]) == record["seq"]:
                intent, *later = unclosed.pop(change)
                yield fold_change(intent, later)
        for intent, *later in unclosed.values():
            yield fold_change(intent, later)

    async def _last_records(self) -> dict[str, int]:
        """Changes with more than one outcome, and the number of the record with the last one."""
        without_outcome: set[str] = set()
        late: dict[str, int] = {}
        async for record in self._records():
            change = str(record.get(CHANGE, ""))
            if change and not is_continuation(record):
                without_outcome.add(change)
            elif record.get(PHASE) == OUTCOME:
                if change in without_outcome:
                    without_outcome.discard(change)
                else:
                    late[change] = record["seq"]
        return late

    async def _records(self) -> AsyncIterator[dict[str, Any]]:
        """Every readable record, oldest first."""
        lines, _ = await self._storage.read_all()
        async for line in lines:
            if (record := chain.parse_line(line)) is not None:
                yield record

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
    """The audit trail in the file, or in the store if replicas share it. Nothing is opened before the first use."""
    return AuditTrail(open_storage(store, file))


def fold_change(intent: Mapping[str, Any], later: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One entry: the intent, every answer under `answers`, and the last outcome."""
    entry: dict[str, Any] = {name: value for name, value in intent.items() if name != PHASE}
    entry |= {"outcome": UNFINISHED, "final": False}
    answers: list[dict[str, Any]] = []
    for record in later:
        content = {name: value for name, value in record.items() if name not in _RECORD_FIELDS}
        match record.get(PHASE):
            case "step":
                answers.append(content)
            case "plan":
                entry |= content
                entry.setdefault("earlier_answers", []).extend(answers)
                answers = []
            case _:
                entry |= {("closed" if name == "time" else name): value for name, value in content.items()}
                entry["closed_by"] = record.get("seq")
    if answers:
        entry["answers"] = answers
        entry.setdefault("tasks", [answer["task"] for answer in answers if "task" in answer])
    return entry


class Folding:
    """Folds records into entries while a trail is read newest first."""

    def __init__(self) -> None:
        self._later: dict[str, list[dict[str, Any]]] = {}

    def fold_back(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """The entry once its first record is reached, otherwise None."""
        if CHANGE not in record:
            return record
        if is_continuation(record):
            self._later.setdefault(str(record[CHANGE]), []).append(record)
            return None
        return fold_change(record, reversed(self._later.pop(str(record[CHANGE]), [])))


def fold(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries of these records, oldest first."""
    folding = Folding()
    entries = [folding.fold_back(record) for record in reversed(list(records))]
    return [entry for entry in reversed(entries) if entry is not None]


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.error("%s", error)


def _fits(pattern: str | None, value: object) -> bool:
    if pattern is None:
        return True
    parts = value.values() if isinstance(value, Mapping) else (value,)
    return any(fnmatchcase(str(part), pattern) for part in parts if part is not None)


def _target_words(entry: Mapping[str, Any]) -> Iterator[str]:
    """Words that may name a target: the values of the arguments, and the words of the plan and its calls."""
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
    """The `time` of a record in seconds since the epoch, or None if it is missing or not a time."""
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _cells(entry: Mapping[str, Any]) -> list[str]:
    more = {name: value for name, value in entry.items() if name not in COLUMNS}
    return [_cell(entry.get(name)) for name in COLUMNS] + [_cell(more or None)]


def _cell(value: object) -> str:
    """A CSV cell. What a spreadsheet would read as a formula is quoted, because it may come from a stranger."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _csv_line(cells: tuple[str, ...] | list[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()
