"""Updating nodes one by one: no reboot after a failed migration, no next node before the last one is back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pve_simulator.nodes.shell import NodeShells
from pve_simulator.routes.cluster.ceph import Ceph
from pve_simulator.routes.replication import Replication
from quorate.runs.store import Run, RunState
from tests.rigs.mcp_session import Rig, rig
from tests.runs.control import work_and_abort_when

pytestmark = pytest.mark.anyio

REPLICATED = 102
"""A VM on pve1 with its disks on ZFS."""
STAYS = 105
"""A VM on pve3: with a device of its node, it cannot move."""
TWO = {"nodes": ["pve2", "pve3"], "with_local_disks": True, "shutdown_rest": True}


async def update(quorate: Rig, **arguments: Any) -> Run:
    started = await quorate.facts("run_rolling_update", **arguments)
    await quorate.app.runs.work()
    return await quorate.app.runs.get(started["run"])


def reboots(quorate: Rig) -> list[str]:
    return [
        path.split("/")[2] for method, path in quorate.sim.requests if method == "POST" and path.endswith("/status")
    ]


def homes(quorate: Rig) -> dict[int, tuple[str, bool]]:
    return {vmid: (guest.node, guest.running) for vmid, guest in quorate.sim.world.guests.items()}


async def test_nodes_are_updated_rebooted_and_get_their_guests_back(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True, ssh=True) as quorate:
        before = homes(quorate)
        run = await update(quorate, **TWO)
        assert run.state is RunState.DONE, run.reason
        assert reboots(quorate) == ["pve2", "pve3"]
        assert homes(quorate) == before
        assert {quorate.sim.world.nodes[node].kernel for node in ("pve2", "pve3")} == {"6.17.4-1-pve"}
        assert "Setting up qemu-server" in run.report["output"]["pve2"]
        assert await quorate.app.cluster.get("/nodes/pve2/apt/update") == []  # type: ignore[union-attr]


@pytest.mark.thorough
async def test_a_node_is_rebooted_only_if_that_is_required(tmp_path: Path) -> None:
    async with rig(tmp_path, ssh=True) as quorate:
        quorate.sim.world.nodes["pve3"].new_kernel = ""
        run = await update(quorate, **TWO)
        assert run.state is RunState.DONE, run.reason
        assert reboots(quorate) == ["pve2"]
        assert run.report["nodes"]["pve3"] == "updated, no reboot required"


async def test_a_node_is_not_rebooted_after_a_failed_migration(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True, ssh=True) as quorate:
        quorate.sim.faults.add("task-fails:qmigrate:no space left on device;count=1")
        run = await update(quorate, **TWO)
        assert run.state is RunState.PAUSED
        assert "no space left" in run.reason
        assert reboots(quorate) == []
        await quorate.facts("run_control", run=run.id, action="resume")
        await quorate.app.runs.work()
        assert (await quorate.app.runs.get(run.id)).state is RunState.DONE


@pytest.mark.thorough
async def test_a_node_that_does_not_come_back_stops_the_run(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True, ssh=True) as quorate:
        world = quorate.sim.world
        started = await quorate.facts("run_rolling_update", **TWO)
        original = quorate.app.runs.store.change_ours

        async def broken(id: str, edit: Any) -> Any:
            run = await original(id, edit)
            if "rebooting_since" in run.memory.get("nodes", {}).get("pve2", {}):
                quorate.sim.faults.add("595:*:/nodes/pve2/*")
            return run

        quorate.app.runs.store.change_ours = broken  # type: ignore[method-assign]
        await quorate.app.runs.work()
        run = await quorate.app.runs.get(started["run"])
        assert run.state is RunState.PAUSED
        assert "pve2 is not back" in run.reason
        assert reboots(quorate) == ["pve2"]
        assert world.nodes["pve3"].kernel == "6.17.2-1-pve"


async def test_a_failing_apt_stops_the_run_and_keeps_its_output(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True, ssh=True) as quorate:
        shells = quorate.sim.world.part(NodeShells)
        shells.of(quorate.sim.world.nodes["pve2"]).updates = None
        run = await update(quorate, **TWO)
        assert run.state is RunState.PAUSED
        assert "its package lists could not be fetched: " in run.reason
        assert "Temporary failure" in run.report["output"]["pve2"]
        assert reboots(quorate) == []


def is_rebooting(run: Run) -> bool:
    return "rebooting_since" in run.memory.get("nodes", {}).get("pve3", {})


def is_updating(run: Run) -> bool:
    return "update-pve3" in run.current


def is_shutting_down(run: Run) -> bool:
    return any(key.startswith("shutdown-") for key in run.current)


@pytest.mark.parametrize("moment", [is_shutting_down, is_updating, is_rebooting])
async def test_an_aborted_run_starts_what_it_has_shut_down_and_waits_for_a_node_that_reboots(
    tmp_path: Path, moment: Callable[[Run], bool]
) -> None:
    async with rig(tmp_path, in_memory=True, ssh=True) as quorate:
        guests = quorate.sim.world.guests
        for guest in guests.values():
            guest.config["onboot"] = 0  # nothing but the run starts them
        before = {vmid for vmid, guest in guests.items() if guest.running}
        guests[STAYS].config["hostpci0"] = "0000:01:00.0"
        started = await quorate.facts("run_rolling_update", **{**TWO, "nodes": ["pve3"]})
        run = await work_and_abort_when(quorate, started["run"], moment)
        assert run.state is RunState.ABORTED, run.reason
        assert run.scope["shutdown"] == [STAYS]
        assert any(line.text.startswith("Shut down") for line in run.log)
        assert {vmid for vmid, guest in guests.items() if guest.running} == before
        assert quorate.sim.world.nodes["pve3"].online
        assert not any("is shut down" in line for line in run.report["left"])


async def test_an_aborted_run_says_which_guests_it_could_not_start(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True, ssh=True) as quorate:
        quorate.sim.faults.add("task-fails:qmstart:no memory")
        quorate.sim.world.guests[STAYS].config["hostpci0"] = "0000:01:00.0"
        started = await quorate.facts("run_rolling_update", **{**TWO, "nodes": ["pve3"]})
        run = await work_and_abort_when(quorate, started["run"], is_updating)
        assert run.state is RunState.ABORTED
        assert not quorate.sim.world.guests[STAYS].running
        assert f"vm {STAYS} k3s-agent of pve3 is shut down" in run.report["left"]


def break_quorum(quorate: Rig) -> None:
    quorate.sim.faults.add("no-quorum")


def take_a_node_down(quorate: Rig) -> None:
    quorate.sim.faults.add("node-offline:pve1")


def degrade_ceph(quorate: Rig) -> None:
    ceph = quorate.sim.world.part(Ceph)
    ceph.health, ceph.checks = "HEALTH_WARN", {"PG_DEGRADED": "Degraded data redundancy"}


def silence_ceph(quorate: Rig) -> None:
    quorate.sim.faults.add("500:got timeout:GET:/cluster/ceph/status")


def fill_the_disk(quorate: Rig) -> None:
    node = quorate.sim.world.nodes["pve2"]
    node.disk_used = node.disk - 1024**3


def fail_a_replication(quorate: Rig) -> None:
    """Its target did not let it in."""
    (job,) = quorate.sim.world.part(Replication).of_guest(REPLICATED)
    job.fail_count, job.error = 2, f"command '/usr/bin/ssh root@{job.target} -- /usr/bin/true' failed: exit code 255"
    job.next_sync = float("inf")


TROUBLE: dict[Callable[[Rig], None], str] = {
    break_quorum: "no quorum",
    take_a_node_down: "pve1 is offline",
    degrade_ceph: "Ceph is HEALTH_WARN (PG_DEGRADED)",
    silence_ceph: "got timeout",
    fill_the_disk: "are free on pve2",
    fail_a_replication: "fails: command '/usr/bin/ssh",
}


@pytest.mark.parametrize("trouble", TROUBLE, ids=lambda trouble: trouble.__name__)
async def test_trouble_in_the_cluster_stops_the_run_before_it_touches_a_node(
    tmp_path: Path, trouble: Callable[[Rig], None]
) -> None:
    async with rig(tmp_path, in_memory=True, ssh=True) as quorate:
        await quorate.facts("replication_set", guest=REPLICATED, target="pve2", schedule="*/15")
        before = homes(quorate)
        started = await quorate.facts("run_rolling_update", **TWO)
        trouble(quorate)
        await quorate.app.runs.work()
        run = await quorate.app.runs.get(started["run"])
        assert run.state is RunState.PAUSED
        assert TROUBLE[trouble] in run.reason
        assert (reboots(quorate), homes(quorate)) == ([], before)
        assert not any("Update the packages" in line.text for line in run.log)
        assert TROUBLE[trouble] in await quorate.refusal("run_rolling_update", **TWO)


async def test_two_nodes_alone_keep_no_quorum_but_with_a_qdevice_they_do(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True, ssh=True, nodes=2, guests=2) as quorate:
        arguments = {"with_local_disks": True, "shutdown_rest": True}
        refusal = await quorate.refusal("run_rolling_update", **arguments)
        assert "without pve1 only 1 of 2 votes are left" in refusal
        quorate.sim.world.has_qdevice = True
        run = await update(quorate, **arguments)
        assert run.state is RunState.DONE, run.reason
        assert reboots(quorate) == ["pve1", "pve2"]


async def test_a_node_is_not_touched_while_a_backup_runs_on_it(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True, ssh=True) as quorate:
        started = await quorate.facts("run_rolling_update", **{**TWO, "nodes": ["pve2"]})
        guest = next(
            vmid
            for vmid, candidate in quorate.sim.world.guests.items()
            if candidate.node == "pve2" and candidate.running
        )
        assert (await quorate.facts("backup_create", guest=guest, wait=0))["result"] == "running"
        await quorate.app.runs.work()
        run = await quorate.app.runs.get(started["run"])
        lines = [line.text for line in run.log]
        waits = next(number for number, line in enumerate(lines) if "tasks on pve2 end: vzdump" in line)
        assert waits == 1, lines
        assert run.state is RunState.DONE, run.reason


@pytest.mark.thorough
async def test_the_next_node_waits_until_the_last_one_is_back_and_ceph_and_replication_have_recovered(
    tmp_path: Path,
) -> None:
    """Both suffer from every reboot. The run neither stops for that nor takes the next node down."""
    async with rig(tmp_path, in_memory=True, ssh=True) as quorate:
        quorate.sim.world.part(Ceph).health = "HEALTH_OK"
        await quorate.facts("replication_set", guest=REPLICATED, target="pve2", schedule="*/1")
        run = await update(quorate, **TWO)
        lines = [line.text for line in run.log]
        assert run.state is RunState.DONE, run.reason
        assert reboots(quorate) == ["pve2", "pve3"]
        back = next(number for number, line in enumerate(lines) if line.startswith("pve2 is done"))
        assert back < next(number for number, line in enumerate(lines) if "Update the packages of pve3" in line)
        waits = " ".join(line for line in lines[:back] if "pve2 comes back" in line)
        for reason in ("it is offline", "Ceph is HEALTH_WARN (PG_DEGRADED)", "replication has not caught up: 102-0"):
            assert reason in waits


async def test_the_dry_run_shows_the_whole_order(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True, ssh=True) as quorate:
        arguments = {"with_local_disks": True, "shutdown_rest": True, "dry_run": True}
        plan = await quorate.facts("run_rolling_update", **arguments)
        assert [line.partition(": evacuate")[0] for line in plan["steps"]] == ["1. pve1", "2. pve2", "3. pve3"]
        other = await quorate.facts("run_rolling_update", nodes=["pve3", "pve1"], **arguments)
        assert [line.partition(": evacuate")[0] for line in other["steps"]] == ["1. pve3", "2. pve1"]
        assert await quorate.app.runs.store.list() == []


async def test_guests_that_cannot_move_are_named_and_refused_unless_they_may_be_shut_down(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True, ssh=True) as quorate:
        lines = (await quorate.refusal("run_rolling_update", dry_run=True)).splitlines()
        count = int(lines[0].split()[0])
        assert lines[0] == f"{count} guests cannot be moved:"
        assert count > 5
        named = [line.split()[2].rstrip(":") for line in lines[1:6]]
        assert named == sorted(named)
        assert all(line.startswith(("- vm ", "- ct ")) and ".;" not in line for line in lines[1:6])
        assert lines[6] == f"- and {count - 5} more."
        assert lines[7].startswith("Give with_local_disks=true")
        plan = await quorate.facts("run_rolling_update", nodes=["pve3"], shutdown_rest=True, dry_run=True)
        assert any("105" in line for line in plan["shut_down_meanwhile"])
        assert "pve3: evacuate" in plan["steps"][0]
