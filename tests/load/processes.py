"""The processes that the tests are about: a cluster, servers in front of it, and commands."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

START_SECONDS = 120.0
ANSWER_SECONDS = 120.0
_LINE_LIMIT = 1 << 26


@dataclass(frozen=True)
class ClusterProcess:
    process: Process
    environ: dict[str, str]
    """The variables by which a server finds it."""

    async def heal(self) -> dict[str, Any]:
        return await self._ask("heal")

    async def tell(self) -> dict[str, Any]:
        return await self._ask("tell")

    async def _ask(self, what: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n".encode())
        return await _json_line(self.process, ANSWER_SECONDS)


@asynccontextmanager
async def cluster(nodes: int, guests: int, *faults: str) -> AsyncIterator[ClusterProcess]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.load.cluster", str(nodes), str(guests), *faults),
        stdin=PIPE,
        stdout=PIPE,
        limit=_LINE_LIMIT,
    )
    try:
        ready = await _json_line(process, START_SECONDS)
        environ = {
            "PROXMOX_URL": ready["url"],
            "PROXMOX_CA_FILE": ready["ca_file"],
            "PROXMOX_TOKEN_ID": ready["token_id"],
            "PROXMOX_TOKEN_SECRET": ready["token_secret"],
        }
        yield ClusterProcess(process, environ)
    finally:
        await _ended(process)


@dataclass
class ServerProcess:
    process: Process
    url: str
    said: list[str] = field(default_factory=list)
    """Its standard error."""

    async def ended(self, number: int = signal.SIGTERM) -> int:
        """Tell it to end, and how it did."""
        self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), ANSWER_SECONDS)

    def memory(self) -> float:
        """Resident, in MiB."""
        status = self._proc("status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024

    def files(self) -> int:
        """Open files and sockets."""
        return len(list(self._proc("fd").iterdir()))

    async def numbers(self, token: str) -> dict[str, float]:
        """What /metrics says, by sample."""
        headers = {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession() as http, http.get(f"{self.url}/metrics", headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            lines = (await answer.text()).splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

    def _proc(self, name: str) -> Path:
        return Path(f"/proc/{self.process.pid}/{name}")


@asynccontextmanager
async def serving(environ: Mapping[str, str], *options: str) -> AsyncIterator[ServerProcess]:
    """`quorate serve --http` on a free port."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "quorate", "serve", "--http", "127.0.0.1:0", *options),
        env={**os.environ, **environ},
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,
    )
    server = ServerProcess(process, "")
    listening = asyncio.Event()
    listener = asyncio.create_task(_listen(server, listening))
    try:
        await asyncio.wait_for(listening.wait(), START_SECONDS)
        assert server.url, "".join(server.said)
        yield server
    finally:
        await _ended(process)
        await listener


async def _listen(server: ServerProcess, listening: asyncio.Event) -> None:
    assert server.process.stderr is not None
    while line := (await server.process.stderr.readline()).decode():
        server.said.append(line)
        if " listening on " in line:
            server.url = line.split()[-1].removesuffix("/mcp")
            listening.set()
    listening.set()


async def command(environ: Mapping[str, str], *arguments: str) -> tuple[int, str]:
    """`quorate …`: exit code and all that it says."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "quorate", *arguments),
        env={**os.environ, **environ},
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await asyncio.wait_for(process.communicate(), ANSWER_SECONDS)
    return process.returncode or 0, told.decode()


async def _json_line(process: Process, seconds: float) -> dict[str, Any]:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), seconds)
    assert line, f"the process has ended with {process.returncode}"
    facts: dict[str, Any] = json.loads(line)
    return facts


async def _ended(process: Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), ANSWER_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
