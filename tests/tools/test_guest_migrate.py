"""Moving guests to other nodes."""

import pytest

from pve_simulator.cluster.datacenter import Datacenter
from pve_simulator.cluster.ha_manager import HaManager
from pve_simulator.routes.replication import Replication, ReplicationJob
from pve_simulator.world import HaResource
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio


def posts(quorate):
    return [path for method, path in quorate.sim.requests if method == "POST"]


async def test_a_running_vm_on_local_disks_moves_live_with_them(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[104]
        facts = await quorate.facts("guest_migrate", guest="k3s-server", node="pve3", with_local_disks=True)
        assert (facts["result"], facts["mode"]) == ("done", "live")
        assert (guest.node, guest.running) == ("pve3", True)
        assert "local-lvm" in str(facts["copied_disks"])


async def test_a_running_container_is_restarted_on_the_other_node(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[201]
        facts = await quorate.facts("guest_migrate", guest=201, node="pve2")
        assert (facts["result"], facts["mode"]) == ("done", "restart")
        assert (guest.node, guest.running) == ("pve2", True)
        assert "is down while it moves" in facts["warnings"][0]


@pytest.mark.parametrize("vmid", [107, 206])
async def test_a_stopped_guest_moves_offline(tmp_path, vmid):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[vmid]
        facts = await quorate.facts("guest_migrate", guest=vmid, node="pve1")
        assert (facts["result"], facts["mode"]) == ("done", "offline")
        assert (guest.node, guest.running) == ("pve1", False)


@pytest.mark.parametrize("version", ["8.4.1", "9.1.8"])
async def test_containers_move_on_every_version_though_only_9_has_the_precondition_call(tmp_path, version):
    async with rig(tmp_path, version=version) as quorate:
        assert (await quorate.facts("guest_migrate", guest=206, node="pve1"))["result"] == "done"
        asked = ("GET", "/nodes/pve3/lxc/206/migrate") in quorate.sim.requests
        assert asked == version.startswith("9")


@pytest.mark.parametrize(("vmid", "target"), [(103, "local-lvm"), (103, "tank:nas"), (202, "local-lvm")])
async def test_a_storage_that_the_target_lacks_is_replaced_by_another(tmp_path, vmid, target):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[vmid]
        if vmid == 202:
            guest.stop_running()
            del guest.config["mp0"]
            quorate.sim.world.storages["tank"].type = "lvmthin"  # a stopped guest's ZFS disks go to ZFS only
        text = await quorate.refusal("guest_migrate", guest=vmid, node="pve3", with_local_disks=guest.running)
        assert "pve3 does not have the storage tank" in text
        assert "target_storage" in text
        assert "local-lvm" in text
        await quorate.facts(
            "guest_migrate", guest=vmid, node="pve3", with_local_disks=guest.running, target_storage=target
        )
        assert guest.node == "pve3"


@pytest.mark.parametrize("tool", ["guest_migrate", "ha_relocate"])
async def test_the_cd_drive_of_the_node_keeps_a_guest_there(tmp_path, tool):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.guests[101].config["ide3"] = "cdrom,media=cdrom"
        text = await quorate.refusal(tool, guest=101, node="pve2", dry_run=True)
        assert "uses the CD drive of pve1 (ide3)" in text


async def test_zfs_disks_of_a_stopped_guest_only_go_to_zfs(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.guests[103].stop_running()
        text = await quorate.refusal("guest_migrate", guest=103, node="pve3", target_storage="local-lvm")
        assert "ZFS disks can only be sent to ZFS" in text
        assert "mode=live" in text


async def test_a_guest_under_ha_has_arrived_when_the_call_returns(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("guest_migrate", guest=101, node="pve2", wait=50)
        assert ":hamigrate:" in facts["task"]
        assert facts["result"] == "done"
        assert quorate.sim.world.guests[101].node == "pve2"


async def test_a_container_under_ha_is_moved_when_it_runs_again(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[201]
        await quorate.facts("ha_set", guest=201)
        facts = await quorate.facts("guest_migrate", guest=201, node="pve2", wait=50)
        assert (facts["result"], guest.node, guest.running) == ("done", "pve2", True)


@pytest.mark.parametrize("tool", ["guest_migrate", "ha_relocate"])
@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"kind": "nodes", "guests": 101, "nodes": ["pve1"], "strict": True}, "keeps vm 101 homeassistant on pve1"),
        ({"kind": "nodes", "guests": 101, "nodes": ["pve1:2", "pve2"]}, "keeps vm 101 homeassistant on pve1"),
        ({"kind": "apart", "guests": [101, 103]}, "keeps vm 101 homeassistant away from vm:103, which is on pve2"),
        ({"kind": "nodes", "guests": 100, "nodes": ["pve1"]}, "keeps vm:100, which moves along with vm 101"),
    ],
)
async def test_a_move_that_ha_would_undo_is_refused(tmp_path, tool, rule, words):
    async with rig(tmp_path) as quorate:
        world = quorate.sim.world
        world.ha |= {sid: HaResource(sid) for sid in ("vm:100", "vm:103")}
        together = {"type": "resource-affinity", "affinity": "positive", "resources": "vm:100,vm:101"}
        world.part(HaManager).rules.rules.sections["joined"] = together
        await quorate.facts("ha_rule_set", rule="pin", **rule)
        mark = len(quorate.sim.requests)
        text = await quorate.refusal(tool, guest=101, node="pve2")
        assert f"The HA rule pin {words}" in text
        assert "ha_rule_set" in text
        assert all(method == "GET" for method, _ in quorate.requests_since(mark))


@pytest.mark.parametrize("tool", ["guest_migrate", "ha_relocate"])
async def test_a_move_to_a_node_in_maintenance_is_refused_for_a_guest_under_ha(tmp_path, tool):
    async with rig(tmp_path) as quorate:
        world = quorate.sim.world
        world.part(HaManager).request_maintenance("pve2", enable=True)
        await quorate.clock.advance(30)
        text = await quorate.refusal(tool, guest=101, node="pve2")
        assert "pve2 is in maintenance: the HA manager moves all guests under HA away from it" in text
        assert "node-maintenance disable" in text
        facts = await quorate.facts("guest_migrate", guest=201, node="pve2", wait=50)
        assert (facts["result"], world.guests[201].node) == ("done", "pve2"), "PVE moves what is not under HA"
        world.part(HaManager).request_maintenance("pve2", enable=False)
        await quorate.clock.advance(30)
        await quorate.facts("guest_migrate", guest=101, node="pve2", wait=50)
        assert world.guests[101].node == "pve2"


async def test_a_guest_that_ha_does_not_bring_back_may_leave_the_node_it_prefers(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("ha_rule_set", rule="home", kind="nodes", guests=101, nodes=["pve1"])
        await quorate.facts("ha_set", guest=101, failback=False)
        assert (await quorate.facts("guest_migrate", guest=101, node="pve2", wait=50))["result"] == "done"
        await quorate.clock.advance(120)
        assert quorate.sim.world.guests[101].node == "pve2"


async def test_a_lost_answer_does_not_migrate_twice(tmp_path):
    async with rig(tmp_path, faults=["drop:after:POST:/nodes/*/migrate"]) as quorate:
        facts = await quorate.facts("guest_migrate", guest=107, node="pve1")
        assert "answer was lost" in facts["note"]
        assert quorate.sim.world.guests[107].node == "pve1"
        assert len(posts(quorate)) == 1


async def test_a_dry_run_has_made_all_checks_and_moves_nothing(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("guest_migrate", guest=107, node="pve3", dry_run=True)
        assert facts["steps"][0]["call"] == "POST /nodes/pve2/qemu/107/migrate target=pve3"
        assert ("GET", "/nodes/pve2/qemu/107/migrate") in quorate.sim.requests
        assert posts(quorate) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"guest": 104, "node": "pve2"}, ["already on pve2", "pve1, pve3"]),
        ({"guest": 104, "node": "pve9"}, ["no node 'pve9'", "pve1, pve2, pve3"]),
        ({"guest": 104, "node": "pve3"}, ["local disks of pve2", "60G", "with_local_disks=true"]),
        ({"guest": 104, "node": "pve3", "mode": "offline"}, ["running", "mode=live"]),
        ({"guest": 104, "node": "pve3", "mode": "restart"}, ["VM", "mode=live"]),
        ({"guest": 201, "node": "pve3", "mode": "live"}, ["container", "mode=restart"]),
        ({"guest": 201, "node": "pve3", "mode": "offline"}, ["running", "mode=restart"]),
        ({"guest": 103, "node": "pve1", "target_storage": "pbs"}, ["pbs does not take images"]),
        ({"guest": 103, "node": "pve1", "target_storage": "tank:moon"}, ["no storage 'moon'"]),
        ({"guest": 108, "node": "pve2"}, ["clean, configured", "delete the snapshots"]),
        ({"guest": 102, "node": "pve2", "with_local_disks": True}, ["before-upgrade", "offline"]),
        ({"guest": 203, "node": "pve1"}, ["pre-migration", "delete the snapshots"]),
    ],
)
async def test_an_impossible_move_is_refused_with_the_next_step(tmp_path, arguments, words):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("guest_migrate", **arguments)
        assert all(word in text for word in words), text
        assert posts(quorate) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hostpci0": "0000:01:00"}, ["devices of pve2", "hostpci0", "resource mappings"]),
        ({"ide2": "local:iso/debian-13.1.0-amd64-netinst.iso,media=cdrom"}, ["CD image", "Eject it"]),
        ({"scsi1": "/dev/sdx"}, ["a path of pve2", "shared=1"]),
        ({"lock": "backup"}, ["locked (backup)", "qm unlock 107"]),
    ],
)
async def test_what_binds_a_vm_to_its_node_is_named(tmp_path, change, words):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.guests[107].config.update(change)
        text = await quorate.refusal("guest_migrate", guest=107, node="pve1")
        assert all(word in text for word in words), text
        assert posts(quorate) == []


