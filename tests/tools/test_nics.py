"""Network cards: add, change single settings, remove; and the networks they can be plugged into."""

import pytest

from pve_simulator.cluster.sdn import Sdn
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio

VM, STOPPED_VM, CT = 102, 108, 201


def guest(quorate, vmid):
    return quorate.sim.world.guests[vmid]


def parts(text):
    return dict(part.split("=", 1) for part in str(text).split(","))


def add_vnet(quorate, name="blue", tag=10):
    sdn = quorate.sim.world.part(Sdn)
    sdn.files["zones"].sections["lab"] = {"zone": "lab", "type": "vlan", "bridge": "vmbr0"}
    sdn.files["vnets"].sections[name] = {"vnet": name, "type": "vnet", "zone": "lab", "tag": tag, "alias": "the lab"}
    sdn.apply()


async def test_a_new_card_gets_the_next_number_a_bridge_and_a_mac(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("nic_set", guest=VM, vlan=30, firewall=True)
        assert (facts["nic"], facts["bridge"]) == ("net1", "vmbr0")
        card = parts(guest(quorate, VM).config["net1"])
        assert (card["bridge"], card["tag"], card["firewall"]) == ("vmbr0", "30", "1")
        assert card["virtio"].startswith("BC:24:11:")
        assert facts["live"] == ["net1"]


@pytest.mark.parametrize(
    ("change", "key", "value"),
    [
        ({"vlan": 7}, "tag", "7"),
        ({"firewall": False}, "firewall", "0"),
        ({"rate": 12.5}, "rate", "12.5"),
        ({"mtu": 9000}, "mtu", "9000"),
        ({"link_down": True}, "link_down", "1"),
        ({"bridge": "vmbr1"}, "bridge", "vmbr1"),
    ],
)
async def test_one_setting_changes_and_everything_else_is_kept(tmp_path, change, key, value):
    async with rig(tmp_path) as quorate:
        before = parts(guest(quorate, STOPPED_VM).config["net0"])
        await quorate.facts("nic_set", guest=STOPPED_VM, nic="net0", **change)
        after = parts(guest(quorate, STOPPED_VM).config["net0"])
        assert after.pop(key) == value
        before.pop(key, None)
        assert after == before


async def test_zero_takes_a_setting_out(tmp_path):
    async with rig(tmp_path) as quorate:
        before = str(guest(quorate, STOPPED_VM).config["net0"])
        await quorate.facts("nic_set", guest=STOPPED_VM, nic=0, vlan=5, rate=3, mtu=1400)
        await quorate.facts("nic_set", guest=STOPPED_VM, nic=0, vlan=0, rate=0, mtu=0)
        assert parts(guest(quorate, STOPPED_VM).config["net0"]) == parts(before)


async def test_another_model_keeps_the_mac(tmp_path):
    async with rig(tmp_path) as quorate:
        mac = parts(guest(quorate, STOPPED_VM).config["net0"])["virtio"]
        facts = await quorate.facts("nic_set", guest=STOPPED_VM, nic=0, model="e1000", mtu=1400)
        assert parts(guest(quorate, STOPPED_VM).config["net0"])["e1000"] == mac
        assert "virtio cards only" in facts["warnings"][0]


async def test_a_container_card_is_readdressed_and_loses_the_old_gateway_with_dhcp(tmp_path):
    async with rig(tmp_path) as quorate:
        before = parts(guest(quorate, CT).config["net0"])
        await quorate.facts("nic_set", guest=CT, nic=0, ip="10.1.0.9/16", gateway="10.1.0.1")
        after = parts(guest(quorate, CT).config["net0"])
        assert (after["ip"], after["gw"]) == ("10.1.0.9/16", "10.1.0.1")
        assert {key: after[key] for key in ("hwaddr", "name", "bridge")} == {
            key: before[key] for key in ("hwaddr", "name", "bridge")
        }
        await quorate.facts("nic_set", guest=CT, nic=0, ip="dhcp", ip6="auto")
        after = parts(guest(quorate, CT).config["net0"])
        assert (after["ip"], after["ip6"], "gw" in after) == ("dhcp", "auto", False)


async def test_a_new_container_card_has_a_free_name_and_asks_by_dhcp(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("nic_set", guest=CT, bridge="vmbr1")
        card = parts(guest(quorate, CT).config["net1"])
        assert (card["name"], card["ip"], card["bridge"]) == ("eth1", "dhcp", "vmbr1")


async def test_a_card_that_is_like_that_already_sends_nothing(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("nic_set", guest=VM, nic=0, bridge="vmbr0")
        assert facts["result"] == "nothing to do"
        assert quorate.writes == []


async def test_a_card_can_be_plugged_into_a_vnet(tmp_path):
    async with rig(tmp_path) as quorate:
        add_vnet(quorate)
        await quorate.facts("nic_set", guest=VM, nic=0, bridge="blue")
        assert parts(guest(quorate, VM).config["net0"])["bridge"] == "blue"


@pytest.mark.parametrize(
    ("vmid", "arguments", "words"),
    [
        (VM, {"bridge": "vmbr9"}, ["no bridge 'vmbr9'", "vmbr0, vmbr1"]),
        (VM, {"nic": "eth0"}, ["not a net device", "net0"]),
        (VM, {"nic": 99, "bridge": "vmbr0"}, ["net99", "Nothing was sent"]),
        (VM, {"nic": 0, "model": "rtl"}, ["no model 'rtl'", "rtl8139"]),
        (VM, {"nic": 0, "ip": "dhcp"}, ["set inside the VM", "cloudinit_set"]),
        (VM, {"nic": 0, "vlan": 5000}, ["vlan", "4094"]),
        (VM, {"nic": 0, "mac": "nonsense"}, ["macaddr", "Nothing was sent"]),
        (CT, {"nic": 0, "model": "virtio"}, ["does not apply to containers"]),
        (CT, {"nic": 0, "ip": "10.0.0.5"}, ["no prefix length", "10.0.0.5/24"]),
        (CT, {"nic": 0, "ip": "10.0.0.5/24", "gateway": "10.0.1.1"}, ["not in the network"]),
        (CT, {"nic": 0, "ip": "dhcp", "gateway": "10.0.1.1"}, ["needs a static address"]),
        (CT, {"nic": 0, "ip": "10.0.0.555/24", "gateway": "10.0.0.1"}, ["is not valid"]),
    ],
)
async def test_what_cannot_be_is_refused_with_what_can(tmp_path, vmid, arguments, words):
    async with rig(tmp_path) as quorate:
        await quorate.refuses("nic_set", words, guest=vmid, **arguments)


async def test_a_card_is_removed_and_the_last_one_with_a_warning(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("nic_set", guest=VM)
        facts = await quorate.facts("nic_remove", guest=VM, nic="net1")
        assert "warnings" not in facts
        assert "net1" not in guest(quorate, VM).config
        facts = await quorate.facts("nic_remove", guest=CT, nic=0)
        assert "last network card" in facts["warnings"][0]
        assert "hwaddr=" in facts["was"]
        assert "net0" not in guest(quorate, CT).config
        text = await quorate.refusal("nic_remove", guest=VM, nic=4)
        assert "has no net4" in text
        assert "net0" in text


async def test_a_lost_answer_is_settled_by_the_card_that_is_there(tmp_path):
    async with rig(tmp_path, faults=["drop:after:PUT:/nodes/*/config"]) as quorate:
        facts = await quorate.facts("nic_set", guest=STOPPED_VM, vlan=9)
        assert "effect was found" in facts["note"]
        assert len(quorate.writes) == 1


async def test_a_locked_guest_keeps_its_cards(tmp_path):
    async with rig(tmp_path, faults=[f"locked:{CT}:snapshot"]) as quorate:
        assert "is locked (snapshot)" in await quorate.refusal("nic_remove", guest=CT, nic=0)
        assert "is locked (snapshot)" in await quorate.refusal("nic_set", guest=CT, nic=0, vlan=3)


@pytest.mark.parametrize("version", ["8.4", "9.2"])
async def test_bridges_vlans_and_vnets_are_listed(tmp_path, version):
    async with rig(tmp_path, version=version) as quorate:
        add_vnet(quorate)
        rows = await quorate.rows("network_list", node="pve1")
        assert [row["name"] for row in rows] == ["blue", "vmbr0", "vmbr1"]
        assert rows[0]["type"] == "vnet"
        assert (rows[0]["zone"], rows[0]["vlan"], rows[0]["comment"]) == ("lab", 10, "the lab")
        assert rows[1]["address"].endswith("/24")
        assert {row["node"] for row in await quorate.rows("network_list")} == {"pve1", "pve2", "pve3"}
        assert "no node 'pve9'" in await quorate.refusal("network_list", node="pve9")
        assert [row["name"] for row in await quorate.rows("network_list", node="pve1", kind="vnet")] == ["blue"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"of": "node"}, "of=node needs node"),
        ({"of": "sdn", "node": "pve1"}, "node cannot be combined with of=sdn"),
        ({"kind": "bond"}, "of=guests has no kind=bond. It has bridge, vlan, vnet"),
        ({"of": "node", "node": "pve1", "kind": "zone"}, "of=node has no kind=zone"),
        ({"of": "sdn", "kind": "bridge"}, "of=sdn has no kind=bridge"),
    ],
)
async def test_each_list_of_networks_takes_what_belongs_to_it(tmp_path, arguments, words):
    async with rig(tmp_path) as quorate:
        assert words in await quorate.refusal("network_list", **arguments)
