"""The map: as data and as pictures; what deserves attention; where something new would fit."""

from __future__ import annotations

import re
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.config.policy import Policy, Rule
from quorate.homelab.devices.analysis import NEEDS, end_of_life, findings, rank_rooms, rooms
from quorate.homelab.devices.device import Device
from quorate.homelab.devices.sitemap import MapDevice, Segment, Sitemap, sitemap
from quorate.homelab.host import Host
from quorate.homelab.map_drawing import draw_map, fit_text, render_svg
from quorate.inside.facts.model import (
    Container,
    Cpu,
    Disk,
    Facts,
    Filesystem,
    Interface,
    Memory,
    Network,
    Services,
    System,
    Uptime,
    Vm,
)
from tests.rigs.homelab import house
from tests.rigs.mcp_session import text_of
from tests.rigs.recorded_machines import paper_machines

pytestmark = pytest.mark.anyio

NOW = 1_790_000_000.0
GIB = 2**30


def machine(number: int, name: str, address: str = "", **more: Any) -> Device:
    address = address or f"192.168.1.{number}/24"
    facts: dict[str, Any] = {
        "system": System(hostname=name, id="debian", version="12", kernel="6.1.0-18-amd64"),
        "cpu": Cpu(threads=4),
        "memory": Memory(total=8 * GIB, available=4 * GIB),
        "filesystems": (Filesystem(mount="/", device="/dev/sda1", type="ext4", size=100 * GIB, used=40 * GIB),),
        "network": Network(
            interfaces=(Interface(name="eth0", mac=f"bc:24:11:00:00:{number:02x}", addresses=(address,)),),
            gateways=("192.168.1.1 dev eth0",),
            dns=("192.168.1.1", "9.9.9.9"),
        ),
        "services": Services(manager="systemd"),
    }
    outer: dict[str, Any] = {
        key: more.pop(key) for key in ("kind", "state", "last_seen", "macs", "addresses", "place") if key in more
    }
    usual: dict[str, Any] = {
        "addresses": (address,),
        "macs": (f"bc:24:11:00:00:{number:02x}",),
        "last_seen": NOW,
        "kind": "host",
    }
    return Device(id=number, name=name, refs=(name,), facts=Facts(**{**facts, **more}), **{**usual, **outer})


def findings_by_kind(*devices: Device, hosts: tuple[Host, ...] = ()) -> dict[str, tuple[str, str, str]]:
    """Finding -> severity, about, evidence."""
    listed = findings(devices, sitemap(devices, ()), hosts, NOW)
    return {finding.kind: (finding.severity, finding.about, finding.evidence) for finding in listed}


# -- the map -----------------------------------------------------------------------------------------------------------


async def test_the_map_has_segments_hosts_and_hypervisors_with_their_guests(tmp_path):
    paper = paper_machines(tmp_path, "nas")
    async with house(tmp_path, {"nas": paper["nas"].options}) as built:
        quorate = built.quorate
        await quorate.facts("network_discover", hosts=["nas"])
        facts = await quorate.facts("network_map")
        rows = [dict(zip(facts["columns"], row, strict=True)) for row in facts["rows"]]
        nas = next(row for row in rows if row["name"] == "nas")
        assert (nas["role"], nas["segment"], nas["address"]) == ("host", "192.168.1.0/24", "192.168.1.5")
        gateway = next(row for row in rows if row["role"] == "router")
        assert gateway["address"] == "192.168.1.1"
        assert facts["segments"]["192.168.1.0/24"]["gateways"] == ["192.168.1.1"]
        world = quorate.sim.world
        assert {row["name"] for row in rows if row["role"] == "hypervisor"} == set(world.nodes)
        listed = await quorate.rows("guest_list", limit=200)
        on = {row["name"]: row["on"] for row in rows if row["role"] == "guest"}
        for guest in listed:
            if guest["name"] in on:
                assert on[guest["name"]] == guest["node"]
        for row in rows:  # a guest below its node may be in another segment
            assert not row["address"] or ip_address(row["address"]) in ip_network(row["segment"]), row
        only = await quorate.rows("network_map", segment="192.168.1.0/24")
        assert {row["segment"] for row in only} == {"192.168.1.0/24"}
        lab = await quorate.rows("network_map", segment="192.168.20.0/24")
        assert {row["name"] for row in lab} == {row["name"] for row in rows if row["segment"] == "192.168.20.0/24"}
        assert len(lab) > 1
        for segment in facts["segments"]:
            for row in await quorate.rows("network_map", segment=segment):
                assert not row["address"] or ip_address(row["address"]) in ip_network(segment), row
        assert "Available: " in await quorate.refusal("network_map", segment="10.9.9.0/24")


