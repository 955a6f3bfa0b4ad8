"""Restore drills with real disks, machines, agents and screens: a good backup is proved, others are not."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pve_simulator.guests.guest import Guest
from pve_simulator.simulator import SimulatedCluster
from quorate.config import Access
from tests.real.backups import Backups
from tests.real.lab import Lab
from tests.real.transports import serving
from tests.rigs.mcp_session import Rig
from tests.rigs.simulator import pointed_at

pytestmark = pytest.mark.anyio

CHECK = "hostname && test $(cat /sys/class/net/eth0/carrier) = 0"
"""It is the VM that was backed up, and the cable of its network card is not plugged in."""


@asynccontextmanager
async def backed_up(lab: Lab, folder: Path) -> AsyncIterator[tuple[Rig, Backups]]:
    async with serving(lab, folder, vm=True, access=Access.ADMIN) as quorate:
        yield quorate, Backups(quorate.sim, folder / "backups", lab.images)


def garble(file: Path) -> None:
    """As a disk that fails does it: some of what was written is something else now."""
    with file.open("r+b") as content:
        content.seek(file.stat().st_size // 2)
        content.write(bytes(64 * 1024))


def make_empty_disk(path: Path) -> Path:
    """A file system without a system."""
    subprocess.run(["mke2fs", "-q", "-t", "ext4", str(path), "64M"], check=True)
    return path


def nothing_is_left(sim: SimulatedCluster, backups: Backups, before: set[int]) -> bool:
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    disks = [volume.volid for volume in sim.world.storages["local-lvm"].volumes("pve1") if volume.vmid not in before]
    return (set(sim.world.guests), disks, backups.left_over(), str(backups.folder) in processes) == (
        before, [], [], False,
    )  # fmt: skip


async def test_a_corrupt_an_unbootable_and_a_good_backup_are_distinguished(lab: Lab, tmp_path: Path):
    async with backed_up(lab, tmp_path) as (quorate, backups):
        before = set(quorate.sim.world.guests)
        corrupt, good = backups.add(lab.images / "vm.ext4"), backups.add(lab.images / "vm.ext4")
        unbootable = backups.add(make_empty_disk(tmp_path / "empty"))
        assert corrupt.file is not None
        garble(corrupt.file)
        started = await quorate.facts(
            "run_restore_drill",
            backups=[corrupt.volid, unbootable.volid, good.volid],
            check=CHECK,
            boot_seconds=max(30.0, 4 * lab.vm.boot_seconds),
        )
        await quorate.app.runs.work()
        answer = await quorate.call("run_get", run=started["run"], lines=200, inside=True)
        run: dict[str, Any] = answer.structured_content
        rows = run["report"]["backups"]
        assert run["state"] == "failed"
        assert {volid: row["verdict"] for volid, row in rows.items()} == {
            corrupt.volid: "failed",
            unbootable.volid: "failed",
            good.volid: "passed",
        }, run
        assert "Restore" in rows[corrupt.volid]["why"]
        assert "exit code 1" in rows[corrupt.volid]["why"]
        assert "booted" not in rows[corrupt.volid]
        assert "its agent was silent" in rows[unbootable.volid]["why"]
        assert rows[good.volid]["booted"] == "its agent (vm)"
        assert rows[good.volid]["check"] == {"exit_code": 0, "output": "vm\n"}
        (panic, login) = [base64.b64decode(block.data) for block in answer.content if block.type == "image"]
        assert panic != login, "both are what their machines showed"
        assert min(len(panic), len(login)) > 1000, "text, not an empty screen"
        assert nothing_is_left(quorate.sim, backups, before)
        (row,) = [coverage for coverage in await quorate.rows("backup_coverage", all=True) if coverage["vmid"] == 100]
        assert "ago" in row["proved"]


async def test_a_drill_is_finished_and_leaves_nothing_behind_though_its_servers_are_killed(lab: Lab, tmp_path: Path):
    async with backed_up(lab, tmp_path) as (quorate, backups):
        world, before = quorate.sim.world, set(quorate.sim.world.guests)
        good = backups.add(lab.images / "vm.ext4")
        shell = Shell(quorate.sim, tmp_path)
        started = json.loads(
            await shell.run("call", "run_restore_drill", f"backups={good.volid}", f"check={CHECK}", "--json")
        )

        def restored() -> list[Guest]:
            return [guest for vmid, guest in world.guests.items() if vmid not in before]

        await shell.killed_when(lambda: [guest for guest in restored() if guest.lock == "create"], "runs", "work")
        await shell.killed_when(lambda: [guest for guest in restored() if guest.running], "runs", "work")
        assert "1 of 1 backups proved" in await shell.run("runs", "work")
        assert "its agent (vm)" in await shell.run("runs", "show", started["run"])
        assert nothing_is_left(quorate.sim, backups, before)


class Shell:
    """`quorate` in processes of its own, on the laboratory's cluster."""

    def __init__(self, sim: SimulatedCluster, folder: Path) -> None:
        self._environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            **pointed_at(sim),
            "QUORATE_STATE": str(folder / "shell.sqlite"),
            "QUORATE_AUDIT_FILE": str(folder / "shell.jsonl"),
            "QUORATE_ACCESS": "admin",
            "QUORATE_APPROVAL": "none",
            "QUORATE_TOOLSETS": "all",
        }

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        command = [sys.executable, "-m", "quorate", *words]
        return await asyncio.create_subprocess_exec(*command, env=self._environ, stdout=pipe, stderr=pipe)

    async def run(self, *words: str) -> str:
        process = await self.start(*words)
        out, error = await process.communicate()
        assert process.returncode == 0, (out, error)
        return out.decode()

    async def killed_when(self, condition: Callable[[], object], *words: str) -> None:
        process = await self.start(*words)
        async with asyncio.timeout(120):
            while not condition():
                assert process.returncode is None, await process.communicate()
                await asyncio.sleep(0.02)
        process.kill()
        await process.communicate()
