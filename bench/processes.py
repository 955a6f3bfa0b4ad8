"""Processes that are measured from outside: their CPU time, memory and answers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.synthetic_pve import TOKEN_ID, TOKEN_SECRET

BARE = [sys.executable, str(Path(__file__).with_name("bare_server.py"))]
QUORATE = [sys.executable, "-m", "quorate"]
LONGEST_LINE = 64 << 20
LONGEST_LOG = 4000
NOT_INSTALLED = ("rich",)
"""Installed only by development tools. The MCP SDK imports it if it is there, unlike in users' installations."""
PROCESS = "BENCH_CLUSTER"
"""The variable with the process of the synthetic cluster."""


def cpu_of(command: Sequence[str], environ: dict[str, str]) -> float:
    """Seconds of CPU that a command takes from start to end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@contextlib.contextmanager
def synthetic(guests: int) -> Iterator[dict[str, str]]:
    """The environment of a client of a synthetic cluster, with its own home folder."""
    command = [sys.executable, "-m", "bench.synthetic_pve", "--guests", str(guests)]
    with (
        tempfile.TemporaryDirectory(prefix="quorate-bench-") as home,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        for name in NOT_INSTALLED:
            Path(home, f"{name}.py").write_text("raise ImportError\n")
        try:
            yield {
                **{name: os.environ[name] for name in ("PATH",) if name in os.environ},
                **dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"), home),
                "PYTHONPATH": home,
                "PROXMOX_URL": ready["url"],
                "PROXMOX_CA_FILE": ready["ca_file"],
                "PROXMOX_TOKEN_ID": TOKEN_ID,
                "PROXMOX_TOKEN_SECRET": TOKEN_SECRET,
                PROCESS: str(process.pid),
            }
        finally:
            process.terminate()


def cpu_seconds(pid: int) -> float:
    """CPU seconds of all threads so far."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


class StdioServer:
    """An MCP server over stdio, and a client that costs next to nothing."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            message = json.loads(line)
            self._waiting.pop(message["id"]).set_result(message)
        for future in self._waiting.values():
            future.set_exception(EOFError("the server has ended"))

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        answer = await future
        assert "result" in answer, answer
        return dict(answer["result"])

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.ask("tools/call", name=tool, arguments=arguments)
        assert not result.get("isError"), result
        return result

    async def open(self) -> None:
        info = {"name": "bench", "version": "1"}
        await self.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=info)
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        await self.ask("tools/list")

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def cpu(self) -> float:
        return cpu_seconds(self._process.pid)

    @property
    def megabytes(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reader


@contextlib.asynccontextmanager
async def started(command: Sequence[str], environ: dict[str, str]) -> AsyncIterator[StdioServer]:
    """A server over stdio. Its log is written as for a user, and shown only if something fails."""
    pipe = asyncio.subprocess.PIPE
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=log, env=environ, limit=LONGEST_LINE
        )
        server = StdioServer(process)
        try:
            yield server
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace")[-LONGEST_LOG:])
            raise
        finally:
            await server.close()


class Stopwatch:
    """Wall time, and how much of it the processes involved spent waiting for a core."""

    def __init__(self, *processes: int) -> None:
        self._processes = (os.getpid(), *processes)
        self._wall = self._waits = 0.0

    async def seconds(self, work: Any) -> float:
        before = sum(map(_waited, self._processes))
        begun = time.perf_counter()
        await work
        wall = time.perf_counter() - begun
        self._wall += wall
        self._waits += sum(map(_waited, self._processes)) - before
        return wall

    @property
    def busy(self) -> float:
        """The share of the time spent waiting for a core, which is the machine's load and not Quorate's cost."""
        return self._waits / self._wall if self._wall else 0.0


def _waited(process: int) -> float:
    """Seconds that the main thread of a process spent waiting for a core."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9
