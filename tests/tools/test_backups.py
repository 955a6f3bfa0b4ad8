"""Backups: create, list, inspect, prune."""

import pytest

from pve_simulator.storage.storages import Volume
from quorate.config import Access
from tests.rigs.mcp_session import rig, second_server

pytestmark = pytest.mark.anyio

OLD = "nas:backup/vzdump-qemu-109-2025_12_31-02_00_01.vma.zst"
DAY = 86400


def backups(quorate, storage, vmid=None, node="pve1"):
    volumes = quorate.sim.world.storages[storage].volumes(node)
    return [volume for volume in volumes if volume.content == "backup" and vmid in (None, volume.vmid)]


def add_backup(quorate, vmid, day, storage="nas", node="pve1", kind="qemu"):
    """A backup of that guest, made at noon of a day in December 2025."""
    name = f"{storage}:backup/vzdump-{kind}-{vmid}-2025_12_{day:02}-12_00_00.vma.zst"
    volume = Volume(name, "backup", "vma.zst", 1 << 30, 1 << 30, 1764590400 + (day - 1) * DAY, vmid=vmid)
    quorate.sim.world.storages[storage].add(node, volume)
    return volume


# -- reading -----------------------------------------------------------------------------------------------------------


async def test_backups_tasks_jobs_and_uptimes_of_the_demo_tell_one_story(tmp_path):
    async with rig(tmp_path) as quorate:
        made = {(str(row["guest"]), row["made"]) for row in await quorate.rows("backup_list")}
        tasks = [row for row in await quorate.rows("task_list") if row["type"] == "vzdump"]
        assert {(row["id"], row["started"]) for row in tasks} == made
        assert (await quorate.facts("backup_job_list"))["rows"] == []
        assert {row["user"] for row in tasks} == {"carol@pve"}  # a job would run as root@pam
        nodes = {row["node"]: row["uptime"] for row in await quorate.rows("node_list")}
        for guest in await quorate.rows("guest_list", status="running"):
            assert (await quorate.facts("guest_get", guest=guest["vmid"]))["uptime"] <= nodes[guest["node"]], guest


async def test_backups_of_all_storages_are_listed_newest_first(tmp_path):
    async with rig(tmp_path) as quorate:
        rows = await quorate.rows("backup_list")
        made = {volume.volid for storage in ("nas", "pbs") for volume in backups(quorate, storage)}
        assert {row["backup"] for row in rows} == made
        assert rows[0]["made"] > rows[-1]["made"]
        assert rows[-1]["backup"] == OLD
        assert rows[-1]["name"] == "legacy-db"
        assert 15 * 86400 <= rows[-1]["age"] < 16 * 86400


async def test_backups_are_narrowed_by_guest_also_one_that_is_gone(tmp_path):
    async with rig(tmp_path) as quorate:
        add_backup(quorate, 555, 1)
        assert {row["guest"] for row in await quorate.rows("backup_list", guest="docker01")} == {102}
        (row,) = await quorate.rows("backup_list", guest=555)
        assert row["type"] == "vm"
        assert {row["type"] for row in await quorate.rows("backup_list", guest=202)} == {"ct"}
        assert {row["guest"] for row in await quorate.rows("backup_list", storage="nas")} == {109, 555}


