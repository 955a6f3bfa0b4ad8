"""A guest gets another vmid and keeps what PVE lets it keep; the rest is named beforehand."""

import pytest

from pve_simulator.cluster.ha_manager import HaManager
from pve_simulator.storage.storages import Volume
from quorate.config import Approval
from tests.pipeline.test_approval import Person
from tests.rigs.mcp_session import rig, text_of

pytestmark = pytest.mark.anyio

VM, RUNNING_VM, CT, WITH_SNAPSHOTS, TEMPLATE, REPLICABLE = 107, 104, 206, 108, 9000, 102


def config(quorate, vmid):
    return dict(quorate.sim.world.guests[vmid].config)


def put(quorate, vmid, key, name, value=""):
    guest = quorate.sim.world.guests[vmid]
    volume = Volume(f"local-lvm:{name}", "images", "raw", 1 << 30, 4096, 1768000000, vmid=vmid)
    quorate.sim.world.storages["local-lvm"].add(guest.node, volume)
    guest.config[key] = f"{volume.volid}{value}"


async def get(quorate, path):
    return (await quorate.app.cluster.client.request("GET", path, {})).data


async def surround(quorate, vmid):
    """Give a guest a firewall, rights, a backup job and a place in HA."""
    await quorate.facts("firewall_object_set", scope="guest", of=vmid, kind="alias", name="home", cidr="192.0.2.0/24")
    await quorate.facts("firewall_options_set", scope="guest", of=vmid, enable=True, policy_in="ACCEPT")
    for port in ("22", "443"):
        rule = {"type": "in", "action": "ACCEPT", "proto": "tcp", "dport": port}
        await quorate.facts("firewall_rule_set", scope="guest", of=vmid, **rule)
    await quorate.facts("acl_set", action="grant", path=f"/vms/{vmid}", holders=["bob@pve"], roles=["PVEVMUser"])
    await quorate.facts("backup_job_set", schedule="02:00", storage="nas", guest=[vmid, 100])
    await quorate.facts("ha_set", guest=vmid, state="started")


async def test_a_vm_keeps_its_settings_and_its_disks_are_renamed(quorate):
    put(quorate, VM, "efidisk0", "vm-107-disk-1", ",efitype=4m,size=1G")
    put(quorate, VM, "unused0", "vm-107-disk-2")
    put(quorate, VM, "ide2", "vm-107-cloudinit", ",media=cdrom")
    before = config(quorate, VM)
    facts = await quorate.facts("guest_renumber", guest=VM, vmid=470)
    after = config(quorate, 470)
    assert VM not in quorate.sim.world.guests
    renamed = {key for key in before if before[key] != after.get(key)}
    assert renamed == {"scsi0", "efidisk0", "unused0", "ide2", "vmgenid", "meta"}
    assert before["net0"] == after["net0"]
    assert before["smbios1"] == after["smbios1"]
    assert str(after["scsi0"]).startswith("local-lvm:vm-470-disk-")
    assert [line.partition(":")[0] for line in facts["not_kept"]] == ["vmgenid"]
    assert "scsi0" in facts["volumes"]
    left = [volume for volume in quorate.sim.world.storages["local-lvm"].space("pve2").volumes if "-107-" in volume]
    assert left == []


async def test_firewall_rights_jobs_and_ha_follow_it(quorate):
    await surround(quorate, VM)
    node = quorate.sim.world.guests[VM].node
    rules = await get(quorate, f"/nodes/{node}/qemu/{VM}/firewall/rules")
    await quorate.facts("guest_renumber", guest=VM, vmid=470, restart=True)
    moved = await get(quorate, f"/nodes/{node}/qemu/470/firewall/rules")
    strip = [
        [{key: value for key, value in rule.items() if key != "digest"} for rule in each] for each in (rules, moved)
    ]
    assert strip[0] == strip[1]
    assert (await get(quorate, f"/nodes/{node}/qemu/470/firewall/options"))["policy_in"] == "ACCEPT"
    assert (await get(quorate, f"/nodes/{node}/qemu/470/firewall/aliases"))[0]["name"] == "home"
    acl = [(row["path"], row["ugid"], row["roleid"]) for row in await get(quorate, "/access/acl")]
    assert ("/vms/470", "bob@pve", "PVEVMUser") in acl
    assert not [row for row in acl if row[0] == f"/vms/{VM}"]
    jobs = [str(job.get("vmid")) for job in await get(quorate, "/cluster/backup")]
    assert jobs == ["100,470"] or jobs == ["470,100"]
    resources = {row["sid"] for row in await get(quorate, "/cluster/ha/resources")}
    assert "vm:470" in resources
    assert f"vm:{VM}" not in resources


async def test_a_running_vm_is_restarted_only_if_that_is_asked_for(quorate):
    assert "restart" in await quorate.refusal("guest_renumber", guest=RUNNING_VM, vmid=470)
    pool = quorate.sim.world.access.pool_of(RUNNING_VM) if hasattr(quorate.sim.world.access, "pool_of") else None
    await quorate.facts("guest_renumber", guest=RUNNING_VM, vmid=470, restart=True)
    assert quorate.sim.world.guests[470].running
    facts = await quorate.facts("guest_get", guest=470)
    assert facts["pool"] == (pool or "lab")


async def test_a_container_is_copied_with_its_addresses_and_firewall(quorate):
    await quorate.facts("firewall_options_set", scope="guest", of=CT, enable=True)
    before = config(quorate, CT)
    await quorate.facts("guest_renumber", guest=CT, vmid=471)
    after = config(quorate, 471)
    assert {key for key in before if before[key] != after.get(key)} == {"rootfs"}
    assert (await get(quorate, "/nodes/pve3/lxc/471/firewall/options"))["enable"] == 1
    assert CT not in quorate.sim.world.guests


