"""When a run works: at its time, within its window, and not while changes are frozen."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quorate.runs.store import Run, RunState
from quorate.units import moment
from tests.rigs.manual_clock import jump
from tests.rigs.mcp_session import Rig, rig
from tests.rigs.simulated_guests import machine
from tests.runs.control import work_and_act_when
from tests.runs.test_rolling_update import STAYS, TWO, is_rebooting, is_shutting_down, is_updating, reboots

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
    async with rig(tmp_path, in_memory=True) as quorate:
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
            await jump(quorate.clock, 86_400 - (quorate.clock.now() - opens) % 86_400)
            if await state_of(quorate, started["run"]) is RunState.DONE:
                break
        assert moves(quorate) == 5
        assert (await quorate.app.runs.get(started["run"])).state is RunState.DONE


def is_updating_packages(run: Run) -> bool:
    return "update" in run.current


def is_restoring(run: Run) -> bool:
    return "restore-0" in run.current


async def work_until_window_closes(quorate: Rig, moment: Callable[[Run], bool], tool: str, **arguments: Any) -> Run:
    """Its window closes at that moment."""
    now = quorate.clock.now()
    started = await quorate.facts(tool, **arguments, window=hours(now, now + 3600))

    async def close() -> None:
        await quorate.clock.advance(3600)

    return await work_and_act_when(quorate, started["run"], moment, close)


@pytest.mark.parametrize("moment", [is_updating, is_shutting_down, is_rebooting])
async def test_a_window_that_closes_leaves_no_guest_shut_down(tmp_path: Path, moment: Callable[[Run], bool]) -> None:
    async with rig(tmp_path, in_memory=True, ssh=True) as quorate:
        guests = quorate.sim.world.guests
        for guest in guests.values():
            guest.config["onboot"] = 0  # nothing but the run starts them
        before = {vmid for vmid, guest in guests.items() if guest.running}
        guests[STAYS].config["hostpci0"] = "0000:01:00.0"
        run = await work_until_window_closes(quorate, moment, "run_rolling_update", **{**TWO, "nodes": ["pve3"]})
        assert run.state is RunState.WAITING, run.reason
        assert any(line.text.startswith("Shut down") for line in run.log)
        assert {vmid for vmid, guest in guests.items() if guest.running} == before
        assert quorate.sim.world.nodes["pve3"].online
        assert reboots(quorate) == (["pve3"] if moment is is_rebooting else [])
        await jump(quorate.clock, 82_900)
        assert await state_of(quorate, run.id) is RunState.DONE, "in the next window"
        assert reboots(quorate) == ["pve3"]
        assert {vmid for vmid, guest in guests.items() if guest.running} == before


async def test_an_update_that_has_begun_is_checked_and_rolled_back_although_the_window_closes(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        machine(quorate, 104).updates = ["nginx"]
        update = {"guest": 104, "check": "false", "health_seconds": 30}
        run = await work_until_window_closes(quorate, is_updating_packages, "run_guest_update", **update)
        assert (run.state, run.memory["verdict"]) == (RunState.FAILED, "failed"), run.reason
        assert any(path.endswith("/rollback") for _, path in quorate.sim.requests)


async def test_an_update_that_has_not_begun_waits_for_the_next_window(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        run = await work_until_window_closes(
            quorate, lambda run: "protect" in run.current, "run_guest_update", guest=104
        )
        assert run.state is RunState.WAITING, run.reason
        assert not any(path.endswith("/agent/exec") for _, path in quorate.sim.requests)


async def test_a_copy_that_was_restored_is_removed_before_the_run_waits_for_its_next_window(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        before = set(quorate.sim.world.guests)
        run = await work_until_window_closes(quorate, is_restoring, "run_restore_drill", guest=[102, 203])
        assert run.state is RunState.WAITING, run.reason
        assert set(quorate.sim.world.guests) == before
        await jump(quorate.clock, 82_900)
        assert await state_of(quorate, run.id) in (RunState.DONE, RunState.FAILED)
        assert set(quorate.sim.world.guests) == before


@pytest.mark.parametrize("tool", ["run_evacuate", "run_guest_update", "run_restore_drill"])
async def test_a_run_that_is_paused_and_resumed_before_its_time_still_waits_for_it(tmp_path: Path, tool: str) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        what = AWAY if tool == "run_evacuate" else {"guest": 104 if tool == "run_guest_update" else 102}
        run = (await quorate.facts(tool, **what, at=moment(quorate.clock.now() + 1800)))["run"]
        for action in ("pause", "resume"):
            await quorate.facts("run_control", run=run, action=action)
        sent = len([method for method, _ in quorate.sim.requests if method != "GET"])
        assert await state_of(quorate, run) is RunState.WAITING
        assert len([method for method, _ in quorate.sim.requests if method != "GET"]) == sent
        await quorate.clock.advance(1801)
        assert (await state_of(quorate, run)).has_ended


async def test_a_window_or_time_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        assert "must be hours" in await quorate.refusal("run_evacuate", **AWAY, window="at night")
        past = moment(quorate.clock.now() - 60)
        assert "has passed" in await quorate.refusal("run_evacuate", **AWAY, at=past)
        assert await quorate.app.runs.store.list() == []


async def test_a_dry_run_says_when_it_would_begin(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        soon = moment(quorate.clock.now() + 1800)
        plan = await quorate.facts("run_evacuate", **AWAY, at=soon, window="22:00-05:00", dry_run=True)
        assert plan["starts"] == f"from {soon}, only 22:00-05:00"
        assert await quorate.app.runs.store.list() == []


async def test_a_freeze_in_the_middle_pauses_every_run_after_the_step_in_progress(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
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