async def test_a_backup_is_looked_into(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[109]
        guest.config["cipassword"] = "very-secret-word"
        facts = await quorate.facts("backup_show", backup=OLD)
        assert facts["name"] == "legacy-db"
        assert facts["type"] == "vm"
        assert facts["protected"] is True
        assert list(facts["disks"]) == ["scsi0"]
        assert "bridge=" in facts["networks"]["net0"]
        assert facts["options"]["memory"] == str(guest.config["memory"])
        assert "very-secret-word" not in str(facts)


async def test_the_newest_backup_is_named_by_its_guest(tmp_path):
    async with rig(tmp_path) as quorate:
        newest = (await quorate.rows("backup_list", guest=203))[0]["backup"]
        for reference in ("newest:postgres", "newest:203"):
            assert (await quorate.facts("backup_show", backup=reference))["backup"] == newest
        restored = await quorate.facts("backup_restore", backup="newest:postgres", vmid=603, dry_run=True)
        assert newest in str(restored)
        assert "Guest win11 has no backup" in await quorate.refusal("backup_show", backup="newest:win11")
        quorate.sim.faults.add("500:storage is offline:GET:/nodes/*/storage/nas/content")
        assert "is not known" in await quorate.refusal("backup_show", backup="newest:postgres")


async def test_a_file_that_is_not_a_backup_is_not_read(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("backup_show", backup="nas:iso/virtio-win-0.1.271.iso")
        assert "backup_list" in text
        assert "no volume" in await quorate.refusal("backup_show", backup="pbs:backup/vm/1/2026-01-13T01:00:04Z")


# -- making ------------------------------------------------------------------------------------------------------------


async def test_a_backup_is_there_when_the_call_returns(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts(
            "backup_create", guest="test-vm", storage="nas", notes="for {{guestname}}\non {{node}}", protected=True
        )
        assert facts["result"] == "done"
        (made,) = backups(quorate, "nas", 108)
        assert made.notes == "for test-vm\non pve1"
        assert made.protected
        assert made.format == "vma.zst"
        assert facts["backups"]["108"].startswith(made.volid)


async def test_guests_of_several_nodes_are_backed_up_by_their_nodes_in_one_call(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts(
            "backup_create", guest=[108, 207, 206, 205], storage="nas", compress="gzip", wait=50
        )
        assert len(facts["steps"]) == 2 + 1
        assert {volume.vmid for volume in backups(quorate, "nas")} == {108, 109, 205, 206, 207}
        assert sorted(facts["backups"]) == ["108", "205", "206", "207"]
        posts = [path for method, path in quorate.sim.requests if method == "POST"]
        assert sorted(posts) == [f"/nodes/pve{number}/vzdump" for number in (1, 2, 3)]


async def test_without_a_storage_the_roomiest_shared_one_is_taken(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("backup_create", guest=[108, 207])
        assert facts["storage"] == "pbs"
        assert len(backups(quorate, "pbs", 108)) == 1


async def test_a_backup_never_prunes_older_ones(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.storages["nas"].config["prune-backups"] = "keep-last=1"
        add_backup(quorate, 108, 1)
        await quorate.facts("backup_create", guest=108, storage="nas")
        assert len(backups(quorate, "nas", 108)) == 2


async def test_a_guest_that_moved_during_the_backup_is_not_reported_as_backed_up(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.rows("guest_list")
        quorate.sim.world.guests[108].node = "pve2"
        text = await quorate.refusal("backup_create", guest=108, storage="nas")
        assert "backed up nothing" in text
        assert "moved" in text
        assert not backups(quorate, "nas", 108)


async def test_a_failed_backup_names_the_guest_and_the_reason(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.guests[108].config["lock"] = "migrate"
        text = await quorate.refusal("backup_create", guest=108, storage="nas")
        assert "VM is locked (migrate)" in text


async def test_one_failure_among_several_is_reported_and_the_others_are_backed_up(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.guests[100].config["lock"] = "migrate"
        text = await quorate.refusal("backup_create", guest=[100, 108, 9000], storage="nas", wait=50)
        assert "Backup of VM 100 failed - VM is locked (migrate)" in text
        assert {volume.vmid for volume in backups(quorate, "nas")} == {108, 109, 9000}


async def test_a_backup_whose_answer_is_lost_is_found_and_made_once(tmp_path):
    async with rig(tmp_path, faults=["drop:after:POST:/nodes/*/vzdump"]) as quorate:
        facts = await quorate.facts("backup_create", guest=108, storage="nas")
        assert "answer was lost" in facts["note"]
        assert len(backups(quorate, "nas", 108)) == 1


async def test_bad_wishes_are_refused_before_anything_is_sent(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "does not take backup" in await quorate.refusal("backup_create", guest=108, storage="local-lvm")
        assert "between 1 and" in await quorate.refusal("backup_create", guest=[])
        assert "no guest" in await quorate.refusal("backup_create", guest="nobody")
        assert all(method == "GET" for method, _ in quorate.sim.requests)


# -- pruning -----------------------------------------------------------------------------------------------------------


async def test_a_dry_run_of_pruning_is_pves_own_preview(tmp_path):
    async with rig(tmp_path) as quorate:
        kept = [add_backup(quorate, 108, day) for day in (1, 2, 3, 4)]
        facts = await quorate.facts("backup_prune", storage="nas", keep="last=2", guest=108, dry_run=True)
        assert facts["removes"] == [kept[0].volid, kept[1].volid]
        assert facts["keeps"] == 2
        assert len(backups(quorate, "nas", 108)) == 4


async def test_pruning_deletes_what_the_preview_said_and_spares_the_protected(tmp_path):
    async with rig(tmp_path) as quorate:
        made = [add_backup(quorate, 108, day) for day in (1, 2, 3, 4)]
        made[0].protected = True
        await quorate.facts("backup_prune", storage="nas", keep="keep-last=1")
        assert backups(quorate, "nas", 108) == [made[0], made[3]]
        assert len(backups(quorate, "nas", 109)) == 1
        again = await quorate.facts("backup_prune", storage="nas", keep="last=1")
        assert again["result"] == "nothing to do"


async def test_a_local_storage_is_pruned_on_every_node_that_has_it(tmp_path):
    async with rig(tmp_path) as quorate:
        for node in ("pve1", "pve2"):
            for day in (1, 2):
                add_backup(quorate, 108, day, "local", node)
        await quorate.facts("backup_prune", storage="local", keep="last=1")
        assert len(backups(quorate, "local", node="pve1")) == len(backups(quorate, "local", node="pve2")) == 1


async def test_pruning_needs_a_rule_that_keeps_something(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "keep=last=3" in await quorate.refusal("backup_prune", storage="nas")
        assert "keeps nothing" in await quorate.refusal("backup_prune", storage="nas", keep="last=0")
        assert "last, hourly" in await quorate.refusal("backup_prune", storage="nas", keep="some=3")
        assert "holds no backups" in await quorate.refusal("backup_prune", storage="tank", keep="last=1")
        quorate.sim.world.storages["nas"].config["prune-backups"] = "keep-last=1"
        for day in (1, 2):
            add_backup(quorate, 108, day)
        await quorate.facts("backup_prune", storage="nas")
        assert len(backups(quorate, "nas", 108)) == 1


async def test_pruning_is_refused_below_access_admin(tmp_path):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        assert "--access admin" in await quorate.refusal("backup_prune", storage="nas", keep="last=1")


# -- rights and versions -----------------------------------------------------------------------------------------------


async def test_missing_backup_privileges_are_refused_with_what_to_grant(tmp_path):
    async with rig(tmp_path) as quorate, second_server(quorate, tmp_path / "bob.jsonl", token="bob@pve!monitor") as bob:
        made = add_backup(quorate, 108, 1)
        for tool, arguments, lacking in (
            ("backup_create", {"guest": 108, "storage": "nas"}, "VM.Backup on /vms/108"),
            ("volume_delete", {"volume": made.volid}, "no volume"),
            ("backup_prune", {"storage": "nas", "keep": "last=1"}, "Datastore.Allocate on /storage/nas"),
            ("backup_job_set", {"all": True, "storage": "nas", "schedule": "daily"}, "Datastore.Allocate"),
        ):
            assert lacking in await bob.refusal(tool, **arguments), tool
        assert all(method == "GET" for method, _ in quorate.sim.requests)


@pytest.mark.parametrize("version", ["8.4.1", "9.2.3"])
async def test_the_whole_life_of_a_backup_on_both_major_versions(tmp_path, version):
    async with rig(tmp_path, version=version) as quorate:
        for vmid, kind in ((108, "vm"), (206, "ct")):
            made = await quorate.facts("backup_create", guest=vmid, storage="nas", wait=50)
            volid = made["backups"][str(vmid)].split(" ")[0]
            assert (await quorate.facts("backup_show", backup=volid))["type"] == kind
            restored = await quorate.facts("backup_restore", backup=volid, wait=50)
            assert restored["vmid"] in quorate.sim.world.guests
            await quorate.facts("backup_restore", backup=volid, vmid=restored["vmid"], overwrite=True, wait=50)
            await quorate.facts("volume_update", volume=volid, notes="seen")
        job = await quorate.facts("backup_job_set", schedule="daily", guest=[108, 206], storage="nas", keep="last=1")
        await quorate.facts("backup_job_set", job=job["job"], mode="stop", compress="none", node="pve1")
        await quorate.facts("backup_job_run", job=job["job"], wait=50)
        assert len(backups(quorate, "nas", 108)) == 2
        await quorate.facts("backup_prune", storage="nas", keep="last=1", type="vm", guest=108)
        assert len(backups(quorate, "nas", 108)) == 1
        await quorate.facts("backup_job_delete", job=job["job"])
        await quorate.facts("volume_delete", volume=volid)
        assert volid not in {volume.volid for volume in backups(quorate, "nas")}
