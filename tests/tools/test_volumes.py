"""What storages hold: finding, annotating and deleting volumes."""

import pytest

from pve_simulator.storage.storages import Volume
from quorate.config import Access
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio

BACKUP = "nas:backup/vzdump-qemu-109-2025_12_31-02_00_01.vma.zst"
ISO = "local:iso/debian-13.1.0-amd64-netinst.iso"
TEMPLATE = "local:vztmpl/debian-13-standard_13.1-2_amd64.tar.zst"


def volume(quorate, volid, node="pve1"):
    return quorate.sim.world.storages[volid.partition(":")[0]].volume(node, volid)


def every_volume(quorate):
    return [
        volume.volid
        for storage in quorate.sim.world.storages.values()
        for space in storage.spaces.values()
        for volume in space.volumes.values()
    ]


async def test_all_storages_are_listed_at_once_and_a_shared_one_once(tmp_path):
    async with rig(tmp_path) as quorate:
        rows = await quorate.rows("volume_list", limit=200)
        assert sorted(row["volume"] for row in rows) == sorted(every_volume(quorate))


async def test_the_list_is_narrowed_by_storage_node_content_guest_and_name(tmp_path):
    async with rig(tmp_path) as quorate:
        assert {row["volume"] for row in await quorate.rows("volume_list", content="iso", node="pve1")} == {
            ISO,
            "nas:iso/ubuntu-24.04.3-live-server-amd64.iso",
            "nas:iso/virtio-win-0.1.271.iso",
        }
        assert [row["volume"] for row in await quorate.rows("volume_list", storage=["nas"], name="VIRTIO")] == [
            "nas:iso/virtio-win-0.1.271.iso"
        ]
        assert {row["guest"] for row in await quorate.rows("volume_list", guest="docker01")} == {102}
        assert {row["guest"] for row in await quorate.rows("volume_list", storage="pbs", guest=203)} == {203}


async def test_each_row_shows_size_age_protection_and_notes(tmp_path):
    async with rig(tmp_path) as quorate:
        backup = volume(quorate, BACKUP)
        backup.notes, backup.protected = "before\nthe move", True
        (row,) = await quorate.rows("volume_list", storage="nas", content="backup")
        assert row["protected"] is True
        assert row["notes"] == "before"  # PVE lists the first line
        assert 15 * 86400 <= row["age"] < 16 * 86400
        assert row["guest"] == 109


async def test_a_storage_that_cannot_be_read_is_named_and_the_others_are_shown(tmp_path):
    async with rig(tmp_path, faults=["500:connection error:GET:/nodes/*/storage/pbs/content"]) as quorate:
        facts = await quorate.facts("volume_list", limit=200)
        assert "pbs on pve1" in facts["not_read"][0]
        assert facts["rows"]


async def test_an_unknown_storage_is_refused_with_the_nearest_name(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "Did you mean 'nas'" in await quorate.refusal("volume_list", storage="naas")


async def test_a_backup_gets_notes_and_protection_and_loses_them(tmp_path):
    async with rig(tmp_path) as quorate:
        backup = volume(quorate, BACKUP)
        backup.protected = False
        await quorate.facts("volume_update", volume=BACKUP, notes="keep me", protected=True)
        assert (backup.notes, backup.protected) == ("keep me", True)
        again = await quorate.facts("volume_update", volume=BACKUP, protected=True)
        assert again["result"] == "nothing to do"
        await quorate.facts("volume_update", volume=BACKUP, notes="", protected=False)
        assert (backup.notes, backup.protected) == (None, False)


async def test_an_update_whose_answer_is_lost_is_settled_by_looking(tmp_path):
    async with rig(tmp_path, faults=["drop:after:PUT:/nodes/*/content/*"]) as quorate:
        facts = await quorate.facts("volume_update", volume=BACKUP, notes="kept")
        assert "effect was found" in facts["note"]
        assert volume(quorate, BACKUP).notes == "kept"


async def test_only_backups_have_notes(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "Only backups" in await quorate.refusal("volume_update", volume=ISO, notes="x")
        assert "Give notes, protected" in await quorate.refusal("volume_update", volume=BACKUP)


async def test_volumes_are_deleted_wherever_they_are(tmp_path):
    async with rig(tmp_path) as quorate:
        volume(quorate, BACKUP).protected = False
        facts = await quorate.facts("volume_delete", volume=[BACKUP, ISO])
        assert [step["state"] for step in facts["steps"]] == ["done", "done"]
        assert volume(quorate, BACKUP) is None
        assert volume(quorate, ISO) is None


async def test_a_file_that_several_nodes_have_needs_the_node(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("volume_delete", volume=TEMPLATE)
        assert "pve1, pve2, pve3" in text
        assert "node=" in text
        await quorate.facts("volume_delete", volume=TEMPLATE, node="pve2")
        assert volume(quorate, TEMPLATE, "pve2") is None
        assert volume(quorate, TEMPLATE, "pve1") is not None


async def test_what_is_not_there_is_not_reported_as_deleted(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("volume_delete", volume="local:iso/debian-13.1.0-amd64-netins.iso")
        assert f"Did you mean {ISO!r}" in text
        assert "storage:name" in await quorate.refusal("volume_delete", volume="debian.iso")
        assert all(method == "GET" for method, _ in quorate.sim.requests)


async def test_a_protected_backup_and_a_disk_in_use_are_not_deleted(tmp_path):
    async with rig(tmp_path) as quorate:
        volume(quorate, BACKUP).protected = True
        assert "protected=false" in await quorate.refusal("volume_delete", volume=BACKUP)
        text = await quorate.refusal("volume_delete", volume="local-lvm:vm-100-disk-0")
        assert "vm 100 router" in text
        assert "guest_delete" in text
        assert volume(quorate, "local-lvm:vm-100-disk-0") is not None


async def test_a_leftover_disk_is_deleted(tmp_path):
    async with rig(tmp_path) as quorate:
        left = Volume("local-lvm:vm-777-disk-0", "images", "raw", 1 << 30, 4096, 1768000000, vmid=777)
        quorate.sim.world.storages["local-lvm"].add("pve2", left)
        await quorate.facts("volume_delete", volume=left.volid)
        assert volume(quorate, left.volid, "pve2") is None


async def test_a_deletion_is_recognized_and_not_repeated_after_its_answer_is_lost(tmp_path):
    async with rig(tmp_path, faults=["drop:after:DELETE:/nodes/*/content/*"]) as quorate:
        volume(quorate, BACKUP).protected = False
        facts = await quorate.facts("volume_delete", volume=BACKUP)
        assert "answer was lost" in facts["note"]
        assert ":imgdel:109@nas:" in facts["task"]
        assert [method for method, _ in quorate.sim.requests].count("DELETE") == 1


async def test_deleting_needs_access_admin(tmp_path):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        assert "--access admin" in await quorate.refusal("volume_delete", volume=BACKUP)
        assert volume(quorate, BACKUP) is not None


@pytest.mark.parametrize("field", ["format", "size", "ctime", "vmid", "content"])
async def test_a_plugin_that_leaves_a_field_undefined_hides_no_volume(tmp_path, field):
    async with rig(tmp_path) as quorate:
        listed = [row["volume"] for row in await quorate.rows("volume_list", storage="nas")]
        quorate.sim.faults.add(f"null:{field}:GET:/nodes/*/storage/*/content")
        assert [row["volume"] for row in await quorate.rows("volume_list", storage="nas")] == listed
        await quorate.facts("vm_create", iso="debian-13.1", dry_run=True)
