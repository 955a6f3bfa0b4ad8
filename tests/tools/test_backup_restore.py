"""Restoring guests, as new ones or over existing ones."""

import re

import pytest

from pve_simulator.storage.archives import pack
from pve_simulator.storage.storages import Volume
from quorate.config import Access
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio


def add_backup(quorate, vmid, storage="nas"):
    """A backup of the guest as it is now."""
    world = quorate.sim.world
    guest = world.guests[vmid]
    archive = pack(world, guest)
    ending = "vma.zst" if guest.kind == "qemu" else "tar.zst"
    name = f"{storage}:backup/vzdump-{guest.kind}-{vmid}-2026_01_10-12_00_00.{ending}"
    volume = Volume(name, "backup", ending, 1 << 30, 1 << 30, 1768046400, vmid=vmid, archive=archive)
    world.storages[storage].add(guest.node, volume)
    return volume.volid


def macs(guest):
    return set(re.findall(r"(?:[0-9A-F]{2}:){5}[0-9A-F]{2}", str(guest.config)))


@pytest.mark.parametrize(("vmid", "storage"), [(108, "local-lvm"), (207, "local-lvm"), (103, "tank"), (202, "tank")])
async def test_a_guest_restored_under_another_vmid_gets_new_mac_addresses(tmp_path, vmid, storage):
    async with rig(tmp_path) as quorate:
        original = quorate.sim.world.guests[vmid]
        facts = await quorate.facts("backup_restore", backup=add_backup(quorate, vmid), wait=50)
        assert facts["result"] == "done"
        restored = quorate.sim.world.guests[facts["vmid"]]
        assert facts["vmid"] != vmid
        assert restored.kind == original.kind
        assert restored.node == original.node
        assert restored.config.get("memory") == original.config.get("memory")
        assert facts["new_macs"] is True
        assert not macs(restored) & macs(original)
        disk = restored.config.get("rootfs") or restored.config.get("scsi0")
        assert str(disk).startswith(storage)


async def test_name_storage_node_start_and_id_are_as_requested(tmp_path):
    async with rig(tmp_path) as quorate:
        backup = add_backup(quorate, 207)
        facts = await quorate.facts(
            "backup_restore",
            backup=backup,
            vmid=777,
            node="pve1",
            storage="tank",
            name="wiki-copy",
            start=True,
            wait=50,
        )
        assert facts["storage"] == "tank"
        restored = quorate.sim.world.guests[777]
        assert (restored.node, restored.name, restored.running) == ("pve1", "wiki-copy", True)
        assert str(restored.config["rootfs"]).startswith("tank:")


@pytest.mark.parametrize(("vmid", "task"), [(108, "qmstart"), (207, "vzstart")])
async def test_a_start_that_fails_after_the_restore_is_reported_at_once(tmp_path, vmid, task):
    async with rig(tmp_path) as quorate:
        quorate.sim.faults.add(f"task-fails:{task}:no memory")
        text = await quorate.refusal("backup_restore", backup=add_backup(quorate, vmid), vmid=777, start=True, wait=50)
        assert "It was restored but could not be started: no memory" in text
        assert 777 in quorate.sim.world.guests
        looks = [path for method, path in quorate.sim.requests if method == "GET" and path.endswith("/status/current")]
        assert len(looks) <= 2


async def test_the_addresses_stay_when_the_original_is_gone(tmp_path):
    async with rig(tmp_path) as quorate:
        backup = add_backup(quorate, 108)
        before = macs(quorate.sim.world.guests[108])
        del quorate.sim.world.guests[108]
        facts = await quorate.facts("backup_restore", backup=backup, vmid=108)
        assert facts["new_macs"] is False
        assert macs(quorate.sim.world.guests[108]) == before


