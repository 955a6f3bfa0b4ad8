"""Cloning guests and creating templates."""

import asyncio

import pytest

from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio


async def test_a_stopped_vm_is_copied_in_full_under_the_next_free_id(tmp_path):
    async with rig(tmp_path) as quorate:
        world = quorate.sim.world
        free = world.next_free_vmid()
        facts = await quorate.facts("guest_clone", guest="test-vm", name="copy", description="a copy")
        clone = world.guests[free]
        assert facts["result"] == "done"
        assert (facts["vmid"], facts["mode"]) == (free, "full")
        assert (clone.name, clone.node, clone.running) == ("copy", "pve1", False)
        assert clone.config["description"] == "a copy"
        assert clone.config["scsi0"] != world.guests[108].config["scsi0"]
        assert "action=start" in facts["next"]


async def test_a_container_gets_its_new_hostname(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("guest_clone", guest="dev-sandbox", name="sandbox2", vmid=300)
        assert facts["result"] == "done"
        assert quorate.sim.world.guests[300].config["hostname"] == "sandbox2"


@pytest.mark.parametrize("template", ["debian-13-cloud", "debian-13-base"])
async def test_a_template_is_linked_unless_a_copy_is_wanted(tmp_path, template):
    async with rig(tmp_path) as quorate:
        linked = await quorate.facts("guest_clone", guest=template, name="one", vmid=300)
        copied = await quorate.facts("guest_clone", guest=template, name="two", vmid=301, storage="tank")
        assert (linked["mode"], copied["mode"]) == ("linked", "full")
        drives = [dict(quorate.sim.world.guests[vmid].drives()) for vmid in (300, 301)]
        assert all(volid.startswith("local-lvm:") for volid in drives[0].values())
        assert any(volid.startswith("tank:") for volid in drives[1].values())
        assert not quorate.sim.world.guests[300].template


async def test_the_clone_is_started_as_a_step_of_its_own(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("guest_clone", guest=9000, name="fresh", start=True)
        assert [step["state"] for step in facts["steps"]] == ["done", "done"]
        assert quorate.sim.world.guests[facts["vmid"]].running


async def test_a_clone_goes_into_a_pool(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("guest_clone", guest=9000, pool="lab")
        assert facts["vmid"] in quorate.sim.world.access.pools["lab"].vms
        assert "production" in await quorate.refusal("guest_clone", guest=9000, pool="nowhere")


async def test_a_snapshot_is_cloned(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.guests[108].snapshots["clean"].config["cores"] = 3
        facts = await quorate.facts("guest_clone", guest=108, snapshot="clean")
        assert quorate.sim.world.guests[facts["vmid"]].config["cores"] == 3


async def test_a_vm_on_shared_storage_is_cloned_to_another_node(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("guest_clone", guest=101, node="pve3")
        assert quorate.sim.world.guests[facts["vmid"]].node == "pve3"
        assert any("power had failed" in warning for warning in facts["warnings"])


async def test_a_dry_run_shows_the_calls_and_clones_nothing(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("guest_clone", guest=206, name="x1", start=True, dry_run=True)
        assert [step["call"].partition(" hostname")[0] for step in facts["steps"]] == [
            f"POST /nodes/pve3/lxc/206/clone newid={facts['vmid']}",
            f"POST /nodes/pve3/lxc/{facts['vmid']}/status/start",
        ]
        assert quorate.writes == []


async def test_a_taken_id_is_refused_with_its_owner_and_the_next_step(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("guest_clone", guest=9000, vmid=200)
        assert "200 is taken" in text
        assert "pihole" in text
        assert "leave vmid out" in text
        assert quorate.writes == []


@pytest.mark.parametrize(
    "refusal",
    [
        "500:unable to create VM 110: config file already exists:POST:/nodes/*/clone",
        "task-fails:qmclone:close (rename) atomic file '/etc/pve/nodes/pve1/qemu-server/110.conf' failed: File exists",
        "task-fails:qmclone:CT 110 already exists on node 'pve2'",
    ],
)
async def test_if_the_chosen_id_is_snatched_away_the_next_one_is_taken(tmp_path, refusal):
    async with rig(tmp_path, faults=[f"{refusal};count=1"]) as quorate:
        before = set(quorate.sim.world.guests)
        facts = await quorate.facts("guest_clone", guest=9000, name="mine")
        assert facts["result"] == "done"
        assert facts["vmid"] == 111
        assert set(quorate.sim.world.guests) - before == {111}
        assert len(quorate.writes) == 2


async def test_an_id_that_was_asked_for_is_never_replaced_by_another(tmp_path):
    fault = "500:unable to create VM 300: config file already exists:POST:/nodes/*/clone;count=1"
    async with rig(tmp_path, faults=[fault]) as quorate:
        assert "already exists" in await quorate.refusal("guest_clone", guest=9000, vmid=300)
        assert len(quorate.writes) == 1


async def test_many_clones_at_once_get_an_id_each(tmp_path):
    async with rig(tmp_path) as quorate:
        before = len(quorate.sim.world.guests)
        answers = await asyncio.gather(
            *(quorate.facts("guest_clone", guest=9000, name=f"node{number}") for number in range(12))
        )
        vmids = {answer["vmid"] for answer in answers}
        assert len(vmids) == 12
        assert len(quorate.sim.world.guests) == before + 12
        assert {quorate.sim.world.guests[answer["vmid"]].name for answer in answers} == {f"node{n}" for n in range(12)}


async def test_a_lost_answer_does_not_clone_twice(tmp_path):
    async with rig(tmp_path, faults=["drop:after:POST:/nodes/*/clone"]) as quorate:
        before = len(quorate.sim.world.guests)
        facts = await quorate.facts("guest_clone", guest=9000)
        assert "answer was lost" in facts["note"]
        assert len(quorate.sim.world.guests) == before + 1
        assert len(quorate.writes) == 1


async def test_a_clone_that_outlasts_the_wait_says_what_is_still_to_be_done(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("guest_clone", guest=9000, start=True, wait=0)
        assert facts["result"] == "running"
        assert "task_wait" in facts["next"]
        assert f"Start vm {facts['vmid']}" in facts["next"]


@pytest.mark.parametrize("version", ["8.4.1", "9.2.1"])
@pytest.mark.parametrize("template", [9000, 9001])
async def test_a_guest_lives_from_clone_to_deletion_on_every_version(tmp_path, version, template):
    async with rig(tmp_path, version=version) as quorate:
        vmid = (await quorate.facts("guest_clone", guest=template, name="short-lived", start=True))["vmid"]
        guest = quorate.sim.world.guests[vmid]
        await quorate.facts("snapshot_create", guest=vmid, snapshot="one")
        await quorate.facts("snapshot_update", guest=vmid, snapshot="one", description="first")
        await quorate.facts("snapshot_rollback", guest=vmid, snapshot="one", start=True)
        assert guest.running
        assert guest.snapshots["one"].description.rstrip("\n") == "first"
        await quorate.facts("snapshot_delete", guest=vmid, snapshot="one")
        for action, more in (("tag", {"tags": ["x1"]}), ("backup", {"storage": "nas"}), ("shutdown", {})):
            await quorate.facts("guest_bulk", action=action, guests=[vmid], **more)
        assert not guest.running
        await quorate.facts("guest_template", guest=vmid)
        assert guest.template
        await quorate.facts("guest_delete", guest=vmid, purge=True)
        assert vmid not in quorate.sim.world.guests


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"guest": 200}, ["running container", "snapshot_create"]),
        ({"guest": 108, "full": False}, ["No linked clone", "not a template", "full=true"]),
        ({"guest": 9000, "full": False, "storage": "nas"}, ["cannot be combined with a linked clone", "full=true"]),
        ({"guest": 206, "format": "qcow2"}, ["format", "container"]),
        ({"guest": 108, "node": "pve2"}, ["local storage of pve1", "scsi0", "guest_migrate"]),
        ({"guest": 108, "node": "pve2", "storage": "tank"}, ["tank is not shared"]),
        ({"guest": 108, "node": "pve9"}, ["no node 'pve9'", "pve1, pve2, pve3"]),
        ({"guest": 108, "storage": "local"}, ["local does not take images", "local-lvm"]),
        ({"guest": 108, "storage": "cloud"}, ["no storage 'cloud'"]),
        ({"guest": 108, "snapshot": "dirty"}, ["no snapshot 'dirty'", "clean, configured"]),
        ({"guest": 108, "vmid": 99}, ["at least 100"]),
        ({"guest": 108, "name": "not a name"}, ["name", "DNS name"]),
        ({"guest": "nobody"}, ["no guest 'nobody'"]),
    ],
)
async def test_an_impossible_clone_is_refused_with_the_next_step(tmp_path, arguments, words):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("guest_clone", **arguments)
        assert all(word in text for word in words), text
        assert quorate.writes == []


async def test_a_clone_to_an_offline_node_is_refused(tmp_path):
    async with rig(tmp_path, faults=["node-offline:pve3"]) as quorate:
        assert "pve3 is offline" in await quorate.refusal("guest_clone", guest=101, node="pve3")


async def test_a_name_that_is_in_use_and_a_full_storage_are_warned_of(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.guests[108].config["scsi0"] = "local-lvm:vm-108-disk-0,size=900G"
        facts = await quorate.facts("guest_clone", guest=108, name="docker01", dry_run=True)
        assert "has the same name" in facts["warnings"][0]
        assert "local-lvm has" in facts["warnings"][1]


# -- templates ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vmid", [107, 206])
async def test_a_guest_is_a_template_when_the_call_returns(tmp_path, vmid):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("guest_template", guest=vmid)
        assert facts["result"] == "done"
        assert quorate.sim.world.guests[vmid].template
        assert facts["task"].startswith("UPID:")
        assert "cannot be undone" in facts["warnings"][0]
        again = await quorate.facts("guest_template", guest=vmid)
        assert again["result"] == "nothing to do"


async def test_the_failure_of_a_container_conversion_is_reported_although_pve_names_no_task(tmp_path):
    async with rig(tmp_path, faults=["task-fails:vztemplate:can't create base images in lvm storage"]) as quorate:
        assert "base images" in await quorate.refusal("guest_template", guest=206)
        assert not quorate.sim.world.guests[206].template


@pytest.mark.parametrize(
    ("vmid", "words"),
    [(100, ["running", "action=shutdown"]), (200, ["running"]), (108, ["clean, configured", "snapshot_delete"])],
)
async def test_a_guest_that_cannot_become_a_template_is_refused_with_the_reason(tmp_path, vmid, words):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("guest_template", guest=vmid)
        assert all(word in text for word in words), text
        assert quorate.writes == []
