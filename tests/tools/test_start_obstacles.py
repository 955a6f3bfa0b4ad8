"""A guest that cannot start names every cause, and each has a repair that works."""

import pytest

from tests.rigs.mcp_session import text_of

pytestmark = pytest.mark.anyio

VM, RUNNING = 108, 104
GONE = "local-lvm:vm-108-disk-77"


def break_it(quorate):
    config = quorate.sim.world.guests[VM].config
    config["ide2"] = "local:iso/gone.iso,media=cdrom"
    config["net1"] = "virtio=BC:24:11:00:00:01,bridge=vmbr99"
    config["scsi1"] = f"{GONE},size=1G"
    config["scsi2"] = "gone:vm-108-disk-1,size=1G"
    config["scsi3"] = "nas:108/vm-108-disk-1.qcow2,size=2G"
    config["cores"] = 4000
    config["description"] = "scsi1 is scratch space and may be emptied\nvmbr99 was for the lab\nowner: Ada"


async def causes(quorate):
    facts = await quorate.facts("guest_get", guest=VM)
    return {obstacle["cause"]: obstacle for obstacle in facts.get("cannot_start", [])}


async def test_every_cause_is_named_at_once(quorate):
    assert not await causes(quorate)
    break_it(quorate)
    named = "\n".join(await causes(quorate))
    for part in (
        "ide2 (local:iso/gone.iso) is missing",
        f"scsi1 ({GONE}) is missing",
        "scsi3 (nas:108/vm-108-disk-1.qcow2) is missing",
        "which pve1 cannot reach: there is no such storage",
        "net1 is on the bridge vmbr99",
        "4000 CPUs",
    ):
        assert part in named
    assert "cannot_start" not in await quorate.facts("guest_get", guest=RUNNING)


async def test_the_notes_about_a_disk_are_shown_next_to_it(quorate):
    break_it(quorate)
    notes = {cause.split()[0]: obstacle.get("notes_say") for cause, obstacle in (await causes(quorate)).items()}
    assert notes["scsi1"] == ["scsi1 is scratch space and may be emptied"]
    assert notes["net1"] == ["vmbr99 was for the lab"]
    assert notes["scsi3"] is None


async def test_the_repairs_make_it_start(quorate):
    break_it(quorate)
    repairs = "\n".join(obstacle["repair"] for obstacle in (await causes(quorate)).values())
    for call in (
        "guest_configure guest=108 cores=16",
        "other guests on pve1 use vmbr0: nic_set guest=108 nic=net1 bridge=vmbr0",
        "guest_configure guest=108 cdrom=none",
        "disk_change guest=108 action=recreate disk=scsi1, disk_change guest=108 action=detach disk=scsi1",
        "disk_change guest=108 action=detach disk=scsi2",
        "disk_change guest=108 action=recreate disk=scsi3",
    ):
        assert call in repairs
    assert "The task failed" in await quorate.refusal("guest_power", guest=VM, action="start")

    await quorate.facts("guest_configure", guest=VM, cores=16, cdrom="none")
    await quorate.facts("nic_set", guest=VM, nic="net1", bridge="vmbr0")
    plan = await quorate.facts("disk_change", guest=VM, action="recreate", disk="scsi1")
    assert any("empty" in warning for warning in plan["warnings"])
    await quorate.facts("disk_change", guest=VM, action="detach", disk="scsi2")
    await quorate.facts("disk_change", guest=VM, action="recreate", disk="scsi3")
    volume = quorate.sim.world.storages["local-lvm"].volume("pve1", GONE)
    assert (volume.disk_size, volume.vmid) == (1 << 30, VM)
    assert not await causes(quorate)
    await quorate.facts("guest_power", guest=VM, action="start")
    assert quorate.sim.world.guests[VM].running


async def test_a_storage_that_only_other_nodes_have_suggests_one_of_them(quorate):
    quorate.sim.world.guests[VM].config["scsi1"] = "only-there:vm-108-disk-1,size=1G"
    await quorate.write(
        "POST",
        "/storage",
        {"storage": "only-there", "type": "dir", "path": "/srv", "content": "images", "nodes": "pve3"},
    )
    await quorate.clock.advance(15)
    ((cause, obstacle),) = (await causes(quorate)).items()
    assert "it is for pve3 only" in cause
    assert "guest_migrate guest=108 node=pve3" in obstacle["repair"]


async def test_only_a_missing_disk_of_a_vm_is_made_again(quorate):
    refused = await quorate.refusal("disk_change", guest=VM, action="recreate", disk="scsi0")
    assert "local-lvm:vm-108-disk-0 is there" in refused
    quorate.sim.world.guests[VM].config["scsi1"] = "local-lvm:vm-100-disk-9,size=1G"
    assert "cannot be recreated" in await quorate.refusal("disk_change", guest=VM, action="recreate", disk="scsi1")
    assert "cannot be recreated" in await quorate.refusal("disk_change", guest=206, action="recreate", disk="rootfs")
    quorate.sim.world.guests[VM].config["scsi1"] = GONE
    text = await quorate.refusal("disk_change", guest=VM, action="recreate", disk="scsi1")
    assert "size" in text
    await quorate.facts("disk_change", guest=VM, action="recreate", disk="scsi1", size="3G")
    assert quorate.sim.world.storages["local-lvm"].volume("pve1", GONE).disk_size == 3 << 30


async def test_the_boot_disk_is_recreated_with_a_warning(quorate):
    quorate.sim.world.storages["local-lvm"].remove("pve1", "local-lvm:vm-108-disk-0")
    answer = await quorate.call("disk_change", guest=VM, action="recreate", disk="scsi0", dry_run=True)
    assert "an empty disk does not boot" in text_of(answer)
