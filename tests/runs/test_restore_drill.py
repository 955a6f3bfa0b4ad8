"""Proving backups: a good, a corrupt and an unbootable one are distinguished, and nothing is left behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pve_simulator.storage.archives import open_archive
from quorate.pve import screens
from quorate.runs.store import RunState
from tests.rigs.mcp_session import Rig, rig
from tests.runs.control import work_and_abort_when

pytestmark = pytest.mark.anyio

GOOD = "pbs:backup/vm/102/2026-01-14T01:00:05Z"
OTHER = "pbs:backup/vm/102/2026-01-13T01:00:04Z"
CONTAINER = "pbs:backup/ct/203/2026-01-14T01:00:05Z"


def volume(quorate: Rig, volid: str) -> Any:
    backup = quorate.sim.world.storages["pbs"].volume("pve1", volid)
    assert backup is not None
    return backup


async def drill(quorate: Rig, **arguments: Any) -> dict[str, Any]:
    before = set(quorate.sim.world.guests)
    started = await quorate.facts("run_restore_drill", **arguments)
    await quorate.app.runs.work()
    run = await quorate.facts("run_get", run=started["run"], lines=200, inside=True)
    new = set(quorate.sim.world.guests) - before
    assert not new, (run.get("reason"), run.get("asks_for"), [quorate.sim.world.guests[vmid].config for vmid in new])
    return run


async def test_a_good_backup_is_proved_and_removed(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        run = await drill(quorate, guest=102, check="true")
        assert run["state"] == "done", run
        (row,) = run["report"]["backups"].values()
        assert (row["verdict"], row["check"]["exit_code"]) == ("passed", 0)
        assert "agent" in row["booted"]
        cards = [path for method, path in quorate.sim.requests if method in ("PUT", "POST") and path.endswith("config")]
        started = [path for method, path in quorate.sim.requests if path.endswith("status/start")]
        assert len(cards) == 1
        assert len(started) == 1
        (row_102,) = [row for row in await quorate.rows("backup_coverage", all=True) if row["vmid"] == 102]
        assert "ago" in row_102["proved"]
        assert row_102["verified"] == "ok"


async def test_a_corrupt_an_unbootable_and_a_good_backup_are_distinguished(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        volume(quorate, GOOD).damaged = True
        empty = volume(quorate, OTHER)
        archive = open_archive(quorate.sim.world, empty)
        empty.archive = replace(archive, system=replace(archive.system, agent_installed=False))
        run = await drill(quorate, backups=[GOOD, OTHER, CONTAINER], boot_seconds=60)
        assert run["state"] == "failed"
        rows = run["report"]["backups"]
        assert "exit code 1" in rows[GOOD]["why"]
        assert "agent was silent" in rows[OTHER]["why"]
        assert rows[CONTAINER]["verdict"] == "passed"
        assert rows[CONTAINER]["booted"] == "container is running; no check was given"
        assert run["what"] == "Prove 3 backups: vm 102, vm 102, ct 203"


async def test_the_copy_of_a_protected_guest_is_removed_and_the_guest_stays_protected(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        assert quorate.sim.world.guests[109].config["protection"] == 1
        run = await drill(quorate, guest=109)
        assert run["state"] == "done", run
        assert quorate.sim.world.guests[109].config["protection"] == 1


def back_up_without_agent(quorate: Rig, volid: str, *, boots: bool = True, **options: str) -> None:
    """Make the backup one of a VM whose configuration has no agent."""
    archive = open_archive(quorate.sim.world, volume(quorate, volid))
    config = {key: value for key, value in archive.config.items() if key != "agent"} | options
    system = archive.system if boots else replace(archive.system, id="")
    volume(quorate, volid).archive = replace(archive, config=config, system=system)


async def test_a_vm_without_an_agent_is_proved_by_the_text_that_answers_enter(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        back_up_without_agent(quorate, GOOD)
        run = await drill(quorate, backups=[GOOD])
        (row,) = run["report"]["backups"].values()
        assert (row["verdict"], row["booted"]) == ("passed", "1 new line of text on its screen after Enter")
        assert run["state"] == "done"


async def test_a_vm_whose_firmware_found_no_system_has_started_but_proves_nothing(tmp_path: Path) -> None:
    """Its screen has text, but nothing answers Enter."""
    async with rig(tmp_path) as quorate:
        back_up_without_agent(quorate, GOOD, boots=False)
        run = await drill(quorate, backups=[GOOD])
        (row,) = run["report"]["backups"].values()
        assert row["verdict"] == "started, not proven"
        assert "neither a prompt nor new text answered Enter" in row["why"]
        assert row["screenshot"] == "640x400"
        assert (run["state"], run["reason"]) == ("done", "0 of 1 backups proved, 1 started, not proven")
        (covered,) = [line for line in await quorate.rows("backup_coverage", all=True) if line["vmid"] == 102]
        assert not covered.get("proved")


async def test_a_prompt_on_the_serial_terminal_proves_a_vm_without_a_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screens, "PROMPT_SECONDS", 0.5)
    async with rig(tmp_path) as quorate:
        back_up_without_agent(quorate, GOOD, serial0="socket", vga="serial0")
        run = await drill(quorate, backups=[GOOD])
        (row,) = run["report"]["backups"].values()
        assert row["verdict"] == "passed"
        assert row["booted"].startswith("serial0 shows the prompt 'drill-")
        assert row["booted"].endswith(" login:'")


async def test_a_silent_serial_terminal_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screens, "PROMPT_SECONDS", 0.1)
    async with rig(tmp_path) as quorate:
        back_up_without_agent(quorate, GOOD, boots=False, serial0="socket", vga="serial0")
        run = await drill(quorate, backups=[GOOD], boot_seconds=30)
        (row,) = run["report"]["backups"].values()
        assert row["verdict"] == "started, not proven"


async def test_a_failing_check_fails_the_backup(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        run = await drill(quorate, backups=[GOOD], check="false")
        assert "the check failed" in run["report"]["backups"][GOOD]["why"]


async def test_an_aborted_drill_removes_what_it_has_restored(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        before = set(quorate.sim.world.guests)
        started = await quorate.facts("run_restore_drill", guest=102)
        run = await work_and_abort_when(quorate, started["run"], lambda run: "start-0" in run.current)
        assert run.state is RunState.ABORTED
        assert set(quorate.sim.world.guests) == before


async def test_a_guest_of_someone_else_with_the_planned_id_is_left_alone(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        started = await quorate.facts("run_restore_drill", guest=102)
        run = await quorate.app.runs.get(started["run"])
        vmid = run.scope["items"][0]["vmid"]
        await quorate.facts("vm_create", name="mine", vmid=vmid, node="pve1")
        await quorate.app.runs.work()
        run = await quorate.app.runs.get(started["run"])
        assert run.state is RunState.FAILED
        assert quorate.sim.world.guests[vmid].name == "mine"
