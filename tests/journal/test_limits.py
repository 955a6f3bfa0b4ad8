"""Limits count what all servers on one state have done: after restarts, and two of them at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorate.app import build
from quorate.config.policy import Limits, Policy
from quorate.state.limits import Reservation
from quorate.state.store import open_store
from tests.pipeline.test_safety_table import tries
from tests.rigs.mcp_session import DrivenTime, Rig, rig, second_server, text_of

pytestmark = pytest.mark.anyio

VMS = (100, 101, 102, 103, 104)


@pytest.fixture(params=["sqlite", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "shared.sqlite")
    location: str = request.getfixturevalue("postgres")
    return location


@asynccontextmanager
async def servers(tmp_path: Path, location: str, limits: Limits, count: int = 2) -> AsyncIterator[list[Rig]]:
    """Several servers on one state and one simulated cluster."""
    async with rig(tmp_path) as first, AsyncExitStack() as stack:
        options: dict[str, Any] = {"state": location, "policy": Policy(limits=limits)}
        audit = tmp_path / "shared.jsonl"
        yield [await stack.enter_async_context(second_server(first, audit, **options)) for _ in range(count)]


def running(quorate: Rig) -> int:
    return sum(quorate.sim.world.guests[vmid].running for vmid in VMS)


@tries("limits are reset by a restart, or bypassed through another server on the same state")
async def test_a_restart_does_not_reset_the_hour(tmp_path: Path, location: str) -> None:
    limits = Limits(destroys_per_hour=2)
    async with rig(tmp_path) as first:
        before = running(first)
        options: dict[str, Any] = {"state": location, "policy": Policy(limits=limits)}
        for vmid in (102, 103):
            async with second_server(first, tmp_path / "shared.jsonl", **options) as server:
                await server.facts("guest_stop", guest=vmid)
        async with second_server(first, tmp_path / "shared.jsonl", **options) as server:
            assert "limit destroys_per_hour" in await server.refusal("guest_stop", guest=104)
            assert "not_now" in await server.facts("guest_stop", guest=104, dry_run=True)
            assert running(first) == before - 2
            await first.clock.advance(3601)
            await server.facts("guest_stop", guest=104)
            assert running(first) == before - 3


async def test_another_server_counts_as_well_and_a_limit_set_later_covers_the_whole_hour(
    tmp_path: Path, location: str
) -> None:
    async with servers(tmp_path, location, Limits()) as (first, other):
        await first.facts("guest_stop", guest=102)
        other.app.adopt(replace(other.app.settings, policy=Policy(limits=Limits(destroys_per_hour=1))))
        assert "1 ran, this adds 1" in await other.refusal("guest_stop", guest=103)
        assert other.sim.world.guests[103].running


async def test_two_servers_at_the_limit_cannot_both_pass(tmp_path: Path, location: str) -> None:
    async with servers(tmp_path, location, Limits(destroys_per_hour=3), 3) as fleet:
        before = running(fleet[0])
        calls = [fleet[number % 3].call("guest_stop", guest=vmid) for number, vmid in enumerate(VMS)]
        answers = await asyncio.gather(*calls)
        assert sum(not answer.is_error for answer in answers) == 3
        assert all("limit destroys_per_hour" in text_of(answer) for answer in answers if answer.is_error)
        assert running(fleet[0]) == before - 3


async def test_changes_of_another_server_are_among_the_concurrent_ones(tmp_path: Path, location: str) -> None:
    async with servers(tmp_path, location, Limits(concurrent_changes=1)) as (first, other):
        slow = first.sim.faults.add("latency:5:POST:*")
        under_way = asyncio.ensure_future(first.call("guest_stop", guest=102, wait=50))
        while not any(method == "POST" for method, _ in first.sim.requests):
            await asyncio.sleep(0)
        assert "limit concurrent_changes" in await other.refusal("guest_stop", guest=103)
        assert other.sim.world.guests[103].running
        await first.clock.advance(10)
        assert not (await under_way).is_error
        first.sim.faults.remove(slow)
        await other.facts("guest_stop", guest=103)


async def test_a_server_that_died_holds_no_place(tmp_path: Path, location: str) -> None:
    async with servers(tmp_path, location, Limits(concurrent_changes=1), 1) as (living,):
        dead = build(living.app.settings, clock=DrivenTime(living.clock))
        change = dead.pipeline.journal.change()
        intent = {"tool": "guest_power", "plan": "Start vm 1", "time": "2026-01-01 00:00:00Z", "wire": []}
        await change.begin(intent, [Reservation("", 0, lambda usage: None)])
        assert "limit concurrent_changes" in await living.refusal("guest_stop", guest=102)
        await dead.store.close()  # its lock goes with it; the entry stays open
        await living.facts("guest_stop", guest=102)
        assert not living.sim.world.guests[102].running


async def test_what_was_not_counted_yet_is_counted_from_the_trail(tmp_path: Path, location: str) -> None:
    async with servers(tmp_path, location, Limits(destroys_per_hour=2)) as (first, other):
        await first.facts("guest_stop", guest=[102, 103])
        async with open_store(location, clock=DrivenTime(first.clock)) as store:
            await store.execute("DELETE FROM quorate_tallies")
        assert "2 ran, this adds 1" in await other.refusal("guest_stop", guest=104)
        assert other.sim.world.guests[104].running


async def test_a_refused_change_uses_nothing_of_another_limit(tmp_path: Path, location: str) -> None:
    async with servers(tmp_path, location, Limits(destroys_per_hour=2), 1) as (quorate,):
        await quorate.facts("guest_stop", guest=102)
        await quorate.refusal("guest_stop", guest=[103, 104])
        await quorate.facts("guest_stop", guest=103)
        tally = quorate.app.pipeline.journal.tally
        assert ((await tally.usage("")).destroyed, (await tally.usage("demo")).destroyed) == (2, 2)
