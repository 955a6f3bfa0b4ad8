"""Replication of guests' disks to other nodes."""

import pytest

from pve_simulator.routes.replication import Replication
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio


def jobs(quorate):
    return quorate.sim.world.part(Replication).jobs


async def test_a_job_is_made_listed_changed_and_deleted(tmp_path):
    async with rig(tmp_path) as quorate:
        answer = await quorate.facts("replication_set", guest="docker01", target="pve2", schedule="*/30", rate=10)
        assert (answer["result"], answer["job"]) == ("done", "102-0")
        assert jobs(quorate)["102-0"].options["schedule"] == "*/30"
        (row,) = await quorate.rows("replication_list")
        assert (row["job"], row["guest"], row["source"], row["target"]) == ("102-0", "102 docker01", "pve1", "pve2")
        await quorate.facts("replication_set", guest=102, target="pve2", schedule="02:00", enabled=False)
        assert jobs(quorate)["102-0"].options["schedule"] == "02:00"
        assert not jobs(quorate)["102-0"].enabled
        same = await quorate.facts("replication_set", guest=102, target="pve2", schedule="02:00")
        assert same["result"] == "nothing to do"
        gone = await quorate.facts("replication_delete", job="102-0")
        assert gone["result"] in ("done", "running")
        await quorate.clock.advance(120)
        assert jobs(quorate) == {}


async def test_a_run_is_done_when_it_has_run(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("replication_set", guest=102, target="pve2", schedule="02:00")
        await quorate.clock.advance(30)
        answer = await quorate.facts("replication_run", job="102-0")
        assert (answer["result"], answer["took"]) == ("done", 3.4)
        assert jobs(quorate)["102-0"].last_sync > 0
        (row,) = await quorate.rows("replication_list", guest="docker01")
        assert row["last"] != "never"


async def test_a_run_that_fails_is_an_error_with_its_reason(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("replication_set", guest=102, target="pve2", schedule="02:00")
        quorate.sim.world.nodes["pve2"].online = False
        await quorate.clock.advance(30)
        text = await quorate.refusal("replication_run", job="102-0")
        assert "exit code 255" in text
        (row,) = await quorate.rows("replication_list")
        assert row["failures"] == 1
        assert "exit code 255" in row["error"]


async def test_the_first_run_is_waited_for(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.part(Replication).run_seconds = 15.0
        await quorate.facts("replication_set", guest=102, target="pve2", schedule="02:00")
        await quorate.clock.advance(40)
        answer = await quorate.facts("replication_run", job="102-0")
        assert (answer["result"], answer["took"]) == ("done", 15)
        assert jobs(quorate)["102-0"].pid is None


async def test_a_long_run_is_handed_back_and_shown_as_running(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.part(Replication).run_seconds = 300.0
        await quorate.facts("replication_set", guest=102, target="pve2", schedule="02:00")
        await quorate.clock.advance(40)
        answer = await quorate.facts("replication_run", job="102-0")
        assert answer["result"] == "running"
        assert "took" not in answer
        (row,) = await quorate.rows("replication_list")
        assert (row["took"], row["last"]) == ("running", "never")
        again = await quorate.refusal("replication_run", job="102-0")
        assert "102-0 has been running since" in again
        assert "replication_list" in again


async def test_an_error_of_the_previous_run_is_not_reported_for_this_run(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("replication_set", guest=102, target="pve2", schedule="02:00")
        quorate.sim.world.nodes["pve2"].online = False
        await quorate.clock.advance(30)
        assert "exit code 255" in await quorate.refusal("replication_run", job="102-0")
        quorate.sim.world.nodes["pve2"].online = True
        await quorate.clock.advance(30)
        answer = await quorate.facts("replication_run", job="102-0")
        assert answer["result"] == "done"
        (row,) = await quorate.rows("replication_list")
        assert "error" not in row
        assert jobs(quorate)["102-0"].last_sync > 0


async def test_a_run_is_recognized_as_requested_after_its_answer_is_lost(tmp_path):
    async with rig(tmp_path, faults=["drop:after:POST:/nodes/*/replication/*/schedule_now"]) as quorate:
        await quorate.facts("replication_set", guest=102, target="pve2", schedule="*/1")
        await quorate.clock.advance(90)
        answer = await quorate.facts("replication_run", job="102-0")
        assert "effect was found" in answer["note"]
        assert sum(method == "POST" and path.endswith("schedule_now") for method, path in quorate.sim.requests) == 1


async def test_a_run_that_has_not_begun_in_time_is_handed_back(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("replication_set", guest=102, target="pve2", schedule="02:00")
        answer = await quorate.facts("replication_run", job="102-0")
        assert answer["result"] == "running"
        assert "replication_list" in answer["next"]


async def test_what_cannot_be_replicated_is_refused_with_the_reason(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "local-lvm (lvmthin)" in await quorate.refusal("replication_set", guest=100, target="pve2")
        assert "nothing to replicate" in await quorate.refusal("replication_set", guest=101, target="pve2")
        assert "itself is on pve1" in await quorate.refusal("replication_set", guest=102, target="pve1")
        assert "The nodes are" in await quorate.refusal("replication_set", guest=102, target="pve9")
        assert "There is no replication job" in await quorate.refusal("replication_run", job="102-0")
        assert "There is no replication job" in await quorate.refusal("replication_delete", job="102-0")
        bad = await quorate.refusal("replication_set", guest=102, target="pve2", schedule="sometimes")
        assert "schedule" in bad
        await quorate.facts("replication_set", guest=102, target="pve2", enabled=False)
        assert "enabled=true" in await quorate.refusal("replication_run", job="102-0")


async def test_a_lost_answer_is_settled_by_the_job_that_is_there(tmp_path):
    async with rig(tmp_path, faults=["drop:after:POST:/cluster/replication"]) as quorate:
        answer = await quorate.facts("replication_set", guest=102, target="pve2")
        assert "effect was found" in answer["note"]
        assert list(jobs(quorate)) == ["102-0"]


async def test_jobs_work_on_pve_8(tmp_path):
    async with rig(tmp_path, version="8.4.1") as quorate:
        assert (await quorate.facts("replication_set", guest=202, target="pve1"))["result"] == "done"
        assert list(jobs(quorate)) == ["202-0"]
