"""Where a guest may run after a call: no move and no setting of HA brings it out of a rule by node, or beyond one."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pve_simulator.cluster.datacenter import Datacenter
from pve_simulator.cluster.ha_manager import HaManager
from pve_simulator.world import HaResource
from quorate.config import Access
from tests.pipeline.test_policy import policy
from tests.pipeline.test_safety_table import tries
from tests.rigs.mcp_session import Rig, rig

pytestmark = pytest.mark.anyio

DENY = '[[rules]]\nname = "first node stays"\ndeny = "destroy"\nnodes = ["pve1"]\n'
ALLOW = '[[rules]]\nname = "two nodes"\nallow = "change"\nnodes = ["pve1", "pve2"]\n'
HERE = "first node stays"
RULES, RESOURCES, GROUPS = "/cluster/ha/rules", "/cluster/ha/resources", "/cluster/ha/groups"
Attempt = tuple[str, dict[str, Any]]


def api(method: str, path: str, /, **params: Any) -> Attempt:
    return "api_call", {"method": method, "path": path, "params": params}


def ruled(tmp_path, text: str = DENY, *, access: Access = Access.OPERATE, **more: Any):
    return rig(tmp_path, access=access, more={"policy": policy(text)}, **more)


def prepare(quorate: Rig) -> None:
    """Guests under HA on three nodes: 101 must stay on pve1, ct 201 may, ct 200 there belongs together with 103."""
    world = quorate.sim.world
    for sid in ("vm:103", "vm:105", "vm:108", "ct:200"):
        world.ha[sid] = HaResource(sid)
    world.guests[108].snapshots.clear()  # so that it can be moved
    world.guests[108].config.pop("parent", None)
    world.ha["vm:108"].state = "stopped"
    world.ha["ct:201"] = HaResource("ct:201", failback=False, options={"failback": 0})
    rules = world.part(HaManager).rules.rules.sections
    rules["home"] = {"type": "node-affinity", "resources": "vm:101", "nodes": "pve1", "strict": 1}
    rules["later"] = {"type": "node-affinity", "resources": "ct:201", "nodes": "pve2:2,pve1:1"}
    rules["asleep"] = {"type": "node-affinity", "resources": "ct:200", "nodes": "pve2", "disable": 1}
    rules["joined"] = {"type": "resource-affinity", "affinity": "positive", "resources": "ct:200,vm:103"}


def state(quorate: Rig) -> Any:
    world = quorate.sim.world
    manager = world.part(HaManager)
    return copy.deepcopy(
        [
            manager.rules.rules.sections,
            manager.rules.groups.sections,
            {
                sid: (resource.state, resource.failback, resource.group, resource.options)
                for sid, resource in world.ha.items()
            },
            {vmid: (guest.node, guest.running) for vmid, guest in world.guests.items()},
            world.part(Datacenter).options,
        ]
    )


async def refused_and_unchanged(quorate: Rig, tool: str, arguments: dict[str, Any], rule: str = HERE) -> None:
    before = state(quorate)
    text = await quorate.refusal(tool, **arguments)
    assert f"the rule '{rule}'" in text or (rule != HERE and "no rule allows" in text), text
    await quorate.clock.advance(60)
    assert state(quorate) == before


ESCAPES: list[Attempt] = [
    ("ha_rule_set", {"rule": "away", "kind": "nodes", "guests": [101], "nodes": ["pve2"], "strict": True}),
    ("ha_rule_set", {"rule": "away", "kind": "nodes", "guests": [101], "nodes": ["pve2"]}),
    ("ha_rule_set", {"rule": "home", "kind": "nodes", "guests": [101], "nodes": ["pve2"], "strict": True}),
    ("ha_rule_set", {"rule": "home", "kind": "nodes", "guests": [101], "nodes": ["pve1", "pve2"], "strict": True}),
    ("ha_rule_set", {"rule": "home", "kind": "nodes", "guests": [101], "nodes": ["pve1"], "strict": False}),
    ("ha_rule_set", {"rule": "home", "kind": "nodes", "guests": [101], "nodes": ["pve1"], "enabled": False}),
    ("ha_rule_set", {"rule": "home", "kind": "nodes", "guests": [103], "nodes": ["pve1"]}),
    ("ha_rule_set", {"rule": "both", "kind": "together", "guests": [201, 103]}),
    ("ha_remove", {"rule": "home"}),
    ("ha_set", {"guest": 102}),
    ("ha_set", {"guest": 201, "failback": True}),
    ("guest_migrate", {"guest": 108, "node": "pve2"}),
    api("POST", RULES, rule="away", type="node-affinity", resources="vm:101", nodes="pve2", strict=1),
    api("POST", RULES, rule="apart", type="resource-affinity", affinity="negative", resources="ct:200,ct:201"),
    api("PUT", f"{RULES}/home", type="node-affinity", nodes="pve3"),
    api("PUT", f"{RULES}/home", type="node-affinity", delete="strict"),
    api("PUT", f"{RULES}/home", type="node-affinity", disable=1),
    api("PUT", f"{RULES}/home", type="node-affinity", resources="vm:105"),
    api("PUT", f"{RULES}/asleep", type="node-affinity", delete="disable"),
    api("PUT", f"{RULES}/asleep", type="node-affinity", disable=0),
    api("POST", RESOURCES, sid="vm:102"),
    api("POST", RESOURCES, sid="102"),
    api("PUT", f"{RESOURCES}/ct:201", failback=1),
    api("PUT", f"{RESOURCES}/ct:201", delete="failback"),
    api("POST", f"{RESOURCES}/103/migrate", node="pve3"),
    api("POST", "/nodes/pve1/qemu/108/migrate", target="pve2"),
    api("POST", "/nodes/pve2/qemu/103/migrate", target="pve3"),
    api("POST", "/nodes/pve1/migrateall", target="pve2"),
    api("POST", "/cluster/bulk-action/guest/migrate", target="pve2", vms=[108]),
]


@tries("a guest is moved out of a rule by node, by HA or with another guest")
@pytest.mark.parametrize(("tool", "arguments"), ESCAPES, ids=str)
async def test_no_guest_leaves_a_rule_by_node(tmp_path, tool, arguments):
    """At admin, so that nothing but the rule can refuse it."""
    async with ruled(tmp_path, access=Access.ADMIN) as quorate:
        prepare(quorate)
        await refused_and_unchanged(quorate, tool, arguments)


@pytest.mark.parametrize("crs", ["ha=dynamic,ha-auto-rebalance=1", "ha=static,ha-rebalance-on-start=1"])
async def test_no_setting_of_the_scheduler_lets_guests_leave(tmp_path, crs):
    async with ruled(tmp_path, access=Access.ADMIN) as quorate:
        prepare(quorate)
        await refused_and_unchanged(quorate, *api("PUT", "/cluster/options", crs=crs))
        await quorate.facts("api_call", method="PUT", path="/cluster/options", params={"crs": "ha=static"})


async def test_while_the_scheduler_moves_guests_a_rule_that_names_another_node_lets_them_leave(tmp_path):
    async with ruled(tmp_path) as quorate:
        prepare(quorate)
        options = quorate.sim.world.part(Datacenter).options
        options["crs"] = "ha=dynamic,ha-auto-rebalance=1"
        both = {"rule": "two", "kind": "nodes", "guests": [108], "nodes": ["pve1", "pve2"], "strict": True}
        await refused_and_unchanged(quorate, "ha_rule_set", both)
        del options["crs"]
        await quorate.facts("ha_rule_set", **both)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("ha_set", {"guest": 102, "group": "away"}),
        ("ha_set", {"guest": 101, "group": "away"}),
        api("PUT", f"{GROUPS}/near", nodes="pve2"),
        api("PUT", f"{GROUPS}/near", restricted=0),
        api("PUT", f"{RESOURCES}/vm:101", group="away"),
        api("PUT", f"{RESOURCES}/vm:101", delete="group"),
    ],
    ids=str,
)
async def test_no_group_of_pve_8_lets_guests_leave(tmp_path, tool, arguments):
    async with ruled(tmp_path, access=Access.ADMIN, version="8.4.14") as quorate:
        world = quorate.sim.world
        world.ha["vm:101"] = HaResource("vm:101", group="near", options={"group": "near"})
        groups = world.part(HaManager).rules.groups.sections
        groups["near"] = {"type": "group", "nodes": "pve1", "restricted": 1}
        groups["away"] = {"type": "group", "nodes": "pve2", "restricted": 1}
        await refused_and_unchanged(quorate, tool, arguments)


async def test_what_leaves_guests_where_they_are_still_works(tmp_path):
    async with ruled(tmp_path) as quorate:
        prepare(quorate)
        rules = quorate.sim.world.part(HaManager).rules.rules.sections
        change = {"rule": "home", "kind": "nodes", "guests": [101], "nodes": ["pve1"], "strict": True}
        await quorate.facts("ha_rule_set", **change, comment="it stays")
        assert rules["home"]["comment"] == "it stays"
        await quorate.facts("ha_set", guest=101, max_restart=3)
        await quorate.facts("ha_rule_set", rule="more", kind="nodes", guests=[105], nodes=["pve2", "pve3"])
        await quorate.facts("guest_migrate", guest=104, node="pve3", with_local_disks=True, wait=50)
        assert quorate.sim.world.guests[104].node == "pve3"
        await quorate.facts("api_call", method="PUT", path=f"{RESOURCES}/vm:105", params={"failback": 0})


BEYOND: list[Attempt] = [
    ("ha_set", {"guest": 102}),
    ("ha_remove", {"rule": "home"}),
    ("ha_rule_set", {"rule": "home", "kind": "nodes", "guests": [101], "nodes": ["pve1", "pve2"], "strict": False}),
    ("guest_migrate", {"guest": 108, "node": "pve3"}),
    api("PUT", f"{RULES}/home", type="node-affinity", disable=1),
    api("POST", "/nodes/pve1/qemu", vmid=555, **{"ha-managed": 1}),
]


@pytest.mark.parametrize(("tool", "arguments"), BEYOND, ids=str)
async def test_a_permission_by_node_also_covers_where_a_guest_may_go(tmp_path, tool, arguments):
    async with ruled(tmp_path, ALLOW, access=Access.ADMIN) as quorate:
        prepare(quorate)
        await refused_and_unchanged(quorate, tool, arguments, "two nodes")


async def test_within_the_permitted_nodes_guests_move(tmp_path):
    async with ruled(tmp_path, ALLOW) as quorate:
        prepare(quorate)
        rules = quorate.sim.world.part(HaManager).rules.rules.sections
        wider = {"rule": "home", "kind": "nodes", "guests": [101], "nodes": ["pve1", "pve2"], "strict": True}
        await quorate.facts("ha_rule_set", **wider)
        assert set(rules["home"]["nodes"].split(",")) == {"pve1", "pve2"}
        await quorate.facts("ha_relocate", guest=101, node="pve2")
        assert quorate.sim.world.guests[101].node == "pve2"
        await quorate.facts("api_call", method="POST", path="/nodes/pve1/qemu", params={"vmid": 555})


FOLLOWING: list[Attempt] = [
    ("ha_relocate", {"guest": 101, "node": "pve2"}),
    ("guest_migrate", {"guest": 101, "node": "pve2"}),
    api("POST", f"{RESOURCES}/101/migrate", node="pve2"),
    api("POST", "/nodes/pve1/qemu/101/migrate", target="pve2", online=1),
    api("POST", "/nodes/pve1/migrateall", target="pve2", vms="101"),
    api("POST", "/cluster/bulk-action/guest/migrate", target="pve2", vms=["101"]),
]


def join(quorate: Rig) -> None:
    """ct 200 has to run where vm 101 runs."""
    world = quorate.sim.world
    world.ha["ct:200"] = HaResource("ct:200")
    together = {"type": "resource-affinity", "affinity": "positive", "resources": "ct:200,vm:101"}
    world.part(HaManager).rules.rules.sections["joined"] = together


@pytest.mark.parametrize(("tool", "arguments"), FOLLOWING, ids=str)
async def test_a_container_that_has_to_follow_a_vm_is_stopped_by_force(tmp_path, tool, arguments):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        join(quorate)
        before = state(quorate)
        assert "refused at access level operate" in await quorate.refusal(tool, **arguments)
        assert state(quorate) == before


@pytest.mark.parametrize(("tool", "arguments"), FOLLOWING, ids=str)
async def test_a_guest_that_has_to_follow_another_does_not_leave_its_rule(tmp_path, tool, arguments):
    """The rule covers ct 200 only, while the call is about vm 101."""
    rule = f'{DENY}tags = ["dns"]\n'
    async with ruled(tmp_path, rule, access=Access.ADMIN) as quorate:
        join(quorate)
        await refused_and_unchanged(quorate, tool, arguments)


async def test_what_credentials_cannot_read_counts_against_the_caller(tmp_path):
    """Without Sys.Audit the rules of HA are unknown, so any guest under HA may have to follow another."""
    async with ruled(tmp_path, access=Access.ADMIN) as quorate:
        prepare(quorate)
        quorate.sim.faults.add("403:GET:/cluster/ha/*")
        await refused_and_unchanged(quorate, *api("POST", "/nodes/pve3/qemu/105/migrate", target="pve2", online=1))
