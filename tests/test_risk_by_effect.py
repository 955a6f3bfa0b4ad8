"""A call is as grave as what it does, whichever tool or path reaches it."""

from dataclasses import replace
from typing import Any

import pytest

from quorate.config import Access, Approval
from quorate.operations import registry
from quorate.operations.api.risk import judge
from quorate.operations.plan import Call, Plan, guest_call
from quorate.operations.registry import GuestRef, Risk, operations
from quorate.pipeline.effect import MILDER, effect
from quorate.pve.cluster import Cluster
from quorate.pve.schema import NEWEST, OLDEST, facts
from tests.driving import rig, text_of
from tests.test_policy import policy

pytestmark = pytest.mark.anyio


async def guest_tidy(pve: Cluster, guest: GuestRef) -> Plan:
    """Tidy a guest up: a tool whose author thought little of what it deletes."""
    found = await pve.guest(guest)
    return Plan(f"Tidy {found}", (guest_call(found, "DELETE", "", f"Delete {found}"),))


@pytest.fixture
def careless():
    """The tool among the others, declared as a mere change."""
    guest_tidy.__module__ = "quorate.operations.guests.tidying"
    registry.operation(risk=Risk.CHANGE)(guest_tidy)
    yield
    del registry._operations["guest_tidy"]


async def test_a_tool_that_plans_more_than_it_was_declared_for_needs_the_level_of_what_it_does(tmp_path, careless):
    async with rig(tmp_path, access=Access.OPERATE, toolsets=("guests",)) as quorate:
        assert "guest_tidy" in {tool.name for tool in (await quorate.client.list_tools()).tools}
        text = await quorate.refusal("guest_tidy", guest="test-vm")
        assert "access level operate" in text
        assert "DELETE /nodes/pve1/qemu/108: it deletes" in text
        assert "access level operate" in await quorate.refusal("guest_tidy", guest="test-vm", dry_run=True)
        assert 108 in quorate.sim.world.guests
        entry = quorate.audit()[0]
        assert (entry["risk"], entry["outcome"]) == ("destroy", "refused")


async def test_it_needs_the_approval_of_what_it_does(tmp_path, careless):
    async with rig(tmp_path, approval=Approval.ASK, toolsets=("guests",)) as quorate:
        answer = await quorate.call("guest_tidy", guest="test-vm", wait=0)
        assert answer.is_error
        assert "waits for an operator's approval" in text_of(answer)
        assert 108 in quorate.sim.world.guests


async def test_it_meets_the_rules_and_limits_of_what_it_does(tmp_path, careless):
    text = '[[rules]]\nname = "lab stays"\ndeny = "destroy"\ntags = "lab"\n[policy]\ndestroys_per_hour = 0\n'
    async with rig(tmp_path, toolsets=("guests",), more={"policy": policy(text)}) as quorate:
        assert "'lab stays'" in await quorate.refusal("guest_tidy", guest="test-vm")
        assert "limit destroys_per_hour" in await quorate.refusal("guest_tidy", guest="win11")


def test_an_excuse_holds_for_its_reason_only():
    table = facts(NEWEST)
    tool = operations()["nic_remove"]

    def plan(**params):
        return Plan("x", (Call("x", "PUT", "/nodes/pve1/qemu/100/config", params),))

    assert effect(tool, Risk.CHANGE, plan(delete="net0"), table) == (Risk.CHANGE, "")
    assert effect(tool, Risk.CHANGE, plan(delete="scsi0"), table)[0] is Risk.DESTROY
    assert effect(tool, Risk.CHANGE, plan(delete="unused0"), table)[0] is Risk.DESTROY
    assert effect(tool, Risk.CHANGE, plan(delete="net0,unused0"), table)[0] is Risk.DESTROY
    assert effect(operations()["disk_change"], Risk.CHANGE, plan(delete="unused3"), table)[0] is Risk.DESTROY
    graver = replace(plan(delete="net0"), risk=Risk.DESTROY)
    assert effect(tool, Risk.CHANGE, graver, table) == (Risk.DESTROY, graver.summary)
    assert effect(tool, Risk.DESTROY, replace(graver, risk=Risk.CHANGE), table) == (Risk.DESTROY, "")


def test_the_list_of_excuses_is_small_and_about_tools_that_need_one():
    assert len(MILDER) <= 15
    for tool, _ in MILDER:
        assert operations()[tool].risk is Risk.CHANGE


