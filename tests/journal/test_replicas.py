"""Two replicas on one PostgreSQL: the survivor closes what the dead one began, and leaves the living one's alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from quorate import units
from quorate.pipeline.caller import Exchange
from quorate.state.journal import Outcome
from quorate.state.store import open_store
from tests.journal.kills import EVERY_MOMENT, Scene, chosen, run_and_kill, scene
from tests.journal.test_every_moment import LEAVES_NO_TRACE, Calls
from tests.journal.truth import announced, assert_truthful
from tests.pipeline.test_interrupted_writes import CHANGES

pytestmark = pytest.mark.anyio

SAMPLED = ("guest_delete-204",)
FEW = (
    *SAMPLED,
    "guest_power-107-start",
    "guest_bulk-tag",
    "vm_create",
    "snapshot_create-204",
    "backup_restore",
    "pool_set",
)
MOMENTS = 8
"""Of each kind, unless EVERY_MOMENT is set."""


async def killed_beside_a_living_replica(
    stage: Scene, before: Calls, tool: str, arguments: Mapping[str, Any], moment: int
) -> None:
    """The other replica is in the middle of a change of its own while this one dies."""
    await stage.prepare(before)
    await empty(stage)
    living, survivor = stage.server(), stage.server()
    own = living.pipeline.journal.change()
    await own.begin({"tool": "guest_power", "plan": "Start vm 1", "time": "2026-01-01 00:00:00Z", "wire": []})
    try:
        death = await run_and_kill(stage, tool, arguments, moment)
        sent = stage.writes()
        for _ in range(200):  # PostgreSQL notices a moment later that the dead one's connection has ended
            await survivor.pipeline.resolve_unfinished()
            checked = await survivor.audit.verify()
            assert checked.intact, checked.broken
            if len(checked.unfinished) == 1:
                break
            await asyncio.sleep(0.05)
        assert len(checked.unfinished) == 1
        assert "Start vm 1" in checked.unfinished[0]
        assert stage.writes() == sent
        entries = [entry for entry in await survivor.audit.entries() if entry.get("change") != own.id]
        assert sent <= announced(entries)
        assert len(entries) <= 1
        for entry in entries:
            assert death.killed or entry["outcome"] == "done"
            assert_truthful(entry, sent, traceable=tool not in LEAVES_NO_TRACE)
        await own.close({"outcome": "done"}, final=True)
        assert (await survivor.audit.verify()).unfinished == ()
    finally:
        await living.close()
        await survivor.close()


async def empty(stage: Scene) -> None:
    async with open_store(stage.settings.state, clock=stage.time) as store:
        for table in ("quorate_audit", "quorate_audit_head", "quorate_changes"):
            await store.execute(f"DELETE FROM {table}")


async def kill_replicas(
    tmp_path: Path, postgres: str, before: Calls, tool: str, arguments: Mapping[str, Any], most: int
) -> None:
    """Each time in a world and a trail of its own."""
    async with scene(tmp_path, state=postgres) as stage:
        await stage.prepare(before)
        moments = (await run_and_kill(stage, tool, arguments)).moments
        await empty(stage)
    for moment in chosen(moments, most, f"{tool} {arguments}"):
        async with scene(tmp_path, state=postgres) as stage:
            await killed_beside_a_living_replica(stage, before, tool, arguments, moment)
            await empty(stage)


@pytest.mark.thorough
@pytest.mark.parametrize(("before", "tool", "arguments"), [change for change in CHANGES if change.id in SAMPLED])
async def test_a_replica_that_dies_is_looked_into_by_the_other(
    tmp_path: Path, postgres: str, before: Calls, tool: str, arguments: Mapping[str, Any]
) -> None:
    await kill_replicas(tmp_path, postgres, before, tool, arguments, MOMENTS)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("before", "tool", "arguments"), [change for change in CHANGES if EVERY_MOMENT or change.id in FEW]
)
async def test_a_replica_may_die_at_any_moment(
    tmp_path: Path, postgres: str, before: Calls, tool: str, arguments: Mapping[str, Any]
) -> None:
    await kill_replicas(tmp_path, postgres, before, tool, arguments, MOMENTS)


async def test_two_survivors_close_an_entry_once(tmp_path: Path, postgres: str) -> None:
    async with scene(tmp_path, state=postgres) as stage:
        await stage.prepare(())
        assert (await run_and_kill(stage, "guest_stop", {"guest": 104}, 2, of="after WITH moved AS")).killed
        first, other = stage.server(), stage.server()
        try:
            while (await first.audit.verify()).unfinished:
                await asyncio.gather(first.pipeline.resolve_unfinished(), other.pipeline.resolve_unfinished())
            lines = [line async for line in first.audit.newest_first()]
            change = (await first.audit.entries())[-1]["change"]
            closing = [line for line in lines if line.get("change") == change and line["phase"] == "outcome"]
            assert len([line for line in closing if line["final"]]) == 1
            assert not (await other.pipeline.run("guest_power", {"guest": 104, "action": "start"}, Exchange())).failed
        finally:
            await first.close()
            await other.close()


async def test_the_task_of_a_living_replica_is_not_taken_for_that_of_a_dead_one(tmp_path: Path) -> None:
    path = "/nodes/pve2/qemu/107/status/start"
    async with scene(tmp_path) as stage:
        await stage.prepare(())
        start = {"guest": 107, "action": "start"}
        assert (await run_and_kill(stage, "guest_power", start, 1, of="after intent")).killed
        living, survivor = stage.server(), stage.server()
        try:
            own = living.pipeline.journal.change()
            now = units.moment(stage.time.time())
            wire = [{"cluster": "demo", "method": "POST", "path": path, "params": {}}]
            await own.begin({"tool": "guest_power", "plan": "Start vm 107", "time": now, "wire": wire})
            assert living.cluster is not None
            task = (await living.cluster.client.request("POST", path, {})).data
            (resolution,) = await survivor.pipeline.resolve_unfinished()
            assert resolution.outcome is None
            assert "may belong to a change that is still running" in resolution.says[0]
            await own.record_answer({"time": now, "step": "1", "state": "sent", "task": task})
            (resolution,) = await survivor.pipeline.resolve_unfinished()
            assert resolution.outcome is Outcome.NOT_DONE
            await own.close({"time": now, "outcome": "done"}, final=True)
        finally:
            await living.close()
            await survivor.close()
