"""High availability: resources, rules, moves; done only when the HA manager has done it."""

import pytest

from quorate.sim.ha_manager import HaManager
from quorate.sim.world import HaResource
from tests.driving import rig

pytestmark = pytest.mark.anyio


def rules_of(quorate):
    return quorate.sim.world.part(HaManager).rules.rules.sections


async def test_the_state_of_ha_is_told(tmp_path):
    async with rig(tmp_path) as quorate:
        told = await quorate.facts("ha_status")
        assert told["manager"]["quorum"] == "OK"
        assert told["resources"] == [
            {
                "guest": "vm:101", "node": "pve1", "wanted": "started", "state": "started",
                "comment": "the house notices when this is gone",
            }
        ]  # fmt: skip


async def test_on_pve_8_there_are_groups_instead_of_rules(tmp_path):
    async with rig(tmp_path, version="8.4.1") as quorate:
        path = "/cluster/ha/groups"
        await quorate.facts("api_call", method="POST", path=path, params={"group": "big", "nodes": "pve1,pve2"})
        told = await quorate.facts("ha_status")
        assert told["groups"][0]["group"] == "big"
        await quorate.facts("ha_set", guest="docker01", group="big")
        assert quorate.sim.world.ha["vm:102"].group == "big"
        assert "came with PVE 9" in await quorate.refusal("ha_set", guest=103, failback=False)
        text = await quorate.refusal("ha_rule_set", rule="x", kind="apart", guests=[101, 102])
        assert "HA groups, not rules" in text


