"""Servers that are killed while they carry a run on: the next one continues, and nothing happens twice."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from quorate.app import App
from quorate.pipeline.caller import Exchange
from quorate.runs.store import Run, RunState
from quorate.state.trail import fold
from tests.journal.kills import Scene, scene

pytestmark = pytest.mark.anyio


async def start(stage: Scene, tool: str, arguments: dict[str, Any]) -> str:
    app = stage.server()
    try:
        result = await app.pipeline.run(tool, arguments, Exchange())
        assert isinstance(result.data, dict)
        return str(result.data["run"])
    finally:
        await app.close()


async def carry_on(stage: Scene, seconds: float | None) -> None:
    """A server in its own process carries runs on, and is killed after that time; None lets it finish."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _serve(stage)
    ending = asyncio.to_thread(os.waitpid, child, 0)
    waiting = asyncio.ensure_future(ending)
    if seconds is not None:
        await asyncio.wait([waiting], timeout=seconds)
        if not waiting.done():
            os.kill(child, signal.SIGKILL)
    await waiting


def _serve(stage: Scene) -> None:
    """In the fork; it must leave nothing to finalizers."""
    try:
        gc.disable()
        asyncio.events._set_running_loop(None)
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        loop.run_until_complete(_work(stage.server()))
    finally:
        os._exit(0)


async def _work(app: App) -> None:
    await app.pipeline.resolve_unfinished()
    await app.runs.work()
    await app.close()


async def read(stage: Scene, run: str) -> Run:
    app = stage.server()
    try:
        return await app.runs.get(run)
    finally:
        await app.close()


async def killed(stage: Scene, run: str, kills: int, chance: random.Random) -> tuple[Run, int]:
    """Carry the run on with servers that are killed that often, then with one that lives; and how many were killed."""
    done = 0
    while done < kills and not (await read(stage, run)).state.has_ended:
        await carry_on(stage, chance.uniform(0.05, 0.2))
        done += 1
    for _ in range(5):
        ended = await read(stage, run)
        if ended.state.has_ended:
            return ended, done
        if ended.state is RunState.PAUSED:
            pytest.fail(f"paused after {done} kills: {ended.reason}")
        await carry_on(stage, None)
    return await read(stage, run), done


async def update_five_nodes(tmp_path: Path, kills: int, seed: int) -> int:
    async with scene(tmp_path, ssh=True, toolsets=("all", "homelab"), nodes=5, guests=8) as stage:
        world = stage.sim.world
        for guest in world.guests.values():
            guest.config["onboot"] = int(guest.running)  # else a reboot starts it, as on any node
        before = {vmid: (guest.node, guest.running) for vmid, guest in world.guests.items()}
        run = await start(stage, "run_rolling_update", {"with_local_disks": True, "shutdown_rest": True})
        ended, died = await killed(stage, run, kills, random.Random(seed))
        assert ended.state is RunState.DONE, (
            ended.state,
            ended.reason,
            [line.text for line in ended.log[-10:]],
        )
        after = {vmid: (guest.node, guest.running) for vmid, guest in world.guests.items()}
        assert after == before, [line.text for line in ended.log]
        assert {node.kernel for node in world.nodes.values()} == {"6.17.4-1-pve"}
        reboots = Counter(path for method, path in stage.sim.requests if method == "POST" and path.endswith("/status"))
        assert reboots == {f"/nodes/{node}/status": 1 for node in world.nodes}
        entries = fold(stage.lines())
        assert all(entry["final"] for entry in entries if "change" in entry), "something is not resolved"
        return died


async def test_an_evacuation_survives_a_few_killed_servers(tmp_path: Path) -> None:
    async with scene(tmp_path) as stage:
        run = await start(stage, "run_evacuate", {"node": "pve3", "with_local_disks": True})
        ended, died = await killed(stage, run, 3, random.Random(1))
        assert died
        assert ended.state is RunState.DONE, ended.reason
        guests = stage.sim.world.guests
        assert all(guests[vmid].node != "pve3" and guests[vmid].running for vmid in (105, 109, 204, 205))
        moves = Counter(path for method, path in stage.sim.requests if method == "POST" and path.endswith("/migrate"))
        assert set(moves.values()) == {1}


@pytest.mark.thorough
async def test_a_rolling_update_of_five_nodes_survives_fifty_killed_servers(tmp_path: Path) -> None:
    assert await update_five_nodes(tmp_path, 50, 7) == 50
