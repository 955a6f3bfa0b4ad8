"""Deleting guests."""

import pytest

from pve_simulator.routes.replication import Replication, ReplicationJob
from pve_simulator.storage.backup_jobs import BackupJobs
from pve_simulator.world import HaResource
from quorate.config import Access
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio


def volumes_of(quorate, vmid):
    return [
        volume.volid
        for storage in quorate.sim.world.storages.values()
        for node in quorate.sim.world.nodes
        if storage.on_node(node)
        for volume in storage.volumes(node)
        if volume.vmid == vmid and volume.content != "backup"
    ]


@pytest.mark.parametrize("vmid", [108, 206])
async def test_a_stopped_guest_is_deleted_with_its_disks(tmp_path, vmid):
    async with rig(tmp_path) as quorate:
        assert volumes_of(quorate, vmid)
        facts = await quorate.facts("guest_delete", guest=vmid)
        assert facts["result"] == "done"
        assert vmid not in quorate.sim.world.guests
        assert volumes_of(quorate, vmid) == []


async def test_what_will_be_lost_is_shown_before(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("guest_delete", guest=108, dry_run=True)
        disks, snapshots = facts["lost"]
        assert disks.startswith("vm 108 ")
        assert "8G" in disks
        assert snapshots.endswith("snapshots: clean, configured")
        assert "destroy-unreferenced-disks=0" in facts["steps"][0]["call"]
        assert 108 in quorate.sim.world.guests


@pytest.mark.parametrize(("vmid", "word"), [(104, "running"), (106, "paused"), (201, "running")])
async def test_a_running_guest_is_stopped_first_only_on_request(tmp_path, vmid, word):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("guest_delete", guest=vmid)
        assert f"is {word}" in text
        assert "stop=true" in text
        assert f"guest_power guest={vmid} action=shutdown" in text
        assert quorate.writes == []
        facts = await quorate.facts("guest_delete", guest=vmid, stop=True)
        assert [step["state"] for step in facts["steps"]] == ["done", "done"]
        assert vmid not in quorate.sim.world.guests


async def test_if_the_stop_fails_nothing_is_deleted(tmp_path):
    async with rig(tmp_path, faults=["task-fails:qmstop:can't lock file - got timeout"]) as quorate:
        answer = await quorate.call("guest_delete", guest=104, stop=True)
        assert answer.is_error
        assert [step["state"] for step in answer.structured_content["steps"]] == ["failed", "not tried"]
        assert 104 in quorate.sim.world.guests
        assert not any(method == "DELETE" for method, _ in quorate.writes)


async def test_a_guest_under_ha_is_stopped_to_the_end_and_deleted_with_purge(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("guest_delete", guest=101, stop=True)
        assert "is under HA" in text
        assert "purge=true" in text
        facts = await quorate.facts("guest_delete", guest=101, stop=True, purge=True)
        assert facts["result"] == "done"
        assert 101 not in quorate.sim.world.guests
        assert "vm:101" not in quorate.sim.world.ha


async def test_a_replicated_guest_needs_purge(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.part(Replication).add(ReplicationJob("108-0", 108, "pve2", {}))
        text = await quorate.refusal("guest_delete", guest=108)
        assert "108-0" in text
        assert "purge=true" in text
        await quorate.facts("guest_delete", guest=108, purge=True)
        assert 108 not in quorate.sim.world.guests
        assert not quorate.sim.world.part(Replication).of_guest(108)


@pytest.mark.parametrize("purge", [False, True])
async def test_backup_jobs_keep_the_id_unless_purged_and_the_answer_says_so(tmp_path, purge):
    async with rig(tmp_path) as quorate:
        jobs = quorate.sim.world.part(BackupJobs)
        jobs.add("nightly", {"vmid": "108,200", "storage": "pbs", "schedule": "01:00"})
        facts = await quorate.facts("guest_delete", guest=108, purge=purge)
        assert ("108" in str(jobs.get("nightly")["vmid"])) == (not purge)
        assert ("warnings" in facts) == (not purge)


@pytest.mark.parametrize("unreferenced", [False, True])
async def test_unreferenced_disks_stay_by_default(tmp_path, unreferenced):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[107]
        key = next(key for key, _ in guest.drives())
        forgotten = guest.config.pop(key)
        await quorate.facts("guest_delete", guest=107, destroy_unreferenced_disks=unreferenced)
        assert (str(forgotten).split(",")[0] in volumes_of(quorate, 107)) == (not unreferenced)


@pytest.mark.parametrize("vmid", [109, 207])
async def test_a_protected_guest_is_refused_and_protection_stays_on(tmp_path, vmid):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("guest_delete", guest=vmid, stop=True, purge=True)
        assert "protected against deletion" in text
        assert quorate.sim.world.guests[vmid].config["protection"] == 1
        assert quorate.writes == []


async def test_a_template_with_linked_clones_names_them(tmp_path):
    async with rig(tmp_path) as quorate:
        clone = await quorate.facts("guest_clone", guest=9000, full=False)
        text = await quorate.refusal("guest_delete", guest=9000)
        assert "linked clones" in text
        assert str(clone["vmid"]) in text
        await quorate.facts("guest_delete", guest=clone["vmid"])
        await quorate.facts("guest_delete", guest=9000)
        assert 9000 not in quorate.sim.world.guests


async def test_the_right_guest_or_none(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.guests[107].config["name"] = "test-vm"
        quorate.sim.world.guests[107].touch()
        assert "Did you mean" in await quorate.refusal("guest_delete", guest="test-vmm")
        assert "Give the vmid instead" in await quorate.refusal("guest_delete", guest="test-vm")
        assert quorate.writes == []


async def test_a_lost_answer_does_not_delete_twice(tmp_path):
    async with rig(tmp_path, faults=["drop:after:DELETE:/nodes/*"]) as quorate:
        facts = await quorate.facts("guest_delete", guest=108)
        assert "answer was lost" in facts["note"]
        assert 108 not in quorate.sim.world.guests
        assert len(quorate.writes) == 1


async def test_deleting_needs_access_admin(tmp_path):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        for tool in ("guest_delete", "guest_template"):
            assert "--access admin" in await quorate.refusal(tool, guest=108)
        assert 108 in quorate.sim.world.guests


async def test_ha_state_ignored_still_counts_as_a_reference(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.ha["vm:108"] = HaResource("vm:108", state="ignored")
        assert "purge=true" in await quorate.refusal("guest_delete", guest=108)