async def test_what_cannot_be_kept_is_said_or_refused_before_anything_happens(quorate):
    text = await quorate.refusal("guest_renumber", guest=WITH_SNAPSHOTS, vmid=470)
    assert "clean, configured" in text
    assert "is a template" in await quorate.refusal("guest_renumber", guest=TEMPLATE, vmid=470)
    assert "vmid 100 is taken" in await quorate.refusal("guest_renumber", guest=VM, vmid=100)
    quorate.sim.world.guests[VM].config["args"] = "-device x"
    plan = await quorate.facts("guest_renumber", guest=VM, vmid=470, dry_run=True)
    assert "args: only root@pam may set it" in plan["not_kept"]
    quorate.sim.world.guests[VM].config["protection"] = 1
    assert "is protected" in await quorate.refusal("guest_renumber", guest=VM, vmid=470)
    assert not [path for method, path in quorate.sim.requests if method != "GET"]


@pytest.mark.quorate(faults=["task-fails:qmmove:storage is gone"])
async def test_a_disk_that_cannot_be_renamed_stops_everything_before_the_deletion(quorate):
    answer = await quorate.call("guest_renumber", guest=VM, vmid=470)
    assert answer.is_error
    assert "still under the old number: guest_diff guest=470 other=107" in text_of(answer)
    assert "scsi0" in quorate.sim.world.guests[VM].config
    assert not [path for method, path in quorate.sim.requests if method == "DELETE"]


async def test_its_place_in_ha_rules_follows_it(quorate):
    await quorate.facts("ha_set", guest=VM, state="stopped")
    await quorate.facts("ha_set", guest=100, state="started")
    await quorate.facts("ha_rule_set", rule="apart", kind="apart", guests=[VM, 100])
    await quorate.facts("ha_rule_set", rule="alone", kind="nodes", guests=[VM], nodes=["pve1", "pve2"])
    before = {row["rule"]: dict(row) for row in await get(quorate, "/cluster/ha/rules")}
    await quorate.facts("guest_renumber", guest=VM, vmid=470)
    after = {row["rule"]: dict(row) for row in await get(quorate, "/cluster/ha/rules")}
    assert set(after) == set(before)
    for name, rule in after.items():
        members = set(rule.pop("resources").split(","))
        assert members == {"vm:470" if sid == f"vm:{VM}" else sid for sid in before[name].pop("resources").split(",")}
        assert {key: rule.get(key) for key in ("type", "affinity", "nodes")} == {
            key: before[name].get(key) for key in ("type", "affinity", "nodes")
        }


async def test_every_setting_of_ha_follows_it(quorate):
    kept = {"max_restart": 3, "max_relocate": 2, "failback": 0, "auto-rebalance": 0, "comment": "tier 1"}
    await quorate.facts("ha_set", guest=VM, state="stopped")
    quorate.sim.world.ha[f"vm:{VM}"].options |= kept
    await quorate.facts("guest_renumber", guest=VM, vmid=470)
    assert {key: quorate.sim.world.ha["vm:470"].options.get(key) for key in kept} == kept


@pytest.mark.quorate(version="8.4.1")
async def test_it_stays_in_its_ha_group(quorate):
    await quorate.facts("ha_set", guest=VM, state="stopped")
    quorate.sim.world.ha[f"vm:{VM}"].options["group"] = "fast"
    groups = quorate.sim.world.part(HaManager).rules.groups
    groups.sections["fast"] = {"group": "fast", "nodes": "pve1,pve2", "type": "group"}
    await quorate.facts("guest_renumber", guest=VM, vmid=470)
    assert quorate.sim.world.ha["vm:470"].options["group"] == "fast"


async def test_its_replication_follows_it(quorate):
    quorate.sim.world.guests[REPLICABLE].snapshots.clear()
    await quorate.facts("replication_set", guest=REPLICABLE, target="pve2", schedule="*/30", rate=10)
    await quorate.facts("guest_renumber", guest=REPLICABLE, vmid=470, restart=True)
    jobs = await get(quorate, "/cluster/replication")
    assert [(row["id"], row["target"], row["schedule"], row["rate"]) for row in jobs] == [("470-0", "pve2", "*/30", 10)]


async def test_disks_that_are_renamed_are_not_among_the_losses(quorate):
    put(quorate, VM, "unused0", "vm-107-disk-2")
    plan = await quorate.facts("guest_renumber", guest=VM, vmid=470, dry_run=True)
    assert "scsi0" not in str(plan.get("lost", ""))
    assert "unused0" not in str(plan.get("lost", ""))
    copied = await quorate.facts("guest_renumber", guest=CT, vmid=471, dry_run=True)
    assert "rootfs" in str(copied["lost"])
    deleted = await quorate.facts("guest_delete", guest=VM, dry_run=True)
    assert "scsi0" in str(deleted["lost"])


async def test_a_person_types_the_guests_name_and_success_needs_no_next_step(tmp_path):
    person = Person(None)
    async with rig(tmp_path, approval=Approval.ASK, elicitation=person) as quorate:
        await quorate.refusal("guest_renumber", guest=VM, vmid=470)
        assert person.questions[0].endswith("Type win11 to approve.")
    async with rig(tmp_path) as quorate:
        assert "next" not in await quorate.facts("guest_renumber", guest=VM, vmid=470)
