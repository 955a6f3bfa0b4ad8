"""One action on many guests."""

import pytest

from quorate.operations.plan import Call, Plan
from quorate.pipeline.execution import apply
from quorate.pipeline.record import JournaledSteps, Step
from tests.rigs.mcp_session import rig, second_server

pytestmark = pytest.mark.anyio


def guests_tagged(quorate, tag):
    return [guest for guest in quorate.sim.world.guests.values() if tag in str(guest.config.get("tags", "")).split(";")]


async def test_a_dry_run_lists_the_targets_and_touches_none(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("guest_bulk", action="shutdown", tag="prod", dry_run=True)
        assert facts["targets"] == [
            f"{'vm' if guest.kind == 'qemu' else 'ct'} {guest.vmid} {guest.name}"
            for guest in sorted(guests_tagged(quorate, "prod"), key=lambda guest: guest.vmid)
        ]
        assert len(facts["steps"]) == len(facts["targets"])
        assert quorate.writes == []


async def test_all_that_fit_the_filter_are_switched_and_reported(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("guest_bulk", action="shutdown", type="ct", node="pve3")
        assert [step["state"] for step in facts["steps"]] == ["done", "done"]
        assert "already stopped" in facts["unchanged"][0]
        assert not any(guest.running for guest in quorate.sim.world.guests_on("pve3", "lxc"))
        facts = await quorate.facts("guest_bulk", action="start", guests=[204, "jellyfin", 204])
        assert len(facts["steps"]) == 2
        assert quorate.sim.world.guests[205].running
        rebooted = await quorate.facts("guest_bulk", action="reboot", guests=[204])
        assert rebooted["result"] == "done"


async def test_templates_are_left_out_of_what_they_cannot_do(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("guest_bulk", action="start", node="pve1", dry_run=True)
        assert not any("9000" in target for target in facts["targets"])
        assert "template" in await quorate.refusal("guest_bulk", action="start", guests=[9000])


async def test_snapshots_are_taken_where_possible_and_the_rest_is_reported(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.guests[105].config["lock"] = "backup"
        answer = await quorate.call("guest_bulk", action="snapshot", tag="lab", snapshot="before")
        facts = answer.structured_content
        taken = {guest.vmid for guest in quorate.sim.world.guests.values() if "before" in guest.snapshots}
        assert taken == {104, 108, 206}
        assert len(facts["steps"]) == 3
        assert answer.is_error
        assert facts["result"] == "3 of 4 done"
        (failure,) = facts["failures"]
        assert "vm 105" in failure
        assert "locked (backup)" in failure
        assert "unchanged" not in facts


async def test_guests_that_cannot_be_switched_are_failures_next_to_those_that_can(tmp_path):
    async with rig(tmp_path) as quorate:
        answer = await quorate.call("guest_bulk", action="reboot", guests=[200, 107])
        facts = answer.structured_content
        assert answer.is_error
        assert facts["result"] == "1 of 2 done"
        assert quorate.writes == [("POST", "/nodes/pve1/lxc/200/status/reboot")]
        (failure,) = facts["failures"]
        assert "vm 107" in failure
        assert "is stopped, so it cannot be rebooted" in failure
        assert [target.split()[1] for target in facts["targets"]] == ["200", "107"]


async def test_guests_whose_backup_is_not_allowed_are_failures_and_the_others_are_backed_up(tmp_path):
    async with rig(tmp_path) as quorate:
        access = quorate.sim.world.access
        for who in ("bob@pve", "bob@pve!monitor"):
            access.grant("/vms/107", "PVEVMAdmin", who)
            access.grant("/storage/nas", "PVEDatastoreUser", who)
        async with second_server(quorate, tmp_path / "bob.jsonl", token="bob@pve!monitor") as bob:
            answer = await bob.call("guest_bulk", action="backup", guests=[107, 108], storage="nas", wait=50)
        assert answer.is_error
        (failure,) = answer.structured_content["failures"]
        assert "may not back up vm 108" in failure
        assert "VM.Backup on /vms/108" in failure
        assert quorate.writes == [("POST", "/nodes/pve2/vzdump")]


async def test_guests_of_a_node_that_is_away_are_failures_and_the_others_are_switched(tmp_path):
    async with rig(tmp_path, faults=["node-offline:pve3"]) as quorate:
        answer = await quorate.call("guest_bulk", action="shutdown", guests=[200, 204])
        assert answer.is_error
        (failure,) = answer.structured_content["failures"]
        assert "ct 204" in failure
        assert "pve3" in failure
        assert not quorate.sim.world.guests[200].running


async def test_locked_guests_are_failures_even_if_there_is_nothing_to_do_for_the_others(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.guests[107].config["lock"] = "backup"
        answer = await quorate.call("guest_bulk", action="untag", guests=[107, 207], tags=["none-such"])
        facts = answer.structured_content
        assert answer.is_error
        assert facts["result"] == "failed"
        assert "ct 207" in facts["unchanged"][0]
        assert "locked (backup)" in facts["failures"][0]
        assert quorate.writes == []


async def test_snapshots_without_a_name_share_one_made_from_the_time(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("guest_bulk", action="snapshot", guests=[107, 206])
        names = {name for vmid in (107, 206) for name in quorate.sim.world.guests[vmid].snapshots}
        assert len(names) == 1
        assert names.pop().startswith("auto-")


async def test_tags_are_added_and_taken_off_and_others_are_kept(tmp_path):
    async with rig(tmp_path) as quorate:
        world = quorate.sim.world
        facts = await quorate.facts("guest_bulk", action="tag", guests=[101, 207, 9000], tags=["Audit", "home"])
        assert world.guests[101].config["tags"] == "audit;critical;home"
        assert world.guests[207].config["tags"] == "audit;home"
        assert world.guests[9000].config["tags"] == "audit;home;template"
        assert [step["state"] for step in facts["steps"]] == ["done"] * 3
        again = await quorate.facts("guest_bulk", action="tag", guests=[101], tags=["audit"])
        assert again["result"] == "nothing to do"
        await quorate.facts("guest_bulk", action="untag", guests=[101, 207], tags=["audit", "home"])
        assert world.guests[101].config["tags"] == "critical"
        assert "tags" not in world.guests[207].config


async def test_a_tag_whose_answer_was_lost_is_found_to_be_there(tmp_path):
    async with rig(tmp_path, faults=["drop:after:PUT:/nodes/*/config"]) as quorate:
        facts = await quorate.facts("guest_bulk", action="tag", guests=[107], tags=["seen"])
        assert "effect was found" in facts["note"]
        assert len(quorate.writes) == 1


async def test_each_guest_is_backed_up_on_its_own_node_and_nothing_is_pruned(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("guest_bulk", action="backup", guests=[107, 206, 108], storage="nas", wait=50)
        assert facts["result"] in ("done", "running")
        for step in facts["steps"]:
            if step["state"] == "running":
                await quorate.facts("task_wait", task=step["task"], wait=50)
        held = {
            volume.vmid for volume in quorate.sim.world.storages["nas"].volumes("pve1") if volume.content == "backup"
        }
        assert {107, 206, 108} <= held
        assert {path for _, path in quorate.writes} == {f"/nodes/pve{number}/vzdump" for number in (1, 2, 3)}


async def test_a_backup_that_pve_accepts_but_does_not_begin_is_a_failure(tmp_path):
    async with rig(tmp_path) as quorate:
        cluster = quorate.app.cluster
        assert cluster is not None
        elsewhere = {"vmid": "107", "storage": "nas"}  # 107 is on pve2 by now: PVE answers "OK" and does nothing
        call = Call("Back up vm 107", "POST", "/nodes/pve1/vzdump", elsewhere)
        step = Step(call)
        change = quorate.app.pipeline.journal.change()
        await change.begin({"tool": "backup_create"})
        log = JournaledSteps(change, [step], dict, cluster.clock)
        await apply(cluster, Plan("Back up", (call,)), [step], log, wait=5, report=None)
        assert step.answer == "OK"
        assert step.state == "failed"
        assert "backed up nothing" in str(step.problem)


async def test_more_guests_than_the_limit_are_refused_with_their_number(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("guest_bulk", action="reboot", status="running", limit=3)
        assert "guests match, more than limit=3" in text
        assert quorate.writes == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"action": "start"}, ["No guests were chosen", "guests=[…]"]),
        ({"action": "start", "tag": "none-such"}, ["No guest matches", "guest_list"]),
        ({"action": "start", "node": "pve9"}, ["no node 'pve9'"]),
        ({"action": "start", "guests": [100, "nobody"]}, ["no guest 'nobody'"]),
        ({"action": "tag", "guests": [100]}, ["needs tags"]),
        ({"action": "tag", "guests": [100], "tags": ["a b"]}, ["'a b' cannot be a tag"]),
        ({"action": "start", "guests": [108], "tags": ["x"]}, ["tags cannot be combined with action=start"]),
        ({"action": "snapshot", "guests": [108], "snapshot": "clean"}, ["already has a snapshot"]),
        ({"action": "snapshot", "guests": [108, 107], "snapshot": "no name"}, ["None of the guests", "is not a name"]),
        ({"action": "backup", "guests": [108], "storage": "tank"}, ["tank does not take backup", "nas"]),
        ({"action": "delete", "guests": [108]}, ["Another tool does that: guest_delete"]),
    ],
)
async def test_an_impossible_change_is_refused_with_the_next_step(tmp_path, arguments, words):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("guest_bulk", **arguments)
        assert all(word in text for word in words), text
        assert quorate.writes == []


async def test_one_failure_is_reported_and_the_others_continue(tmp_path):
    async with rig(tmp_path, faults=["task-fails:vzshutdown:command 'lxc-stop' failed;count=1"]) as quorate:
        answer = await quorate.call("guest_bulk", action="shutdown", guests=[200, 201, 204])
        assert answer.is_error
        assert sorted(step["state"] for step in answer.structured_content["steps"]) == ["done", "done", "failed"]
        assert sum(not quorate.sim.world.guests[vmid].running for vmid in (200, 201, 204)) == 2
