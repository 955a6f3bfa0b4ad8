"""What the rest of the state asks of a database, SQLite or PostgreSQL.

There is no `transaction`: every step that must be atomic is one statement, and the number of rows it touched says
whether it happened. That holds between threads, processes and replicas alike, and a caller that goes away half-way
leaves nothing half done.
"""

from __future__ import annotations

from typing import Any, Protocol

from quorate.pve.errors import Problem

Row = dict[str, Any]


class StateUnavailable(Problem):
    """What must last can neither be read nor written now."""

    kind = "state"


class Database(Protocol):
    """SQL is written once, with `$1`, `$2` for the values: both databases read it."""

    async def execute(self, statement: str, *values: Any) -> int:
        """Run a statement that writes; how many rows it touched."""

    async def fetch(self, statement: str, *values: Any) -> list[Row]: ...

    async def close(self) -> None: ...
