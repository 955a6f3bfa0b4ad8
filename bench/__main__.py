"""`make bench`: print each figure with its floor, target and limit; exit code 1 if one exceeds its limit.

Arguments choose parts: `python -m bench starts calls`. docs/performance.md explains the rows.
"""

from __future__ import annotations

import asyncio
import sys
import time

from bench.calls import calls
from bench.sizes import answers, large_upload, tool_list
from bench.starts import starts
from bench.table import Table
from bench.watch import watch


async def main(parts: list[str]) -> int:
    table, begun = Table(), time.monotonic()
    if not parts or "sizes" in parts:
        tool_list(table)
        await large_upload(table)
        await answers(table)
        await watch(table)
    if not parts or "starts" in parts:
        await starts(table)
    if not parts or "calls" in parts:
        await calls(table)
    sys.stdout.write(
        f"\n{len(table.rows)} rows in {time.monotonic() - begun:.0f} s, {len(table.over)} over the limit\n"
    )
    return 1 if table.over else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
