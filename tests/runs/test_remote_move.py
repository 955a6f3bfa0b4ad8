"""Moving a guest to another cluster: mapped, verified, and the source stays until the target runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quorate.runs.store import Run, RunState
from tests.rigs.several_clusters import SeveralClusters, several_clusters
from tests.runs.control import work_and_abort_when

pytestmark = pytest.mark.anyio

MOVE = {"to": "lab", "storage": "local", "cluster": "prod"}


async def move(quorate: SeveralClusters, **arguments: Any) -> Run:
    started = await quorate.facts("run_remote_move", **{**MOVE, **arguments})
    await quorate.app.runs.work()
    return await quorate.app.runs.get(started["run"])


async def test_a_running_vm_moves_live_and_its_source_is_kept(tmp_path: Path) -> None:
    async with several_clusters(tmp_path, "prod", "lab") as quorate:
        source, lab = quorate.sims["prod"].world.guests[104], quorate.sims["lab"].world
        run = await move(quorate, guest=104)
        assert run.state is RunState.DONE, run.reason
        moved = lab.guests[104]
        assert (moved.name, moved.running, moved.node) == ("k3s-server", True, "lab1")
        assert str(moved.config["scsi0"]).startswith("local:")
        assert not source.running
        assert "lock" not in source.config


async def test_the_disks_of_a_source_that_will_be_deleted_are_named_whatever_its_id_there(tmp_path: Path) -> None:
    async with several_clusters(tmp_path, "prod", "lab") as quorate:
        for vmid in (104, 704):
            plan = await quorate.facts(
                "run_remote_move", **MOVE, guest=104, vmid=vmid, delete_source=True, dry_run=True
            )
            assert "vm-104-disk-0" in str(plan["lost"]), vmid


async def test_the_source_is_deleted_once_the_target_runs_if_requested(tmp_path: Path) -> None:
    async with several_clusters(tmp_path, "prod", "lab") as quorate:
        run = await move(quorate, guest=104, delete_source=True)
        assert run.state is RunState.DONE, run.reason
        assert 104 not in quorate.sims["prod"].world.guests
        assert quorate.sims["lab"].world.guests[104].running


async def test_a_taken_id_gets_another_one_there(tmp_path: Path) -> None:
    async with several_clusters(tmp_path, "prod", "lab") as quorate:
        run = await move(quorate, guest="router", bridge="vmbr0")
        assert run.state is RunState.DONE, run.reason
        assert run.scope["target_vmid"] != 100
        assert quorate.sims["lab"].world.guests[100].name == "playground"


async def test_a_failed_migration_leaves_the_source_as_it_was(tmp_path: Path) -> None:
    async with several_clusters(tmp_path, "prod", "lab") as quorate:
        quorate.sims["prod"].faults.add("task-fails:qmigrate:tunnel broke")
        run = await move(quorate, guest=104, delete_source=True)
        assert run.state is RunState.FAILED
        assert "tunnel broke" in run.reason
        assert quorate.sims["prod"].world.guests[104].running
        assert 104 not in quorate.sims["lab"].world.guests


@pytest.mark.parametrize(("step", "source"), [("migrate", "kept"), ("delete", "deleted")])
async def test_an_aborted_move_says_where_the_guest_is_and_whether_its_source_is_left(
    tmp_path: Path, step: str, source: str
) -> None:
    async with several_clusters(tmp_path, "prod", "lab") as quorate:
        started = await quorate.facts("run_remote_move", **{**MOVE, "guest": 104, "delete_source": True})
        run = await work_and_abort_when(quorate, started["run"], lambda run: step in run.current)
        assert run.state is RunState.ABORTED
        assert run.report["left"] == [f"guest 104 is in lab as 104, and its source is {source} here"]
        assert (104 in quorate.sims["prod"].world.guests) == (source == "kept")
        assert quorate.sims["lab"].world.guests[104].running


async def test_what_the_other_cluster_lacks_is_refused_in_advance(tmp_path: Path) -> None:
    async with several_clusters(tmp_path, "prod", "lab") as quorate:
        quorate.sims["lab"].world.storages["local"].content = ("iso",)
        text = await quorate.refusal("run_remote_move", guest=104, to="lab", cluster="prod")
        assert "has no storage 'local-lvm'" in text
        text = await quorate.refusal("run_remote_move", guest=104, cluster="prod", to="lab", storage="local")
        assert "The storage 'local' of the other cluster cannot be used. Storage local does not take images" in text
        text = await quorate.refusal("run_remote_move", guest=101, cluster="prod", to="lab", storage="local")
        assert "managed by HA" in text
        assert "There is no cluster" in await quorate.refusal("run_remote_move", guest=104, cluster="prod", to="lob")


async def test_the_token_of_the_other_cluster_is_shown_and_stored_nowhere(tmp_path: Path) -> None:
    async with several_clusters(tmp_path, "prod", "lab") as quorate:
        run = await move(quorate, guest=104)
        secret = quorate.sims["lab"].token_secret
        assert secret not in json.dumps(quorate.audit_lines())
        shown = await quorate.call("run_get", run=run.id)
        assert secret not in str(shown)
        assert secret not in str(run)
