"""An exemption holds for one call on what is stored: nothing that the raw API refuses passes through a named tool."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pve_simulator.cluster.ha_manager import HaManager
from pve_simulator.nodes.tasks import TaskContext
from pve_simulator.routes.nodes.network import Networks
from pve_simulator.routes.sdn import sdn_of
from pve_simulator.storage.storages import Volume
from quorate.config import Access
from tests.pipeline.test_safety_table import tries
from tests.rigs.mcp_session import Rig, rig

pytestmark = pytest.mark.anyio

GIB = 1024**3
ABOVE = "refused at access level operate"


def operator(tmp_path, **more):
    return rig(tmp_path, access=Access.OPERATE, **more)


def config(quorate: Rig, vmid: int) -> dict[str, Any]:
    guest = quorate.sim.world.guests[vmid]
    return {"now": dict(guest.config), "pending": dict(guest.pending), "leaving": dict(guest.pending_delete)}


def volumes(quorate: Rig) -> list[str]:
    return sorted(
        volume.volid
        for storage in quorate.sim.world.storages.values()
        for node in quorate.sim.world.nodes
        for volume in storage.volumes(node)
    )


async def refused_and_unchanged(quorate: Rig, vmid: int, tool: str, /, **arguments: Any) -> None:
    before = config(quorate, vmid), volumes(quorate)
    text = await quorate.refusal(tool, **arguments)
    assert ABOVE in text, text
    assert (config(quorate, vmid), volumes(quorate)) == before


@tries("a disk is detached, then attached with options that discard what is written or end its backup")
@pytest.mark.parametrize(
    "options",
    [
        {"snapshot": 1, "backup": 0},
        {"snapshot": True},
        {"snapshot": "on"},
        {"backup": False},
        {"replicate": 0},
        {"ro": 1},
        {"cache": "unsafe"},
        {"werror": "ignore"},
        {"rerror": "ignore"},
        {"shared": 1},
        {"format": "raw"},
        {"media": "cdrom"},
    ],
    ids=str,
)
async def test_a_disk_that_was_detached_does_not_come_back_unprotected(tmp_path, options):
    async with operator(tmp_path) as quorate:
        await quorate.facts("disk_change", guest=108, action="detach", disk="scsi0", force=True)
        attach = {"guest": 108, "action": "attach", "disk": "unused0", "slot": "scsi0"}
        await refused_and_unchanged(quorate, 108, "disk_change", **attach, options=options)
        assert "unless the slot is free" in await quorate.refusal("disk_change", **attach, options=options)
        await quorate.facts("disk_change", **attach, options={"ssd": 1, "discard": "on", "backup": 1})
        assert "snapshot" not in quorate.sim.world.guests[108].config["scsi0"]


async def test_a_mount_point_does_not_come_back_unprotected(tmp_path):
    async with operator(tmp_path) as quorate:
        await quorate.facts("disk_add", guest=206, size="1G", path="/data", options={"backup": 1})
        await quorate.facts("disk_change", guest=206, action="detach", disk="mp0")
        attach = {"guest": 206, "action": "attach", "disk": "unused0", "slot": "mp0", "path": "/data"}
        for options in ({"backup": 0}, {"ro": 1}, {"shared": 1}):
            await refused_and_unchanged(quorate, 206, "disk_change", **attach, options=options)
        await quorate.facts("disk_change", **attach, options={"backup": 1})


@tries("a named tool does what the raw API refuses")
async def test_a_disk_that_is_not_the_guests_own_is_neither_taken_nor_moved(tmp_path):
    """A volume of another name is a disk of the guest; detached, nothing would refer to it any more."""
    async with operator(tmp_path) as quorate:
        foreign = Volume("local-lvm:vm-6167-disk-0", "images", "raw", GIB, GIB, 0, vmid=6167)
        quorate.sim.world.storages["local-lvm"].add("pve1", foreign)
        guest = quorate.sim.world.guests[108]
        guest.config["scsi1"] = "local-lvm:vm-6167-disk-0,size=1G"
        guest.touch()
        await refused_and_unchanged(quorate, 108, "disk_change", guest=108, action="detach", disk="scsi1")
        moving = {"guest": 108, "action": "move", "disk": "scsi1", "storage": "nas"}
        await refused_and_unchanged(quorate, 108, "disk_change", **moving)
        await quorate.facts("disk_add", guest=108, size="1G", disk="scsi2", storage="local-lvm")
        await quorate.facts("disk_change", guest=108, action="move", disk="scsi2", storage="nas", wait=50)
        assert guest.config["scsi2"].startswith("nas:")


@pytest.mark.parametrize(
    "options", [{"snapshot": 1}, {"cache": "unsafe"}, {"werror": "ignore"}, {"shared": 1}], ids=str
)
async def test_a_new_disk_keeps_what_is_written_to_it(tmp_path, options):
    async with operator(tmp_path) as quorate:
        await refused_and_unchanged(quorate, 108, "disk_add", guest=108, size="1G", options=options)
        fine = {"backup": False, "ssd": True, "cache": "writeback"}
        await quorate.facts("disk_add", guest=108, size="1G", options=fine)
        assert "backup=0" in quorate.sim.world.guests[108].config["scsi1"]


async def test_a_slot_whose_disk_is_only_about_to_leave_is_not_free(tmp_path):
    """PVE's configuration no longer shows it, but a new disk there would replace the one that waits."""
    async with operator(tmp_path) as quorate:
        guest = quorate.sim.world.guests[103]
        await quorate.facts("disk_add", guest=103, size="1G", disk="scsi3")
        guest.pending_delete["scsi3"] = 1
        guest.touch()
        await refused_and_unchanged(quorate, 103, "disk_add", guest=103, size="1G", disk="scsi3")
        guest.pending_delete["ide2"] = 1
        guest.config["ide2"] = "tank:vm-103-disk-7,size=1G"
        guest.touch()
        disc = "nas:iso/virtio-win-0.1.271.iso"
        await refused_and_unchanged(quorate, 103, "guest_configure", guest=103, cdrom=disc)


