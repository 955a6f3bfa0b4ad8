"""SDN: edits are pending until applied."""

import pytest

from pve_simulator.cluster.sdn import Sdn
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio


def sdn(quorate):
    return quorate.sim.world.part(Sdn)


@pytest.mark.parametrize("version", ["8.4.1", "9.1.8"])
async def test_a_network_is_made_listed_applied_and_taken_away(tmp_path, version):
    async with rig(tmp_path, version=version) as quorate:
        await quorate.facts(
            "sdn_change", action="set", kind="zone", name="lab", type="simple", options={"dhcp": "dnsmasq"}
        )
        await quorate.facts(
            "sdn_change", action="set", kind="vnet", name="labnet", zone="lab", options={"alias": "play here"}
        )
        await quorate.facts(
            "sdn_change", action="set", kind="subnet", name="10.9.0.0/24", vnet="labnet", gateway="10.9.0.1"
        )
        listed = await quorate.facts("network_list", of="sdn")
        rows = [dict(zip(listed["columns"], row, strict=True)) for row in listed["rows"]]
        assert [(row["kind"], row["name"], row["state"]) for row in rows] == [
            ("zone", "lab", "new"),
            ("vnet", "labnet", "new"),
            ("subnet", "10.9.0.0/24", "new"),
        ]
        assert "network_apply of=sdn" in listed["next"]
        assert ("rollback" in listed["next"]) == version.startswith("9")
        assert sdn(quorate).running("vnets") == {}
        applied = await quorate.facts("network_apply", of="sdn")
        assert applied["result"] == "done"
        assert ":reloadnetworkall:" in applied["task"]
        assert set(sdn(quorate).running("vnets")) == {"labnet"}
        assert "No SDN edits" in (await quorate.facts("network_apply", of="sdn"))["unchanged"][0]
        await quorate.facts(
            "sdn_change", action="set", kind="subnet", name="10.9.0.0/24", vnet="labnet", options={"snat": True}
        )
        assert (await quorate.rows("network_list", of="sdn", kind="subnet"))[0]["state"] == "changed"
        for kind, name in (("subnet", "10.9.0.0/24"), ("vnet", "labnet"), ("zone", "lab")):
            more = {"vnet": "labnet"} if kind == "subnet" else {}
            assert (await quorate.facts("sdn_change", action="delete", kind=kind, name=name, **more))[
                "result"
            ] == "done"
        await quorate.facts("network_apply", of="sdn")
        assert sdn(quorate).running("zones") == {}


async def test_what_is_still_used_is_not_deleted(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("sdn_change", action="set", kind="zone", name="lab", type="simple")
        await quorate.facts("sdn_change", action="set", kind="vnet", name="labnet", zone="lab")
        assert "still has vnets: labnet" in await quorate.refusal(
            "sdn_change", action="delete", kind="zone", name="lab"
        )
        await quorate.facts("sdn_change", action="set", kind="subnet", name="10.9.0.0/24", vnet="labnet")
        assert "still has subnets: 10.9.0.0/24" in await quorate.refusal(
            "sdn_change", action="delete", kind="vnet", name="labnet"
        )
        assert (
            "There is no zone"
            in (await quorate.facts("sdn_change", action="delete", kind="zone", name="none"))["unchanged"][0]
        )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kind": "zone", "name": "z"}, "its type is needed"),
        (
            {"kind": "zone", "name": "z", "type": "simple", "gateway": "10.0.0.1"},
            "gateway cannot be combined with kind=zone",
        ),
        ({"kind": "vnet", "name": "v"}, "needs its zone"),
        ({"kind": "vnet", "name": "v", "zone": "nowhere"}, "There is no zone 'nowhere'"),
        ({"kind": "subnet", "name": "10.0.0.0/24"}, "needs its vnet"),
        (
            {"kind": "subnet", "name": "10.0.0.0/24", "vnet": "v", "type": "vlan"},
            "type cannot be combined with kind=subnet",
        ),
        ({"kind": "subnet", "name": "10.0.0.0/24", "vnet": "nowhere"}, "There is no vnet 'nowhere'"),
        ({"kind": "zone", "name": "z", "type": "vlan", "options": {"colour": "red"}}, "colour"),
    ],
)
async def test_what_does_not_fit_is_refused_with_what_would(tmp_path, arguments, words):
    async with rig(tmp_path) as quorate:
        assert words in await quorate.refusal("sdn_change", action="set", **arguments)
        assert all(method == "GET" for method, _ in quorate.sim.requests)


async def test_applying_warns_about_edits_of_nodes_that_come_along(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("sdn_change", action="set", kind="zone", name="lab", type="simple")
        await quorate.facts("node_network_change", node="pve2", action="set", iface="vmbr7", type="bridge")
        quorate.sim.world.nodes["pve3"].online = False
        answer = await quorate.facts("network_apply", of="sdn", dry_run=True)
        assert any("network of pve2 will also be applied" in warning for warning in answer["warnings"])
        assert any("pve3 is offline" in warning for warning in answer["warnings"])
        assert answer["pending"] == ["new zone lab"]


async def test_a_change_without_a_change_is_refused(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("sdn_change", action="set", kind="zone", name="lab", type="simple")
        assert "No changes to" in await quorate.refusal("sdn_change", action="set", kind="zone", name="lab")


async def test_a_lost_answer_is_settled_by_what_is_there(tmp_path):
    async with rig(tmp_path, faults=["drop:after:POST:/cluster/sdn/zones"]) as quorate:
        answer = await quorate.facts(
            "sdn_change", action="set", kind="zone", name="lab", type="simple", options={"mtu": 1450}
        )
        assert "effect was found" in answer["note"]
        assert list(sdn(quorate).files["zones"].sections) == ["lab"]
