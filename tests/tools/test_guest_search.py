"""Finding guests by what only their configurations and agents know."""

import pytest

pytestmark = pytest.mark.anyio


@pytest.fixture
def configs(quorate):
    guests = quorate.sim.world.guests
    guests[102].config["net1"] = "virtio=BC:24:11:AA:BB:CC,bridge=vmbr7,tag=20"
    guests[203].config["net0"] = "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:AA:BB:DD,ip=10.77.0.5/24,trunks=10;18-22"
    return {vmid: guest.config for vmid, guest in guests.items()}


@pytest.mark.parametrize(
    ("text", "vmids", "match"),
    [
        ("bc:24:11:aa:bb:cc", [102], "net1: virtio=BC:24:11:AA:BB:CC,bridge=vmbr7,tag=20"),
        ("BC-24-11-AA-BB-DD", [203], "net0: "),
        ("vmbr7", [102], "net1: "),
        ("vmbr1", [100], "net1: "),  # and not vmbr10
        ("vlan20", [102, 203], "net"),
        ("tag=19", [203], "net0: "),
        ("nas:202/vm-202-disk-0.raw", [202], "mp0: "),
        ("vm-9000-cloudinit", [9000], "ide2: "),
    ],
)
async def test_a_guest_is_found_by_its_devices(quorate, configs, text, vmids, match):
    rows = await quorate.rows("guest_list", find=text)
    assert [row["vmid"] for row in rows] == vmids
    assert all(row["match"].startswith(match) for row in rows)


async def test_a_guest_is_found_by_an_address_it_reports_or_is_configured_with(quorate, configs):
    (row,) = await quorate.rows("guest_list", find="192.168.10.31")
    assert (row["vmid"], row["match"].endswith("192.168.10.31")) == (102, True)
    (row,) = await quorate.rows("guest_list", find="10.77.0.0/24")
    assert (row["vmid"], row["match"]) == (203, "net0: 10.77.0.5")
    network = await quorate.rows("guest_list", find="192.168.20.0/24", status="running")
    assert {104, 105} <= {row["vmid"] for row in network}
    facts = await quorate.facts("guest_list", find="192.0.2.7")
    assert facts["total"] == 0


async def test_start_at_boot_and_protection_are_columns_and_filters(quorate):
    rows = await quorate.rows("guest_list", type="ct", columns=["onboot", "protection"])
    assert [(row["vmid"], row["onboot"], row["protection"]) for row in rows if row["vmid"] in (205, 206, 207)] == [
        (205, "yes", "no"),
        (206, "no", "no"),
        (207, "no", "yes"),
    ]
    rows = await quorate.rows("guest_list", type="ct", onboot=False, columns=["protection"], find="vmbr0")
    assert [(row["vmid"], row["protection"]) for row in rows] == [(206, "no"), (207, "yes"), (9001, "no")]
    paged = await quorate.rows("guest_list", type="ct", columns=["onboot"], limit=2, offset=5)
    assert [(row["vmid"], row["onboot"]) for row in paged] == [(205, "yes"), (206, "no")]


async def test_guests_of_an_offline_node_are_named_as_not_read(quorate):
    quorate.sim.world.nodes["pve3"].online = False
    facts = await quorate.facts("guest_list", find="vmbr0")
    assert "204: its node pve3 is offline" in facts["not_read"]
    assert 204 not in [row[0] for row in facts["rows"]]


async def test_a_thousand_configurations_are_not_read_for_a_search(start_quorate, tmp_path):
    quorate = await start_quorate(tmp_path, guests=400, nodes=4)
    text = await quorate.refusal("guest_list", find="vmbr0")
    assert "Narrow with node, tag or pool" in text
