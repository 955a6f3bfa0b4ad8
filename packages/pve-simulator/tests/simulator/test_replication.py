"""Replication jobs and their runs."""

from __future__ import annotations

import pytest

from pve_simulator.api_client import Api

JOBS = "/cluster/replication"
ON_NODE = "/nodes/pve2/replication"  # 103 lives there, on ZFS


async def test_a_job_runs_at_its_times(api: Api) -> None:
    assert (await api.post(JOBS, id="103-0", type="local", target="pve1", schedule="*/5", rate=10)).data is None
    job = (await api.get(f"{JOBS}/103-0")).data
    assert (job["guest"], job["target"], job["schedule"]) == (103, "pve1", "*/5")
    await api.clock.advance(310)
    status = (await api.get(f"{ON_NODE}/103-0/status")).data
    assert status["fail_count"] == 0
    assert 0 < status["last_sync"] <= api.clock.now() < status["next_sync"]
    assert status["vmtype"] == "qemu"
    log = (await api.get(f"{ON_NODE}/103-0/log")).body
    assert log["total"] == len(log["data"]) > 3
    assert (await api.get(ON_NODE)).data == [status]
    assert (await api.get("/nodes/pve1/replication")).data == []


async def test_a_job_can_be_run_soon(api: Api) -> None:
    await api.post(JOBS, id="103-0", type="local", target="pve1", schedule="03:00")
    assert (await api.post(f"{ON_NODE}/103-0/schedule_now")).status == 200
    await api.clock.advance(70)
    assert (await api.get(f"{ON_NODE}/103-0/status")).data["last_sync"] > 0


async def test_a_run_takes_its_time_and_its_outcome_is_there_only_at_the_end(api: Api) -> None:
    await api.post(JOBS, id="103-0", type="local", target="pve1", schedule="*/1")
    fresh = (await api.get(f"{ON_NODE}/103-0/status")).data
    assert (fresh["last_try"], fresh["last_sync"]) == (0, 0)
    assert not {"duration", "error", "pid"} & set(fresh)
    await api.clock.advance(fresh["next_sync"] - api.clock.now() + 1)
    going = (await api.get(f"{ON_NODE}/103-0/status")).data
    assert (going["last_try"], going["last_sync"]) == (fresh["next_sync"], 0)
    assert going["pid"] > 0
    assert "duration" not in going
    busy = await api.post(f"{ON_NODE}/103-0/schedule_now")
    assert busy.reason == "can't lock file '/var/lock/pve-manager/pve-migrate-103' - got timeout"
    await api.clock.advance(10)
    done = (await api.get(f"{ON_NODE}/103-0/status")).data
    assert done["last_sync"] == done["last_try"] == fresh["next_sync"]
    assert done["duration"] > 0
    assert "pid" not in done
    await api.post(f"{ON_NODE}/103-0/schedule_now")
    asked = (await api.get(f"{ON_NODE}/103-0/status")).data
    assert (asked["last_try"], asked["last_sync"]) == (0, done["last_sync"])


@pytest.mark.api(faults=["node-offline:pve1"], endpoints=1)
async def test_a_dead_target_counts_as_failure(api: Api) -> None:
    await api.post(JOBS, id="103-0", type="local", target="pve1")
    await api.clock.advance(16 * 60)
    status = (await api.get(f"{ON_NODE}/103-0/status")).data
    assert status["fail_count"] >= 1
    assert "exit code 255" in status["error"]


async def test_a_deleted_job_goes_when_the_runner_has_cleaned_up(api: Api) -> None:
    await api.post(JOBS, id="103-0", type="local", target="pve1")
    assert (await api.delete(f"{JOBS}/103-0")).data is None
    assert (await api.get(f"{JOBS}/103-0")).data["remove_job"] == "full"
    await api.clock.advance(61)
    assert (await api.get(JOBS)).data == []
    assert (await api.delete(f"{JOBS}/103-0")).reason == "no such job '103-0'"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"id": "999-0", "target": "pve1"}, "Guest '999' does not exists."),
        ({"id": "103-0", "target": "moon"}, "Target 'moon' does not exists."),
        ({"id": "104-0", "target": "pve1"}, "missing replicate feature on volume 'local-lvm:vm-104-disk-0'"),
        ({"id": "101-0", "target": "pve2"}, "No replicatable volumes found"),
    ],
)
async def test_refused_jobs(api: Api, options: dict[str, str], text: str) -> None:
    reply = await api.post(JOBS, type="local", **options)
    assert (reply.status, reply.reason) == (500, text)


@pytest.mark.api(nodes=1, guests=1)
async def test_outside_of_a_cluster_there_is_no_target(api: Api) -> None:
    vmid = next(iter(api.cluster.world.guests))
    reply = await api.post(JOBS, id=f"{vmid}-0", type="local", target="pve1")
    assert reply.reason == "Target 'pve1' does not exists."


async def test_a_guest_is_replicated_to_a_node_once(api: Api) -> None:
    await api.post(JOBS, id="103-0", type="local", target="pve1")
    again = await api.post(JOBS, id="103-0", type="local", target="pve3")
    assert again.reason == "replication job '103-0' already exists"
    same = await api.post(JOBS, id="103-1", type="local", target="pve1")
    assert same.reason == "replication job for guest '103' to target 'pve1' already exists"


async def test_options_change_and_go(api: Api) -> None:
    await api.post(JOBS, id="103-0", type="local", target="pve1", comment="nightly")
    assert (await api.put(f"{JOBS}/103-0", disable=1, delete="comment")).data is None
    job = (await api.get(f"{JOBS}/103-0")).data
    assert job["disable"] == 1
    assert "comment" not in job
    assert (await api.put(f"{JOBS}/103-0", delete="target")).reason == "unable to delete required option 'target'"
    assert (await api.get(f"{JOBS}/103-7")).reason == "no such replication job '103-7'"


async def test_replication_turns_around_with_the_guest(api: Api) -> None:
    await api.post(JOBS, id="103-0", type="local", target="pve1")
    elsewhere = await api.post("/nodes/pve2/qemu/103/migrate", target="pve3", online=1, targetstorage="nas")
    assert elsewhere.reason.startswith("Cannot live-migrate replicated VM to node 'pve3'")
    there = await api.post("/nodes/pve2/qemu/103/migrate", target="pve1", **{"online": 1, "with-local-disks": 1})
    assert await api.finish_task(there) == "OK"
    assert (await api.get(f"{JOBS}/103-0")).data["target"] == "pve2"


async def test_a_schedule_must_be_a_calendar_event(api: Api) -> None:
    reply = await api.post(JOBS, id="103-0", type="local", target="pve1", schedule="whenever")
    assert reply.status == 400
    assert reply.errors["schedule"].startswith("invalid format - invalid calendar event 'whenever'")
