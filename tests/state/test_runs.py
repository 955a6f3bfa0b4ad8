"""Runs in either database: exactly one worker each, and no edit is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from quorate.problems import Conflict, NotFound
from quorate.runs.store import NOBODY, Bound, NotOurs, Run, RunState, RunStore
from quorate.state.store import Store, open_store
from tests.rigs.manual_clock import HandClock

pytestmark = pytest.mark.anyio

MOVE = Bound("POST", "/nodes/*/qemu/100/migrate", {"target": ["pve2"]})
DAY = 86_400.0


async def add(runs: RunStore, **more: Any) -> Run:
    facts = {"kind": "evacuate", "cluster": "demo", "tool": "run_evacuate", "title": "Evacuate pve1", "caller": {}}
    return await runs.add(Run(id=runs.new_id(), created=runs.clock.time(), **{**facts, **more}))


def say(text: str) -> Any:
    return lambda run: run.say(1.0, text)


@asynccontextmanager
async def a_server(location: str, clock: HandClock) -> AsyncIterator[RunStore]:
    """Another server on the same state; it has died when the context ends."""
    async with open_store(location, clock=clock) as opened:
        yield RunStore(opened)


async def test_a_run_is_found_listed_and_decoded_as_it_was_stored(store: Store, replica: Store) -> None:
    runs = RunStore(store)
    kept = await add(runs, bounds=[MOVE], memory={"moved": {"100": "pve2"}}, scope={"naïve": "ü \0 \ud800"})
    await add(runs, cluster="other", state=RunState.DONE)
    stored = await RunStore(replica).get(f" {kept.id.upper()} ")
    assert (stored.bounds, stored.memory, stored.state) == ([MOVE], {"moved": {"100": "pve2"}}, RunState.RUNNING)
    assert [run.id for run in await runs.list(cluster="demo")] == [kept.id]
    assert len(await runs.list()) == 2
    assert [run.cluster for run in await runs.list([RunState.DONE])] == ["other"]
    with pytest.raises(NotFound):
        await runs.get("nothing")


async def test_as_many_runs_are_listed_as_requested_however_many_are_left_out(store: Store, clock: HandClock) -> None:
    runs = RunStore(store)
    for number in range(12):
        await add(runs, title=f"Update {number}")
        if number % 4 == 0:  # some of the same moment
            clock.now += 1
    odd = await runs.list(limit=3, shows=lambda run: int(run.title.split()[1]) % 2 == 1)
    assert len({run.id for run in odd}) == 3
    assert await runs.list(limit=5, shows=lambda run: run.created < 0) == []
    some = await runs.list(limit=100, shows=lambda run: run.title in ("Update 0", "Update 11"))
    assert [run.title for run in some] == ["Update 11", "Update 0"]


async def test_of_many_servers_that_claim_a_run_exactly_one_gets_it(location: str, clock: HandClock) -> None:
    async with (
        a_server(location, clock) as first,
        a_server(location, clock) as second,
        a_server(location, clock) as third,
    ):
        for _ in range(10):
            run = await add(first)
            claimed = await asyncio.gather(*(server.claim(run) for server in (first, second, third)))
            (owner,) = [run_claimed.owner for run_claimed in claimed if run_claimed is not None]
            assert (await first.get(run.id)).owner == owner


async def test_a_run_of_a_living_server_cannot_be_claimed_and_one_of_a_dead_server_can(
    location: str, clock: HandClock
) -> None:
    async with a_server(location, clock) as second:
        async with a_server(location, clock) as first:
            run = await add(first)
            mine = await first.claim(run)
            assert mine is not None
            assert await second.is_worked_on(mine)
            assert await second.claim(mine) is None
        left = await second.get(run.id)
        assert left.owner == mine.owner
        assert not await second.is_worked_on(left)
        assert await second.claim(left) is not None


async def test_a_worker_that_lost_its_run_cannot_edit_it(store: Store, replica: Store) -> None:
    first, second = RunStore(store), RunStore(replica)
    run = await add(first)
    mine = await first.claim(run)
    assert mine is not None
    await first.release(run.id)
    assert (await first.get(run.id)).owner == NOBODY
    assert await second.claim(await second.get(run.id)) is not None
    with pytest.raises(NotOurs):
        await first.change_ours(run.id, say("I am late"))
    await first.release(run.id)  # not its own anymore
    kept = await second.get(run.id)
    assert (kept.owner, kept.log) == (second.owner, [])


async def test_a_claim_of_an_outdated_copy_or_of_an_ended_run_fails(store: Store, replica: Store) -> None:
    first, second = RunStore(store), RunStore(replica)
    run = await add(first)
    assert await first.claim(run) is not None
    await first.release(run.id)
    await second.claim(await second.get(run.id))
    await second.release(run.id)
    assert await first.claim(await first.get(run.id)) is not None
    assert await second.claim(run) is None, "the copy is from before the claim"
    ended = await add(first, state=RunState.DONE)
    assert await first.claim(ended) is None


async def test_no_edit_of_two_servers_overwrites_another(store: Store, replica: Store) -> None:
    first, second = RunStore(store), RunStore(replica)
    run = await add(first)

    def count(name: str) -> Any:
        def edit(stored: Run) -> None:
            stored.memory[name] = int(stored.memory.get(name, 0)) + 1

        return edit

    for _ in range(10):
        await asyncio.gather(
            *(server.change(run.id, count(name)) for server, name in ((first, "a"), (second, "b")) * 2)
        )
    assert (await first.get(run.id)).memory == {"a": 20, "b": 20}


async def test_an_edit_that_was_overtaken_is_made_again_on_the_newer_version(store: Store, replica: Store) -> None:
    """A person pauses the run between the worker's read and its write."""
    worker, person = RunStore(store), RunStore(replica)
    run = await add(worker)
    await worker.claim(run)
    seen: list[RunState] = []
    fetch = worker._store.fetch

    async def interrupted(statement: str, *values: Any) -> Any:
        rows = await fetch(statement, *values)
        if not seen:
            seen.append(RunState.RUNNING)
            await person.pause(run.id, "the operator")
        return rows

    worker._store.fetch = interrupted  # type: ignore[method-assign]
    after = await worker.change_ours(run.id, lambda stored: seen.append(stored.state))
    assert seen == [RunState.RUNNING, RunState.RUNNING, RunState.PAUSED]
    assert after.state is RunState.PAUSED