def map_devices(quorate, *nodes, **options):
    mappings = quorate.sim.world.part(Datacenter).mappings
    mappings["pci"].sections["gpu"] = {"map": [f"node={node},path=0000:01:00,id=10de:1" for node in nodes], **options}
    mappings["usb"].sections["key"] = {"map": [f"node={node},id=1050:0407" for node in nodes]}


@pytest.mark.parametrize("version", ["8.4.1", "9.2.0"])
async def test_mapped_devices_that_the_target_has_go_along_with_a_vm_that_is_off(tmp_path, version):
    async with rig(tmp_path, version=version) as quorate:
        map_devices(quorate, "pve1", "pve2")
        guest = quorate.sim.world.guests[107]
        guest.config.update({"hostpci0": "mapping=gpu,pcie=1", "usb0": "mapping=key"})
        assert (await quorate.facts("guest_migrate", guest=107, node="pve1"))["result"] == "done"
        assert guest.node == "pve1"
        text = await quorate.refusal("guest_migrate", guest=107, node="pve3")
        assert "pve3 lacks resource mappings" in text
        assert "hostpci0, usb0" in text


async def test_only_the_device_without_a_mapping_is_named(tmp_path):
    async with rig(tmp_path) as quorate:
        map_devices(quorate, "pve1", "pve2")
        quorate.sim.world.guests[107].config.update({"usb0": "mapping=key", "usb1": "host=1050:0407"})
        text = await quorate.refusal("guest_migrate", guest=107, node="pve1")
        assert "devices of pve2: usb1" in text
        assert "usb0" not in text
        assert posts(quorate) == []