async def test_the_map_comes_as_a_picture(tmp_path):
    async with house(tmp_path, {}) as built:
        quorate = built.quorate
        answer = await quorate.call("network_map", format="png")
        (image,) = [block for block in answer.content if block.type == "image"]
        assert image.mime_type == "image/png"
        facts = await quorate.facts("network_map", format="svg")
        words = "".join(ElementTree.fromstring(facts["svg"]).itertext())
        nodes = set(quorate.sim.world.nodes)
        assert all(node in words for node in nodes)


def test_a_router_in_two_networks_has_one_place_and_is_shown_in_both():
    router = machine(1, "opnsense", addresses=("192.168.1.1/24", "10.20.0.1/24"))
    camera = machine(2, "camera", "10.20.0.4/24")
    map_ = sitemap([router, camera], ())
    lanes = {segment.network: segment for segment in map_.segments}
    assert [spot.name for spot in lanes["192.168.1.0/24"].devices] == ["opnsense"]
    assert [spot.name for spot in lanes["10.20.0.0/24"].visitors] == ["opnsense"]
    assert lanes["192.168.1.0/24"].devices[0].role == "router"
    picture = render_svg(draw_map(map_, "t", "s"))
    assert "10.20.0.1" in picture
    assert "also 192.168.1.1" in picture


def test_a_guest_in_another_network_than_its_node_is_counted_there_and_has_one_address():
    guest = MapDevice("guest", "k3s", addresses=("10.20.0.41",), cores=4)
    node = MapDevice("hypervisor", "pve1", addresses=("192.168.1.11",), guests=[guest, MapDevice("guest", "web")])
    lanes = [Segment("192.168.1.0/24", devices=[node]), Segment("10.20.0.0/24", visitors=[guest])]
    picture = render_svg(draw_map(Sitemap(lanes, [], {}), "t", "s"))
    assert "also" not in picture
    assert "2 devices" in picture
    assert "1 device " in picture


def test_a_machine_with_virtual_machines_of_its_own_is_a_hypervisor():
    host = machine(5, "kvm", vms=(Vm(manager="virsh", name="win", state="running"),))
    (segment,) = sitemap([host], ()).segments
    (spot,) = [device for device in segment.devices if device.name == "kvm"]
    assert (spot.role, [guest.name for guest in spot.guests]) == ("hypervisor", ["win"])


def test_an_address_without_prefix_is_in_the_network_that_others_have_reported():
    wide = machine(1, "nas", "10.0.0.5/16")
    scanned = Device(id=2, name="printer", addresses=("10.0.77.9",))
    elsewhere = Device(id=3, name="camera", addresses=("172.16.3.4",))
    segments = {segment.network: segment for segment in sitemap([wide, scanned, elsewhere], ()).segments}
    assert {spot.name for spot in segments["10.0.0.0/16"].devices} == {"nas", "printer"}
    assert segments["172.16.3.0/24"].assumed


@given(st.lists(st.text(max_size=60), max_size=5))
def test_no_name_breaks_out_of_a_picture(names):
    spots = [MapDevice("host", name, addresses=("10.0.0.1",)) for name in names]
    map_ = Sitemap([], spots, {})
    ElementTree.fromstring(render_svg(draw_map(map_, "title", "subtitle")))


def test_long_names_are_cut_to_the_room_there_is():
    assert fit_text("short", 200, 12) == "short"
    assert len(fit_text("x" * 500, 100, 12)) < 20
    assert fit_text("two\nlines\x07", 200, 12) == "two lines"