async def test_a_guest_is_put_under_ha_and_started_by_it(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[108]
        told = await quorate.facts("ha_set", guest="test-vm", max_restart=3, comment="try")
        assert (told["result"], told["state"]) == ("done", "started")
        assert guest.running
        resource = quorate.sim.world.ha["vm:108"]
        assert (resource.max_restart, resource.comment) == (3, "try")


async def test_the_wanted_state_of_a_resource_is_changed_and_reached(tmp_path):
    async with rig(tmp_path) as quorate:
        told = await quorate.facts("ha_set", guest=101, state="stopped")
        assert told["state"] == "stopped"
        assert not quorate.sim.world.guests[101].running
        again = await quorate.facts("ha_set", guest=101, state="stopped")
        assert again["result"] == "nothing to do"


async def test_a_resource_in_error_is_explained(tmp_path):
    async with rig(tmp_path) as quorate:
        resource = quorate.sim.world.ha["vm:101"]
        resource.crm_state = resource.shown_state = "error"
        text = await quorate.refusal("ha_set", guest=101, max_restart=4)
        assert "given up on vm 101" in text
        assert "state=disabled" in text
        assert (await quorate.facts("ha_set", guest=101, state="disabled"))["result"] == "done"


async def test_groups_and_templates_are_refused_on_pve_9(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "ha_rule_set" in await quorate.refusal("ha_set", guest=102, group="big")
        assert "template" in await quorate.refusal("ha_set", guest=9000)


async def test_a_guest_leaves_ha_and_keeps_running(tmp_path):
    async with rig(tmp_path) as quorate:
        assert (await quorate.facts("ha_remove", guest=101))["result"] == "done"
        assert "vm:101" not in quorate.sim.world.ha
        assert quorate.sim.world.guests[101].running
        assert "not under HA" in (await quorate.facts("ha_remove", guest=101))["unchanged"][0]


@pytest.mark.parametrize("how", ["migrate", "relocate"])
async def test_a_move_is_done_when_the_guest_has_arrived(tmp_path, how):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[101]
        told = await quorate.facts("ha_relocate", guest="homeassistant", node="pve2", how=how)
        assert told["result"] == "done"
        assert (guest.node, guest.running) == ("pve2", True)


async def test_moves_that_cannot_be_are_refused_with_the_reason(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "guest_migrate" in await quorate.refusal("ha_relocate", guest=102, node="pve2")
        assert "already on pve1" in (await quorate.facts("ha_relocate", guest=101, node="pve1"))["unchanged"][0]
        assert "The nodes are" in await quorate.refusal("ha_relocate", guest=101, node="pve9")


async def test_a_node_that_is_away_takes_no_guest(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.nodes["pve3"].online = False
        assert "is offline" in await quorate.refusal("ha_relocate", guest=101, node="pve3")


async def test_rules_are_made_changed_and_removed(tmp_path):
    async with rig(tmp_path) as quorate:
        told = await quorate.facts("ha_rule_set", rule="home", kind="nodes", guests=101, nodes=["pve1:2", "pve2"])
        assert told["result"] == "done"
        assert rules_of(quorate)["home"]["resources"] == "vm:101"
        assert set(rules_of(quorate)["home"]["nodes"].split(",")) == {"pve1:2", "pve2"}
        await quorate.facts(
            "ha_rule_set", rule="home", kind="nodes", guests=["homeassistant"], nodes=["pve1"], strict=True
        )
        assert rules_of(quorate)["home"]["nodes"] == "pve1"
        assert (await quorate.facts("ha_status"))["rules"][0]["rule"] == "home"
        blocked = await quorate.refusal("ha_relocate", guest=101, node="pve2")
        assert "The HA rule home keeps vm 101 homeassistant on pve1" in blocked
        await quorate.facts("ha_remove", rule="home")
        assert rules_of(quorate) == {}
        assert "no HA rule home" in (await quorate.facts("ha_remove", rule="home"))["unchanged"][0]


async def test_guests_are_kept_apart_by_a_rule(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.ha["vm:103"] = HaResource("vm:103")
        await quorate.facts("ha_rule_set", rule="dock", kind="apart", guests=[101, 103])
        assert rules_of(quorate)["dock"]["affinity"] == "negative"
        text = await quorate.refusal("ha_relocate", guest=101, node="pve2")
        assert "keeps vm 101 homeassistant away from vm:103" in text
        kind = await quorate.refusal("ha_rule_set", rule="dock", kind="nodes", guests=101, nodes=["pve1"])
        assert "cannot change" in kind


async def test_rules_that_make_no_sense_are_refused(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "ha_set guest=102" in await quorate.refusal("ha_rule_set", rule="x", kind="apart", guests=[101, 102])
        assert "needs nodes" in await quorate.refusal("ha_rule_set", rule="x", kind="nodes", guests=101)
        assert "kind=nodes" in await quorate.refusal(
            "ha_rule_set", rule="x", kind="apart", guests=[101], nodes=["pve1"]
        )
        assert "either guest or rule" in await quorate.refusal("ha_remove")
        assert "No guest" in await quorate.refusal("ha_rule_set", rule="x", kind="apart", guests=[])


@pytest.mark.parametrize(
    ("fault", "call"),
    [
        ("drop:after:POST:/cluster/ha/resources", {"tool": "ha_set", "guest": 108}),
        ("drop:after:DELETE:/cluster/ha/resources/*", {"tool": "ha_remove", "guest": 101}),
        (
            "drop:after:POST:/cluster/ha/rules",
            {"tool": "ha_rule_set", "rule": "stay", "kind": "nodes", "guests": 101, "nodes": ["pve1"]},
        ),
        ("drop:after:POST:/cluster/ha/resources/*/migrate", {"tool": "ha_relocate", "guest": 101, "node": "pve2"}),
    ],
)
async def test_a_lost_answer_never_leads_to_a_second_write(tmp_path, fault, call):
    async with rig(tmp_path, faults=[fault]) as quorate:
        answer = await quorate.call(call.pop("tool"), **call)
        writes = [method for method, _ in quorate.sim.requests if method != "GET"]
        assert len(writes) == 1
        assert "answer was lost" in str(answer.structured_content) or "not known whether" in str(answer.content)


async def test_a_guest_that_the_ha_manager_cannot_carry_over_is_refused_with_the_way_out(tmp_path):
    async with rig(tmp_path) as quorate:
        world = quorate.sim.world
        world.ha["vm:102"] = HaResource("vm:102")  # with a snapshot on a local disk
        mark = len(quorate.sim.requests)
        text = await quorate.refusal("ha_relocate", guest=102, node="pve2")
        assert "before-upgrade" in text
        assert "disk_change action=move" in text
        assert "ha_remove" in text
        assert all(method == "GET" for method, _ in quorate.requests_since(mark))


async def test_a_storage_that_the_other_node_lacks_keeps_a_guest_under_ha_where_it_is(tmp_path):
    async with rig(tmp_path) as quorate:
        world = quorate.sim.world
        storage = next(one for one in world.storages.values() if one.id == "local-lvm")
        storage.nodes = frozenset({"pve1", "pve2"})
        guest = next(one for one in world.guests.values() if "local-lvm:" in str(one.config) and one.node != "pve3")
        world.ha[guest.sid] = HaResource(guest.sid)
        text = await quorate.refusal("ha_relocate", guest=guest.vmid, node="pve3")
        assert "pve3 does not have the storage local-lvm" in text


async def test_a_move_at_which_the_ha_manager_fails_is_told_as_a_failure(tmp_path):
    async with rig(tmp_path, faults=["task-fails:qmigrate:migration aborted"]) as quorate:
        text = await quorate.refusal("ha_relocate", guest=101, node="pve2")
        assert "the HA manager tried and failed" in text
        assert "task_get task=UPID:pve1" in text
        assert quorate.sim.world.guests[101].node == "pve1"


async def test_the_way_from_groups_to_rules_is_named_as_the_tool_calls_it(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "ha_rule_set kind=nodes" in await quorate.refusal("ha_set", guest=102, group="big")
