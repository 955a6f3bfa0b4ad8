"""High availability: resources, rules and moves, which end only when the HA manager is done."""

import pytest

from pve_simulator.cluster.ha_manager import HaManager
from pve_simulator.world import HaResource
from quorate.config import Access
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio


def rules_of(quorate):
    return quorate.sim.world.part(HaManager).rules.rules.sections


async def test_ha_status_shows_manager_resources_and_rules(tmp_path):
    async with rig(tmp_path) as quorate:
        status = await quorate.facts("ha_status")
        assert status["manager"]["quorum"] == "OK"
        assert status["resources"] == [
            {
                "guest": "vm:101", "node": "pve1", "wanted": "started", "state": "started",
                "comment": "the house notices when this is gone",
            }
        ]  # fmt: skip


async def test_on_pve_8_there_are_groups_instead_of_rules(tmp_path):
    async with rig(tmp_path, version="8.4.1") as quorate:
        path = "/cluster/ha/groups"
        await quorate.facts("api_call", method="POST", path=path, params={"group": "big", "nodes": "pve1,pve2"})
        status = await quorate.facts("ha_status")
        assert status["groups"][0]["group"] == "big"
        await quorate.facts("ha_set", guest="docker01", group="big")
        assert quorate.sim.world.ha["vm:102"].group == "big"
        assert "requires PVE 9" in await quorate.refusal("ha_set", guest=103, failback=False)
        text = await quorate.refusal("ha_rule_set", rule="x", kind="apart", guests=[101, 102])
        assert "HA groups, not rules" in text


