"""`make bench`: print each figure with its floor, target and limit; exit code 1 if one exceeds its limit.

Arguments choose parts: `python -m bench starts calls`. docs/performance.md explains the rows.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

from bench.calls import calls
from bench.sizes import answers, large_upload, tool_list
from bench.starts import starts
from bench.table import Table
from bench.watch import watch

ATTEMPTS = 3
"""How often a part is measured while a figure exceeds its limit; a regression exceeds it each time."""


async def sizes(table: Table) -> None:
    tool_list(table)
    await large_upload(table)
    await answers(table)
    await watch(table)


PARTS: dict[str, Callable[[Table], Awaitable[None]]] = {"sizes": sizes, "starts": starts, "calls": calls}


async def main(chosen: list[str]) -> int:
    begun, rows = time.monotonic(), 0
    over: set[str] = set()
    for name in chosen or PARTS:
        table, exceeded = await _measure(PARTS[name])
        rows += len(table.rows)
        over |= exceeded
    sys.stdout.write(f"\n{rows} rows in {time.monotonic() - begun:.0f} s, {len(over)} over the limit\n")
    for title in sorted(over):
        sys.stdout.write(f"  OVER {ATTEMPTS} times: {title}\n")
    return 1 if over else 0


async def _measure(part: Callable[[Table], Awaitable[None]]) -> tuple[Table, set[str]]:
    """The last table of the part, and the figures that exceeded their limit in every attempt."""
    table = Table()
    await part(table)
    exceeded = set(table.over)
    for attempt in range(2, ATTEMPTS + 1):
        if not exceeded:
            break
        sys.stdout.write(f"\nOver the limit: {', '.join(sorted(exceeded))}. Attempt {attempt} of {ATTEMPTS}:\n")
        table = Table()
        await part(table)
        exceeded &= set(table.over)
    return table, exceeded


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
