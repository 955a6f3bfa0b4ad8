"""Moving everything off a storage: every kind of disk, of one guest or of many; what stays behind is named."""

import pytest

from pve_simulator.guests.guest import GIB
from pve_simulator.storage.storages import Volume

pytestmark = pytest.mark.anyio

STOPPED_VM, RUNNING_VM, RUNNING_CT, STOPPED_CT, WITH_SNAPSHOTS = 107, 104, 201, 207, 108


def config(quorate, vmid):
    return quorate.sim.world.guests[vmid].config


def put(quorate, vmid, key, name, *, media=""):
    """Give a guest a small volume on local-lvm."""
    guest = quorate.sim.world.guests[vmid]
    volume = Volume(f"local-lvm:{name}", "images", "raw", 4 << 20, 4096, 1768000000, vmid=vmid)
    quorate.sim.world.storages["local-lvm"].add(guest.node, volume)
    guest.config[key] = volume.volid if key.startswith("unused") else f"{volume.volid}{media},size=4M"


def on_local(quorate, vmid):
    return sorted(key for key, value in config(quorate, vmid).items() if str(value).startswith("local-lvm:"))


def sent(quorate):
    return [path.rpartition("/")[2] for method, path in quorate.sim.requests if method != "GET"]


async def test_a_cloudinit_drive_and_a_detached_disk_move_like_any_other(quorate):
    put(quorate, STOPPED_VM, "ide2", "vm-107-cloudinit", media=",media=cdrom")
    put(quorate, STOPPED_VM, "unused0", "vm-107-disk-8")
    for key in ("ide2", "unused0"):
        await quorate.facts("disk_change", guest=STOPPED_VM, action="move", disk=key, storage="nas")
    assert config(quorate, STOPPED_VM)["ide2"].startswith("nas:107/vm-107-cloudinit")
    assert config(quorate, STOPPED_VM)["unused0"].startswith("nas:107/")


async def test_several_or_all_disks_of_a_guest_move_in_one_plan(quorate):
    put(quorate, STOPPED_VM, "efidisk0", "vm-107-disk-1")
    put(quorate, STOPPED_VM, "tpmstate0", "vm-107-disk-2")
    put(quorate, STOPPED_VM, "ide2", "vm-107-cloudinit", media=",media=cdrom")
    put(quorate, STOPPED_VM, "unused3", "vm-107-disk-8")
    some = await quorate.facts(
        "disk_change", guest=STOPPED_VM, action="move", disk=["efidisk0", "tpmstate0"], storage="nas"
    )
    assert [step["state"] for step in some["steps"]] == ["done", "done"]
    assert on_local(quorate, STOPPED_VM) == ["ide2", "scsi0", "unused3"]
    await quorate.facts("disk_change", guest=STOPPED_VM, action="move", disk="all", storage="nas")
    assert on_local(quorate, STOPPED_VM) == []
    left = quorate.sim.world.storages["local-lvm"].space("pve2").volumes.values()
    assert not [volume for volume in left if volume.vmid == STOPPED_VM]


async def test_a_vm_keeps_running_and_stops_only_for_its_tpm(quorate):
    facts = await quorate.facts("disk_change", guest=RUNNING_VM, action="move", disk="all", storage="nas")
    assert "warnings" not in facts
    assert sent(quorate) == ["move_disk"]
    put(quorate, RUNNING_VM, "tpmstate0", "vm-104-disk-2")
    put(quorate, RUNNING_VM, "scsi1", "vm-104-disk-3")
    assert "TPM in use" in await quorate.refusal(
        "disk_change", guest=RUNNING_VM, action="move", disk="tpmstate0", storage="nas"
    )
    facts = await quorate.facts("disk_change", guest=RUNNING_VM, action="move", disk="all", storage="nas")
    assert sent(quorate)[1:] == ["move_disk", "shutdown", "move_disk", "start"]
    assert "is shut down for the move" in facts["warnings"][0]
    assert quorate.sim.world.guests[RUNNING_VM].running


async def test_a_running_container_is_shut_down_moved_and_started(quorate):
    text = await quorate.refusal("disk_change", guest=RUNNING_CT, action="move", disk="rootfs", storage="tank")
    assert "disk=all" in text
    await quorate.facts("disk_change", guest=RUNNING_CT, action="move", disk="all", storage="tank")
    assert sent(quorate) == ["shutdown", "move_volume", "start"]
    assert quorate.sim.world.guests[RUNNING_CT].running


