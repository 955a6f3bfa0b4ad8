"""The risk of a call follows from what it does, whichever tool or path reaches it."""

from dataclasses import replace
from typing import Any

import pytest

from pve_schema.schema import NEWEST, OLDEST, facts
from quorate.config import Access, Approval
from quorate.operations import registry
from quorate.operations.plan import Call, Plan, guest_call
from quorate.operations.registry import GuestRef, Risk, operations
from quorate.operations.risk import Reason, effects, effects_of
from quorate.pipeline.authorization import effect
from quorate.pve.cluster import Cluster
from quorate.pve.wire import read
from tests.pipeline.test_policy import policy
from tests.rigs.mcp_session import rig, text_of

pytestmark = pytest.mark.anyio


async def guest_tidy(pve: Cluster, guest: GuestRef) -> Plan:
    """Tidy a guest up: a tool whose author thought little of what it deletes."""
    victim = await pve.guest(guest)
    return Plan(f"Tidy {victim}", (guest_call(victim, "DELETE", "", f"Delete {victim}"),))


@pytest.fixture
def careless():
    """The tool among the others, declared as a mere change."""
    guest_tidy.__module__ = "quorate.tools.guests"
    registry.operation(toolset="guests", risk=Risk.CHANGE)(guest_tidy)
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


async def test_an_exemption_holds_for_its_call_only(tmp_path):
    table = facts(NEWEST)
    tool = operations()["nic_remove"]

    def plan(**params):
        return Plan("x", (Call("x", "PUT", "/nodes/pve1/qemu/100/config", params),))

    async with rig(tmp_path) as quorate:
        cluster = quorate.app.cluster
        assert await effect(tool, Risk.CHANGE, plan(delete="net0"), table, cluster) == (Risk.CHANGE, "")
        for deleted in ("scsi0", "unused0", "net0,unused0", "net0,ipconfig0"):
            assert (await effect(tool, Risk.CHANGE, plan(delete=deleted), table, cluster))[0] is Risk.DESTROY
        unused = await effect(operations()["disk_change"], Risk.CHANGE, plan(delete="unused3"), table, cluster)
        assert unused[0] is Risk.DESTROY
        graver = replace(plan(delete="net0"), risk=Risk.DESTROY)
        assert await effect(tool, Risk.CHANGE, graver, table, cluster) == (Risk.DESTROY, graver.summary)
        milder = replace(graver, risk=Risk.CHANGE)
        assert await effect(tool, Risk.DESTROY, milder, table, cluster) == (Risk.DESTROY, "")


def test_the_list_of_exemptions_is_small_and_about_tools_that_need_one():
    exempt = [operation for operation in operations().values() if operation.exemptions]
    assert sum(len(operation.exemptions) for operation in exempt) <= 15
    assert {operation.least_risk for operation in exempt} == {Risk.CHANGE}


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
    "guards": [
        ("PUT", "/cluster/options", {"ha": "shutdown_policy=freeze"}),
        ("PUT", "/cluster/options", {"fencing": "hardware"}),
    ],
    "ceph": [
        ("POST", "/nodes/{node}/ceph/init", {"network": "198.51.100.0/24"}),
        ("POST", "/nodes/{node}/ceph/pool", {"name": "x", "add_storages": 1}),
        ("POST", "/nodes/{node}/ceph/pool", {"name": "x", "erasure-coding": "k=2,m=1"}),
        ("POST", "/nodes/{node}/ceph/fs/{name}", {"add-storage": 1}),
    ],
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
        ("PUT", "/nodes/{node}/qemu/{vmid}/config", {"cicustom": "vendor=nas:snippets/a,user=nas:snippets/vm-9-u.yml"}),
        ("POST", "/nodes/{node}/qemu", {"vmid": 100, "cicustom": "meta=nas:snippets/vm-105-meta.yml"}),
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
        ("PUT", "/nodes/{node}/lxc/{vmid}/config", {"lock": "backup"}),
        ("POST", "/nodes/{node}/qemu/{vmid}/template", {}),
        ("POST", "/nodes/{node}/qemu/{vmid}/remote_migrate", {}),
        ("POST", "/nodes/{node}/qemu/{vmid}/status/stop", {}),
        ("POST", "/nodes/{node}/qemu/{vmid}/monitor", {}),
    ],
}


@pytest.mark.parametrize("kind", GRAVE)
def test_what_grants_stops_opens_rewrites_deletes_or_cannot_be_undone_is_destroy(kind):
    known = {
        version: {(endpoint.method, endpoint.template) for endpoint in facts(version).endpoints()}
        for version in (NEWEST, OLDEST)
    }
    for method, template, params in GRAVE[kind]:
        assert (method, template) in known[NEWEST] | known[OLDEST], template
        version = NEWEST if (method, template) in known[NEWEST] else OLDEST
        assert effects_of(facts(version).endpoint(method, template), params)[0].risk is Risk.DESTROY, template


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_whole_families_of_endpoints_have_no_gap(version):
    for endpoint in facts(version).endpoints():
        risk = effects_of(endpoint)[0].risk
        if endpoint.method == "GET":
            assert risk in (Risk.READ, Risk.LOOK_INSIDE)
        elif endpoint.method == "DELETE" or endpoint.template.startswith(
            ("/access", "/cluster/firewall", "/cluster/config")
        ):
            assert risk is Risk.DESTROY, endpoint
        else:
            assert risk in (Risk.CHANGE, Risk.DESTROY)


