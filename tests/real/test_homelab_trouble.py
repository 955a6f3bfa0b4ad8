"""Hosts that are not as they should be: strange keys, wrong passwords, silence, floods. All told, in bounded time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.real.homelab import LAN, HomelabLab, gone, lost, serving, silent
from tests.real.homelab_hosts import RealHost
from tests.real.keys import public
from tests.rigs.mcp_session import Rig

pytestmark = pytest.mark.anyio

LONGEST = 45.0
"""Clients wait a minute for a tool."""


@contextmanager
def bounded() -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < LONGEST


@contextmanager
def with_program(host: RealHost, name: str, text: str) -> Iterator[None]:
    path = host.rootfs / "usr/local/bin" / name
    path.write_text(text)
    path.chmod(0o755)
    try:
        yield
    finally:
        path.unlink()


async def is_known_as_up(quorate: Rig, name: str) -> bool:
    return name in {row["name"] for row in await quorate.rows("network_map") if row["state"] == "up"}


async def test_a_host_with_another_key_gets_nothing(homelab: HomelabLab, tmp_path: Path):
    desk = homelab.hosts["desk"]
    async with serving(homelab, tmp_path, "desk", "pi") as quorate:
        await quorate.facts("network_discover")
        known = len(await quorate.rows("network_changes"))
        with desk.other_key():
            verdict = await quorate.facts("host_verify", host="desk")
            assert (verdict["verified"], verdict["failed_at"]) == (False, "host key")
            refusal = await quorate.refusal("host_exec", host="desk", command=["touch", "/tmp/came-in"])
            assert "THE HOST KEY OF 10.78.1.11 HAS CHANGED" in refusal
            rows = {row["host"]: row for row in await quorate.rows("network_discover")}
            assert not rows["pi"]["why_not"]
            assert "KEY" in rows["desk"]["why_not"]
            assert await is_known_as_up(quorate, "desk")  # something is there, and it may be the host
            assert len(await quorate.rows("network_changes")) == known
            assert "Accepted" not in desk.log
        assert (await quorate.facts("host_verify", host="desk"))["verified"]
    assert not (desk.rootfs / "tmp/came-in").exists()


async def test_a_wrong_password_and_an_unknown_key_have_errors_of_their_own(homelab: HomelabLab, tmp_path: Path):
    async with serving(homelab, tmp_path, "nas", "pi") as quorate:
        wrong = "incorrect donkey"
        refusal = await quorate.refusal("host_exec", host="nas", command=["id"], password=wrong)
        assert "keeper" in refusal
        assert wrong not in refusal
        other = tmp_path / "secrets.d/other"
        other.write_text(wrong)
        other.chmod(0o600)
        await quorate.facts("host_update", host="nas", sudo_password="file:other")
        verdict = await quorate.facts("host_verify", host="nas")
        assert (verdict["verified"], verdict["root"]) == (True, "no")
        assert wrong not in str(verdict)
        await quorate.facts("host_update", host="nas", password="file:other")
        verdict = await quorate.facts("host_verify", host="nas")
        assert (verdict["verified"], verdict["failed_at"]) == (False, "login")
        strange = await quorate.refusal("host_exec", host="pi", command=["id"], key=str(homelab.strange_key))
        assert "root" in strange
        looks = {row["host"]: row["why_not"] for row in await quorate.rows("network_discover")}
        assert looks["nas"]
        assert not looks["pi"]
        assert wrong not in (tmp_path / "audit.jsonl").read_text()


async def test_silent_hosts_take_a_bounded_time_of_their_own(homelab: HomelabLab, tmp_path: Path):
    async with serving(homelab, tmp_path, "pi") as quorate:
        with silent(LAN, "10.78.1.66"), lost(LAN, "10.78.1.77"):
            await quorate.facts("host_register", host="mute", address="10.78.1.66", verify=False)
            await quorate.facts("host_register", host="far", address="10.78.1.77", verify=False)
            with bounded():
                verdict, refusal, rows = await asyncio.gather(
                    quorate.facts("host_verify", host="mute"),
                    quorate.refusal("host_exec", host="far", command=["id"]),
                    quorate.rows("network_discover"),
                )
            assert (verdict["verified"], verdict["failed_at"]) == (False, "connection")
            assert "10.78.1.77" in refusal
            looks = {row["host"]: row["why_not"] for row in rows}
            assert looks["mute"]
            assert looks["far"].startswith("Nothing answers at root@10.78.1.77")
            assert not looks["pi"]


async def test_a_flood_of_output_is_cut_and_ends(homelab: HomelabLab, tmp_path: Path):
    desk = homelab.hosts["desk"]
    async with serving(homelab, tmp_path, "desk") as quorate:
        with bounded():
            flood = await quorate.facts("host_exec", host="desk", command=["yes", "flood4711"], timeout=2, wait=20)
        assert len(flood["stdout"]) < 1024**2
        assert flood["stdout"].startswith("flood4711\nflood4711\n")
        await gone(desk, "flood4711")


async def test_a_program_that_floods_or_hangs_spoils_only_its_own_part(homelab: HomelabLab, tmp_path: Path):
    desk = homelab.hosts["desk"]
    flood, hang = "#!/bin/sh\nexec yes flood4711\n", "#!/bin/sh\nexec sleep 4711\n"
    async with serving(homelab, tmp_path, "desk") as quorate:
        with with_program(desk, "lscpu", flood), with_program(desk, "lsblk", hang), bounded():
            told = await quorate.facts("host_discover", host="desk", seconds=12)
        assert told["system"]["hostname"] == "desk"
        assert "threads" in told["cpu"]  # the kernel told it as well
        assert told["network"]["gateways"] == [f"{LAN.gateway} dev eth0"]
        await gone(desk, "4711")


async def test_a_login_that_only_floods_is_not_a_posix_system(homelab: HomelabLab, tmp_path: Path):
    desk = homelab.hosts["desk"]
    keys = desk.rootfs / "root/.ssh/authorized_keys"
    saved = keys.read_text()
    async with serving(homelab, tmp_path, "desk") as quorate:
        keys.write_text(f'command="yes flood4711" {public(homelab.key)}\n')
        try:
            with bounded():
                refusal = await quorate.refusal("host_discover", host="desk", seconds=5)
            assert "does not answer like a POSIX system" in refusal
            with bounded():
                [row] = await quorate.rows("network_discover", seconds=6)
            assert row["why_not"]
            await gone(desk, "flood4711")
        finally:
            keys.write_text(saved)
