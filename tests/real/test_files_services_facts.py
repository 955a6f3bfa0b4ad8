"""Files, services and facts of real guests: coreutils and BusyBox, systemd and OpenRC, by every way in."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest

from tests.inside_guests import HOSTILE_NAMES
from tests.real.lab import Lab
from tests.real.ways import EVERY_WAY, WAYS, reached

pytestmark = pytest.mark.anyio

NAMES = (*HOSTILE_NAMES, "-e", "$IFS", "a;b", "trailing ", " leading", "x" * 250)


@EVERY_WAY
async def test_a_file_of_every_byte_is_written_read_and_kept_as_it_is(lab: Lab, tmp_path: Path, way: str):
    data = bytes(range(256)) * 800  # more than three times what the agent takes at once
    async with reached(lab, way, tmp_path) as inside:
        sent = base64.b64encode(data).decode()
        done = await inside.facts(
            "guest_file_write", path="/srv/new/deep/all", content=sent, encoding="base64", parents=True, mode="0640",
            owner="worker:worker",
        )  # fmt: skip
        assert (done["result"], done["file"], done["way"]) == ("done", "made", WAYS[way])
        assert (await inside.look("sha256sum", "/srv/new/deep/all")).split()[0] == hashlib.sha256(data).hexdigest()
        assert (await inside.look("stat", "-c", "%a %U %G", "/srv/new/deep/all")).split() == ["640", "worker", "worker"]
        found = b""
        while len(found) < len(data):
            part = await inside.facts("guest_file_read", path="/srv/new/deep/all", offset=len(found), limit=100_000)
            assert part["size"] == len(data)
            found += base64.b64decode(part["base64"])
        assert found == data
        done = await inside.facts("guest_file_write", path="/srv/new/deep/all", content="ü\n")
        assert done["file"] == f"replaced, {len(data)} bytes before"
        assert (await inside.look("stat", "-c", "%a %U %G %s", "/srv/new/deep/all")).split() == [
            "640", "worker", "worker", "3",
        ]  # fmt: skip
        await inside.facts("guest_file_write", path="/srv/new/deep/all", content="more\n", append=True)
        assert await inside.look("cat", "/srv/new/deep/all") == "ü\nmore\n"
        assert (await inside.look("ls", "-A", "/srv/new/deep")).split() == ["all"]
        await inside.look("rm", "-r", "/srv/new")


@EVERY_WAY
async def test_names_of_every_kind_survive_and_run_nothing(lab: Lab, tmp_path: Path, way: str):
    async with reached(lab, way, tmp_path) as inside:
        await inside.look("mkdir", "/srv/names")
        for number, name in enumerate(NAMES):
            await inside.facts("guest_file_write", path=f"/srv/names/{name}", content=f"number {number}")
        await inside.look("sh", "-c", "printf x > \"/srv/names/$(printf 'caf\\351')\"")
        rows = await inside.quorate.rows("guest_dir_list", guest=inside.vmid, path="/srv/names")
        listed = [base64.b64decode(row["name_base64"]) if row["name_base64"] else row["name"].encode() for row in rows]
        assert listed == sorted([*(name.encode() for name in NAMES), b"caf\xe9"])
        for number, name in enumerate(NAMES):
            read = await inside.facts("guest_file_read", path=f"/srv/names/{name}")
            assert read["content"] == f"number {number}"
        assert (await inside.look("sh", "-c", "ls -d /owned /root/owned /srv/owned /tmp/owned 2>/dev/null")) == ""
        await inside.look("rm", "-r", "/srv/names")


@EVERY_WAY
async def test_links_pipes_folders_and_what_is_not_there(lab: Lab, tmp_path: Path, way: str):
    async with reached(lab, way, tmp_path) as inside:
        await inside.look(
            "sh", "-c", "mkdir /srv/k; cd /srv/k; echo old > real; ln -s real link; ln -s /gone/x lost; mkfifo pipe"
        )
        done = await inside.facts("guest_file_write", path="/srv/k/link", content="new")
        assert done["behind_link"] == "/srv/k/real"
        assert await inside.look("cat", "/srv/k/real") == "new"
        assert (await inside.facts("guest_path_stat", path="/srv/k/link"))["target"] == "real"
        assert "leads nowhere" in await inside.refusal("guest_file_write", path="/srv/k/lost", content="x")
        assert "is a pipe and no file" in await inside.refusal("guest_file_read", path="/srv/k/pipe")
        assert "is no file but a fifo" in await inside.refusal("guest_file_write", path="/srv/k/pipe", content="x")
        assert "is a device" in await inside.refusal("guest_file_read", path="/dev/zero")
        assert "it is not there" in await inside.refusal("guest_dir_list", path="/srv/nope")
        assert "parents=true" in await inside.refusal("guest_file_write", path="/srv/no/where", content="x")
        assert "user" in await inside.refusal("guest_file_write", path="/srv/k/f", content="x", owner="nobody9")
        rows = await inside.quorate.rows("guest_dir_list", guest=inside.vmid, path="/srv/k")
        assert [(row["name"], row["type"]) for row in rows] == [
            ("link", "link"), ("lost", "link"), ("pipe", "fifo"), ("real", "file"),
        ]  # fmt: skip
        assert (await inside.facts("guest_file_read", path="/proc/self/stat"))["content"]
        await inside.look("rm", "-r", "/srv/k")


@EVERY_WAY
async def test_a_service_is_started_stopped_enabled_and_disabled(lab: Lab, tmp_path: Path, way: str):
    async with reached(lab, way, tmp_path) as inside:

        async def control(action):
            return await inside.facts("guest_service_control", service="napping", action=action)

        assert (await inside.facts("guest_service", service="napping"))["state"].startswith("inactive")
        assert (await control("start"))["now"].startswith("active")
        asleep = "sleep 86400" if inside.is_busybox else "sleep infinity"
        await inside.there(asleep)
        assert (await control("restart"))["now"].startswith("active")
        assert (await control("enable"))["enabled"] == "enabled"
        assert (await control("disable"))["enabled"] == "disabled"
        assert (await control("stop"))["now"].startswith("inactive")
        await inside.gone(asleep)
        names = [row["service"] for row in await inside.quorate.rows("guest_service", guest=inside.vmid)]
        assert {"napping", "failing"} <= {name.removesuffix(".service") for name in names}
        assert "There is no service" in await inside.refusal("guest_service", service="nosuch")


@EVERY_WAY
async def test_a_service_that_cannot_start_says_why(lab: Lab, tmp_path: Path, way: str):
    async with reached(lab, way, tmp_path) as inside:
        refusal = await inside.refusal("guest_service_control", service="failing", action="start")
        assert "not done" in refusal
        assert "failed" in refusal
        assert (await inside.facts("guest_service", service="failing"))["state"].split()[0] in ("failed", "inactive")


@pytest.mark.parametrize("way", [way for way in WAYS if way != "openrc"])
async def test_a_service_that_was_killed_has_failed_until_it_is_started_again(lab: Lab, tmp_path: Path, way: str):
    async with reached(lab, way, tmp_path) as inside:
        await inside.facts("guest_service_control", service="napping", action="start")
        await inside.look("systemctl", "kill", "-s", "KILL", "napping")
        await inside.gone("sleep infinity")
        found = await inside.facts("guest_service", service="napping", log_lines=20)
        assert found["state"] == "failed"
        assert "signal" in found["ended"]
        again = await inside.facts("guest_service_control", service="napping", action="restart")
        assert again["before"].startswith("failed")
        assert again["now"].startswith("active")
        await inside.facts("guest_service_control", service="napping", action="stop")


@EVERY_WAY
async def test_services_are_told_to_read_anew(lab: Lab, tmp_path: Path, way: str):
    async with reached(lab, way, tmp_path) as inside:
        name = "crond" if inside.is_busybox else "napping"
        await inside.facts("guest_service_control", service=name, action="start")
        done = await inside.facts("guest_service_control", service=name, action="reload")
        assert done["now"].startswith("active")
        other = "napping" if inside.is_busybox else "cron"
        assert "reload" in await inside.refusal("guest_service_control", service=other, action="reload")
        await inside.look("sh", "-c", "systemctl stop napping 2>/dev/null || true")


@EVERY_WAY
async def test_the_system_is_described(lab: Lab, tmp_path: Path, way: str):
    async with reached(lab, way, tmp_path) as inside:
        info = await inside.facts("guest_info")
        assert info["way"] == WAYS[way]
        assert info["hostname"] == (await inside.look("cat", "/proc/sys/kernel/hostname")).strip()
        assert info["memory"]
        assert len(info["load"].split()) == 3
        assert inside.is_busybox or "Debian" in info["os"]
        network = await inside.facts("guest_network")
        assert network["usable"]
        assert "not_known" not in network
        assert (await inside.facts("guest_wait"))["reached"] is True
