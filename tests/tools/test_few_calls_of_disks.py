"""More tasks of an expert, about disks, storages and configurations, each with the right end and a bound of calls.

The numbers of calls before count the same tasks with tools that read one configuration, snapshot or volume at a time.
"""

import pytest

from pve_simulator.storage.storages import Volume
from tests.tools.test_few_calls import Agent

pytestmark = pytest.mark.anyio

LOCAL = "local-lvm"


@pytest.fixture
def agent(quorate):
    return Agent(quorate)


def put(quorate, name, vmid, node="pve1", content="images"):
    storage = "nas" if content == "backup" else LOCAL
    volume = Volume(f"{storage}:{name}", content, "raw", 1 << 30, 4096, 1768000000, vmid=vmid)
    quorate.sim.world.storages[storage].add(node, volume)
    return volume.volid


def exists(quorate, volid, node="pve1"):
    return quorate.sim.world.storages[volid.partition(":")[0]].volume(node, volid) is not None


async def test_what_belongs_to_nobody_goes_although_the_names_mislead(quorate, agent):
    """A leftover disk, a detached one and a backup of a deleted guest go; a disk whose name misleads and one that is in
    a snapshot stay. Before: 27 calls (a list, 20 configurations, 4 snapshots, 2 changes), now 2."""
    leftover = put(quorate, "vm-777-disk-0", 777)
    detached = put(quorate, "vm-100-disk-7", 100)
    quorate.sim.world.guests[100].config["unused0"] = detached
    backup = put(quorate, "backup/vzdump-qemu-888-2025_12_31-02_00_01.vma.zst", 888, content="backup")
    in_use = put(quorate, "vm-778-disk-0", 778)
    quorate.sim.world.guests[100].config["scsi5"] = f"{in_use},size=1G"
    in_snapshot = put(quorate, "vm-108-disk-7", 108)
    quorate.sim.world.guests[108].config["unused0"] = in_snapshot
    quorate.sim.world.guests[108].snapshots["clean"].config["scsi1"] = f"{in_snapshot},size=1G"
    what = ["orphans", "detached", "deleted_guests"]
    plan = await agent.facts("storage_cleanup", what=what, dry_run=True)
    assert {in_use, in_snapshot} == {line.split(" ")[0] for line in plan["kept"]}
    await agent.facts("storage_cleanup", what=what)
    assert not any(exists(quorate, volid) for volid in (leftover, detached, backup))
    assert exists(quorate, in_use)
    assert exists(quorate, in_snapshot)
    assert agent.calls == 2


async def test_a_pool_leaves_its_storage_with_everything(quorate, agent):
    """A VM that runs, one with cloud-init, firmware, a TPM and a detached disk, and two guests with snapshots. Before:
    15 calls (the pool, its list, 4 configurations, 2 lists of snapshots, 6 moves, a look), 2 of them raw; now 3."""
    desktop = quorate.sim.world.guests[107].config
    drives = {"ide2": "vm-107-cloudinit", "efidisk0": "vm-107-disk-1", "tpmstate0": "vm-107-disk-2"}
    for slot, name in {**drives, "unused0": "vm-107-disk-8"}.items():
        volid = put(quorate, name, 107, "pve2")
        desktop[slot] = f"{volid},media=cdrom" if slot == "ide2" else volid
    await agent.facts("pool_set", pool="leaving", add_guests=[104, 107, 108, 203], move=True)
    arguments = {"action": "move_disks", "pool": "leaving", "from_storage": LOCAL, "storage": "tank"}
    plan = await agent.facts("guest_bulk", **arguments, dry_run=True)
    assert [line.split(" ")[0:4] for line in plan["left_behind"]] == [
        ["scsi0", "of", "vm", "108"],
        ["rootfs", "of", "ct", "203"],
    ]
    await agent.facts("guest_bulk", **arguments)
    for vmid in (104, 107):
        config = quorate.sim.world.guests[vmid].config
        assert not [key for key, value in config.items() if str(value).startswith(f"{LOCAL}:")]
    assert quorate.sim.world.guests[104].running
    assert agent.calls == 3


