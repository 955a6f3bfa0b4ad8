"""Snapshots: list, take, describe, roll back, delete."""

import pytest

from pve_simulator.guests.guest import Snapshot
from quorate.config import Access
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio


async def test_the_list_is_a_tree_with_age_memory_and_where_the_guest_is_now(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[108]
        clean = guest.snapshots["clean"]
        guest.snapshots["other"] = Snapshot("other", clean.snaptime + 60, {}, "a branch\n", "clean", vmstate=True)
        rows = await quorate.rows("snapshot_list", guest="test-vm")
        assert [(row["snapshot"], row["level"]) for row in rows] == [("clean", 0), ("other", 1), ("configured", 1)]
        assert [row["parent"] for row in rows] == ["", "clean", "clean"]
        assert rows[0]["age"] == 30 * 86400
        assert [row["ram"] for row in rows] == ["", True, ""]
        assert rows[1]["description"] == "a branch"
        assert (await quorate.facts("snapshot_list", guest=108))["now_after"] == "configured"


async def test_a_guest_without_snapshots_has_an_empty_list(tmp_path):
    async with rig(tmp_path) as quorate:
        assert (await quorate.facts("snapshot_list", guest=200))["total"] == 0


@pytest.mark.parametrize("vmid", [104, 203])
async def test_a_snapshot_is_there_when_the_call_returns(tmp_path, vmid):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("snapshot_create", guest=vmid, snapshot="before", description="just in case")
        snapshot = quorate.sim.world.guests[vmid].snapshots["before"]
        assert facts["result"] == "done"
        assert (snapshot.description.rstrip("\n"), snapshot.vmstate) == ("just in case", False)


async def test_the_memory_of_a_running_vm_is_saved_on_request(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("snapshot_create", guest=104, snapshot="live", ram=True)
        assert quorate.sim.world.guests[104].snapshots["live"].vmstate
        stopped = await quorate.facts("snapshot_create", guest=107, snapshot="off", ram=True)
        assert "no memory to save" in stopped["warnings"][0]
        assert "container" in await quorate.refusal("snapshot_create", guest=203, ram=True)


async def test_without_a_name_a_snapshot_is_named_after_the_time(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("snapshot_create", guest=107)
        assert facts["snapshot"].startswith("auto-20")
        assert facts["snapshot"] in quorate.sim.world.guests[107].snapshots


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("before upgrade", ["begins with a letter", "'before-upgrade' would work"]),
        ("1st", ["begins with a letter"]),
        ("x", ["2 to 40 characters"]),
        ("a" * 41, ["2 to 40 characters"]),
        ("current", ["reserves the name 'current'"]),
        ("pending", ["reserves the name 'pending'"]),
    ],
)
async def test_the_rules_for_names_are_explained_before_anything_is_sent(tmp_path, name, words):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("snapshot_create", guest=107, snapshot=name)
        assert all(word in text for word in words), text
        assert quorate.writes == []


async def test_the_name_vzdump_is_reserved_for_containers_only(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "reserves the name" in await quorate.refusal("snapshot_create", guest=206, snapshot="vzdump")
        await quorate.facts("snapshot_create", guest=107, snapshot="vzdump")


@pytest.mark.parametrize(
    ("vmid", "words"),
    [
        (108, ["already has a snapshot 'clean'"]),
        (9000, ["is a template"]),
        (101, ["cannot take snapshots", "scsi0", "qcow2"]),
    ],
)
async def test_an_impossible_snapshot_is_refused_with_the_next_step(tmp_path, vmid, words):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.guests[101].config["scsi0"] = "nas:101/vm-101-disk-0.raw,size=32G"
        text = await quorate.refusal("snapshot_create", guest=vmid, snapshot="clean")
        assert all(word in text for word in words), text
        assert quorate.writes == []


async def test_only_the_disks_that_prevent_a_snapshot_are_named(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.guests[108].config["scsi1"] = "nas:108/vm-108-disk-0.raw,size=20G"
        text = await quorate.refusal("snapshot_create", guest=108)
    assert "PVE cannot snapshot scsi1 (nas:108/vm-108-disk-0.raw)." in text


async def test_a_description_is_changed_and_an_equal_one_is_not_sent(tmp_path):
    async with rig(tmp_path) as quorate:
        for _ in range(2):
            facts = await quorate.facts("snapshot_update", guest=203, snapshot="pre-migration", description="keep")
        assert (
            quorate.sim.world.guests[203].snapshots["pre-migration"].description == "keep\n"
        )  # PVE ends it with a line
        assert facts["result"] == "nothing to do"
        assert len(quorate.writes) == 1


async def test_a_description_is_recognized_after_its_answer_is_lost(tmp_path):
    async with rig(tmp_path, faults=["drop:after:PUT:/nodes/*/snapshot/*"]) as quorate:
        facts = await quorate.facts("snapshot_update", guest=108, snapshot="clean", description="new")
        assert "effect was found" in facts["note"]
        assert len(quorate.writes) == 1


async def test_going_back_brings_the_old_state_and_starts_on_request(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[108]
        guest.config["cores"] = 7
        facts = await quorate.facts("snapshot_rollback", guest=108, snapshot="clean", start=True)
        assert [step["state"] for step in facts["steps"]] == ["done", "done"]
        assert guest.config["cores"] == 1
        assert guest.running
        assert facts["age"] == 30 * 86400
        assert "is lost" in facts["warnings"][0]


async def test_a_snapshot_with_memory_runs_on_and_needs_no_start(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("snapshot_rollback", guest=102, snapshot="before-upgrade", start=True)
        assert "steps" not in facts
        assert quorate.sim.world.guests[102].running


async def test_a_running_guest_stays_stopped_after_going_back_and_that_is_said(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("snapshot_rollback", guest=203, snapshot="pre-migration")
        assert "start=true" in facts["warnings"][1]
        assert not quorate.sim.world.guests[203].running


async def test_zfs_goes_back_to_the_newest_snapshot_only(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("snapshot_create", guest=102, snapshot="newer")
        text = await quorate.refusal("snapshot_rollback", guest=102, snapshot="before-upgrade")
        assert "ZFS" in text
        assert "newer" in text
        await quorate.facts("snapshot_delete", guest=102, snapshot="newer")
        await quorate.facts("snapshot_rollback", guest=102, snapshot="before-upgrade")


async def test_an_incomplete_snapshot_cannot_be_gone_back_to(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.guests[108].snapshots["clean"].state = "prepare"
        assert "incomplete (prepare)" in await quorate.refusal("snapshot_rollback", guest=108, snapshot="clean")


async def test_deleting_a_snapshot_keeps_its_children_and_names_them(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("snapshot_delete", guest=108, snapshot="clean")
        guest = quorate.sim.world.guests[108]
        assert facts["children"] == ["configured"]
        assert "configured is kept" in facts["warnings"][0]
        assert list(guest.snapshots) == ["configured"]
        assert guest.snapshots["configured"].parent is None


@pytest.mark.parametrize("tool", ["snapshot_update", "snapshot_rollback", "snapshot_delete"])
async def test_an_unknown_snapshot_is_answered_with_those_there_are(tmp_path, tool):
    async with rig(tmp_path) as quorate:
        more = {"description": "x"} if tool == "snapshot_update" else {}
        assert "clean, configured" in await quorate.refusal(tool, guest=108, snapshot="nope", **more)
        assert "snapshot_create" in await quorate.refusal(tool, guest=107, snapshot="nope", **more)
        assert quorate.writes == []


async def test_at_access_operate_snapshots_are_taken_but_nothing_is_lost(tmp_path):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        await quorate.facts("snapshot_create", guest=107, snapshot="one")
        for tool in ("snapshot_rollback", "snapshot_delete"):
            assert "--access admin" in await quorate.refusal(tool, guest=107, snapshot="one")


async def add_snapshots(quorate, vmid, **ages):
    """Snapshots of these ages in days."""
    guest = quorate.sim.world.guests[vmid]
    for name, days in ages.items():
        await quorate.facts("snapshot_create", guest=vmid, snapshot=name)
        guest.snapshots[name].snaptime = int(quorate.clock.now() - days * 86_400)


async def test_several_snapshots_go_by_pattern_and_age_under_one_approval(quorate):
    await add_snapshots(quorate, 102, auto_1=40, auto_2=31, auto_3=2, by_hand=90)
    await add_snapshots(quorate, 200, auto_1=50)
    facts = await quorate.facts(
        "snapshot_delete", guest=[102, "pihole", 104], snapshot="auto_*", older_than="30d", dry_run=True
    )
    assert facts["plan"] == "Delete 3 snapshots of 2 guests"
    assert [line.partition(", taken")[0] for line in facts["lost"]] == [
        "vm 102 docker01: snapshot auto_1",
        "vm 102 docker01: snapshot auto_2",
        "ct 200 pihole: snapshot auto_1",
    ]
    trail = len(quorate.audit())
    await quorate.facts("snapshot_delete", guest=[102, "pihole", 104], snapshot="auto_*", older_than="30d")
    left = quorate.sim.world.guests
    assert {"auto_3", "by_hand"} <= left[102].snapshots.keys()
    assert not {"auto_1", "auto_2"} & left[102].snapshots.keys()
    assert "auto_1" not in left[200].snapshots
    (entry,) = quorate.audit()[trail:]
    assert entry["tool"] == "snapshot_delete"


async def test_guests_are_chosen_by_pattern_and_a_locked_one_is_named(quorate):
    for vmid in (102, 200):
        await add_snapshots(quorate, vmid, auto_1=40)
    quorate.sim.world.guests[102].config["lock"] = "backup"
    text = await quorate.refusal("snapshot_delete", guest="*", snapshot="auto_*")
    assert "locked" in text
    assert "auto_1" not in quorate.sim.world.guests[200].snapshots
    assert "auto_1" in quorate.sim.world.guests[102].snapshots


async def test_a_pattern_that_matches_nothing_is_answered_with_where_to_look(quorate):
    text = await quorate.refusal("snapshot_delete", guest=108, snapshot="auto-*", older_than="30d")
    assert "No snapshot 'auto-*' older than 30d of vm 108" in text
    assert "snapshot_list" in text
    assert "No guest matches" in await quorate.refusal("snapshot_delete", guest="zzz*", snapshot="a*")
