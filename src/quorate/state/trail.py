"""The audit trail: one hash-chained entry for every change that was tried, whatever became of it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, Protocol

from quorate.pve.errors import Problem
from quorate.state import chain
from quorate.state.chain import Link, Verification
from quorate.state.database import StateUnavailable
from quorate.state.store import Store

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
"""Of a CSV export; what else an entry says is in a last column, `more`."""

_LOG = logging.getLogger(__name__)


class AuditUnwritable(Problem):
    kind = "audit"


@dataclass(frozen=True, slots=True)
class Filters:
    """Which entries are wanted. Texts may hold * and ?; times are seconds since the epoch."""

    tool: str | None = None
    outcome: str | None = None
    caller: str | None = None
    """Any part of who it was: subject, client, transport."""
    cluster: str | None = None
    since: float | None = None
    until: float | None = None

    def accept(self, entry: Mapping[str, Any]) -> bool:
        return (
            _fits(self.tool, entry.get("tool"))
            and _fits(self.outcome, entry.get("outcome"))
            and _fits(self.caller, entry.get("caller"))
            and _fits(self.cluster, entry.get("cluster"))
            and self._in_time(entry.get("time"))
        )

    def _in_time(self, text: object) -> bool:
        if self.since is None and self.until is None:
            return True
        time = _seconds(text)
        if time is None:
            return False
        return (self.since is None or time >= self.since) and (self.until is None or time < self.until)


class Home(Protocol):
    """Where the entries are kept."""

    place: str

    async def ensure_writable(self) -> None: ...

    async def append(self, entry: Mapping[str, Any]) -> None: ...

    async def whole(self) -> tuple[AsyncIterator[bytes], Link | None]: ...

    def newest_first(self) -> AsyncIterator[bytes]: ...


class AuditTrail:
    def __init__(self, home: Home) -> None:
        self._home = home
        self._writing: set[asyncio.Task[None]] = set()

    @property
    def place(self) -> str:
        return self._home.place

    async def ensure_writable(self) -> None:
        """Changes that cannot be recorded are not made."""
        try:
            await self._home.ensure_writable()
        except (OSError, StateUnavailable) as error:
            raise self._unwritable("so nothing is changed", error) from None

    async def record(self, entry: Mapping[str, Any]) -> None:
        """Write the entry, to its end even if the call that made it is cancelled meanwhile."""
        task = asyncio.create_task(self._record(entry))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_tell_if_lost)
            raise

    async def verify(self) -> Verification:
        """Whether the chain holds, or the first place where it does not and how."""
        lines, head = await self._home.whole()
        return await chain.verify(lines, head)

    async def entries(self, filters: Filters = Filters(), limit: int = 100) -> list[dict[str, Any]]:  # noqa: B008
        """The newest entries that are wanted, the newest last."""
        found: list[dict[str, Any]] = []
        lines = self._home.newest_first()
        async for line in lines:
            if len(found) >= limit:
                break
            entry = chain.parsed(line)
            if entry is not None and filters.accept(entry):
                found.append(entry)
        return found[::-1]

    async def export(self, format: Literal["jsonl", "csv"], filters: Filters = Filters()) -> AsyncIterator[str]:  # noqa: B008
        """The wanted entries line by line, oldest first; lines end in a newline."""
        if format == "csv":
            yield _csv_line((*COLUMNS, "more"))
        lines, _ = await self._home.whole()
        async for line in lines:
            entry = chain.parsed(line)
            if entry is not None and filters.accept(entry):
                yield _csv_line(_cells(entry)) if format == "csv" else line.decode(errors="replace").rstrip("\n") + "\n"

    async def close(self) -> None:
        """Let the entries that are being written be finished."""
        await asyncio.gather(*self._writing, return_exceptions=True)

    async def _record(self, entry: Mapping[str, Any]) -> None:
        try:
            await self._home.append(entry)
        except (OSError, StateUnavailable) as error:
            what = f"{entry.get('tool')} is not recorded there; it ended with: {entry.get('outcome')}"
            raise self._unwritable(what, error) from None

    def _unwritable(self, what: str, error: OSError | StateUnavailable) -> AuditUnwritable:
        return AuditUnwritable(
            f"The audit trail {self.place} cannot be written, {what}",
            why=(error.strerror or str(error)) if isinstance(error, OSError) else f"{error.what} {error.why or ''}",
            next_step="Make room or set QUORATE_AUDIT_FILE to a writable place"
            if isinstance(error, OSError)
            else error.next_step,
        )


def open_trail(store: Store, file: Path) -> AuditTrail:
    """In the file, or in the store if several replicas share it. Nothing is touched before the first use."""
    if store.shared:
        from quorate.state.trail_table import TrailTable

        return AuditTrail(TrailTable(store))
    from quorate.state.trail_file import TrailFile

    return AuditTrail(TrailFile(file, store))


def _tell_if_lost(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.error("%s", error)


def _fits(wanted: str | None, value: object) -> bool:
    if wanted is None:
        return True
    parts = value.values() if isinstance(value, Mapping) else (value,)
    return any(fnmatchcase(str(part), wanted) for part in parts if part is not None)


def _seconds(text: object) -> float | None:
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _cells(entry: Mapping[str, Any]) -> list[str]:
    more = {name: value for name, value in entry.items() if name not in COLUMNS}
    return [_cell(entry.get(name)) for name in COLUMNS] + [_cell(more or None)]


def _cell(value: object) -> str:
    """As text; what a spreadsheet would take for a formula is marked as text, for it may come from strangers."""
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
