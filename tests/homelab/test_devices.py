"""Devices over time: which is which, what is a change, and what is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quorate.homelab.devices import store as kept_in
from quorate.homelab.devices.device import Device, Sighting, merge, parse_fingerprint
from quorate.homelab.devices.store import Devices, differences, view
from quorate.inside.facts.model import (
    Container,
    Facts,
    Filesystem,
    Interface,
    Memory,
    Network,
    Port,
    Services,
    System,
    Uptime,
)
from quorate.problems import NotFound
from quorate.state.store import Store, open_store
from tests.rigs.manual_clock import HandClock
from tests.rigs.postgres import postgres, postgres_server

__all__ = ["postgres", "postgres_server"]

pytestmark = pytest.mark.anyio

MAC, OTHER_MAC = "bc:24:11:00:00:01", "bc:24:11:00:00:02"


def facts(address: str = "192.168.1.5/24", mac: str = MAC, **more: Any) -> Facts:
    usual = {
        "system": System(hostname="nas", id="debian", version="12", kernel="6.1.0-18-amd64"),
        "memory": Memory(total=8 << 30, available=4 << 30),
        "filesystems": (Filesystem(mount="/srv", device="/dev/sdb1", type="ext4", size=1000, used=400),),
        "network": Network(interfaces=(Interface(name="eth0", mac=mac, state="up", addresses=(address,)),)),
        "ports": (Port(protocol="tcp", address="*", port=22, process="sshd"),),
        "services": Services(manager="systemd"),
    }
    return Facts(**{**usual, **more})


def sighting(ref: str = "nas", machine_id: str = "m1", observed: Facts | None = None, **more: Any) -> Sighting:
    observed = facts() if observed is None else observed
    macs = (
        tuple(interface.mac for interface in observed.network.interfaces if interface.mac) if observed.network else ()
    )
    usual = {"kind": "host", "name": ref, "ref": ref, "machine_id": machine_id, "macs": macs, "facts": observed}
    return Sighting(**{**usual, **more})


@pytest.fixture(params=["sqlite", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    location: str = str(tmp_path / "state.db") if request.param == "sqlite" else request.getfixturevalue("postgres")
    return location


@pytest.fixture
async def store(anyio_backend: str, location: str) -> AsyncIterator[Store]:
    async with open_store(location, clock=HandClock()) as opened:
        yield opened


@pytest.fixture
async def devices(anyio_backend: str, tmp_path: Path) -> AsyncIterator[Devices]:
    async with open_store(str(tmp_path / "state.db"), clock=HandClock()) as opened:
        yield Devices(opened)


async def history(devices: Devices) -> list[tuple[str, Any, Any]]:
    """Everything but first sightings, the oldest first."""
    entries = [entry for change in reversed(await devices.changes(limit=500)) for entry in change.changes]
    return [(entry["path"], entry["old"], entry["new"]) for entry in entries if entry["path"] != "device"]


# -- which is which ----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
async def test_a_new_address_is_a_change_and_no_new_device(store):
    devices = Devices(store)
    (first,) = await devices.record_sightings([sighting()], 100.0)
    (second,) = await devices.record_sightings([sighting(observed=facts("192.168.1.77/24"))], 200.0)
    assert second.id == first.id == 1
    assert second.address == "192.168.1.77"
    assert await history(devices) == [("network.eth0.addresses", "192.168.1.5/24", "192.168.1.77/24")]
    (newest, oldest) = await devices.changes([1])
    assert (newest.time, oldest.time) == (200.0, 100.0)
    assert oldest.changes == [{"path": "device", "old": None, "new": "seen for the first time"}]


async def test_a_scan_finds_the_machine_that_was_looked_into_by_its_mac(devices):
    (first,) = await devices.record_sightings([sighting()], 1.0)
    (again,) = await devices.record_sightings([Sighting(address="192.168.1.5", macs=(MAC,), open_ports=(22,))], 2.0)
    assert again.id == first.id
    assert (again.kind, again.name) == ("host", "nas")
    assert await history(devices) == []


async def test_a_device_that_only_a_scan_knows_gets_a_new_address_and_a_new_neighbour_takes_the_old_one(devices):
    (printer,) = await devices.record_sightings([Sighting(address="10.0.0.5", macs=(MAC,))], 1.0)
    moved, newcomer = await devices.record_sightings(
        [Sighting(address="10.0.0.9", macs=(MAC,)), Sighting(address="10.0.0.5", macs=(OTHER_MAC,))], 2.0
    )
    assert moved.id == printer.id
    assert newcomer.id != printer.id
    assert await history(devices) == [("addresses", "10.0.0.5", "10.0.0.9")]


async def test_an_address_alone_becomes_a_machine_once_it_is_looked_into(devices):
    (unknown,) = await devices.record_sightings([Sighting(address="192.168.1.5", open_ports=(22,))], 1.0)
    (known,) = await devices.record_sightings([sighting(address="192.168.1.5")], 2.0)
    assert known.id == unknown.id
    assert known.facts is not None
    assert await history(devices) == []  # it has become known, it has not changed


async def test_clones_that_share_a_machine_id_are_two_devices(devices):
    first, second = await devices.record_sightings(
        [sighting("web1"), sighting("web2", observed=facts("192.168.1.6/24", OTHER_MAC))], 1.0
    )
    assert first.id != second.id
    for now in (2.0, 3.0):
        again = await devices.record_sightings(
            [sighting("web2", observed=facts("192.168.1.6/24", OTHER_MAC)), sighting("web1")], now
        )
        assert [device.id for device in again] == [second.id, first.id]
    assert await history(devices) == []


async def test_a_new_network_card_and_a_new_installation_are_changes_of_the_same_device(devices):
    (first,) = await devices.record_sightings([sighting()], 1.0)
    (card,) = await devices.record_sightings([sighting(observed=facts(mac=OTHER_MAC))], 2.0)
    (anew,) = await devices.record_sightings([sighting(machine_id="m2", observed=facts(mac=OTHER_MAC))], 3.0)
    assert first.id == card.id == anew.id
    assert await history(devices) == [("network.eth0.mac", MAC, OTHER_MAC), ("machine_id", "m1", "m2")]


async def test_a_container_that_shows_the_serial_number_of_its_host_is_not_its_host(devices):
    host = sighting("pve", "m1", serial="SN-1234-AB")
    inside = sighting("ct", "m2", facts("192.168.1.9/24", OTHER_MAC), serial="SN-1234-AB")
    first, second = await devices.record_sightings([host, inside], 1.0)
    assert first.id != second.id


async def test_two_names_for_one_machine_are_one_device_with_a_steady_name(devices):
    for now in (1.0, 2.0):
        first, second = await devices.record_sightings([sighting("nas"), sighting("nas-admin")], now)
        assert first.id == second.id
        assert second.name == "nas"
    assert second.refs == ("nas", "nas-admin")
    assert await history(devices) == []


@pytest.mark.parametrize("place", ["192.168.1.5", "192.168.1.5:22", "[fd00::5]:2222"])
async def test_a_machine_that_nobody_has_registered_is_called_as_it_calls_itself(devices, place):
    (device,) = await devices.record_sightings([sighting(place, address="192.168.1.5")], 1.0)
    assert (device.name, device.refs) == ("nas", (place,))
    (named,) = await devices.record_sightings([sighting("store", address="192.168.1.5")], 2.0)
    assert (named.name, named.id) == ("store", device.id)


async def test_a_router_is_placed_in_the_network_where_it_was_reached(devices):
    cards = (
        Interface(name="lan", mac=MAC, state="up", addresses=("192.168.1.1/24",)),
        Interface(name="wan", mac=OTHER_MAC, state="up", addresses=("203.0.113.7/24",)),
    )
    network = Network(interfaces=cards, gateways=("203.0.113.1 dev wan",))
    seen = sighting("router", observed=facts(network=network), address="192.168.1.1")
    (router,) = await devices.record_sightings([seen], 1.0)
    assert router.addresses == ("192.168.1.1/24", "203.0.113.7/24")


async def test_a_machine_that_claims_to_be_another_stays_apart_from_it(devices):
    def seen() -> list[Sighting]:
        claims: dict[str, Any] = {"machine_id": "m1", "serial": "SN-1234-AB", "observed": facts()}
        return [
            sighting("nas", **claims, address="192.168.1.5"),
            sighting("liar", **claims, address="192.168.1.66"),
        ]

    victim, liar = await devices.record_sightings(seen(), 1.0)
    assert victim.id != liar.id
    again = await devices.record_sightings(seen(), 2.0)
    assert [device.id for device in again] == [victim.id, liar.id]
    assert again[0].refs == ("nas",)
    assert await history(devices) == []


async def test_guests_are_known_by_their_place_in_the_cluster(devices):
    def guest(vmid: int, **more: Any) -> Sighting:
        return sighting(f"home/{vmid}", kind="vm", place=f"home/{vmid}", **{"node": "pve1", **more})

    first, second = await devices.record_sightings([guest(100), guest(101)], 1.0)
    assert first.id != second.id  # although machine id and MAC are the same
    (moved,) = await devices.record_sightings([guest(100, node="pve2")], 2.0)
    assert moved.id == first.id
    assert await history(devices) == [("node", "pve1", "pve2")]


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("0123abcd\n=\nSN-42-XY\n", ("0123abcd", "SN-42-XY")),
        ("\n=\nTo Be Filled By O.E.M.\n", ("", "")),
        ("ABC\n=\n0000000\n", ("abc", "")),
        ("ABC\n=\nDefault string\n", ("abc", "")),
        ("", ("", "")),
    ],
)
def test_serial_numbers_that_number_nothing_are_no_identity(printed, expected):
    assert parse_fingerprint(printed) == expected


async def test_a_device_is_found_by_id_name_and_address(devices):
    await devices.record_sightings([sighting()], 1.0)
    for ref in (1, "1", "nas", "192.168.1.5", MAC):
        assert (await devices.find(ref)).id == 1
    with pytest.raises(NotFound, match="no device 'nix'"):
        await devices.find("nix")


# -- what is a change --------------------------------------------------------------------------------------------------


async def test_going_away_and_coming_back_are_changes_once_each(devices):
    (device,) = await devices.record_sightings([sighting()], 1.0)
    await devices.mark_absent([device.id], 2.0)
    await devices.mark_absent([device.id], 3.0)
    await devices.record_sightings([sighting()], 4.0)
    assert await history(devices) == [("state", "up", "away"), ("state", "away", "up")]


async def test_a_disk_that_fills_slowly_is_reported_once_it_has_moved_ten_points(devices):
    def filled(used: int) -> Sighting:
        disk = Filesystem(mount="/srv", device="/dev/sdb1", type="ext4", size=1000, used=used)
        return sighting(observed=facts(filesystems=(disk,)))

    for now, used in enumerate((400, 430, 460, 490, 510, 505, 540)):
        await devices.record_sightings([filled(used)], float(now))
    assert await history(devices) == [("filesystems./srv.used%", 40, 51)]


async def test_values_that_always_move_are_not_changes(devices):
    busy = facts(
        memory=Memory(total=(8 << 30) + 4096, available=1 << 20),
        uptime=Uptime(seconds=5, load=(9.0, 9.0, 9.0)),
        ports=(
            Port(protocol="tcp", address="*", port=22, process="sshd"),
            Port(protocol="udp", address="*", port=40123, process="avahi-daemon"),
            Port(protocol="tcp", address="*", port=45555, process="rpc.statd"),
            Port(protocol="tcp", address="127.0.0.1", port=45556, process="python3"),
        ),
        network=Network(
            interfaces=(
                Interface(
                    name="eth0",
                    mac=MAC,
                    state="up",
                    addresses=("192.168.1.5/24", "fe80::1/64", "2001:db8::9c3f:1a2b:77d1:e0c4/64"),
                ),
                Interface(name="veth12ab", mac="aa:aa:aa:aa:aa:aa", state="up"),
            )
        ),
    )
    await devices.record_sightings([sighting()], 1.0)
    await devices.record_sightings([sighting(observed=busy)], 2.0)
    assert await history(devices) == []


async def test_a_section_that_could_not_be_read_is_as_it_was(devices):
    await devices.record_sightings([sighting()], 1.0)
    (blind,) = await devices.record_sightings([sighting(observed=facts(ports=None, filesystems=None))], 2.0)
    assert blind.facts is not None
    assert blind.facts.ports
    await devices.record_sightings([sighting()], 3.0)
    assert await history(devices) == []


async def test_a_section_that_was_read_in_part_takes_nothing_away(devices):
    share = Filesystem(mount="/mnt", device="nas:/srv", type="nfs4", size=1000, used=100)
    local = facts().filesystems or ()
    await devices.record_sightings([sighting(observed=facts(filesystems=(*local, share)))], 1.0)
    hanging = facts(
        filesystems=local,
        network=Network(gateways=("192.168.1.1 dev eth0",)),
        not_known={"filesystems": "df did not end", "network": "its interfaces are not told"},
    )
    await devices.record_sightings([sighting(observed=hanging, macs=(MAC,))], 2.0)
    assert await history(devices) == []


async def test_a_port_that_opens_a_container_that_stops_and_a_unit_that_fails_are_changes(devices):
    def with_container(state: str, **more: Any) -> Sighting:
        box = Container(engine="docker", name="web", state=state, image="nginx")
        return sighting(observed=facts(containers=(box,), **more))

    await devices.record_sightings([with_container("running")], 1.0)
    ports = (*(facts().ports or ()), Port(protocol="tcp", address="*", port=8080))
    await devices.record_sightings(
        [with_container("exited", ports=ports, services=Services(manager="systemd", failed=("nut.service",)))], 2.0
    )
    assert sorted(await history(devices)) == [
        ("containers.docker/web", "running nginx", "not running nginx"),
        ("ports.tcp/8080", None, "*"),
        ("services.nut.service", None, "failed"),
    ]


async def test_a_scan_that_looks_at_other_ports_finds_no_changes_but_a_port_that_opens_is_one(devices):
    await devices.record_sightings([Sighting(address="10.0.0.5", open_ports=(80,), closed_ports=(443,))], 1.0)
    await devices.record_sightings([Sighting(address="10.0.0.5", open_ports=(22,))], 2.0)
    assert await history(devices) == []
    await devices.record_sightings([Sighting(address="10.0.0.5", open_ports=(443,), closed_ports=(80,))], 3.0)
    assert sorted(await history(devices)) == [("open_ports.443", None, "open"), ("open_ports.80", "open", None)]


words = st.text("abcxyz-/.:0123456789é ", max_size=12)
counts = st.one_of(st.none(), st.integers(0, 2**45))
anything = st.builds(
    Facts,
    system=st.one_of(st.none(), st.builds(System, hostname=words, id=words, kernel=words)),
    memory=st.one_of(st.none(), st.builds(Memory, total=counts, available=counts)),
    filesystems=st.one_of(
        st.none(),
        st.lists(
            st.builds(Filesystem, mount=words, device=words, type=words, size=counts, used=counts), max_size=4
        ).map(tuple),
    ),
    network=st.one_of(
        st.none(),
        st.builds(
            Network,
            interfaces=st.lists(
                st.builds(Interface, name=words, mac=words, addresses=st.lists(words, max_size=3).map(tuple)),
                max_size=4,
            ).map(tuple),
            gateways=st.lists(words, max_size=2).map(tuple),
        ),
    ),
    ports=st.one_of(
        st.none(),
        st.lists(
            st.builds(Port, protocol=st.sampled_from(["tcp", "udp"]), address=words, port=st.integers(0, 65535)),
            max_size=5,
        ).map(tuple),
    ),
    containers=st.one_of(st.none(), st.lists(st.builds(Container, engine=words, name=words), max_size=4).map(tuple)),
)


@pytest.mark.thorough
@given(anything, anything)
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_looking_twice_at_anything_makes_no_change_and_what_is_kept_can_be_read_again(before, after):
    device = merge(Device(), Sighting(kind="host", name="x", facts=before), 1.0)
    device = msgspec.structs.replace(device, reported=view(device))
    once = merge(device, Sighting(kind="host", name="x", facts=after), 2.0)
    _, reported = differences(device.reported, view(once))
    once = msgspec.json.decode(msgspec.json.encode(msgspec.structs.replace(once, reported=reported)), type=Device)
    twice = merge(once, Sighting(kind="host", name="x", facts=after), 3.0)
    assert differences(once.reported, view(twice))[0] == []


# -- the store ---------------------------------------------------------------------------------------------------------


async def test_servers_that_see_the_same_at_once_make_one_device_and_one_entry(store):
    async def look(observed: Facts) -> list[Device]:
        return await Devices(store).record_sightings([sighting(observed=observed)], 5.0)

    first = await asyncio.gather(*(look(facts()) for _ in range(8)))
    assert {device.id for (device,) in first} == {1}
    await asyncio.gather(*(look(facts("192.168.1.9/24")) for _ in range(8)))
    devices = Devices(store)
    assert len(await devices.all()) == 1
    assert [change.changes[0]["path"] for change in await devices.changes()].count("device") == 1
    assert await history(devices) == [("network.eth0.addresses", "192.168.1.5/24", "192.168.1.9/24")]


async def test_the_same_change_may_happen_again(store):
    devices = Devices(store)
    for now, address in enumerate(("192.168.1.5/24", "192.168.1.9/24", "192.168.1.5/24", "192.168.1.9/24")):
        await devices.record_sightings([sighting(observed=facts(address))], float(now))
    assert len(await history(devices)) == 3


async def test_old_history_and_devices_unseen_for_long_are_forgotten(store, monkeypatch):
    devices = Devices(store)
    await devices.record_sightings([sighting("old", "m1")], 1.0)
    await devices.record_sightings(
        [sighting("new", "m2", facts("192.168.1.9/24", OTHER_MAC))], 2.0 + kept_in.KEPT_SECONDS
    )
    (left,) = await devices.all()
    assert left.name == "new"
    assert [device.name for device in await devices.changes()] == ["new"]
    assert left.id == 2
    monkeypatch.setattr(kept_in, "MOST_CHANGES", 3)
    for number in range(10):
        await devices.record_sightings(
            [sighting("new", "m2", facts(f"192.168.1.{number}/24", OTHER_MAC))], 9.0 + number + kept_in.KEPT_SECONDS
        )
    assert len(await devices.changes(limit=100)) == 3
