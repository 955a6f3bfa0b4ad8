"""Files of real guests, by every way in: coreutils and BusyBox, and the agent that takes 45 KiB at once."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import random
from pathlib import Path

import pytest

from tests.real.lab import Lab
from tests.real.transports import CONTAINERS, EVERY_TRANSPORT, TRANSPORTS, reached
from tests.rigs.simulated_guests import HOSTILE_NAMES

pytestmark = pytest.mark.anyio

NAMES = (*HOSTILE_NAMES, "-e", "$IFS", "a;b", "trailing ", " leading", "x" * 250)
MIXED = "-e $(touch owned) `touch owned`; 'q\"uo te' && |\n\t*?[a]\\%s é日本 a\u202eb \x1b[31m # ~ "
"""All of it in one name, where each call takes its time."""


@EVERY_TRANSPORT
async def test_a_file_of_every_byte_is_written_read_and_kept_as_it_is(lab: Lab, tmp_path: Path, way: str):
    data = bytes(range(256)) * 240  # more than the agent takes at once
    path = f"/srv/new/deep/{MIXED}"
    async with reached(lab, way, tmp_path) as inside:
        sent = base64.b64encode(data).decode()
        done = await inside.facts(
            "guest_file_write", path=path, content=sent, encoding="base64", parents=True, mode="0640",
            owner="worker:worker",
        )  # fmt: skip
        assert (done["result"], done["file"], done["way"]) == ("done", "made", TRANSPORTS[way])
        looked = await inside.look("sh", "-c", "cd /srv/new/deep; cat ./* | sha256sum; stat -c '%a %U %G' ./*")
        assert looked.split() == [hashlib.sha256(data).hexdigest(), "-", "640", "worker", "worker"]
        content = b""
        while len(content) < len(data):
            part = await inside.facts("guest_file_read", path=path, offset=len(content), limit=61_000)
            assert part["size"] == len(data)
            content += base64.b64decode(part["base64"])
        assert content == data
        done = await inside.facts("guest_file_write", path=path, content="ü\n")
        assert done["file"] == f"replaced, {len(data)} bytes before"
        await inside.facts("guest_file_write", path=path, content="more\n", append=True)
        seen = await inside.facts("guest_path_stat", path=path)
        assert (seen["mode"], seen["owner"], seen["group"], seen["size"]) == ("0640", "worker", "worker", 8)
        [row] = await inside.quorate.rows("guest_dir_list", guest=inside.vmid, path="/srv/new/deep")
        assert base64.b64decode(row["name_base64"]).decode() == MIXED
        assert await inside.look("sh", "-c", "cat /srv/new/deep/*; ls -d /owned /root/owned /srv/owned") == "ü\nmore\n"
        await inside.look("rm", "-r", "/srv/new")


@pytest.mark.parametrize(("way", "size"), [("pct", 5_000_000), ("ssh", 5_000_000), ("agent", 300_000)])
async def test_megabytes_replace_a_file_at_once(lab: Lab, tmp_path: Path, way: str, size: int):
    data = random.Random(way).randbytes(size)
    async with reached(lab, way, tmp_path) as inside:
        await inside.look("sh", "-c", "echo old > /srv/big")
        watch = "while [ -e /srv/big ]; do stat -c %s /srv/big 2>/dev/null; done | sort -u"
        watching = asyncio.ensure_future(inside.look("sh", "-c", watch)) if way == "pct" else None
        sent = base64.b64encode(data).decode()
        await inside.facts("guest_file_write", path="/srv/big", content=sent, encoding="base64")
        assert (await inside.look("sha256sum", "/srv/big")).split()[0] == hashlib.sha256(data).hexdigest()
        part = await inside.facts("guest_file_read", path="/srv/big", offset=10_000, limit=270_000, encoding="base64")
        assert base64.b64decode(part["base64"]) == data[10_000:280_000]
        await inside.look("rm", "/srv/big")
        assert watching is None or set((await watching).split()) == {"4", str(size)}
        assert await inside.look("sh", "-c", "ls -A /srv; ls -d /tmp/tmp.* 2>/dev/null") == ""


@CONTAINERS
async def test_names_of_every_kind_survive_and_run_nothing(lab: Lab, tmp_path: Path, way: str):
    async with reached(lab, way, tmp_path) as inside:
        await inside.look("mkdir", "/srv/names")
        writes = [
            inside.facts("guest_file_write", path=f"/srv/names/{name}", content=f"{number}\n")
            for number, name in enumerate(NAMES)
        ]
        await asyncio.gather(*writes)
        written = (await inside.look("sh", "-c", 'for f in /srv/names/*; do cat "$f"; done')).split()
        assert [NAMES[int(number)].encode() for number in written] == sorted(name.encode() for name in NAMES)
        await inside.look("sh", "-c", "printf x > \"/srv/names/$(printf 'caf\\351')\"")
        rows = await inside.quorate.rows("guest_dir_list", guest=inside.vmid, path="/srv/names")
        listed = [base64.b64decode(row["name_base64"]) if row["name_base64"] else row["name"].encode() for row in rows]
        assert listed == sorted([*(name.encode() for name in NAMES), b"caf\xe9"])
        assert await inside.look("sh", "-c", "ls -d /owned /root/owned /srv/owned /tmp/owned 2>/dev/null") == ""
        await inside.look("rm", "-r", "/srv/names")


@CONTAINERS
async def test_links_pipes_folders_and_what_is_not_there(lab: Lab, tmp_path: Path, way: str):
    async with reached(lab, way, tmp_path) as inside:
        await inside.look(
            "sh", "-c", "mkdir /srv/k; cd /srv/k; echo old > real; ln -s real link; ln -s /gone/x lost; mkfifo pipe"
        )
        done = await inside.facts("guest_file_write", path="/srv/k/link", content="new")
        assert done["behind_link"] == "/srv/k/real"
        assert await inside.look("cat", "/srv/k/real") == "new"
        assert (await inside.facts("guest_path_stat", path="/srv/k/link"))["target"] == "real"
        assert "a dangling link" in await inside.refusal("guest_file_write", path="/srv/k/lost", content="x")
        assert "is a pipe, not a file" in await inside.refusal("guest_file_read", path="/srv/k/pipe")
        assert "is a fifo, not a file" in await inside.refusal("guest_file_write", path="/srv/k/pipe", content="x")
        assert "is a device" in await inside.refusal("guest_file_read", path="/dev/zero")
        assert "it does not exist" in await inside.refusal("guest_dir_list", path="/srv/nope")
        assert "parents=true" in await inside.refusal("guest_file_write", path="/srv/no/where", content="x")
        assert "user" in await inside.refusal("guest_file_write", path="/srv/k/f", content="x", owner="nobody9")
        rows = await inside.quorate.rows("guest_dir_list", guest=inside.vmid, path="/srv/k")
        assert [(row["name"], row["type"]) for row in rows] == [
            ("link", "link"), ("lost", "link"), ("pipe", "fifo"), ("real", "file"),
        ]  # fmt: skip
        assert (await inside.facts("guest_file_read", path="/proc/self/stat"))["content"]
        await inside.look("rm", "-r", "/srv/k")


async def test_paths_that_the_agent_cannot_use_are_refused_with_the_reason(lab: Lab, tmp_path: Path):
    async with reached(lab, "agent", tmp_path) as inside:
        assert "it does not exist" in await inside.refusal("guest_file_read", path="/srv/nope")
        assert "parents=true" in await inside.refusal("guest_file_write", path="/srv/no/where", content="x")
        assert (await inside.facts("guest_file_read", path="/proc/loadavg"))["content"].count(".") == 3