@pytest.mark.thorough
async def test_what_rules_hide_is_hidden_on_the_map_and_in_the_history(tmp_path):
    paper = paper_machines(tmp_path, "nas", "pi")
    async with house(tmp_path, {name: kept.options for name, kept in paper.items()}) as built:
        quorate, app = built.quorate, built.quorate.app
        await quorate.facts("network_discover")
        tools = ("network_map", "network_changes", "network_analyze")
        for tool in tools:
            assert "nas" in (text := text_of(await quorate.call(tool))), text
        assert "docker01" in text_of(await quorate.call("network_changes"))
        deny = (Rule("a", False, "read", hosts=("nas",)), Rule("b", False, "read", names=("docker01",)))
        app.adopt(replace(app.settings, policy=Policy(deny)))
        for tool in tools:
            text = text_of(await quorate.call(tool))
            assert "docker01" not in text
            assert not re.search(r"\bnas\b|192\.168\.1\.5\b", text), text
        assert "docker02" in text_of(await quorate.call("network_map"))
        assert "no device 'nas'" in await quorate.refusal("network_changes", device="nas")


# -- what deserves attention -------------------------------------------------------------------------------------------


def test_an_orderly_network_has_only_what_depends_on_its_gateway():
    assert set(findings_by_kind(machine(2, "a"), machine(3, "b"))) == {"single gateway"}


def test_addresses_and_macs_that_two_devices_have_are_found():
    by_kind = findings_by_kind(machine(2, "a"), machine(3, "b", "192.168.1.2/24", macs=("bc:24:11:00:00:02",)))
    assert by_kind["duplicate address"][:2] == ("critical", "192.168.1.2")
    assert "a (device 2), b (device 3)" in by_kind["duplicate MAC"][2]
    away = machine(3, "b", "192.168.1.2/24", state="away")
    assert "duplicate address" not in findings_by_kind(machine(2, "a"), away)  # an address may be given to another


def test_single_points_of_failure_name_who_depends_on_them():
    network = Network(interfaces=(), gateways=("10.0.0.1 dev eth0",), dns=("10.0.0.53",))
    share = Filesystem(mount="/mnt", device="nas:/srv", type="nfs4", size=10, used=1)
    by_kind = findings_by_kind(
        machine(2, "a", network=network, filesystems=(share,)),
        machine(3, "b", network=network, filesystems=(share,)),
        hosts=(Host(name="a", address="x", jump="bastion"),),
    )
    for kind, about in (("gateway", "10.0.0.1"), ("DNS", "10.0.0.53"), ("storage", "nas")):
        assert by_kind[f"single {kind}"][1] == about
        assert "a, b" in by_kind[f"single {kind}"][2]
    assert by_kind["single jump host"][1] == "bastion"