GRAVE: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
    "rights": [
        ("PUT", "/access/acl", {}),
        ("POST", "/access/roles", {}),
        ("PUT", "/access/roles/{roleid}", {}),
        ("POST", "/access/users", {}),
        ("PUT", "/access/users/{userid}", {}),
        ("POST", "/access/users/{userid}/token/{tokenid}", {}),
        ("PUT", "/access/users/{userid}/token/{tokenid}", {}),
        ("PUT", "/access/groups/{groupid}", {}),
        ("PUT", "/access/password", {}),
        ("POST", "/access/domains", {}),
        ("POST", "/access/domains/{realm}/sync", {}),
        ("POST", "/access/tfa/{userid}", {}),
        ("PUT", "/pools", {"poolid": "x", "vms": "100"}),
        ("PUT", "/cluster/options", {"user-tag-access": "x"}),
        ("POST", "/nodes/{node}/qemu/{vmid}/agent/set-user-password", {}),
    ],
    "nodes": [("POST", "/nodes/{node}/status", {}), ("POST", "/nodes/{node}/services/{service}/stop", {})],
    "firewall": [
        ("PUT", "/cluster/firewall/options", {}),
        ("POST", "/cluster/firewall/rules", {}),
        ("POST", "/cluster/firewall/groups/{group}", {}),
        ("PUT", "/cluster/firewall/ipset/{name}/{cidr}", {}),
        ("PUT", "/nodes/{node}/firewall/options", {}),
        ("POST", "/nodes/{node}/firewall/rules", {}),
        ("PUT", "/cluster/sdn/vnets/{vnet}/firewall/options", {}),
    ],
    "networks": [("PUT", "/nodes/{node}/network", {}), ("PUT", "/cluster/sdn", {}), ("PUT", "/nodes/{node}/dns", {})],
    "data": [
        ("POST", "/nodes/{node}/qemu", {"vmid": 100, "archive": "x", "force": 1}),
        ("POST", "/nodes/{node}/lxc", {"vmid": 100, "ostemplate": "x", "force": "1"}),
        ("PUT", "/nodes/{node}/qemu/{vmid}/config", {"scsi0": "none"}),
        ("POST", "/nodes/{node}/qemu/{vmid}/config", {"delete": "unused0"}),
        ("PUT", "/nodes/{node}/lxc/{vmid}/config", {"delete": "mp0"}),
        ("PUT", "/nodes/{node}/qemu/{vmid}/unlink", {}),
        ("POST", "/nodes/{node}/qemu/{vmid}/snapshot/{snapname}/rollback", {}),
        ("POST", "/nodes/{node}/disks/initgpt", {}),
        ("PUT", "/nodes/{node}/disks/wipedisk", {}),
        ("POST", "/nodes/{node}/vzdump", {"vmid": 100}),
        ("POST", "/nodes/{node}/vzdump", {"vmid": 100, "remove": 1}),
        ("POST", "/nodes/{node}/qemu/{vmid}/move_disk", {"disk": "scsi0", "target-vmid": 101}),
    ],
    "for good": [
        ("POST", "/nodes/{node}/qemu/{vmid}/template", {}),
        ("POST", "/nodes/{node}/qemu/{vmid}/remote_migrate", {}),
        ("POST", "/nodes/{node}/qemu/{vmid}/status/stop", {}),
        ("POST", "/nodes/{node}/qemu/{vmid}/monitor", {}),
    ],
}


@pytest.mark.parametrize("kind", GRAVE)
def test_what_grants_stops_opens_rewrites_deletes_or_cannot_be_undone_is_destroy(kind):
    known = {(one.method, one.template) for version in (NEWEST, OLDEST) for one in facts(version).endpoints()}
    for method, template, params in GRAVE[kind]:
        assert (method, template) in known, template
        assert judge(method, template, params)[0] is Risk.DESTROY, template


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_whole_families_of_endpoints_have_no_gap(version):
    for one in facts(version).endpoints():
        risk, _ = judge(one.method, one.template, {})
        if one.method == "GET":
            assert risk in (Risk.READ, Risk.LOOK_INSIDE)
        elif one.method == "DELETE" or one.template.startswith(("/access", "/cluster/firewall", "/cluster/config")):
            assert risk is Risk.DESTROY, one
        else:
            assert risk in (Risk.CHANGE, Risk.DESTROY)