async def test_disks_whose_storage_the_node_lacks_go_elsewhere_with_a_warning(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("backup_restore", backup=add_backup(quorate, 103), node="pve3", wait=50)
        assert "pve3 has no tank" in facts["warnings"][0]
        assert str(quorate.sim.world.guests[facts["vmid"]].config["scsi0"]).startswith(facts["storage"])


async def test_an_id_that_is_snatched_away_is_replaced_by_the_next(tmp_path):
    async with rig(
        tmp_path,
        faults=["500:unable to restore VM 110 - VM 110 already exists on node 'pve2':POST:/nodes/*/qemu;count=1"],
    ) as quorate:
        facts = await quorate.facts("backup_restore", backup=add_backup(quorate, 108))
        assert facts["vmid"] in quorate.sim.world.guests
        assert [method for method, _ in quorate.sim.requests].count("POST") == 2


async def test_a_guest_is_overwritten_only_with_overwrite_and_only_at_access_admin(tmp_path):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        backup = add_backup(quorate, 108)
        text = await quorate.refusal("backup_restore", backup=backup, vmid=108)
        assert "already exists" in text
        assert "overwrite=true" in text
        text = await quorate.refusal("backup_restore", backup=backup, vmid=108, overwrite=True)
        assert "--access admin" in text
    async with rig(tmp_path) as quorate:
        backup = add_backup(quorate, 108)
        guest = quorate.sim.world.guests[108]
        before, guest.config["memory"] = guest.config["memory"], "64"
        facts = await quorate.facts("backup_restore", backup=backup, vmid=108, overwrite=True)
        assert "is lost" in facts["warnings"][0]
        assert quorate.sim.world.guests[108].config["memory"] == before
        assert quorate.audit()[-1]["risk"] == "destroy"


async def test_a_container_is_overwritten_too(tmp_path):
    async with rig(tmp_path) as quorate:
        backup = add_backup(quorate, 206)
        guest = quorate.sim.world.guests[206]
        before, guest.config["memory"] = guest.config["memory"], 64
        await quorate.facts("backup_restore", backup=backup, vmid=206, overwrite=True)
        assert quorate.sim.world.guests[206].config["memory"] == before


async def test_overwriting_an_id_that_is_free_is_a_plain_restore(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("backup_restore", backup=add_backup(quorate, 108), vmid=777, overwrite=True)
        assert 777 in quorate.sim.world.guests


async def test_a_guest_that_may_not_be_overwritten_is_refused_before_anything_is_sent(tmp_path):
    async with rig(tmp_path) as quorate:
        world = quorate.sim.world
        running, stopped, container = add_backup(quorate, 102), add_backup(quorate, 108), add_backup(quorate, 207)
        local = add_backup(quorate, 108, "local")
        world.guests[107].config["protection"] = 1
        world.guests[206].config["lock"] = "snapshot"
        for arguments, words in (
            ({"backup": running, "vmid": 102}, "action=shutdown"),
            ({"backup": container, "vmid": 108}, "cannot be replaced by a container"),
            ({"backup": stopped, "vmid": 107}, "protected"),
            ({"backup": container, "vmid": 206}, "is locked (snapshot)"),
            ({"backup": stopped, "vmid": 108, "node": "pve3"}, "Leave node out"),
            ({"backup": stopped}, "overwrite needs a vmid"),
            ({"backup": local, "vmid": 106}, "which cannot read"),
        ):
            assert words in await quorate.refusal("backup_restore", overwrite=True, **arguments), words
        assert "Node pve2 cannot read" in await quorate.refusal("backup_restore", backup=local, node="pve2")
        assert "does not take images" in await quorate.refusal("backup_restore", backup=stopped, storage="local")
        assert all(method == "GET" for method, _ in quorate.sim.requests)


async def test_a_shared_storage_that_not_all_nodes_have_decides_where_the_guest_goes(tmp_path):
    async with rig(tmp_path) as quorate:
        backup = add_backup(quorate, 107)
        quorate.sim.world.storages["nas"].nodes = frozenset({"pve1"})
        await quorate.clock.advance(15)
        assert "choose pve1" in await quorate.refusal("backup_restore", backup=backup, node="pve3")
        facts = await quorate.facts("backup_restore", backup=backup, wait=50)
        assert facts["node"] == quorate.sim.world.guests[facts["vmid"]].node == "pve1"


async def test_a_restore_whose_answer_is_lost_is_found_and_done_once(tmp_path):
    async with rig(tmp_path, faults=["drop:after:POST:/nodes/*/qemu"]) as quorate:
        before = set(quorate.sim.world.guests)
        facts = await quorate.facts("backup_restore", backup=add_backup(quorate, 108))
        assert "answer was lost" in facts["note"]
        assert set(quorate.sim.world.guests) - before == {facts["vmid"]}


async def test_a_failed_restore_is_reported_with_its_reason(tmp_path):
    async with rig(tmp_path, faults=["task-fails:qmrestore:no space left"]) as quorate:
        assert "no space left" in await quorate.refusal("backup_restore", backup=add_backup(quorate, 108))