def test_full_disks_little_memory_and_failed_services_are_found():
    def disk(percent: int) -> tuple[Filesystem, ...]:
        return (Filesystem(mount="/srv", device="/dev/sdb", type="ext4", size=100 * GIB, used=percent * GIB),)

    for percent, severity in ((79, None), (80, "notice"), (90, "warning"), (95, "critical")):
        by_kind = findings_by_kind(machine(2, "a", filesystems=disk(percent)))
        assert by_kind.get("nearly full disk", (None,))[0] == severity
    poor = machine(2, "a", memory=Memory(total=8 * GIB, available=GIB // 2))
    assert "512M of 8G" in findings_by_kind(poor)["little memory"][2]
    broken = machine(2, "a", services=Services(manager="systemd", failed=("nut",)))
    assert "nut" in findings_by_kind(broken)["failed services"][2]


def test_a_kernel_is_old_by_what_others_of_the_same_release_run():
    def runs(number: int, kernel: str, version: str = "12") -> Device:
        return machine(number, f"m{number}", system=System(id="debian", version=version, kernel=kernel))

    by_kind = findings_by_kind(runs(2, "6.1.0-9-amd64"), runs(3, "6.1.0-18-amd64"), runs(4, "5.10.0-1-amd64", "11"))
    assert by_kind["old kernel"][1] == "m2 (device 2)"
    assert "6.1.0-18-amd64" in by_kind["old kernel"][2]


def test_a_release_without_updates_and_a_device_unseen_for_long_are_found():
    old = machine(2, "a", system=System(id="debian", version="10", name="Debian 10", kernel="4.19"))
    assert "2024-06-30" in findings_by_kind(old)["release out of support"][2]
    assert str(end_of_life("alpine", "3.19.1")) == "2025-11-01"
    assert end_of_life("templeos", "5") is None
    gone = machine(2, "a", state="away", last_seen=NOW - 30 * 86400)
    assert "30d ago" in findings_by_kind(gone)["not seen for long"][2]


async def test_the_analysis_is_a_table_that_can_be_narrowed(tmp_path):
    paper = paper_machines(tmp_path, "nas")
    paper["nas"].fills(97)
    async with house(tmp_path, {"nas": paper["nas"].options}) as built:
        empty = await built.quorate.facts("network_analyze")
        assert "network_discover" in empty["note"]
        await built.quorate.facts("network_discover", hosts=["nas"])
        rows = await built.quorate.rows("network_analyze", severity="critical")
        assert [(row["finding"], row["severity"]) for row in rows] == [("nearly full disk", "critical")]
        assert "97% full" in rows[0]["evidence"]
        assert len(await built.quorate.rows("network_analyze")) >= len(rows)


# -- where something new would fit -------------------------------------------------------------------------------------


def test_a_suggestion_goes_where_most_is_free_and_tells_the_numbers():
    busy = machine(2, "busy", memory=Memory(total=8 * GIB, available=GIB), uptime=Uptime(load=(4.0, 4.0, 4.0)))
    idle = machine(3, "idle", memory=Memory(total=8 * GIB, available=7 * GIB))
    small = machine(4, "small", memory=Memory(total=GIB, available=GIB // 4))
    order = rank_rooms(rooms([busy, idle, small]), NEEDS["service"])
    assert [room.name for room in order] == ["idle", "busy", "small"]
    assert "7G of 8G memory free" in order[0].reasons
    assert order[2].objections == ["needs 1G memory, 256M free"]


def test_the_kind_of_thing_decides_what_counts():
    rich: dict[str, Any] = {"memory": Memory(total=32 * GIB, available=16 * GIB)}
    docker = machine(2, "docker", containers=(Container(engine="docker", name="web"),))
    turning = machine(3, "turning", disks=(Disk(name="sda", rotational=True),), **rich)
    quick = machine(4, "quick", disks=(Disk(name="nvme0", rotational=False),), **rich)
    wide = machine(
        5, "wide", filesystems=(Filesystem(mount="/srv", device="/dev/sdb", size=4000 * GIB, used=1000 * GIB),)
    )

    def best(kind: str) -> str:
        return rank_rooms(rooms([turning, wide, docker, quick]), NEEDS[kind])[0].name

    assert best("docker") == "docker"
    assert best("database") == "quick"
    assert best("backup") == "wide"
    (unknown,) = rank_rooms(rooms([machine(6, "unknown", filesystems=None)]), NEEDS["service"])
    assert unknown.objections == ["its free disk space is unknown"]


async def test_a_virtual_machine_is_suggested_for_a_node_by_what_the_cluster_measures(tmp_path):
    async with house(tmp_path, {}) as built:
        facts = await built.quorate.facts("network_suggest", kind="vm", memory="1G", disk="1G", cores=1)
        cluster = built.quorate.app.settings.clusters[0].name
        assert facts["fits"]
        assert {row["where"] for row in facts["fits"]} <= {
            f"{cluster}/{node}" for node in built.quorate.sim.world.nodes
        }
        assert "memory free" in facts["fits"][0]["because"]
        none = await built.quorate.facts("network_suggest", kind="vm", memory="900T")
        assert "fits" not in none
        assert "needs" in next(iter(none["does_not_fit"].values()))