async def test_three_faults_at_once_are_repaired_and_the_guest_starts(quorate, agent):
    """A missing disk that the notes allow to empty, a missing disc, a bridge that is gone. Before: 9 calls (a look, two
    repairs, a failed start and its log, the storage, a raw call, the disk, a start), now 5."""
    config = quorate.sim.world.guests[108].config
    config["scsi1"] = f"{LOCAL}:vm-108-disk-9,size=4G"
    config["ide2"] = "local:iso/gone.iso,media=cdrom"
    config["net1"] = "virtio=BC:24:11:00:00:01,bridge=vmbr7"
    config["description"] = "scsi1 is scratch, it may be emptied at any time"
    obstacles = (await agent.facts("guest_get", guest=108))["cannot_start"]
    scratch = next(obstacle for obstacle in obstacles if obstacle["cause"].startswith("scsi1"))
    assert scratch["notes_say"] == ["scsi1 is scratch, it may be emptied at any time"]
    assert len(obstacles) == 3
    await agent.facts("disk_change", guest=108, action="recreate", disk="scsi1")
    await agent.facts("nic_set", guest=108, nic="net1", bridge="vmbr0")
    await agent.facts("guest_configure", guest=108, cdrom="none")
    await agent.facts("guest_power", guest=108, action="start")
    assert quorate.sim.world.guests[108].running
    assert agent.calls == 5


async def test_yesterdays_change_is_found_and_undone_next_to_todays(quorate, agent):
    """A VM got less memory, another VLAN and other notes. Before: 6 calls (the guest, its backups,
    the backup, its notes by a raw call, 2 changes), now 3."""
    before = dict(quorate.sim.world.guests[108].config)
    await quorate.facts("guest_configure", guest=108, description="call Ada before you touch it")
    await quorate.facts("backup_create", guest=108, storage="nas")
    await quorate.clock.advance(86_400)
    await quorate.facts("guest_configure", guest=108, memory=512, description="nobody owns it")
    await quorate.facts("nic_set", guest=108, nic="net0", vlan=99)
    rows = {(row["part"], row["what"]): row for row in await agent.rows("guest_diff", guest=108, backup="newest")}
    assert {key: (row.get("old"), row.get("new")) for key, row in rows.items() if key[0] != "notes"} == {
        ("setting", "memory"): (str(before["memory"]), "512"),
        ("network", "net0 tag"): ("", "99"),
    }
    old = rows["setting", "memory"]["old"]
    await agent.facts("guest_configure", guest=108, memory=int(old), description="call Ada before you touch it")
    await agent.facts("nic_set", guest=108, nic="net0", vlan=0)
    assert str(quorate.sim.world.guests[108].config["memory"]) == str(before["memory"])
    assert "tag=" not in quorate.sim.world.guests[108].config["net0"]
    assert agent.calls == 3


async def test_why_the_twin_behaves_differently_and_what_needs_a_restart(quorate, agent):
    """Two copies of a template differ in a setting and in who may use them, and the fix may need a restart. Before: 7
    calls (2 guests, 2 firewalls, the ACL, the change, what waits after it), now 2."""
    first = (await quorate.facts("guest_clone", guest=9000, name="one", full=True))["vmid"]
    second = (await quorate.facts("guest_clone", guest=9000, name="two", full=True))["vmid"]
    await quorate.facts("guest_configure", guest=second, cores=1, onboot=True)
    await quorate.facts("firewall_options_set", scope="guest", of=second, policy_in="ACCEPT")
    await quorate.facts("acl_set", action="grant", path=f"/vms/{second}", holders=["bob@pve"], roles=["PVEVMUser"])
    await quorate.facts("guest_power", guest=second, action="start")
    rows = {f"{row['part']} {row['what']}" for row in await agent.rows("guest_diff", guest=second, other=first)}
    assert {"setting cores", "setting onboot", "rights user bob@pve PVEVMUser", "place status"} <= rows
    plan = await agent.facts("guest_configure", guest=second, cores=2, onboot=False, dry_run=True)
    assert list(plan["pending_until_restart"].values()) == [["cores"]]
    assert agent.calls == 2
