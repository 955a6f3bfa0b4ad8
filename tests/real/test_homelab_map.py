"""The homelab discovered, mapped, changed and mapped again: the history tells what was changed, and nothing else."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.real.homelab import DMZ, LAN, HomelabLab, serving
from tests.rigs.mcp_session import Rig

pytestmark = pytest.mark.anyio

NOTHING_TELLS = "No program or file there provides it"


async def history(quorate: Rig, since: int) -> list[tuple[str, str, Any, Any]]:
    """Name, what, old, new of all entries after the given number."""
    rows = await quorate.rows("network_changes", limit=500)
    newer = rows[: len(rows) - since]
    return sorted((row["name"], row["what"], row.get("old"), row.get("new")) for row in newer)


async def picture(quorate: Rig) -> bytes:
    answer = await quorate.call("network_map", format="png")
    [data] = [base64.b64decode(block.data) for block in answer.content if block.type == "image"]
    return data


async def test_every_host_is_identified(homelab: HomelabLab, tmp_path: Path):
    async with serving(homelab, tmp_path) as quorate:
        discovered = await quorate.facts("network_discover")
        assert (discovered["discovered"], discovered["failed"]) == (len(homelab.hosts), 0)
        for name, host in homelab.hosts.items():
            told = await quorate.facts("host_discover", host=name, detail=True)
            assert (told["system"]["hostname"], told["system"]["id"]) == (name, host.system)
            [card] = [interface for interface in told["network"]["interfaces"] if interface["name"] == "eth0"]
            assert f"{host.address}/24" in card["addresses"]
            assert card["mac"] == host.mac
            if name != "bare":
                assert told["cpu"]["threads"] == int(host.run("busybox", "nproc").stdout)
                assert [port["port"] for port in told["ports"]] == [22]
        nas = await quorate.facts("host_discover", host="nas", sections=["filesystems"], detail=True)
        [disk] = [filesystem for filesystem in nas["filesystems"] if filesystem["mount"] == "/srv"]
        assert (disk["type"], disk["device"].startswith("/dev/loop")) == ("ext4", True)
        assert (await quorate.facts("host_discover", host="cellar"))["way"].endswith(f"through worker@{DMZ.prefix}.10")


async def test_a_host_without_programs_shows_what_the_kernel_knows(homelab: HomelabLab, tmp_path: Path):
    async with serving(homelab, tmp_path, "bare") as quorate:
        told = await quorate.facts("host_discover", host="bare", detail=True)
        [card] = told["network"]["interfaces"]
        assert (card["name"], told["network"]["gateways"]) == ("eth0", [f"{DMZ.gateway} dev eth0"])
        unknown = {"cpu", "memory", "disks", "filesystems", "ports", "uptime"}
        assert unknown <= told["not_known"].keys()
        assert {told["not_known"][section] for section in unknown} == {NOTHING_TELLS}
        assert not {section for section in unknown if told.get(section)}
        seen = await quorate.facts("network_discover")
        assert (seen["discovered"], seen["rows"][0][:4]) == (1, ["bare", 1, "bare", f"{DMZ.prefix}.11"])


async def test_the_history_shows_exactly_what_was_changed(homelab: HomelabLab, tmp_path: Path):
    nas, desk, pi = (homelab.hosts[name] for name in ("nas", "desk", "pi"))
    async with serving(homelab, tmp_path) as quorate:
        await quorate.facts("network_discover")
        first = len(await history(quorate, 0))
        assert first == len(homelab.hosts)
        before = tmp_path / "before.png"
        before.write_bytes(await picture(quorate))
        await quorate.facts("network_discover")
        assert await history(quorate, first) == []

        full = nas.rootfs / "srv/full"
        full.write_bytes(bytes(80 * 1024**2))
        with pi.away(), desk.running("busybox", "httpd", "-f", "-p", "8080"):
            again = await quorate.facts("network_discover")
            assert (again["discovered"], again["failed"]) == (len(homelab.hosts) - 1, 1)
            changed = await history(quorate, first)
            assert changed == [
                ("desk", "ports.tcp/8080", None, "*"),
                ("nas", "filesystems./srv.used%", 0, changed[1][3]),
                ("pi", "state", "up", "away"),
            ]
            assert changed[1][3] > 90
            states = {row["name"]: row["state"] for row in await quorate.rows("network_map")}
            assert states == dict.fromkeys(homelab.hosts, "up") | {"pi": "away"}
            [full_disk] = [row for row in await quorate.rows("network_analyze") if "/srv" in row["evidence"]]
            assert full_disk["about"].startswith("nas")
            after = tmp_path / "after.png"
            after.write_bytes(await picture(quorate))
            assert {path.read_bytes()[:4] for path in (before, after)} == {b"\x89PNG"}
            assert before.read_bytes() != after.read_bytes()
            await quorate.facts("network_discover")
            assert await history(quorate, first) == changed

        full.unlink()
        await quorate.facts("network_discover")
        back = await history(quorate, first + len(changed))
        assert back == [
            ("desk", "ports.tcp/8080", "*", None),
            ("nas", "filesystems./srv.used%", changed[1][3], 0),
            ("pi", "state", "away", "up"),
        ]


async def test_a_host_that_lost_its_power_under_an_open_connection_is_away(homelab: HomelabLab, tmp_path: Path):
    async with serving(homelab, tmp_path, "pi", "desk") as quorate:
        await quorate.facts("network_discover")
        first = len(await history(quorate, 0))
        with homelab.hosts["pi"].without_power():
            await quorate.facts("network_discover")
            assert await history(quorate, first) == [("pi", "state", "up", "away")]


async def test_a_jump_host_that_is_away_says_nothing_about_who_is_behind_it(homelab: HomelabLab, tmp_path: Path):
    async with serving(homelab, tmp_path) as quorate:
        await quorate.facts("network_discover")
        first = len(await history(quorate, 0))
        with homelab.hosts["web"].away():
            looks = {row["host"]: row["why_not"] for row in await quorate.rows("network_discover")}
            assert {name for name, why in looks.items() if why} == {"web", "cellar"}
            assert "web" in looks["cellar"] or homelab.hosts["web"].address in looks["cellar"]
            assert await history(quorate, first) == [
                ("router", "network.port10.state", "up", "down"),
                ("web", "state", "up", "away"),
            ]


async def test_segments_are_joined_by_their_router(homelab: HomelabLab, tmp_path: Path):
    async with serving(homelab, tmp_path) as quorate:
        await quorate.facts("network_discover")
        rows = await quorate.rows("network_map")
        assert {row["name"]: row["segment"] for row in rows} == {
            name: host.segment.network for name, host in homelab.hosts.items()
        }
        assert [row["name"] for row in rows if row["role"] == "router"] == ["router"]
        segments = (await quorate.facts("network_map"))["segments"]
        assert segments[LAN.network] == {"gateways": [LAN.gateway]}
        assert segments[DMZ.network] == {"gateways": [DMZ.gateway], "also_here": ["router"]}