@pytest.mark.parametrize("version", ["8.4.1", "9.2.0"])
async def test_a_vm_that_runs_takes_only_devices_along_that_can_move_live(tmp_path, version):
    async with rig(tmp_path, version=version) as quorate:
        map_devices(quorate, "pve1", "pve2")
        guest = quorate.sim.world.guests[104]
        guest.config["hostpci0"] = "mapping=gpu"
        text = await quorate.refusal("guest_migrate", guest=104, node="pve1", with_local_disks=True)
        assert "hostpci0 (gpu)" in text
        assert "Shut it down" in text
        assert posts(quorate) == []
        map_devices(quorate, "pve1", "pve2", **{"live-migration-capable": 1})
        await quorate.facts("guest_migrate", guest=104, node="pve1", with_local_disks=True, wait=50)
        assert posts(quorate) != []


async def test_a_move_to_an_offline_node_is_refused(tmp_path):
    async with rig(tmp_path, faults=["node-offline:pve3"]) as quorate:
        assert "pve3 is offline" in await quorate.refusal("guest_migrate", guest=107, node="pve3")


async def test_snapshots_that_are_replicated_to_the_target_do_not_stand_in_the_way(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.part(Replication).add(ReplicationJob("102-0", 102, "pve2", {}))
        facts = await quorate.facts("guest_migrate", guest=102, node="pve2", with_local_disks=True, dry_run=True)
        assert facts["mode"] == "live"


async def test_a_migration_that_fails_on_the_way_is_reported_with_its_log(tmp_path):
    async with rig(tmp_path, faults=["task-fails:qmigrate:migration aborted"]) as quorate:
        text = await quorate.refusal("guest_migrate", guest=107, node="pve1")
        assert "migration aborted" in text
        assert "UPID:" in text
        assert quorate.sim.world.guests[107].node == "pve2"
