"""A hundred addresses of which thirty are dead, and scans that find exactly who is there."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from tests.real.__main__ import HOSTS
from tests.real.homelab import DMZ, LAN, HomelabLab, lost, serving, silent
from tests.real.homelab import OURS as OURS_IN_LAN
from tests.real.homelab_crowd import COUNT, CROWD, OURS, Crowd
from tests.real.needs import SCANS, program
from tests.real.network import run

pytestmark = pytest.mark.anyio

NOBODY = [f"{CROWD.prefix}.{number}" for number in range(101, 111)]
LOST = [f"{CROWD.prefix}.{number}" for number in range(111, 121)]
MUTE = [f"{CROWD.prefix}.{number}" for number in range(121, 131)]


@pytest.fixture(scope="module")
def crowd(homelab: HomelabLab) -> Iterator[Crowd]:
    built = Crowd(Path("/run/lab"), Path(os.environ[HOSTS]) / "busybox", homelab.key)
    try:
        built.set_up()
        yield built
    finally:
        built.close()


def require(name: str) -> None:
    if program(name) is None:
        assert not os.environ.get("CI"), f"{name} is missing"
        pytest.skip(f"apt-get install --no-install-recommends {' '.join(SCANS)}")


@pytest.fixture(params=["builtin", "nmap"])
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "nmap":
        require(name)
    return name


async def test_a_hundred_hosts_of_which_thirty_are_dead(homelab: HomelabLab, crowd: Crowd, tmp_path: Path):
    dead = [*NOBODY, *LOST, *MUTE]
    among, others = crowd.addresses[: len(dead)], crowd.addresses[len(dead) :]
    mixed = [*chain.from_iterable(zip(dead, among, strict=True)), *others]
    assert len(mixed) == 100
    async with serving(homelab, tmp_path, "pi", known=crowd.known_hosts(*dead)) as quorate:
        with silent(CROWD, *MUTE), lost(CROWD, *LOST):
            discovered = await quorate.facts("network_discover", hosts=mixed, seconds=45)
        rows = [dict(zip(discovered["columns"], row, strict=True)) for row in discovered["rows"]]
        assert {row["host"] for row in rows if row["why_not"]} == set(dead)
        assert (discovered["discovered"], discovered["failed"], len(rows)) == (COUNT, len(dead), 100)
        alive = [row for row in rows if not row["why_not"]]
        assert len({row["device"] for row in alive}) == COUNT
        assert {row["host"]: row["name"] for row in alive} == crowd.names
        assert discovered["seconds"] < 46


async def test_the_status_of_a_hundred_hosts_of_which_thirty_are_dead(
    homelab: HomelabLab, crowd: Crowd, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    dead = [*NOBODY, *LOST, *MUTE]
    among, others = crowd.addresses[: len(dead)], crowd.addresses[len(dead) :]
    mixed = [*chain.from_iterable(zip(dead, among, strict=True)), *others]
    async with serving(homelab, tmp_path, "pi", known=crowd.known_hosts(*dead)) as quorate:
        for number, address in enumerate(mixed):
            await quorate.facts("host_register", host=f"h{number}", address=address, labels=["crowd"], verify=False)
        with silent(CROWD, *MUTE), lost(CROWD, *LOST):
            begun = time.monotonic()
            answer = await quorate.facts("host_status", host="crowd")
            spent = time.monotonic() - begun
    with capsys.disabled():
        sys.stdout.write(f"\nhost_status of 100 hosts, 30 of them dead: {spent:.1f} s (the aim is 25 s)\n")
    rows = [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]
    assert (len(rows), answer["failed"]) == (100, len(dead))
    assert [bool(row["why_not"]) for row in rows] == [True] * len(dead) + [False] * COUNT


async def test_a_scan_finds_exactly_who_is_there(homelab: HomelabLab, crowd: Crowd, tmp_path: Path, engine: str):
    async with serving(homelab, tmp_path, "pi") as quorate:
        with silent(CROWD, *MUTE), lost(CROWD, *LOST):
            scanned = await quorate.rows(
                "network_scan", targets=[CROWD.network], ports=[22, 80], engine=engine, seconds=45, limit=500
            )
        listening = {row["address"] for row in scanned if row["open_ports"] == "22"}
        assert listening == {*crowd.addresses, *MUTE}
        assert {row["address"] for row in scanned} - listening == {OURS}


async def test_a_scan_sees_who_listens_where_and_who_has_gone(homelab: HomelabLab, tmp_path: Path, engine: str):
    desk, pi = homelab.hosts["desk"], homelab.hosts["pi"]
    arguments = {
        "targets": [OURS_IN_LAN, f"{LAN.prefix}.0/27", f"{DMZ.prefix}.0/27"],
        "ports": [22, 8080],
        "engine": engine,
        "seconds": 45,
    }
    there = {host.address: "22" for host in homelab.hosts.values() if host.name != "cellar"}  # it cannot answer us
    there |= {f"{DMZ.prefix}.1": "22", OURS_IN_LAN: ""}
    async with serving(homelab, tmp_path) as quorate:
        await quorate.facts("network_discover")
        scanned = await quorate.facts("network_scan", **arguments)
        assert scanned["answered"] == len(there)
        with pi.away(), desk.running("busybox", "httpd", "-f", "-p", "8080"):
            answer = await quorate.facts("network_scan", **arguments)
            rows = [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]
            open_ports = {row["address"]: row["open_ports"] for row in rows}
            gone = {pi.address: "22"}
            assert open_ports == dict(there.items() - gone.items()) | {desk.address: "22, 8080"}
            assert answer["gone"] == "pi"
            assert {row["address"]: row["mac"] for row in rows}[desk.address] == desk.mac


async def test_a_host_behind_a_firewall_is_found_by_its_network_card_until_it_leaves(
    homelab: HomelabLab, tmp_path: Path
):
    require("nft")
    pi = homelab.hosts["pi"]
    async with serving(homelab, tmp_path, "desk") as quorate:
        with pi.walled():
            [row] = await quorate.rows("network_scan", targets=[pi.address])
            assert (row["address"], row["mac"], row.get("open_ports", "")) == (pi.address, pi.mac, "")
            with pi.away():  # the kernel remembers it, and has to ask for it before it knows better
                place = (pi.address, "dev", LAN.bridge)
                await asyncio.to_thread(run, "ip", "neighbour", "replace", *place, "lladdr", pi.mac, "nud", "stale")
                answer = await quorate.facts("network_scan", targets=[pi.address])
                assert (answer["answered"], answer["gone"]) == (0, pi.address)