@pytest.mark.parametrize("volume", ["local-lvm:vm-108-disk-0", "local-lvm:cloudinit", "nas:iso/x.iso,snapshot=1"])
async def test_the_argument_for_discs_takes_discs(tmp_path, volume):
    async with operator(tmp_path) as quorate:
        await refused_and_unchanged(quorate, 108, "guest_configure", guest=108, cdrom=volume)
        await quorate.facts("guest_configure", guest=108, cdrom="nas:iso/virtio-win-0.1.271.iso")
        await quorate.facts("guest_configure", guest=108, cdrom="none")
        assert "none" in quorate.sim.world.guests[108].config["ide2"]


async def test_a_guest_leaves_ha_and_its_rules_only_with_more_access(tmp_path):
    async with operator(tmp_path) as quorate:
        rules = quorate.sim.world.part(HaManager).rules.rules.sections
        rules["home"] = {"type": "node-affinity", "resources": "vm:101", "nodes": "pve1,pve2"}
        assert ABOVE in await quorate.refusal("ha_remove", guest=101)
        assert "vm:101" in quorate.sim.world.ha
        assert ABOVE in await quorate.refusal("ha_remove", rule="home")
        assert "home" in rules


async def test_pending_edits_of_others_are_dropped_only_with_more_access(tmp_path):
    async with operator(tmp_path) as quorate:
        network = quorate.sim.world.part(Networks).of("pve1")
        await quorate.facts("node_network_change", node="pve1", action="delete", iface="vmbr1")
        assert "vmbr1" not in network.configured
        assert ABOVE in await quorate.refusal("node_network_change", node="pve1", action="revert")
        assert "vmbr1" not in network.configured


async def test_a_subnet_that_an_outside_ipam_holds_is_not_deleted_as_a_pending_edit(tmp_path):
    async with operator(tmp_path) as quorate:
        sdn = sdn_of(quorate.sim.world)
        sdn.ipams.sections["office"] = {"type": "netbox", "url": "https://netbox.example.org", "token": "x"}
        for zone, ipam in (("inside", "pve"), ("outside", "office")):
            options = {"ipam": ipam}
            await quorate.facts("sdn_change", action="set", kind="zone", name=zone, type="simple", options=options)
            await quorate.facts("sdn_change", action="set", kind="vnet", name=f"v{zone}", zone=zone)
            subnet = {"kind": "subnet", "name": "10.9.0.0/24", "vnet": f"v{zone}"}
            await quorate.facts("sdn_change", action="set", **subnet)
        await quorate.facts("sdn_change", action="delete", kind="subnet", name="10.9.0.0/24", vnet="vinside")
        gone = {"action": "delete", "kind": "subnet", "name": "10.9.0.0/24", "vnet": "voutside"}
        before = len(quorate.sim.requests)
        assert ABOVE in await quorate.refusal("sdn_change", **gone)
        assert {method for method, _ in quorate.requests_since(before)} <= {"GET"}


@pytest.mark.parametrize(
    ("kind", "stops"), [("qmrestore", False), ("qmdestroy", False), ("qmrollback", False), ("vzdump", True)]
)
async def test_work_that_cannot_be_repeated_is_not_interrupted(tmp_path, kind, stops):
    async with operator(tmp_path) as quorate:
        world = quorate.sim.world

        async def work(_: TaskContext) -> None:
            await asyncio.Event().wait()

        task = world.tasks.start("pve1", kind, "108", "root@pam", work)
        if stops:
            await quorate.facts("task_stop", task=task)
        else:
            assert ABOVE in await quorate.refusal("task_stop", task=task)
        record = world.tasks.find(task)
        assert record is not None
        assert record.running is not stops