async def test_pause_resume_and_abort_from_another_server(store: Store, replica: Store) -> None:
    worker, person = RunStore(store), RunStore(replica)
    run = await add(worker)
    await worker.claim(run)
    await person.pause(run.id, "alice")
    with pytest.raises(Conflict):
        await person.pause(run.id, "bob")
    await worker.change_ours(run.id, lambda stored: setattr(stored, "request", [MOVE]))
    with pytest.raises(Conflict, match="asks for something else"):
        await person.resume(run.id, "alice")
    resumed = await person.resume(run.id, "alice", [MOVE], "destroy")
    assert (resumed.state, resumed.bounds[-1].risk) == (RunState.RUNNING, "destroy")
    aborted = await person.abort(run.id, "alice")
    assert (aborted.state, aborted.aborting) == (RunState.ABORTING, True)
    ended = await worker.change_ours(run.id, lambda stored: setattr(stored, "state", RunState.ABORTED))
    assert ended.state.has_ended
    for act in (person.pause, person.resume, person.abort):
        with pytest.raises(Conflict, match="has ended"):
            await act(run.id, "alice")


async def test_runs_that_ended_long_ago_are_forgotten_and_others_are_not(store: Store, clock: HandClock) -> None:
    runs = RunStore(store)
    old = [await add(runs, state=state) for state in (RunState.DONE, RunState.PAUSED)]
    clock.now += 91 * DAY
    new = await add(runs)
    assert {run.id for run in await runs.list()} == {old[1].id, new.id}