def reasons(method: str, path: str, /, **params: Any) -> set[Reason]:
    request = read(facts(NEWEST), method, path, params)
    assert request is not None
    return {effect.reason for effect in effects(request)}


CONFIG = "/nodes/pve1/qemu/108/config"


def test_every_effect_of_a_call_is_named_and_the_gravest_comes_first():
    actual = reasons(
        "PUT", CONFIG, delete="unused0,net0", scsi1="local-lvm:vm-100-disk-0", args="-S", onboot=1, force=1
    )
    assert actual == {
        Reason.DELETES_DATA,
        Reason.TAKES_DEVICE,
        Reason.DISK_PLACE,
        Reason.FOREIGN_VOLUME,
        Reason.NODE_CODE,
        Reason.FORCED,
    }
    assert reasons("PUT", CONFIG, onboot=1) == {Reason.CHANGES}
    assert reasons("DELETE", "/nodes/pve1/qemu/108") == {Reason.DELETES_DATA}


@pytest.mark.parametrize(
    ("undoable", "call"),
    [
        (True, ("PUT", "/access/users/alice@pve", {"email": "alice@example.org"})),
        (True, ("DELETE", "/cluster/ha/resources/vm:100", {})),
        (True, ("PUT", CONFIG, {"delete": "scsi0"})),
        (False, ("PUT", CONFIG, {"delete": "unused0"})),
        (False, ("DELETE", "/nodes/pve1/qemu/108", {})),
        (False, ("DELETE", "/nodes/pve1/qemu/108/snapshot/s", {})),
        (False, ("DELETE", "/access/users/alice@pve", {})),
        (False, ("POST", "/nodes/pve1/qemu/108/status/stop", {})),
        (False, ("POST", "/nodes/pve1/vzdump", {"vmid": 108})),
    ],
)
def test_what_cannot_be_undone_is_known(undoable, call):
    method, path, params = call
    request = read(facts(NEWEST), method, path, params)
    assert request is not None
    assert all(effect.undoable for effect in effects(request)) is undoable


@pytest.mark.parametrize(
    "value",
    [
        "local-lvm:vm-100-disk-0",
        "file=local-lvm:vm-100-disk-0",
        "cache=none,volume=local-lvm:vm-100-disk-0",
        "local:100/vm-100-disk-0.qcow2",
        "tank:base-108-disk-0/vm-100-disk-0",
        "tank:nobody-knows",
        "iscsi:0.0.0.scsi-36001405",
    ],
)
@pytest.mark.parametrize("drive", ["scsi3", "ide0", "sata5", "virtio9", "efidisk0", "tpmstate0", "unused7", "cdrom"])
def test_a_volume_that_is_not_the_guests_own_is_grave_in_every_drive(drive, value):
    assert Reason.FOREIGN_VOLUME in reasons("PUT", CONFIG, **{drive: value})


@pytest.mark.parametrize(
    "value",
    [
        "local-lvm:32",
        "local-lvm:vm-108-disk-4,discard=on",
        "tank:base-9000-disk-0/vm-108-disk-0",
        "local:iso/debian.iso,media=cdrom",
        "none,media=cdrom",
        "local-lvm:cloudinit",
        "local-lvm:0,import-from=local:108/vm-108-disk-0.qcow2",
        "local-lvm:0,import-from=local:import/debian-13.qcow2",
    ],
)
def test_new_disks_own_disks_and_discs_are_no_strangers(value):
    assert reasons("PUT", CONFIG, scsi3=value) == {Reason.DISK_PLACE}
    assert reasons("POST", "/nodes/pve1/qemu", vmid=108, scsi3=value) == {Reason.CHANGES}


def test_a_copy_of_another_guests_volume_is_grave():
    value = "local-lvm:0,import-from=local:100/vm-100-disk-0.qcow2"
    assert Reason.COPIES_VOLUME in reasons("PUT", CONFIG, scsi3=value)
    assert Reason.COPIES_VOLUME in reasons("POST", "/nodes/pve1/qemu", vmid=108, scsi3=value)


@pytest.mark.parametrize("value", ["a,b", "=x", "file=a:1,file=b:2", "volume=a:1,file=b:2", ","])
def test_a_drive_that_cannot_be_read_is_grave(value):
    assert Reason.UNREADABLE in reasons("PUT", CONFIG, scsi3=value)


@pytest.mark.parametrize("value", ["\uff11", "1\n", "+\uff11", "yes", "1\0"])
def test_a_number_or_switch_that_pve_might_read_otherwise_is_grave(value):
    assert Reason.UNREADABLE in reasons("PUT", CONFIG, onboot=value)
    assert Reason.UNREADABLE in reasons("PUT", CONFIG, description="x\0y")
