"""Networks of nodes: edits are pending until applied or reverted."""

import pytest

from pve_simulator.routes.nodes.network import Networks
from quorate.config import Access
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio


def network(quorate, node="pve1"):
    return quorate.sim.world.part(Networks).of(node)


async def test_interfaces_are_listed_with_addresses_and_ports(tmp_path):
    async with rig(tmp_path) as quorate:
        rows = {row["iface"]: row for row in await quorate.rows("network_list", of="node", node="pve1")}
        assert rows["vmbr0"]["cidr"] == f"{quorate.sim.world.nodes['pve1'].ip}/24"
        assert rows["vmbr0"]["ports"] == "eno1"
        bridges = await quorate.rows("network_list", of="node", node="pve1", kind="bridge")
        assert [row["iface"] for row in bridges] == ["vmbr0", "vmbr1"]
        assert "The nodes are" in await quorate.refusal("network_list", of="node", node="pve9")


@pytest.mark.parametrize("version", ["8.4.1", "9.1.8"])
async def test_a_new_bridge_waits_until_it_is_applied(tmp_path, version):
    async with rig(tmp_path, version=version) as quorate:
        answer = await quorate.facts(
            "node_network_change", node="pve1", action="set", iface="vmbr9", type="bridge", vlan_aware=True,
            cidr="10.20.0.1/24", comment="lab",
        )  # fmt: skip
        assert "+iface vmbr9 inet static" in answer["pending"]
        assert "network_apply of=node" in answer["next"]
        assert "vmbr9" not in quorate.sim.world.nodes["pve1"].bridges
        listed = await quorate.facts("network_list", of="node", node="pve1")
        assert "+iface vmbr9" in listed["pending"]
        applied = await quorate.facts("network_apply", of="node", node="pve1")
        assert applied["result"] == "done"
        assert "vmbr9" in quorate.sim.world.nodes["pve1"].bridges
        assert network(quorate).changes() is None


async def test_a_change_keeps_everything_else_of_the_interface(tmp_path):
    async with rig(tmp_path) as quorate:
        before = network(quorate).describe("vmbr0")
        await quorate.facts("node_network_change", node="pve1", action="set", iface="vmbr0", mtu=1400)
        after = network(quorate).describe("vmbr0")
        assert after["mtu"] == "1400"  # as the file has it
        for key in ("cidr", "gateway", "bridge_ports", "method", "autostart"):
            assert after[key] == before[key], key


async def test_an_address_may_be_written_with_a_netmask(tmp_path):
    async with rig(tmp_path) as quorate:
        options = {"address": "192.168.10.77", "netmask": "255.255.255.0"}
        await quorate.facts("node_network_change", node="pve1", action="set", iface="vmbr0", options=options)
        assert network(quorate).describe("vmbr0")["cidr"] == "192.168.10.77/24"


async def test_an_option_is_removed(tmp_path):
    async with rig(tmp_path) as quorate:
        change = {"node": "pve1", "action": "set", "iface": "vmbr0"}
        await quorate.facts("node_network_change", **change, remove=["gateway"])
        assert "gateway" not in network(quorate).describe("vmbr0")


async def test_edits_are_dropped(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("node_network_change", node="pve1", action="delete", iface="vmbr1")
        assert "vmbr1" not in network(quorate).configured
        answer = await quorate.facts("node_network_change", node="pve1", action="revert")
        assert "-iface vmbr1" in answer["dropped"]
        assert "vmbr1" in network(quorate).configured
        assert (await quorate.facts("node_network_change", node="pve1", action="revert"))["result"] == "nothing to do"


async def test_applying_shows_the_difference_and_the_danger_first(tmp_path):
    async with rig(tmp_path) as quorate:
        nothing = await quorate.facts("network_apply", of="node", node="pve1")
        assert nothing["unchanged"] == ["No network edits are pending on pve1"]
        await quorate.facts("node_network_change", node="pve1", action="set", iface="vmbr0", cidr="192.168.10.77/24")
        answer = await quorate.facts("network_apply", of="node", node="pve1", dry_run=True)
        assert "+\taddress 192.168.10.77/24" in answer["pending"]
        assert any("only its console remains" in warning for warning in answer["warnings"])
        assert any("running guests" in warning for warning in answer["warnings"])


async def test_what_is_applied_has_to_be_said(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "of=node needs node" in await quorate.refusal("network_apply", of="node")
        assert "node cannot be combined with of=sdn" in await quorate.refusal("network_apply", of="sdn", node="pve1")


async def test_applying_needs_the_admin_level_and_editing_does_not(tmp_path):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        await quorate.facts("node_network_change", node="pve1", action="set", iface="vmbr9", type="bridge")
        assert "--access admin" in await quorate.refusal("network_apply", of="node", node="pve1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"action": "set"}, "needs iface"),
        ({"action": "set", "iface": "vmbr9"}, "its type is needed"),
        ({"action": "set", "iface": "vmbr0"}, "No changes to vmbr0"),
        ({"action": "set", "iface": "vmbr9", "type": "bridge", "ports": ["eno7"]}, "no interface 'eno7'"),
        ({"action": "set", "iface": "eno1", "ports": ["eno2"]}, "A eth has no ports"),
        ({"action": "set", "iface": "vmbr9", "type": "bridge", "remove": ["mtu"]}, "does not exist"),
        ({"action": "set", "iface": "vmbr9", "type": "bridge", "cidr": "10.0.0.300/24"}, "cidr"),
        ({"action": "set", "iface": "vmbr1", "gateway": "10.0.0.1", "cidr": "10.0.0.2/24"}, "already exists"),
        ({"action": "delete", "iface": "vmbr9"}, "has no interface 'vmbr9'"),
    ],
)
async def test_what_does_not_fit_is_refused(tmp_path, arguments, words):
    async with rig(tmp_path) as quorate:
        assert words in await quorate.refusal("node_network_change", node="pve1", **arguments)
        assert network(quorate).changes() is None


async def test_an_offline_node_is_said_to_be_so(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.nodes["pve3"].online = False
        assert "is offline" in await quorate.refusal("node_network_change", node="pve3", action="revert")


async def test_a_lost_answer_is_settled_by_what_is_there(tmp_path):
    async with rig(tmp_path, faults=["drop:after:PUT:/nodes/*/network/*"]) as quorate:
        answer = await quorate.facts("node_network_change", node="pve1", action="set", iface="vmbr1", mtu=1400)
        assert "effect was found" in answer["note"]
