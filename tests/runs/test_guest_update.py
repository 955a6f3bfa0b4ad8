"""Updating a guest: healthy afterwards, or back to where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pve_simulator.guest_os.execution import Io
from quorate.runs.store import RunState
from tests.rigs.mcp_session import Rig, rig
from tests.rigs.simulated_guests import machine
from tests.runs.control import work_and_abort_when

pytestmark = pytest.mark.anyio


async def update(quorate: Rig, **arguments: Any) -> dict[str, Any]:
    started = await quorate.facts("run_guest_update", **arguments)
    await quorate.app.runs.work()
    return await quorate.facts("run_get", run=started["run"], lines=200, inside=True)


def done(quorate: Rig, ending: str) -> list[str]:
    return [path for method, path in quorate.sim.requests if method != "GET" and path.endswith(ending)]


async def test_a_healthy_guest_is_updated_and_its_snapshot_removed(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        machine(quorate, 104).updates = ["libc6", "openssl"]
        run = await update(quorate, guest=104, check="true", services=["ssh"])
        assert run["state"] == "done", run
        assert "Setting up openssl" in run["report"]["output"]
        assert machine(quorate, 104).updates == []
        assert not any(name.startswith("update-") for name in quorate.sim.world.guests[104].snapshots)
        assert done(quorate, "/rollback") == []


async def test_a_guest_that_is_not_healthy_is_rolled_back_and_keeps_its_snapshot(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        machine(quorate, 104).updates = ["nginx"]
        run = await update(quorate, guest=104, check="false", health_seconds=30)
        assert run["state"] == "failed"
        assert "not healthy within" in run["report"]["why"]
        assert len(done(quorate, "/rollback")) == 1
        assert quorate.sim.world.guests[104].running
        assert run["report"]["kept_snapshot"] in quorate.sim.world.guests[104].snapshots


async def test_a_check_that_never_ends_is_not_waited_for(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        machine(quorate, 104).updates = ["nginx"]
        begun = quorate.clock.now()
        run = await update(quorate, guest=104, check="sleep 90000", health_seconds=60)
        assert (run["state"], len(done(quorate, "/rollback"))) == ("failed", 1)
        assert "killed after" in run["report"]["why"]
        assert quorate.clock.now() - begun < 600


async def test_a_check_that_a_signal_ends_has_failed_and_is_not_repeated_forever(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        machine(quorate, 104).updates = ["nginx"]
        run = await update(quorate, guest=104, check="kill -9 $$", health_seconds=30)
        assert (run["state"], len(done(quorate, "/rollback"))) == ("failed", 1)
        assert "terminated by signal" in run["report"]["why"]


async def test_an_update_without_a_network_is_neither_healthy_nor_rolled_back(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        run = await update(quorate, guest=104, check="true")  # no package source answers
        assert run["state"] == "failed"
        assert "nothing was changed: its package lists could not be fetched (E: Failed to fetch" in run["report"]["why"]
        assert done(quorate, "/rollback") == []
        assert not any(name.startswith("update-") for name in quorate.sim.world.guests[104].snapshots)


def refuse_to_configure(io: Io, args: list[str]) -> int:
    return 0 if "update" in args else io.fail("E: Sub-process /usr/bin/dpkg returned an error code (1)", 100)


async def test_a_failing_update_is_rolled_back(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        machine(quorate, 104).own_commands["apt-get"] = refuse_to_configure
        run = await update(quorate, guest=104, keep="never")
        assert run["state"] == "failed"
        assert "exit code 100" in run["report"]["why"]
        assert "kept_snapshot" not in run["report"]
        (ended,) = [line for line in run["log"] if "Update the packages of vm 104" in line and "exit code" in line][:1]
        assert ended.endswith(": failed with exit code 100")
        assert not any("Update the packages" in line and line.endswith(": done") for line in run["log"])
        assert len(done(quorate, "/rollback")) == 1
        assert not any(name.startswith("update-") for name in quorate.sim.world.guests[104].snapshots)


async def test_a_guest_without_snapshots_is_backed_up_and_restored(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        quorate.sim.world.storages["local-lvm"].type = "lvm"
        machine(quorate, 104).updates = []
        run = await update(quorate, guest=104, check="false", health_seconds=0, backup_storage="nas")
        assert run["state"] == "failed", run
        assert run["report"]["rolled_back"]
        assert run["report"]["kept_backup"].startswith("nas:backup/")
        assert quorate.sim.world.guests[104].running


async def test_a_snapshot_that_cannot_be_taken_changes_nothing(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        quorate.sim.faults.add("task-fails:qmsnapshot:out of space")
        run = await update(quorate, guest=104, check="true")
        assert run["state"] == "failed"
        assert "nothing was changed" in run["report"]["why"]
        assert done(quorate, "/agent/exec") == []


async def test_aborting_keeps_the_snapshot_and_says_so(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        started = await quorate.facts("run_guest_update", guest=104)
        await quorate.facts("run_control", run=started["run"], action="pause")
        await quorate.app.runs.work()
        answer = await quorate.facts("run_control", run=started["run"], action="abort")
        assert answer["state"] == "aborting"
        assert answer["reason"].startswith("aborted by ")
        await quorate.app.runs.work()
        run = await quorate.app.runs.get(started["run"])
        assert run.state is RunState.ABORTED


@pytest.mark.parametrize(
    ("storage", "step"), [("lvmthin", "rollback"), ("lvmthin", "start-104"), ("lvm", "stop"), ("lvm", "rollback")]
)
async def test_a_guest_that_an_aborted_run_has_stopped_is_started_again(
    tmp_path: Path, storage: str, step: str
) -> None:
    """Going back to a snapshot without memory stops the guest, and so does restoring its backup."""
    async with rig(tmp_path, in_memory=True) as quorate:
        quorate.sim.world.storages["local-lvm"].type = storage
        machine(quorate, 104).updates = []
        started = await quorate.facts(
            "run_guest_update", guest=104, check="false", health_seconds=0, backup_storage="nas"
        )
        quorate.sim.faults.add("task-fails:qmstart:no memory;count=1")
        run = await work_and_abort_when(quorate, started["run"], lambda run: step in run.current)
        assert run.state is RunState.ABORTED
        assert quorate.sim.world.guests[104].running
        assert [line for line in run.report["left"] if "is kept" in line] == run.report["left"]


async def test_an_aborted_run_says_that_a_guest_cannot_be_started(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        machine(quorate, 104).updates = []
        started = await quorate.facts("run_guest_update", guest=104, check="false", health_seconds=0)
        quorate.sim.faults.add("task-fails:qmstart:no memory")
        run = await work_and_abort_when(quorate, started["run"], lambda run: "rollback" in run.current)
        assert run.state is RunState.ABORTED
        stopped, kept = run.report["left"]
        assert stopped.startswith("vm 104 k3s-server is stopped and could not be started: ")
        assert "no memory" in stopped
        assert kept.startswith("vm 104 k3s-server is rolled back; the snapshot update-")


async def test_a_run_whose_guest_is_gone_can_be_aborted(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        started = await quorate.facts("run_guest_update", guest=104)
        await quorate.facts("guest_delete", guest=104, stop=True)
        await quorate.facts("run_control", run=started["run"], action="abort")
        await quorate.app.runs.work()
        run = await quorate.app.runs.get(started["run"])
        assert (run.state, run.report["left"]) == (RunState.ABORTED, ["guest 104 is gone"])
