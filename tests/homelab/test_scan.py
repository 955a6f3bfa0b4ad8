"""Scanning the network: what is found, what may not be scanned, and what is reported when time is up."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.config.homelab import PRIVATE_NETWORKS
from quorate.homelab.network_probe import (
    PortState,
    addresses,
    as_ranges,
    neighbors,
    parse_arp_command,
    parse_arp_file,
    parse_ip_neigh,
    parse_states,
    probe,
)
from quorate.homelab.network_scan import parse_nmap
from quorate.problems import Problem
from tests.rigs.homelab import House, house
from tests.rigs.silent_host import listening, silent

pytestmark = pytest.mark.anyio

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)


def home(tmp_path, **more: Any):
    return house(tmp_path, {}, homelab={"networks": LOOPBACK, **more})


async def changes(built: House) -> list[tuple[str, Any, Any]]:
    rows = await built.quorate.rows("network_changes")
    changes = [(row["what"], row.get("old"), row.get("new")) for row in reversed(rows)]
    return [change for change in changes if change[0] != "device"]


async def test_a_scan_finds_who_answers_and_puts_them_on_the_map(tmp_path):
    with listening("127.0.9.1") as port:
        async with home(tmp_path) as built:
            arguments = {"targets": ["127.0.9.1-2"], "ports": [port]}
            rows = await built.quorate.rows("network_scan", **arguments)
            assert [(row["address"], row["open_ports"]) for row in rows] == [
                ("127.0.9.1", str(port)),
                ("127.0.9.2", ""),
            ]
            mapped = await built.quorate.rows("network_map")
            devices = {row["address"]: row for row in mapped if row["segment"] == "127.0.9.0/24"}
            assert devices["127.0.9.1"]["device"] == rows[0]["device"]
            assert devices["127.0.9.1"]["role"] == "device"
            again = await built.quorate.rows("network_scan", **arguments)
            assert [row["device"] for row in again] == [row["device"] for row in rows]
            assert await changes(built) == []


async def test_a_registered_host_is_recognised_by_its_address_before_anybody_has_looked_into_it(tmp_path):
    with listening("127.0.9.8") as port:
        async with home(tmp_path) as built:
            await built.quorate.facts("host_register", host="nas", address="127.0.9.8", verify=False)
            rows = await built.quorate.rows("network_scan", targets=["127.0.9.8"], ports=[port])
            assert [row["known_as"] for row in rows] == ["host nas"]


async def test_a_device_that_falls_silent_is_away_until_it_answers_again(tmp_path):
    async with home(tmp_path) as built:
        with listening("127.0.9.3") as port:
            arguments = {"targets": ["127.0.9.3"], "ports": [port]}
            await built.quorate.facts("network_scan", **arguments)
        await built.quorate.clock.advance(60)
        with silent("127.0.9.3", port):
            quiet = await built.quorate.facts("network_scan", **arguments)
            assert quiet["answered"] == 0
            assert "127.0.9.3" in quiet["gone"]
        await built.quorate.clock.advance(60)
        with listening("127.0.9.3", port):
            await built.quorate.facts("network_scan", **arguments)
        assert await changes(built) == [("state", "up", "away"), ("state", "away", "up")]


async def test_a_port_that_opens_or_closes_is_a_change(tmp_path):
    async with home(tmp_path) as built:
        with listening("127.0.9.4") as port:
            await built.quorate.facts("network_scan", targets=["127.0.9.4"], ports=[port])
        await built.quorate.facts("network_scan", targets=["127.0.9.4"], ports=[port])
        assert await changes(built) == [(f"open_ports.{port}", "open", None)]


async def test_when_time_is_up_the_answer_says_what_was_not_scanned(tmp_path):
    async with home(tmp_path) as built:
        with ExitStack() as stack:
            first = stack.enter_context(silent("127.0.8.1"))
            for number in range(2, 201):
                stack.enter_context(silent(f"127.0.8.{number}", first))
            facts = await built.quorate.facts(
                "network_scan", targets=["127.0.8.1-200"], ports=[first], seconds=1, rate=2000
            )
        assert facts["answered"] == 0
        assert "for lack of time" in facts["not_scanned"]
        assert "127.0.8.200" in facts["next"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"targets": ["8.8.8.0/24"]}, '[homelab] networks = ["8.8.8.0/24"]'),
        ({"targets": ["10.0.0.0/8"]}, "Narrow it to 4096"),
        ({"targets": ["nas.lan"]}, "a subnet (192.168.1.0/24)"),
        ({"targets": ["10.0.0.9-10.0.0.1"]}, "ends before it begins"),
        ({"targets": []}, "nothing to scan"),
        ({"targets": ["10.0.0.1"], "ports": ["ssh"]}, "22 or 8000-8010"),
        ({"targets": ["10.0.0.1"], "ports": ["1-65535"]}, "up to 256"),
        ({"targets": ["10.0.0.1"], "ports": [0]}, "1 to 65535"),
    ],
)
async def test_what_cannot_or_may_not_be_scanned_is_refused_with_the_way_out(tmp_path, arguments, words):
    async with house(tmp_path, {}) as built:
        assert words in await built.quorate.refusal("network_scan", **arguments)


async def test_a_range_that_begins_in_an_allowed_network_and_leaves_it_is_refused(tmp_path):
    async with house(tmp_path, {}) as built:
        assert "may not be scanned" in await built.quorate.refusal("network_scan", targets=["10.255.255.250-11.0.0.5"])


async def test_progress_is_reported_during_the_scan(tmp_path):
    async with home(tmp_path) as built:
        await built.quorate.facts("network_scan", targets=["127.0.7.0/24"], ports=[9, 10])
        assert any("addresses have answered" in (line or "") for _, _, line in built.quorate.progress)


lists_of_addresses = st.lists(
    st.integers(int(ipaddress.IPv4Address("10.0.0.0")), int(ipaddress.IPv4Address("10.0.1.255"))),
    min_size=1,
    max_size=200,
).map(lambda numbers: [ipaddress.IPv4Address(number) for number in numbers])


@given(lists_of_addresses)
def test_addresses_written_as_ranges_mean_the_same_addresses(originals):
    assert addresses(as_ranges(originals), PRIVATE_NETWORKS) == sorted(set(originals))


@given(st.lists(st.text("0123456789./-:abcf ", max_size=20), max_size=3))
def test_whatever_is_given_as_target_is_read_or_refused_with_a_problem(texts):
    try:
        parsed = addresses(texts, PRIVATE_NETWORKS)
    except Problem:
        return
    assert parsed
    assert all(any(address in network for network in PRIVATE_NETWORKS) for address in parsed)


def test_neighbours_are_read_from_every_kind_of_table():
    kernel = (
        "IP address       HW type     Flags       HW address            Mask     Device\n"
        "192.168.1.1      0x1         0x2         02:FC:00:00:00:05     *        eth0\n"
        "192.168.1.9      0x1         0x0         00:00:00:00:00:00     *        eth0\n"
    )
    assert parse_arp_file(kernel) == {"192.168.1.1": "02:fc:00:00:00:05"}
    iproute = (
        "192.168.1.1 dev eth0 lladdr 02:fc:00:00:00:05 REACHABLE\n"
        "fe80::1 dev eth0 lladdr 02:fc:00:00:00:06 router STALE\n"
        "192.168.1.7 dev eth0  FAILED\n"
        "192.168.1.8 dev eth0 lladdr 02:fc:00:00:00:08 FAILED\n"
    )
    assert parse_ip_neigh(iproute) == {"192.168.1.1": "02:fc:00:00:00:05", "fe80::1": "02:fc:00:00:00:06"}
    assert parse_states(iproute) == {
        "192.168.1.1": "REACHABLE", "fe80::1": "STALE", "192.168.1.7": "FAILED", "192.168.1.8": "FAILED",
    }  # fmt: skip
    bsd = "? (192.168.1.1) at 2:fc:0:0:0:5 on en0 ifscope [ethernet]\n? (192.168.1.4) at (incomplete) on en0\n"
    assert parse_arp_command(bsd) == {"192.168.1.1": "02:fc:00:00:00:05"}


async def test_neighbors_that_a_pipe_delivers_in_parts_are_all_read(tmp_path, monkeypatch):
    addresses = [f"10.0.{high}.{low}" for high in range(20) for low in range(250)]
    (tmp_path / "listed").write_text("".join(f"{a} dev eth0 lladdr 02:fc:00:00:00:05 REACHABLE\n" for a in addresses))
    program = tmp_path / "ip"
    program.write_text(f"#!/bin/sh\nexec /bin/cat {tmp_path}/listed\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert set(addresses) <= (await neighbors()).keys()


@given(st.text())
def test_no_text_breaks_the_reading_of_neighbours(text):
    for parse in (parse_arp_file, parse_ip_neigh, parse_arp_command):
        assert isinstance(parse(text), dict)


def test_what_nmap_prints_is_read():
    printed = """<?xml version="1.0"?>
        <nmaprun scanner="nmap"><host><status state="up" reason="arp-response"/>
        <address addr="192.168.1.5" addrtype="ipv4"/><address addr="BC:24:11:00:00:01" addrtype="mac" vendor="Proxmox"/>
        <ports><port protocol="tcp" portid="22"><state state="open"/></port>
        <port protocol="tcp" portid="80"><state state="closed"/></port></ports></host>
        <host><status state="down" reason="no-response"/>
        <address addr="192.168.1.6" addrtype="ipv4"/></host></nmaprun>"""
    (seen,) = parse_nmap(printed)
    assert (str(seen.address), seen.mac, seen.open) == ("192.168.1.5", "bc:24:11:00:00:01", {22})
    with pytest.raises(Problem, match="cannot be parsed"):
        list(parse_nmap("Starting Nmap"))


@pytest.mark.skipif(shutil.which("nmap") is None, reason="nmap is not installed")
async def test_nmap_finds_the_same_as_the_builtin_scan(tmp_path):
    with listening("127.0.9.6") as port:
        async with home(tmp_path) as built:
            arguments = {"targets": ["127.0.9.5-7"], "ports": [port]}
            builtin = await built.quorate.rows("network_scan", **arguments)
            facts = await built.quorate.facts("network_scan", engine="auto", **arguments)
            assert facts["engine"] == "nmap"
            assert await built.quorate.rows("network_scan", engine="nmap", **arguments) == builtin


async def test_without_nmap_the_answer_says_what_to_do(tmp_path, monkeypatch):
    async with home(tmp_path) as built:
        monkeypatch.setenv("PATH", str(tmp_path))
        assert "engine=builtin" in await built.quorate.refusal("network_scan", targets=["127.0.0.1"], engine="nmap")


async def test_where_this_machine_has_no_room_for_a_connection_nobody_is_taken_for_gone(tmp_path):
    async with home(tmp_path) as built:
        with listening("127.0.9.9") as port:
            arguments = {"targets": ["127.0.9.9"], "ports": [port]}
            await built.quorate.facts("network_scan", **arguments)
            with no_file_handles_left():
                assert await probe(ipaddress.ip_address("127.0.9.9"), port, 1) is PortState.NOT_TRIED


@contextmanager
def no_file_handles_left() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    handles = max(int(descriptor.name) for descriptor in Path("/proc/self/fd").iterdir())
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (handles + 1, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        yield
    finally:
        for connection in held:
            os.close(connection)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
