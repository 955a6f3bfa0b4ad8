"""Real commands and a real server, ended by SIGKILL in the middle of a change."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pve_simulator.clock import RealClock
from pve_simulator.simulator import SimulatedCluster
from tests.rigs.processes import completed, running
from tests.rigs.simulator import pointed_at

pytestmark = pytest.mark.anyio

PATIENCE = 60.0


@asynccontextmanager
async def cut_off(tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    """After `quorate call` was killed while it followed the task that it had started; how to reach what is left."""
    async with SimulatedCluster(clock=RealClock(100), auth_delay=0.0) as sim:
        environ = {
            **pointed_at(sim),
            "QUORATE_STATE": str(tmp_path / "state.sqlite"),
            "QUORATE_AUDIT_FILE": str(tmp_path / "audit.jsonl"),
            "QUORATE_ACCESS": "admin",
            "QUORATE_APPROVAL": "none",
        }
        sim.faults.add("latency:100000:GET:/nodes/*/tasks/*")
        variables = {**os.environ, **environ}
        with running("call", "guest_power", "guest=107", "action=start", environ=variables) as calling:
            async with asyncio.timeout(PATIENCE):
                while not any("/tasks/" in path for _, path in sim.requests):
                    await asyncio.sleep(0.01)
            os.kill(calling.pid, signal.SIGKILL)
            await asyncio.to_thread(calling.wait)
        sim.faults.clear()
        yield environ
        assert [path for method, path in sim.requests if method == "POST"] == ["/nodes/pve2/qemu/107/status/start"]


async def command(environ: Mapping[str, str], *arguments: str) -> tuple[int, str]:
    """`quorate …`: exit code and all that it says."""
    done = await asyncio.to_thread(completed, *arguments, environ={**os.environ, **environ})
    return done.returncode, done.stdout + done.stderr


async def test_verify_reports_it_and_resolve_closes_it(tmp_path: Path) -> None:
    async with cut_off(tmp_path) as environ:
        code, output = await command(environ, "audit", "--verify")
        assert code == 0
        assert "has no outcome: Start vm 107 win11" in output
        assert "1 unfinished" in output
        code, output = await command(environ, "audit")
        assert "unfinished" in output
        code, output = await command(environ, "audit", "--resolve")
        assert code == 0, output
        assert "its task has succeeded" in output
        code, output = await command(environ, "audit")
        assert "done" in output
        assert "outcome established afterwards: Step 1: its task has succeeded" in output
        code, output = await command(environ, "audit", "--verify")
        assert output.endswith("is intact: 1 entry in 3 records.\n")
        code, output = await command(environ, "audit", "--resolve")
        assert (code, output) == (0, "There are no changes to resolve.\n")


async def test_the_next_server_closes_it_at_its_start(tmp_path: Path) -> None:
    async with cut_off(tmp_path) as environ:
        await resolved_by_a_server(environ)


async def resolved_by_a_server(environ: Mapping[str, str]) -> None:
    with running("serve", "--http", "127.0.0.1:0", environ={**os.environ, **environ}):
        async with asyncio.timeout(PATIENCE):
            while "unfinished" in (await command(environ, "audit", "--verify"))[1]:
                await asyncio.sleep(0.1)
        _, output = await command(environ, "audit")
        assert "done" in output