async def test_the_guests_of_a_pool_leave_a_storage_and_what_stays_is_named(quorate):
    members = [STOPPED_VM, RUNNING_VM, WITH_SNAPSHOTS, STOPPED_CT]
    await quorate.facts("pool_set", pool="leaving", add_guests=members, move=True)
    put(quorate, STOPPED_CT, "unused0", "vm-207-disk-8")
    arguments = {"action": "move_disks", "pool": "leaving", "from_storage": "local-lvm", "storage": "tank"}
    before = {vmid for vmid, guest in quorate.sim.world.guests.items() if guest.running}
    plan = await quorate.facts("guest_bulk", **arguments, dry_run=True)
    left = "\n".join(plan["left_behind"])
    assert "scsi0 of vm 108 test-vm (local-lvm:vm-108-disk-0): the snapshots clean, configured need it" in left
    assert "unused0 of ct 207" in left
    assert "PVE does not move detached volumes of containers" in left

    facts = await quorate.facts("guest_bulk", **arguments)
    assert all(step["state"] == "done" for step in facts["steps"])
    assert on_local(quorate, STOPPED_VM) == on_local(quorate, RUNNING_VM) == []
    assert on_local(quorate, STOPPED_CT) == ["unused0"]
    assert on_local(quorate, WITH_SNAPSHOTS) == ["scsi0"]
    assert before == {vmid for vmid, guest in quorate.sim.world.guests.items() if guest.running}
    assert any("unused0 of ct 207" in line for line in facts["still_on_local-lvm"])
    assert len(quorate.audit()) == 3  # the pool, the dry run and one change


async def test_a_template_with_linked_clones_stays_and_the_clone_is_named(quorate):
    clone = (await quorate.facts("guest_clone", guest=9000, name="linked"))["vmid"]
    facts = await quorate.facts("disk_change", guest=9000, action="move", disk="all", storage="nas", dry_run=True)
    (line,) = facts["left_behind"]
    assert "scsi0 of vm 9000" in line
    assert "it is used by" in line
    assert str(clone) in line
    assert [step["step"] for step in facts["steps"]] == [
        "Move ide2 of vm 9000 debian-13-cloud (local-lvm:vm-9000-cloudinit) to nas"
    ]


async def test_discs_pending_disks_and_those_of_others_stay(quorate):
    disks = config(quorate, STOPPED_VM)
    disks["ide2"] = "nas:iso/virtio-win-0.1.271.iso,media=cdrom"
    disks["scsi1"] = "local-lvm:vm-100-disk-0,size=20G"
    quorate.sim.world.guests[RUNNING_VM].pending["scsi4"] = "local-lvm:vm-104-disk-9,size=1G"
    everything = {"action": "move", "disk": "all", "dry_run": True}
    facts = await quorate.facts("disk_change", guest=STOPPED_VM, storage="tank", **everything)
    left = "\n".join(facts["left_behind"])
    assert "ide2 of vm 107 win11 (nas:iso/virtio-win-0.1.271.iso): a disc" in left
    assert "scsi1 of vm 107 win11 (local-lvm:vm-100-disk-0): it is not named after this guest" in left
    facts = await quorate.facts("disk_change", guest=RUNNING_VM, storage="nas", **everything)
    assert "it waits for a restart" in facts["left_behind"][0]


async def test_the_room_for_everything_together_is_needed(quorate):
    space = quorate.sim.world.storages["tank"].space("pve2")
    space.base_used += space.available - 130 * GIB
    await quorate.clock.advance(10)
    await quorate.facts("disk_change", guest=STOPPED_VM, action="move", disk="all", storage="tank", dry_run=True)
    text = await quorate.refusal(
        "guest_bulk", action="move_disks", guests=[STOPPED_VM, RUNNING_VM], from_storage="local-lvm", storage="tank"
    )
    assert "free, not 180G" in text


async def test_a_move_needs_two_storages_and_one_disk_elsewhere(quorate):
    assert "Choose two storages" in await quorate.refusal(
        "guest_bulk", action="move_disks", pool="lab", from_storage="nas", storage="nas"
    )
    assert "needs storage" in await quorate.refusal("guest_bulk", action="move_disks", pool="lab")
    assert "takes one disk" in await quorate.refusal(
        "disk_change", guest=STOPPED_VM, action="detach", disk=["scsi0", "scsi1"]
    )


async def test_a_paused_vm_moves_live_and_keeps_only_its_tpm(quorate):
    put(quorate, RUNNING_VM, "tpmstate0", "vm-104-disk-2")
    quorate.sim.world.guests[RUNNING_VM].paused = True
    facts = await quorate.facts(
        "guest_bulk", action="move_disks", guests=[STOPPED_VM, RUNNING_VM], from_storage="local-lvm", storage="nas"
    )
    assert "shutdown" not in sent(quorate)
    assert on_local(quorate, RUNNING_VM) == ["tpmstate0"]
    assert "only when the VM is off" in facts["left_behind"][0]
    assert on_local(quorate, STOPPED_VM) == []


async def test_a_guest_whose_disks_cannot_move_now_does_not_stop_the_others(quorate):
    quorate.sim.world.guests[RUNNING_VM].config["lock"] = "backup"
    answer = await quorate.call(
        "guest_bulk", action="move_disks", guests=[STOPPED_VM, RUNNING_VM], from_storage="local-lvm", storage="nas"
    )
    assert answer.is_error
    assert "vm 104" in answer.structured_content["failures"][0]
    assert on_local(quorate, STOPPED_VM) == []