async def test_a_guest_is_put_under_ha_and_started_by_it(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[108]
        answer = await quorate.facts("ha_set", guest="test-vm", max_restart=3, comment="try")
        assert (answer["result"], answer["state"]) == ("done", "started")
        assert guest.running
        resource = quorate.sim.world.ha["vm:108"]
        assert (resource.max_restart, resource.comment) == (3, "try")


async def test_the_requested_state_of_a_resource_is_changed_and_reached(tmp_path):
    async with rig(tmp_path) as quorate:
        answer = await quorate.facts("ha_set", guest=101, state="stopped")
        assert answer["state"] == "stopped"
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


async def test_a_container_on_its_way_does_not_leave_ha_stopped(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[201]
        await quorate.facts("ha_set", guest=201)
        await quorate.facts("ha_relocate", guest=201, node="pve2", wait=0)
        await quorate.facts("api_call", method="POST", path="/cluster/ha/resources/ct:201/migrate",
                            params={"node": "pve1"})  # fmt: skip
        for _ in range(60):
            if not guest.running:
                break
            await quorate.clock.advance(1)
        while not guest.running:
            text = await quorate.refusal("ha_remove", guest=201)
            assert "could stay stopped" in text
            await quorate.clock.advance(5)
        await quorate.clock.advance(20)
        assert (await quorate.facts("ha_remove", guest=201))["result"] == "done"
        await quorate.clock.advance(60)
        assert guest.running


async def test_the_plan_says_that_ha_starts_a_stopped_guest(tmp_path):
    async with rig(tmp_path) as quorate:
        plan = await quorate.facts("ha_set", guest="test-vm", dry_run=True)
        assert plan["warnings"] == ["vm 108 test-vm is stopped; the HA manager starts it"]
        for unlike in ({"guest": "test-vm", "state": "stopped"}, {"guest": 102}, {"guest": 101, "max_restart": 3}):
            assert "warnings" not in await quorate.facts("ha_set", dry_run=True, **unlike)


@pytest.mark.parametrize("how", ["migrate", "relocate"])
async def test_a_move_is_done_when_the_guest_has_arrived(tmp_path, how):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[101]
        answer = await quorate.facts("ha_relocate", guest="homeassistant", node="pve2", how=how)
        assert answer["result"] == "done"
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
        answer = await quorate.facts("ha_rule_set", rule="home", kind="nodes", guests=101, nodes=["pve1:2", "pve2"])
        assert answer["result"] == "done"
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


async def test_a_guest_that_the_ha_manager_cannot_move_is_refused_with_the_next_step(tmp_path):
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
        storage = next(candidate for candidate in world.storages.values() if candidate.id == "local-lvm")
        storage.nodes = frozenset({"pve1", "pve2"})
        guest = next(
            candidate
            for candidate in world.guests.values()
            if "local-lvm:" in str(candidate.config) and candidate.node != "pve3"
        )
        world.ha[guest.sid] = HaResource(guest.sid)
        text = await quorate.refusal("ha_relocate", guest=guest.vmid, node="pve3")
        assert "pve3 does not have the storage local-lvm" in text


async def test_a_move_that_the_ha_manager_fails_is_reported_as_a_failure(tmp_path):
    async with rig(tmp_path, faults=["task-fails:qmigrate:migration aborted"]) as quorate:
        text = await quorate.refusal("ha_relocate", guest=101, node="pve2")
        assert "the HA manager tried and failed" in text
        assert "task_get task=UPID:pve1" in text
        assert quorate.sim.world.guests[101].node == "pve1"


async def test_the_way_from_groups_to_rules_is_named_as_the_tool_calls_it(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "ha_rule_set kind=nodes" in await quorate.refusal("ha_set", guest=102, group="big")


# -- what the HA manager stops by force --------------------------------------------------------------------------------

FORCED = [
    ("guest_power", {"guest": 101, "action": "shutdown"}),
    ("guest_bulk", {"guests": [101, 104], "action": "shutdown"}),
    ("api_call", {"method": "POST", "path": "/nodes/pve1/qemu/101/status/shutdown"}),
    ("api_call", {"method": "POST", "path": "/nodes/localhost/qemu/101/status/shutdown", "params": {"forceStop": 0}}),
    ("ha_relocate", {"guest": 101, "node": "pve2", "how": "relocate"}),
    ("api_call", {"method": "POST", "path": "/cluster/ha/resources/101/relocate", "params": {"node": "pve2"}}),
    ("api_call", {"method": "POST", "path": "/cluster/ha/resources/ct:201/migrate", "params": {"node": "pve2"}}),
    ("guest_migrate", {"guest": 201, "node": "pve2"}),
    ("api_call", {"method": "POST", "path": "/nodes/pve1/migrateall", "params": {"target": "pve2"}}),
    ("api_call", {"method": "POST", "path": "/nodes/pve1/migrateall", "params": {"target": "pve2", "vms": "201"}}),
    ("api_call", {"method": "POST", "path": "/cluster/bulk-action/guest/migrate", "params": {"target": "pve2"}}),
    ("ha_rule_set", {"rule": "elsewhere", "kind": "nodes", "guests": 201, "nodes": ["pve2"]}),
    ("ha_rule_set", {"rule": "rather-there", "kind": "nodes", "guests": [101, 201], "nodes": ["pve1:1", "pve2:2"]}),
    ("ha_rule_set", {"rule": "apart", "kind": "apart", "guests": [101, 201]}),
]


@pytest.mark.parametrize(("tool", "arguments"), FORCED)
async def test_a_forced_stop_by_ha_is_a_destruction(tmp_path, tool, arguments):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        quorate.sim.world.ha["ct:201"] = HaResource("ct:201")
        before = len(quorate.sim.requests)
        text = await quorate.refusal(tool, **arguments)
        assert "refused at access level operate" in text
        assert {method for method, _ in quorate.requests_since(before)} <= {"GET"}


async def test_a_rule_that_leaves_a_container_where_it_is_stops_nothing_until_it_is_changed(tmp_path):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        quorate.sim.world.ha["ct:201"] = HaResource("ct:201")
        here = {"rule": "here", "kind": "nodes", "guests": 201, "nodes": ["pve1:2", "pve2:1"]}
        assert (await quorate.facts("ha_rule_set", **here))["result"] == "done"
        rule = {"method": "PUT", "path": "/cluster/ha/rules/here"}
        await quorate.facts("api_call", **rule, params={"type": "node-affinity", "comment": "x"})
        text = await quorate.refusal("api_call", **rule, params={"type": "node-affinity", "nodes": "pve1:1,pve2:2"})
        assert "refused at access level operate" in text


async def test_the_refusal_says_that_ha_does_it_by_force(tmp_path):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        text = await quorate.refusal("guest_power", guest=101, action="shutdown")
        assert "under HA: it stops guests, if necessary by force" in text


async def test_a_guest_without_ha_is_shut_down_at_access_operate(tmp_path):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        ignored = quorate.sim.world.ha["vm:101"]
        ignored.state, ignored.crm_state, ignored.shown_state = "ignored", None, "ignored"
        for guest in (101, 103):
            await quorate.facts("guest_power", guest=guest, action="shutdown")
            assert not quorate.sim.world.guests[guest].running


async def test_moving_a_vm_under_ha_needs_only_access_operate_because_it_keeps_running(tmp_path):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        assert (await quorate.facts("ha_relocate", guest=101, node="pve2"))["node"] == "pve2"
        assert quorate.sim.world.guests[101].running
