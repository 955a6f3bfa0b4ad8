"""The network of a node: changes are pending until applied or reverted."""

from __future__ import annotations

import pytest

from pve_simulator.api_client import Api

NET = "/nodes/pve1/network"


async def test_a_new_bridge_waits_until_it_is_applied(api: Api):
    assert "changes" not in (await api.get(NET)).body
    created = await api.post(NET, iface="vmbr5", type="bridge", cidr="10.5.0.1/24", autostart=1, comments="lab")
    assert created.data is None
    listed = (await api.get(NET)).body
    assert "+iface vmbr5 inet static" in listed["changes"]
    row = next(row for row in listed["data"] if row["iface"] == "vmbr5")
    assert row["cidr"] == "10.5.0.1/24"
    assert "active" not in row
    assert "vmbr5" not in api.cluster.world.nodes["pve1"].bridges
    applied = await api.put(NET)
    assert ":srvreload:networking:" in applied.data
    assert await api.finish_task(applied) == "OK"
    assert "changes" not in (await api.get(NET)).body
    assert (await api.get(f"{NET}/vmbr5")).data["active"] == 1
    assert "vmbr5" in api.cluster.world.nodes["pve1"].bridges


async def test_changes_can_be_reverted(api: Api):
    before = (await api.get(NET)).body
    await api.put(f"{NET}/vmbr0", type="bridge", cidr="10.0.0.1/8", mtu=1400)
    assert (await api.get(f"{NET}/vmbr0")).data["cidr"] == "10.0.0.1/8"
    await api.delete(f"{NET}/vmbr0")
    assert "-iface vmbr0" in (await api.get(NET)).body["changes"]
    assert (await api.delete(NET)).data is None
    assert (await api.get(NET)).body == before


@pytest.mark.parametrize(
    ("params", "errors"),
    [
        ({"iface": "vmbr0", "type": "bridge"}, {"iface": "interface already exists"}),
        (
            {"iface": "vmbr7", "type": "bridge", "gateway": "10.0.0.1"},
            {"gateway": "Default gateway already exists on interface 'vmbr0'."},
        ),
        (
            {"iface": "vmbr7", "type": "bridge", "cidr": "10.0.0.1/8", "address": "10.0.0.1", "netmask": "255.0.0.0"},
            {"address": "address conflicts with cidr"},
        ),
        (
            {"iface": "vmbr7", "type": "bridge", "bridge_ports": "eno1"},
            {"bridge_ports": "eno1 is already used on interface 'vmbr0'."},
        ),
        ({"iface": "vmbr7", "type": "nothing"}, None),
    ],
)
async def test_wrong_settings_are_refused(api: Api, params: dict[str, str], errors: dict[str, str] | None):
    reply = await api.post(NET, **params)
    assert reply.status == 400
    assert errors is None or reply.errors == errors


async def test_unknown_interfaces_and_open_vswitch_are_refused(api: Api):
    for reply in (
        await api.get(f"{NET}/vmbr9"),
        await api.put(f"{NET}/vmbr9", type="bridge"),
        await api.delete(f"{NET}/vmbr9"),
    ):
        assert reply.errors == {"iface": "interface does not exist"}
    switch = await api.post(NET, iface="vmbr9", type="OVSBridge")
    assert switch.reason == "Open VSwitch is not installed (need package 'openvswitch-switch')"


async def test_a_setting_can_be_deleted_and_the_list_filtered(api: Api):
    await api.put(f"{NET}/vmbr0", type="bridge", delete="cidr,gateway")
    assert "address" not in (await api.get(f"{NET}/vmbr0")).data
    assert {row["type"] for row in (await api.get(NET, type="any_bridge")).data} == {"bridge"}
    assert (await api.get(NET, type="bond")).data == []
    seen = (await api.as_token("alice@pve!ci").get(NET)).data
    assert {row["type"] for row in seen} == {"eth"}  # bridges are visible to those who may use them


@pytest.mark.parametrize(
    ("written", "changed", "read"),
    [
        ({"autostart": 0, "bridge_vlan_aware": 0}, {}, {"bridge_vlan_aware": 1, "bridge_vids": "2-4094"}),
        ({"bridge_vlan_aware": 1, "bridge_vids": "2,4-7"}, {}, {"bridge_vlan_aware": 1, "bridge_vids": "2 4-7"}),
        ({"bridge_vids": "2-9"}, {}, {}),
        ({"comments": "a\nb\n"}, {}, {"comments": "a\nb\n"}),
        (
            {"cidr": "10.0.0.1/8", "comments6": "lost"},
            {},
            {"address": "10.0.0.1", "netmask": "8", "cidr": "10.0.0.1/8"},
        ),
        (
            {"cidr": "10.0.0.1/8", "gateway6": "fd00::8"},
            {"cidr6": "fd00::1/64", "gateway6": "fd00::9"},
            {"address6": "fd00::1", "netmask6": "64", "cidr6": "fd00::1/64", "gateway6": "fd00::9"},
        ),
    ],
)
async def test_what_has_no_place_in_the_file_is_lost(
    api: Api, written: dict[str, str], changed: dict[str, str], read: dict[str, str]
):
    assert (await api.post(NET, iface="vmbr7", type="bridge", **written)).data is None
    if changed:
        assert (await api.put(f"{NET}/vmbr7", type="bridge", **changed)).data is None
    row = (await api.get(f"{NET}/vmbr7")).data
    always = {"type", "families", "method", "method6", "priority", "bridge_ports", "bridge_stp", "bridge_fd"}
    assert {key: value for key, value in row.items() if key not in always} == read


async def test_interfaces_are_written_by_kind_and_read_by_name(api: Api):
    missing = await api.post(NET, iface="bond0", type="bond", slaves="enp9")
    assert missing.reason == "bond 'bond0' - wrong interface type on slave 'enp9' ('' != 'eth or bond')"
    for name, kind, more in (
        ("vmbr7", "bridge", {}),
        ("vmbr7.5", "vlan", {}),
        ("enp9", "eth", {}),
        ("bond0", "bond", {"slaves": "enp9", "bond-primary": "enp9"}),
        ("odd", "bond", {}),
    ):
        assert (await api.post(NET, iface=name, type=kind, **more)).data is None
    rows = {row["iface"]: row for row in (await api.get(NET)).data}
    order = sorted(rows, key=lambda name: int(rows[name]["priority"]))
    assert order.index("enp9") < order.index("bond0") < order.index("vmbr0") < order.index("vmbr7")
    assert rows["enp9"]["autostart"] == 1
    assert "bond-primary" not in rows["bond0"]
    assert rows["odd"]["type"] == "unknown"
    assert rows["vmbr7.5"]["exists"] is None
