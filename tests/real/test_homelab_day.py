"""A day with real hosts: Debian with and without systemd, BusyBox, logins with key and password; one dead, one slow,
one with a full disk. Restarts, commands in the background, and the server killed in between."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.real.homelab import LAN, HomelabLab, gone, serving
from tests.real.lab import Lab
from tests.rigs.mcp_session import Rig

pytestmark = pytest.mark.anyio

NAMES = ("nas", "desk", "pi", "web", "bare", "units", "dead")
DEAD = f"{LAN.prefix}.99"
SLOW = "desk"
"""Its every session begins with a nap."""


def rows_of(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    table = answer["hosts"] if isinstance(answer.get("hosts"), dict) else answer
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    return {str(row["host"]).removeprefix("host "): row for row in rows}


@asynccontextmanager
async def day(lab: Lab, homelab: HomelabLab, folder: Path) -> AsyncIterator[Rig]:
    """All of the homelab, a Debian with systemd, and an address where nobody is."""
    plain = [name for name in NAMES if name in homelab.hosts]
    known = "".join(homelab.hosts[name].known_hosts for name in plain) + lab.debian.known_hosts
    nap = homelab.hosts[SLOW].rootfs / "etc/ssh/sshrc"
    filler = homelab.hosts["nas"].rootfs / "srv/filler"
    nap.write_text("sleep 1\n")
    try:
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(b"x" * 65536)
        async with serving(homelab, folder, *plain, known=known) as quorate:
            await quorate.facts(
                "host_register", host="units", address=lab.debian.address, key=str(lab.key), verify=False,
                labels=["systemd"],
            )  # fmt: skip
            await quorate.facts("host_register", host="dead", address=DEAD, verify=False)
            yield quorate
    finally:
        nap.unlink()
        filler.unlink()


async def test_a_host_is_restarted_and_waited_for(lab: Lab, homelab: HomelabLab, tmp_path: Path):
    async with day(lab, homelab, tmp_path) as quorate:
        done = await quorate.facts("host_reboot", host="units", wait=45)
        assert done["back_after"] != "not yet", done
        assert (await quorate.facts("host_exec", host="units", command=["true"]))["exit_code"] == 0


async def test_jobs_on_every_host_survive_the_death_of_their_server(lab: Lab, homelab: HomelabLab, tmp_path: Path):
    """A server that is killed while it waits for a command on all hosts; the next one follows each to its end."""
    command = "echo begun; n=0; while [ ! -e /tmp/go ] && [ $n -lt 600 ]; do sleep 0.1; n=$((n+1)); done; echo survived"
    alive = [name for name in NAMES if name != "dead"]
    async with day(lab, homelab, tmp_path) as quorate:
        await quorate.facts("host_exec", host=alive, command=["rm", "-f", "/tmp/go"])
    environ = {
        **os.environ,
        "QUORATE_STATE": str(tmp_path / "state.sqlite"),
        "QUORATE_AUDIT_FILE": str(tmp_path / "audit.jsonl"),
        "QUORATE_HOMELAB_KNOWN_HOSTS": str(tmp_path / "known_hosts"),
        "QUORATE_HOMELAB_KEY": str(homelab.key),
        "QUORATE_HOMELAB_SECRETS_FOLDER": str(tmp_path / "secrets.d"),
    }
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quorate", "call", "host_exec", "host=all", f"command={command}",
        "--access", "operate", env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(60):
        for name in alive:
            while "survived" not in await asyncio.to_thread(command_lines, lab, homelab, name):
                assert server.returncode is None, (await server.stdout.read()).decode()  # type: ignore[union-attr]
                await asyncio.sleep(0.1)
    server.send_signal(signal.SIGKILL)
    await server.wait()
    async with serving(homelab, tmp_path, "router", known=(tmp_path / "known_hosts").read_text()) as quorate:
        jobs = {str(row["host"]).removeprefix("host "): row["job"] for row in await quorate.rows("host_job")}
        assert set(jobs) == set(alive)
        polled = {name: await quorate.facts("host_job", action="poll", job=job) for name, job in jobs.items()}
        assert {(job["state"], job["stdout"]) for job in polled.values()} == {("running", "begun\n")}
        await quorate.facts("host_exec", host=alive, command=["touch", "/tmp/go"])
        ended = await asyncio.gather(
            *(quorate.facts("host_job", action="poll", job=job, seconds=30) for job in jobs.values())
        )
        told = {(job["state"], job["exit_code"], job["stdout"]) for job in ended}
        assert told == {("ended", 0, "begun\nsurvived\n")}


def command_lines(lab: Lab, homelab: HomelabLab, name: str) -> str:
    run = lab.debian.run if name == "units" else homelab.hosts[name].run
    return run("sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null; true").stdout


async def test_a_job_on_every_kind_of_host_is_stopped_from_another_server(
    lab: Lab, homelab: HomelabLab, tmp_path: Path
):
    async with day(lab, homelab, tmp_path) as quorate:
        hosts = [name for name in NAMES if name not in ("dead", "bare")]
        begun = rows_of(await quorate.facts("host_exec", host=hosts, command="sleep 4711", wait=2))
        jobs = {name: row["job"] for name, row in begun.items()}
        assert all(job.startswith("kept:") for job in jobs.values()), jobs
    async with serving(homelab, tmp_path, "router", known=(tmp_path / "known_hosts").read_text()) as quorate:
        for name, job in jobs.items():
            stopped = await quorate.facts("host_job", action="stop", job=job)
            assert stopped.get("signal") == "TERM", (name, stopped)
        for name in hosts:
            if name in homelab.hosts:
                await gone(homelab.hosts[name], "sleep 4711")
