"""When a run works: at its time, within its window, and not while changes are frozen."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from quorate.operations.units import moment
from quorate.state.runs import RunState
from tests.rigs.mcp_session import Rig, rig

pytestmark = pytest.mark.anyio

AWAY = {"node": "pve3", "with_local_disks": True, "parallel": 1}


def hours(begin: float, end: float) -> str:
    """A window from one moment to another, in the server's time zone."""
    return "-".join(time.strftime("%H:%M", time.localtime(at)) for at in (begin, end))


def moves(quorate: Rig) -> int:
    return sum(method == "POST" and path.endswith("/migrate") for method, path in quorate.sim.requests)


async def state_of(quorate: Rig, run: str) -> RunState:
    await quorate.app.runs.work()
    return (await quorate.app.runs.get(run)).state


@pytest.mark.thorough
async def test_a_run_waits_for_its_window_and_continues_in_the_next_one(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        opens = quorate.clock.now() + 3600
        window = hours(opens, opens + 60)
        started = await quorate.facts("run_evacuate", **AWAY, window=window)
        assert await state_of(quorate, started["run"]) is RunState.WAITING
        assert moves(quorate) == 0
        listed = await quorate.facts("run_list")
        assert listed["rows"][0][-1] == f"only {window}"
        await quorate.clock.advance(3600)
        assert await state_of(quorate, started["run"]) is RunState.WAITING, "the window is shorter than the work"
        done = moves(quorate)
        assert 0 < done < 5
        run = await quorate.facts("run_get", run=started["run"], lines=100)
        assert run["window"] == window
        assert any("is closed" in line for line in run["log"])
        for _ in range(5):
            await quorate.clock.advance(86_400 - (quorate.clock.now() - opens) % 86_400)
            if await state_of(quorate, started["run"]) is RunState.DONE:
                break
        assert moves(quorate) == 5
        assert (await quorate.app.runs.get(started["run"])).state is RunState.DONE


async def test_a_window_or_time_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        assert "must be hours" in await quorate.refusal("run_evacuate", **AWAY, window="at night")
        past = moment(quorate.clock.now() - 60)
        assert "has passed" in await quorate.refusal("run_evacuate", **AWAY, at=past)
        assert await quorate.app.runs.list() == []


async def test_a_dry_run_says_when_it_would_begin(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        soon = moment(quorate.clock.now() + 1800)
        plan = await quorate.facts("run_evacuate", **AWAY, at=soon, window="22:00-05:00", dry_run=True)
        assert plan["starts"] == f"from {soon}, only 22:00-05:00"
        assert await quorate.app.runs.list() == []


async def test_a_freeze_in_the_middle_pauses_every_run_after_the_step_in_progress(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        runs = [(await quorate.facts("run_evacuate", **AWAY))["run"]]
        runs.append((await quorate.facts("run_guest_update", guest=104))["run"])
        store, freeze = quorate.app.runs.store, quorate.app.pipeline.journal.freeze
        original = store.change_ours
        frozen: list[str] = []

        async def smelling_smoke(id: str, edit: Any) -> Any:
            run = await original(id, edit)
            if run.current and not frozen:
                frozen.append(id)
                await freeze.set("the operator", "smoke", quorate.app.audit)
            return run

        store.change_ours = smelling_smoke  # type: ignore[method-assign]
        await quorate.app.runs.work()
        for name in runs:
            run = await quorate.app.runs.get(name)
            assert (run.state, "frozen" in run.reason, run.current) == (RunState.PAUSED, True, {}), run.reason
        assert moves(quorate) <= 1
        sent = [path for method, path in quorate.sim.requests if method != "GET"]
        await quorate.app.runs.work()
        assert [path for method, path in quorate.sim.requests if method != "GET"] == sent
        await freeze.lift("the operator", quorate.app.audit)
        await quorate.app.runs.work()
        assert [(await quorate.app.runs.get(name)).state for name in runs] == [RunState.PAUSED] * 2, (
            "nobody resumed them"
        )
