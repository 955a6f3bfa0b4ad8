"""“What is the IP of docker01?”: the addresses of a guest, and which source reported them."""

import pytest

pytestmark = pytest.mark.anyio

VM, CT, SILENT, STOPPED = 102, 202, 109, 108
LEASED = "02:00:00:00:77:01"


def guest(quorate, vmid):
    return quorate.sim.world.guests[vmid]


@pytest.mark.parametrize(("vmid", "source"), [(VM, "agent"), (CT, "container")])
async def test_a_running_guest_shows_its_addresses_without_being_asked_for_detail(quorate, vmid, source):
    facts = await quorate.facts("guest_get", guest=vmid)
    assert facts["addresses"] == {address.interface: address.ip for address in guest(quorate, vmid).addresses}
    assert facts["addresses_from"] == source
    assert "no_address" not in facts


async def test_without_an_agent_the_lease_of_the_vnet_is_shown(quorate):
    guest(quorate, SILENT).config["net0"] = f"virtio={LEASED.upper()},bridge=lab"
    for path, params in (
        ("/cluster/sdn/zones", {"zone": "z1", "type": "simple", "ipam": "pve", "dhcp": "dnsmasq"}),
        ("/cluster/sdn/vnets", {"vnet": "lab", "zone": "z1"}),
        ("/cluster/sdn/vnets/lab/subnets", {"subnet": "10.7.0.0/24", "type": "subnet", "gateway": "10.7.0.1"}),
        ("/cluster/sdn/vnets/lab/ips", {"zone": "z1", "ip": "10.7.0.23", "mac": LEASED}),
    ):
        await quorate.facts("api_call", method="POST", path=path, params=params)
    facts = await quorate.facts("guest_get", guest=SILENT)
    assert (facts["addresses"], facts["addresses_from"]) == ({"net0": "10.7.0.23"}, "lease")


async def test_a_static_address_comes_from_the_configuration_even_if_the_guest_is_off(quorate):
    for vmid in (SILENT, STOPPED):
        guest(quorate, vmid).config["ipconfig0"] = "ip=10.0.0.7/24,gw=10.0.0.1"
        facts = await quorate.facts("guest_get", guest=vmid)
        assert (facts["addresses"], facts["addresses_from"]) == ({"ipconfig0": "10.0.0.7"}, "configuration")


async def test_the_neighbor_table_is_the_last_source(quorate, tmp_path, monkeypatch):
    guest(quorate, SILENT).config["net0"] = f"virtio={LEASED.upper()},bridge=vmbr0"
    table = tmp_path / "programs" / "ip"
    table.parent.mkdir()
    table.write_text(f"#!/bin/sh\necho '192.0.2.77 dev eth0 lladdr {LEASED} REACHABLE'\n")
    table.chmod(0o755)
    monkeypatch.setenv("PATH", str(table.parent), prepend=":")
    facts = await quorate.facts("guest_get", guest=SILENT)
    assert (facts["addresses"], facts["addresses_from"]) == ({"net0": "192.0.2.77"}, "neighbors")


async def test_where_no_source_knows_the_answer_says_why(quorate):
    facts = await quorate.facts("guest_get", guest=SILENT)
    assert "addresses" not in facts
    assert "install qemu-guest-agent inside" in facts["no_address"]
    facts = await quorate.facts("guest_get", guest=STOPPED)
    assert not {"no_address", "addresses_from"} & facts.keys()


async def test_lists_show_addresses_on_request_and_only_then(quorate):
    plain = await quorate.facts("guest_list", name="docker01")
    assert "addresses" not in plain["columns"]
    rows = {row["vmid"]: row for row in await quorate.rows("guest_list", addresses=True, limit=200)}
    assert rows[VM]["addresses"] == guest(quorate, VM).addresses[0].ip
    assert rows[VM]["addresses_from"] == "agent"
    assert rows[CT]["addresses_from"] == "container"
    assert rows[STOPPED]["addresses"] == ""
    assert len(rows) == len(quorate.sim.world.guests)
