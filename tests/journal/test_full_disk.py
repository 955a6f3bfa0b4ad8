"""A disk that is full before, during and after a change: nothing continues that cannot be recorded."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from quorate.pipeline.caller import Exchange
from quorate.state.trail import AuditUnwritable
from tests.journal.kills import Requests, Scene, run_and_kill, scene
from tests.journal.truth import assert_truthful, resolved_on

pytestmark = pytest.mark.anyio

STOP_AND_DELETE = {"guest": 204, "stop": True, "purge": True}
STOP, DELETE = ("POST", "/nodes/pve3/lxc/204/status/stop"), ("DELETE", "/nodes/pve3/lxc/204")


class Disk:
    """A small file system of its own, which can be filled to the last byte.

    A full file system still takes what fits into the last block of a file; so the trail, too, may grow no further.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trail = folder / "audit.jsonl"
        self.writers = {os.getpid()}
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        handle = os.open(self._ballast, os.O_WRONLY | os.O_CREAT)
        os.lseek(handle, 0, os.SEEK_END)
        for size in (65536, 4096, 512, 1):
            try:
                while os.write(handle, b"x" * size):
                    pass
            except OSError:
                continue
        os.close(handle)
        self._limit(self.trail.stat().st_size)

    def make_room(self) -> None:
        self._ballast.unlink(missing_ok=True)
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, size: int) -> None:
        for writer in self.writers:
            with suppress(ProcessLookupError):
                _, hard = resource.prlimit(writer, resource.RLIMIT_FSIZE)
                resource.prlimit(writer, resource.RLIMIT_FSIZE, (size, hard))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    done = subprocess.run(mounting, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small disk cannot be made here: {done.stderr.strip()}")
    disk = Disk(folder)
    try:
        yield disk
    finally:
        disk.make_room()
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(params=["trail and state", "trail"])
def places(request: pytest.FixtureRequest, disk: Disk, tmp_path: Path) -> dict[str, Any]:
    """Which of both are on the disk that becomes full."""
    state = disk.folder if request.param == "trail and state" else tmp_path
    return {"audit_file": disk.trail, "state": str(state / "state.sqlite")}


def when(stage: Scene, request: tuple[str, str], disk: Disk) -> None:
    """Fill the disk when the cluster gets this request, before it is answered."""

    def heard(method: str, path: str) -> None:
        if (method, path) == request or (request == ("GET", "task") and "/tasks/" in path):
            disk.writers |= {stage.child} - {0}
            disk.fill()

    assert isinstance(stage.sim.requests, Requests)
    stage.sim.requests.heard = heard  # type: ignore[method-assign]


async def test_nothing_is_sent_when_the_disk_is_full_before(tmp_path: Path, disk: Disk, places: dict[str, Any]) -> None:
    async with scene(tmp_path, **places) as stage:
        await stage.prepare((("guest_power", {"guest": 107, "action": "start"}),))
        disk.fill()
        app = stage.server()
        with pytest.raises(AuditUnwritable, match="so nothing is changed"):
            await app.pipeline.run("guest_delete", STOP_AND_DELETE, Exchange())
        assert not stage.writes()
        disk.make_room()
        assert not (await app.pipeline.run("guest_delete", STOP_AND_DELETE, Exchange())).failed
        await app.close()
        assert [entry["outcome"] for entry in await resolved_on(stage)] == ["done", "done"]


async def test_nothing_is_sent_when_the_disk_fills_up_while_the_change_is_planned(
    tmp_path: Path, disk: Disk, places: dict[str, Any]
) -> None:
    async with scene(tmp_path, **places) as stage:
        await stage.prepare((("guest_power", {"guest": 107, "action": "start"}),))
        when(stage, ("GET", "/nodes/pve3/lxc/204/config"), disk)
        app = stage.server()
        with pytest.raises(AuditUnwritable, match="so nothing is changed"):
            await app.pipeline.run("guest_delete", STOP_AND_DELETE, Exchange())
        assert not stage.writes()
        disk.make_room()
        await app.close()
        assert [entry["outcome"] for entry in await resolved_on(stage)] == ["done"]


async def test_a_disk_that_fills_up_during_a_change_stops_it_before_its_next_request(
    tmp_path: Path, disk: Disk, places: dict[str, Any]
) -> None:
    async with scene(tmp_path, **places) as stage:
        await stage.prepare((("guest_power", {"guest": 107, "action": "start"}),))
        when(stage, STOP, disk)
        app = stage.server()
        with pytest.raises(AuditUnwritable, match="partly done, but the outcome cannot be written") as refusal:
            await app.pipeline.run("guest_delete", STOP_AND_DELETE, Exchange())
        assert [step["state"] for step in refusal.value.facts["steps"]] == ["done", "not tried"]
        assert set(stage.writes()) == {STOP}
        disk.make_room()
        await app.close()  # what is owed is written as soon as there is room
        entry = (await resolved_on(stage))[-1]
        assert [step["state"] for step in entry["steps"]] == ["done", "not tried"]
        assert_truthful(entry, stage.writes(), traceable=True)
        assert 204 in stage.sim.world.guests


async def test_a_disk_that_fills_up_at_the_end_leaves_an_entry_that_is_completed_later(
    tmp_path: Path, disk: Disk, places: dict[str, Any]
) -> None:
    async with scene(tmp_path, **places) as stage:
        await stage.prepare((("guest_power", {"guest": 107, "action": "start"}),))
        when(stage, ("GET", "task"), disk)
        app = stage.server()
        with pytest.raises(AuditUnwritable, match="done, but the outcome cannot be written") as refusal:
            await app.pipeline.run("guest_stop", {"guest": 104}, Exchange())
        assert "Do not repeat it" in str(refusal.value)
        disk.make_room()
        await app.close()
        entry = (await resolved_on(stage))[-1]
        assert entry["outcome"] == "done"
        assert entry["tasks"]


async def test_a_server_that_dies_with_a_full_disk_is_resolved_by_the_next_one(
    tmp_path: Path, disk: Disk, places: dict[str, Any]
) -> None:
    async with scene(tmp_path, **places) as stage:
        await stage.prepare((("guest_power", {"guest": 107, "action": "start"}),))
        usual = len((await run_and_kill(stage, "guest_stop", {"guest": 100})).moments)
        when(stage, ("GET", "task"), disk)
        death = await run_and_kill(stage, "guest_stop", {"guest": 104}, usual - 4)
        assert death.killed or "cannot be written" in death.told
        stage.sim.requests.heard = lambda *_: None  # type: ignore[attr-defined]
        disk.make_room()
        entry = (await resolved_on(stage))[-1]
        assert entry["arguments"] == {"guest": 104}
        assert_truthful(entry, stage.writes(), traceable=True)
