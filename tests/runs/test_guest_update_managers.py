"""Updating guests with each package manager: real shells run the commands, real listeners answer the health checks.

The guest is reached by SSH at a server of this test, whose PATH has nothing but the package manager of the test's own.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pve_simulator.guest_os.execution import Io
from quorate.ssh.settings import Login, SshAccess, SshSettings
from tests.rigs.host_tools import plain_tools
from tests.rigs.mcp_session import Rig, rig
from tests.rigs.simulated_guests import WINDOWS, machine
from tests.rigs.ssh_server import serving

pytestmark = pytest.mark.anyio

GUEST, WINDOWS_GUEST = 104, 103
SCRIPT = """#!/bin/sh
echo "{name} $*" >> {log}
echo "{name} says: $*"
case "$*" in *{failing}*) echo "{output}" >&2; exit {code};; esac
"""


@dataclass
class Updated:
    quorate: Rig
    log: Path
    programs: Path

    def program(self, name: str, *, failing: str = "nothing", code: int = 1, output: str = "") -> None:
        """A program that notes what it was asked, and ends so if one of its words is `failing`."""
        path = self.programs / name
        path.unlink(missing_ok=True)
        path.write_text(SCRIPT.format(name=name, log=self.log, failing=f'"{failing}"', code=code, output=output))
        path.chmod(0o755)

    @property
    def asked(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    @property
    def rollbacks(self) -> int:
        return sum(path.endswith("/rollback") for _, path in self.quorate.sim.requests)

    @property
    def snapshots(self) -> list[str]:
        guest = self.quorate.sim.world.guests[GUEST]
        return [name for name in guest.snapshots if name.startswith("update-")]

    async def update(self, **arguments: Any) -> dict[str, Any]:
        started = await self.quorate.facts("run_guest_update", **{"guest": GUEST, **arguments})
        await self.quorate.app.runs.work()
        return await self.quorate.facts("run_get", run=started["run"], lines=200, inside=True)


@asynccontextmanager
async def updatable(tmp_path: Path, *programs: str) -> AsyncIterator[Updated]:
    folder = tmp_path / "bin"
    path = plain_tools(folder)
    for name in ("bash", "cut", "grep", "nc", "sed", "uname", "xargs", "wget"):
        if place := shutil.which(name):
            (folder / name).symlink_to(place)
    async with (
        serving(tmp_path / "guest", environment={"PATH": path}) as host,
        rig(tmp_path, in_memory=True) as quorate,
    ):
        assert quorate.app.cluster is not None
        login = Login(f"127.0.0.1:{host.port}", user="root", key=host.key_file)
        access = SshSettings(single_guests={GUEST: login}, known_hosts=(host.known_hosts,), pins=host.pins)
        quorate.app.cluster.ssh = SshAccess(access)
        guest = quorate.sim.world.guests[GUEST]
        guest.system = replace(guest.system, agent_installed=False)
        updated = Updated(quorate, tmp_path / "log", folder)
        for name in programs:
            updated.program(name)
        yield updated


@pytest.mark.parametrize(
    ("program", "asked"),
    [
        ("apt-get", ["-o APT::Update::Error-Mode=any update", "dist-upgrade"]),
        ("dnf", ["--setopt=*.skip_if_unavailable=0 makecache --refresh", "--setopt=*.skip_if_unavailable=0 upgrade"]),
        ("pacman", ["pacman -Sy --noconfirm", "pacman -Su --noconfirm"]),
        ("apk", ["apk update", "apk upgrade"]),
        ("zypper", ["zypper -n refresh", "zypper -n update"]),
    ],
)
async def test_each_package_manager_updates_and_a_failing_one_is_rolled_back(
    tmp_path: Path, program: str, asked: list[str]
) -> None:
    async with updatable(tmp_path, program) as guest:
        run = await guest.update(check="true")
        assert run["state"] == "done", run
        assert len(guest.asked) == len(asked)
        assert all(words in line for words, line in zip(asked, guest.asked, strict=True)), guest.asked
        assert f"{program} says" in run["report"]["output"]
        assert (guest.rollbacks, guest.snapshots) == (0, [])
        guest.program(program, failing=asked[-1].partition(" ")[2] or asked[-1], code=7)
        failed = await guest.update(check="true")
        assert failed["state"] == "failed"
        assert "exit code 7" in failed["report"]["why"]
        assert guest.rollbacks == 1
        assert guest.quorate.sim.world.guests[GUEST].running


@pytest.mark.parametrize(
    ("program", "refresh", "output"),
    [
        (
            "apt-get",
            "update",
            "W: Failed to fetch http://deb.debian.org/dists/trixie/InRelease  Could not resolve host",
        ),
        ("dnf", "makecache", "Error: Failed to download metadata for repo 'baseos'"),
        ("dnf", "makecache", "Ignoring repositories: epel"),
        ("apk", "update", "WARNING: Ignoring https://dl-cdn.alpinelinux.org/alpine/v3.22/main: network error"),
        ("pacman", "-Sy", "error: failed to update extra (download library error)"),
        ("zypper", "refresh", "Some of the repositories have not been refreshed because of an error."),
    ],
)
async def test_lists_that_could_not_be_fetched_are_no_update_even_if_the_manager_ends_with_0(
    tmp_path: Path, program: str, refresh: str, output: str
) -> None:
    async with updatable(tmp_path, program) as guest:
        guest.program(program, failing=refresh, code=0, output=output)
        run = await guest.update(check="true")
        assert run["state"] == "failed"
        assert run["report"]["why"].startswith("nothing was changed: its package lists could not be fetched (")
        assert output in run["report"]["why"] + run["report"]["output"]
        assert len(guest.asked) == 1
        assert (guest.rollbacks, guest.snapshots) == (0, [])


async def test_a_package_that_cannot_be_configured_is_named_with_the_words_of_dpkg(tmp_path: Path) -> None:
    output = "dpkg: error processing package nginx (--configure):\n installed nginx post-installation script subprocess"
    async with updatable(tmp_path, "apt-get") as guest:
        guest.program("apt-get", failing="dist-upgrade", code=100, output=f"{output}\nE: Sub-process /usr/bin/dpkg")
        run = await guest.update(check="true")
        assert "package nginx: installed nginx post-installation script subprocess" in run["report"]["why"]
        assert guest.rollbacks == 1


@pytest.mark.thorough
async def test_zypper_has_succeeded_though_it_asks_for_a_restart(tmp_path: Path) -> None:
    async with updatable(tmp_path) as guest:
        for code in (102, 103):
            guest.program("zypper", failing="update", code=code)
            assert (await guest.update())["state"] == "done", code
        guest.program("zypper", failing="refresh", code=102)
        guest.program("zypper", failing="update", code=104)
        assert "exit code 104" in (await guest.update())["report"]["why"]


async def test_a_guest_without_a_known_package_manager_is_left_as_it_was(tmp_path: Path) -> None:
    async with updatable(tmp_path) as guest:
        run = await guest.update()
        assert run["state"] == "failed"
        assert "nothing was changed: it has no package manager that Quorate knows" in run["report"]["why"]
        assert (guest.rollbacks, guest.snapshots) == (0, [])


async def test_services_are_restarted_on_request_and_one_that_does_not_come_back_rolls_back(tmp_path: Path) -> None:
    async with updatable(tmp_path, "apk", "systemctl") as guest:
        run = await guest.update(services=["nginx", "my app"])
        assert run["state"] == "done", run
        assert guest.asked[-1] == "systemctl restart nginx my app"
        guest.program("systemctl", failing="restart", code=5)
        run = await guest.update(services=["nginx"])
        assert "Restart services" in run["report"]["why"]
        assert guest.rollbacks == 1


async def test_services_of_a_system_with_openrc_are_restarted(tmp_path: Path) -> None:
    async with updatable(tmp_path, "apk", "rc-service") as guest:
        assert (await guest.update(services=["nginx", "my app"]))["state"] == "done"
        assert guest.asked[-2:] == ["rc-service nginx restart", "rc-service my app restart"]


async def test_an_open_port_and_a_good_page_are_healthy_others_are_rolled_back(tmp_path: Path) -> None:
    async with listener(b"") as closed:
        pass
    async with updatable(tmp_path, "apk") as guest, listener(b"200 OK") as good, listener(b"503 Busy") as bad:
        healthy = await guest.update(port=good, url=f"http://127.0.0.1:{good}/health", check="apk info")
        assert healthy["state"] == "done", healthy
        assert "apk info" in guest.asked
        page = await guest.update(url=f"http://127.0.0.1:{bad}/", health_seconds=10)
        assert "not healthy within" in page["report"]["why"]
        assert guest.rollbacks == 1
        port = await guest.update(port=closed, health_seconds=10)
        assert "not healthy within" in port["report"]["why"]
        assert guest.rollbacks == 2


async def test_a_guest_may_take_its_time_to_become_healthy(tmp_path: Path) -> None:
    async with updatable(tmp_path, "apk") as guest:
        check = f"test -e {tmp_path}/up || {{ touch {tmp_path}/up; false; }}"
        (guest.programs / "touch").symlink_to(shutil.which("touch") or "")
        run = await guest.update(check=check, health_seconds=60)
        assert run["state"] == "done", run
        assert any("is not healthy yet" in line for line in run["log"])


@pytest.mark.thorough
@pytest.mark.parametrize(("keep", "after_success", "after_failure"), [
    ("failure", 0, 1), ("always", 1, 1), ("never", 0, 0),
])  # fmt: skip
async def test_the_snapshot_is_kept_or_removed_by_rule(
    tmp_path: Path, keep: str, after_success: int, after_failure: int
) -> None:
    async with updatable(tmp_path, "apk") as guest:
        assert (await guest.update(keep=keep))["state"] == "done"
        assert len(guest.snapshots) == after_success
        assert (await guest.update(keep=keep, check="false", health_seconds=0))["state"] == "failed"
        assert len(guest.snapshots) - after_success == after_failure


@pytest.mark.thorough
async def test_without_snapshots_a_backup_is_the_way_back_and_goes_by_the_same_rule(tmp_path: Path) -> None:
    async with updatable(tmp_path, "apk") as guest:
        quorate = guest.quorate
        quorate.sim.world.storages["local-lvm"].type = "lvm"
        before = len(await quorate.rows("backup_list", guest=GUEST))
        assert (await guest.update(backup_storage="nas"))["state"] == "done"
        assert len(await quorate.rows("backup_list", guest=GUEST)) == before
        run = await guest.update(backup_storage="nas", check="false", health_seconds=0)
        assert run["report"]["rolled_back"] is True
        assert len(await quorate.rows("backup_list", guest=GUEST)) == before + 1
        assert guest.rollbacks == 0
        assert quorate.sim.world.guests[GUEST].running


class PowerShell:
    """Windows Update and the checks, by what their scripts ask for."""

    def __init__(self) -> None:
        self.scripts: list[str] = []
        self.codes: dict[str, int] = {}

    def __call__(self, io: Io, args: list[str]) -> int:
        script = base64.b64decode(args[args.index("-EncodedCommand") + 1]).decode("utf-16-le")
        if "ConvertFrom-Json" in script:  # the launcher of a command with a time limit
            return self(io, str(json.loads(io.stdin)["arguments"]).split())
        self.scripts.append(script)
        io.say("2026-01 Cumulative Update")
        return next((code for words, code in self.codes.items() if words in script), 0)


async def test_windows_is_updated_by_its_own_update_service_and_rolled_back(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        world = quorate.sim.world
        world.guests[WINDOWS_GUEST].system = WINDOWS
        shell = machine(quorate, WINDOWS_GUEST).own_commands["powershell.exe"] = PowerShell()
        guest = Updated(quorate, tmp_path / "said", tmp_path)
        run = await guest.update(guest=WINDOWS_GUEST, services=["Spooler", "My Service"], port=3389,
                                 url="https://localhost/it's")  # fmt: skip
        assert run["state"] == "done", run
        text = "\n".join(shell.scripts)
        assert "Microsoft.Update.Session" in shell.scripts[0]
        assert "Cumulative Update" in run["report"]["output"]
        assert "Restart-Service -Name 'Spooler','My Service'" in text
        assert "Test-NetConnection -ComputerName localhost -Port 3389" in text
        assert "-Uri 'https://localhost/it''s'" in text
        shell.codes = {"Microsoft.Update.Session": 1}
        failed = await guest.update(guest=WINDOWS_GUEST)
        assert failed["state"] == "failed"
        assert guest.rollbacks == 1
        assert world.guests[WINDOWS_GUEST].running


@asynccontextmanager
async def listener(status: bytes) -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readline():
            writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
