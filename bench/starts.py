"""Start: CPU until a client has the tools and until its first real answer, and CPU of commands at the shell."""

from __future__ import annotations

import statistics
import sys

from bench.processes import BARE, QUORATE, cpu_of, started, synthetic
from bench.table import Table, ratio

ROUNDS = 5
FLOOR = "import argparse, asyncio, json, ssl"


async def starts(table: Table) -> None:
    table.section("Start over stdio (floor: a server with one tool on the bare MCP SDK)")
    with synthetic(50) as environ:
        await _start([*QUORATE, "serve"], environ, "guest_list")  # fills the cache
        bare, listed, first = [], [], []
        for _ in range(ROUNDS):
            bare.append((await _start(BARE, environ, "ping"))[1])
            until_list, until_answer = await _start([*QUORATE, "serve"], environ, "guest_list")
            listed.append(until_list)
            first.append(until_answer)
        remark = f"floor {statistics.median(bare):.2f} s"
        table.add("CPU until tools/list", statistics.median(listed), "s", 0.2, room=1.5)
        table.add("CPU until tools/list, times the floor", ratio(listed, bare), "x", 0.2, room=1.5, remark=remark)
        table.add("CPU until the first real answer", statistics.median(first), "s", 1.3, room=1.3)
        table.add("CPU until the first real answer, times the floor", ratio(first, bare), "x", 1.25, room=1.5)

        table.section(f"Commands (floor: python -c {FLOOR!r})")
        floor, version, call = [], [], []
        for _ in range(ROUNDS):
            floor.append(cpu_of([sys.executable, "-c", FLOOR], environ))
            version.append(cpu_of([*QUORATE, "--version"], environ))
            call.append(cpu_of([*QUORATE, "call", "guest_list"], environ))
        remark = f"floor {statistics.median(floor) * 1000:.0f} ms"
        table.add("CPU of --version", statistics.median(version) * 1000, "ms", 45, room=1.5)
        table.add("CPU of --version, times the floor", ratio(version, floor), "x", 0.55, room=1.3, remark=remark)
        table.add("CPU of call guest_list", statistics.median(call) * 1000, "ms", 300, room=1.5)
        table.add("CPU of call guest_list, times the floor", ratio(call, floor), "x", 3.7, room=1.6)


async def _start(command: list[str], environ: dict[str, str], tool: str) -> tuple[float, float]:
    """CPU seconds until the tools are listed and until the first call is answered."""
    async with started(command, environ) as server:
        await server.open()
        listed = server.cpu
        await server.call(tool)
        return listed, server.cpu
